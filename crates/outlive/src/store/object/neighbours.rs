//! Other registries of a bucket, as a sweeper asks them: which runs they have records of.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};

use super::bucket::{AT_ONCE, Bucket};
use super::record::Document;
use super::{RECORD, RUNS};
use crate::model::run::Run;
use crate::store::Error;

/// The most registries of one prefix that are looked for, each under a `?runs=` of its own.
const REGISTRIES: usize = 64;

/// A record of another registry: where it is, and its run where it can be read.
pub(crate) struct Neighbour {
    pub(crate) key: String,
    pub(crate) run: Option<Run>,
}

/// What the records of the registries below a prefix are in: `runs`, and what registries of ours there are called.
pub(crate) async fn registries_at(bucket: &Bucket, prefix: &str) -> Result<BTreeSet<String>, Error> {
    let below = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    let own = below(".outlive");
    let mut found = BTreeSet::from([RUNS.to_owned()]);
    let mut after: Option<String> = None;
    for _ in 0..REGISTRIES {
        let page = bucket.list_page(&own, after.as_deref()).await?;
        let Some(first) = page.first() else { break };
        let name = first.key.strip_prefix(&format!("{own}/")).and_then(|rest| rest.split_once('/'));
        let Some((name, _)) = name else { break };
        // The next name behind everything below this one: `0` follows `/`.
        after = Some(format!("{own}/{name}0"));
        found.insert(name.to_owned());
    }
    Ok(found)
}

/// The records below `runs`, of all writers.
pub(crate) async fn records_below(bucket: &Bucket, runs: &str) -> Result<Vec<Neighbour>, Error> {
    let listed = bucket.list_all(runs).await?;
    let is_record = |key: &String| key.rsplit('/').next() == Some(RECORD);
    let keys = listed.into_iter().map(|listed| listed.key).filter(is_record);
    let read = stream::iter(keys).map(async |key| {
        let object = bucket.get(&key).await?;
        let run = object.and_then(|object| Document::read(&key, &object.bytes).ok()).map(|document| document.run);
        Ok(Neighbour { key, run })
    });
    let read: Vec<Result<Neighbour, Error>> = read.buffer_unordered(AT_ONCE).collect().await;
    read.into_iter().collect()
}
