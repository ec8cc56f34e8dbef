//! Other registries in the bucket of a place: a tree that one of them has a record of is that registry's to sweep.
//!
//! A copied registry has the records of its original, and not what became of them since. So the registries at the place and
//! above it are asked, except the one that is swept.

use super::location::ArtifactStore;
use super::naming::name_of;
use super::records::name_in_key;
use crate::model::id::RunId;
use crate::store::Error;
use crate::store::object::{BucketAddress, records_below, registries_at, spawn};

/// What other registries have records of.
#[derive(Default)]
pub(super) struct Neighbours {
    /// Trees in full, each with the run that it is of there.
    pub(super) trees: Vec<(String, RunId)>,
    /// What those runs are called whose records cannot be read.
    pub(super) unreadable: Vec<String>,
}

/// The records of other registries at a place in a bucket and above it. `own` is the registry that is swept.
pub(super) async fn neighbours(place: &ArtifactStore, own: Option<&BucketAddress>) -> Result<Neighbours, Error> {
    let mut found = Neighbours::default();
    let Some((bucket, address)) = place.in_bucket() else { return Ok(found) };
    let own = own.filter(|own| own.is_same_bucket(address)).map(|own| (own.prefix.clone(), own.runs.clone()));
    for prefix in at_and_above(&address.prefix) {
        // What these credentials end at is not asked: no one below it could know of what is above.
        let is_above = !place.is_vouched_for(&prefix);
        let (bucket, own) = (bucket.clone(), own.clone());
        let read = spawn(move || async move {
            let mut all = Vec::new();
            for runs in registries_at(&bucket, &prefix).await? {
                if own.as_ref().is_some_and(|own| (&own.0, &own.1) == (&prefix, &runs)) {
                    continue;
                }
                let below = if prefix.is_empty() { runs } else { format!("{prefix}/{runs}") };
                all.extend(records_below(&bucket, &below).await?);
            }
            Ok(all)
        });
        let records = match read.await {
            Err(Error::Denied(_)) if is_above => continue,
            read => read?,
        };
        for record in records {
            let Some(run) = record.run else {
                found.unreadable.extend(name_in_key(&record.key));
                continue;
            };
            let Some(output) = &run.spec.output else { continue };
            let prefix = output.prefix.trim_end_matches('/');
            found.trees.push((format!("{prefix}/{}/run_id={}", output.shard_prefix, name_of(&run)), run.id));
        }
    }
    Ok(found)
}

/// A prefix and every prefix above it, to the whole bucket.
fn at_and_above(prefix: &str) -> Vec<String> {
    let above = prefix.match_indices('/').map(|(slash, _)| prefix[..slash].to_owned());
    let mut all: Vec<String> = [String::new()].into_iter().chain(above).collect();
    if !prefix.is_empty() {
        all.push(prefix.to_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn prefixes_above_lead_to_the_whole_bucket() {
        assert_eq!(super::at_and_above("a/b/c"), ["", "a", "a/b", "a/b/c"]);
        assert_eq!(super::at_and_above(""), [""]);
    }
}
