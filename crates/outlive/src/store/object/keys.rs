//! Keys in a bucket, which changes one object at a time.
//!
//! Each key has an object that names its holders and those about to be: a run is named there before its record says that it
//! runs. The record alone says whether a run that is named holds the key, so that whatever ends the run frees it.
//! One that was named and never began is waited for a while, and then kept from beginning late: its record gets another
//! version, or, where it has none yet, a mark that nothing may be put there any more.
//!
//! A rate's object names starts, each with when it counts no more. One whose run did not start after all counts as well.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bucket::{Landed, Object};
use super::cache::CachedRecord;
use super::{ObjectStore, yaml};
use crate::lifecycle::{Start, has_room, starts_at};
use crate::model::id::{Epoch, RunId, Stamp, SystemEntropy};
use crate::model::run::{Key, Run};
use crate::model::time::Timestamp;
use crate::store::{Error, Write, WriteOutcome};

/// How long a run that was named may take to begin.
const BEGINS: Duration = Duration::from_secs(30);
/// How often a key is tried for that others change meanwhile.
const TRIES: usize = 64;

#[derive(Serialize, Deserialize)]
struct KeyDocument {
    format: i64,
    key: String,
    nonce: Stamp,
    runs: Vec<Holder>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Holder {
    run: RunId,
    epoch: Epoch,
    limit: u32,
    since: Timestamp,
    /// Until when a start counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

impl Holder {
    fn start(&self) -> Option<Start> {
        Some(Start { at: self.since, until: self.until? })
    }
}

impl ObjectStore {
    /// Names a run with the keys that it newly holds. Answers with the key that has no holder to spare, if there is one.
    pub(super) async fn take_keys(&self, before: Option<&Run>, write: &Write) -> Result<Option<WriteOutcome>, Error> {
        let after = &write.run;
        for key in after.held_keys().filter(|key| !before.is_some_and(|before| before.holds(key))) {
            if let Some(holders) = self.take_key(key, after).await? {
                self.free_keys(before, write).await;
                return Ok(Some(WriteOutcome::held(key, holders)));
            }
        }
        for (key, per) in write.counted() {
            if let Some(free_at) = self.count_start(key, per, after).await? {
                self.free_keys(before, write).await;
                return Ok(Some(WriteOutcome::not_before(key, free_at)));
            }
        }
        Ok(None)
    }

    /// Names a start with its rate. Answers with when there may be one, where there may be none now.
    async fn count_start(&self, key: &Key, per: Duration, run: &Run) -> Result<Option<Timestamp>, Error> {
        for _ in 0..TRIES {
            let (found, mut named) = self.named(key).await?;
            let now = self.now()?;
            named.retain(|holder| holder.start().is_some_and(|start| start.counts(now)));
            if named.iter().any(|holder| (holder.run, holder.epoch) == (run.id, run.epoch)) {
                return Ok(None);
            }
            let starts: Vec<Start> = named.iter().filter_map(Holder::start).collect();
            if let Some(free_at) = starts_at(key, &starts, now) {
                return Ok(Some(free_at));
            }
            let until = Some(now.after(per));
            named.push(Holder { run: run.id, epoch: run.epoch, limit: key.limit, since: now, until });
            if self.name(key, named, found.as_ref()).await? {
                return Ok(None);
            }
        }
        Err(Error::Unavailable(format!("rate `{}` changes faster than it can be counted", key.name)))
    }

    /// The starts that count for each of these rates.
    pub(super) async fn all_starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        let mut all = Vec::new();
        for key in rates {
            let (_, named) = self.named(key).await?;
            let now = self.now()?;
            all.push(named.iter().filter_map(Holder::start).filter(|start| start.counts(now)).collect());
        }
        Ok(all)
    }

    async fn take_key(&self, key: &Key, run: &Run) -> Result<Option<Vec<RunId>>, Error> {
        for _ in 0..TRIES {
            let (found, named) = self.named(key).await?;
            let mut runs = Vec::new();
            for holder in named {
                if holder.run != run.id && self.holds(key, &holder).await? {
                    runs.push(holder);
                }
            }
            let holders: Vec<Run> = runs.iter().map(|holder| as_run(key, holder, run)).collect();
            if !has_room(key, &holders.iter().collect::<Vec<_>>()) {
                return Ok(Some(runs.into_iter().map(|holder| holder.run).collect()));
            }
            runs.push(Holder { run: run.id, epoch: run.epoch, limit: key.limit, since: self.now()?, until: None });
            if self.name(key, runs, found.as_ref()).await? {
                return Ok(None);
            }
        }
        Err(Error::Unavailable(format!("key `{}` changes faster than it can be taken", key.name)))
    }

    /// Takes a run off the keys that it was named with and did not come to hold.
    pub(super) async fn free_keys(&self, before: Option<&Run>, write: &Write) {
        let (run, counted) = (&write.run, write.counted());
        let newly = run.held_keys().filter(|key| !before.is_some_and(|before| before.holds(key)));
        for key in newly.chain(counted.into_iter().map(|(key, _)| key)) {
            // What stays is found not to hold it by the next claim.
            let Ok((Some(found), mut runs)) = self.named(key).await else { continue };
            let count = runs.len();
            runs.retain(|holder| (holder.run, holder.epoch) != (run.id, run.epoch));
            if runs.len() < count {
                let _ = self.name(key, runs, Some(&found)).await;
            }
        }
    }

    fn place_of_key(&self, key: &Key) -> String {
        self.own(&format!("keys/{}.yaml", Stamp::of(key.slot().as_bytes())))
    }

    async fn named(&self, key: &Key) -> Result<(Option<Object>, Vec<Holder>), Error> {
        let place = self.place_of_key(key);
        let Some(object) = self.bucket().get(&place).await? else { return Ok((None, Vec::new())) };
        let corrupt = |why: String| Error::Corrupt(format!("`{place}` cannot be read: {why}"));
        let value = yaml::read(&object.bytes).map_err(|error| corrupt(error.to_string()))?;
        let named: KeyDocument = serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
        Ok((Some(object), named.runs))
    }

    /// Whether no other run was named meanwhile.
    async fn name(&self, key: &Key, runs: Vec<Holder>, instead: Option<&Object>) -> Result<bool, Error> {
        let nonce = Stamp::draw(&SystemEntropy);
        let named = KeyDocument { format: 1, key: key.name.clone(), nonce, runs };
        let bytes = Bytes::from(yaml::write(&json!(named)));
        let instead = instead.map(|object| &object.version);
        let landed = self.bucket().put(&self.place_of_key(key), bytes, &nonce.to_string(), instead).await?;
        Ok(matches!(landed, Landed::Done(_)))
    }

    /// Whether a run that is named holds the key, or may still come to.
    async fn holds(&self, key: &Key, holder: &Holder) -> Result<bool, Error> {
        let place = self.place_of(holder.run);
        let entry = self.fetch(&place).await?;
        let run = match &entry {
            Some(entry) => Some(entry.document.clone()?.run.clone()),
            None => None,
        };
        if let Some(run) = &run
            && run.epoch >= holder.epoch
        {
            // What is held from its making to its end is held by all claims in between.
            return Ok((run.epoch == holder.epoch || key.is_unique()) && run.holds(key));
        }
        if self.now()?.since(holder.since) <= BEGINS {
            return Ok(true);
        }
        Ok(!self.keep_from_beginning(&place, entry).await?)
    }

    /// Sees to it that a write which is still on its way comes too late. Whether it does.
    async fn keep_from_beginning(&self, place: &str, entry: Option<CachedRecord>) -> Result<bool, Error> {
        match entry {
            Some(entry) => {
                let document = entry.document?;
                Ok(self.put(place, (*document).clone(), Some(&entry.version)).await?.is_ok())
            }
            None => {
                let nonce = Stamp::draw(&SystemEntropy);
                let mark = super::record::closed(nonce, self.now()?);
                let landed = self.bucket().put(place, mark.into(), &nonce.to_string(), None).await?;
                Ok(matches!(landed, Landed::Done(_)))
            }
        }
    }
}

/// A holder as the rule sees it: a run with that key.
fn as_run(key: &Key, holder: &Holder, like: &Run) -> Run {
    let mut spec = (*like.spec).clone();
    spec.keys = vec![Key { limit: holder.limit, ..key.clone() }];
    Run { id: holder.run, spec: spec.into(), ..like.clone() }
}
