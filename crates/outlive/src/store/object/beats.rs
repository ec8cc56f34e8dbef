//! Beats: the lease is in the record of each run, so a worker renews that of every run it holds, each with one write.
//!
//! Such a write is made from the version that the last one left. If it is refused, another process has written meanwhile, and
//! what they wrote is what the worker must know: that the run is lost, or is to be cancelled. What a worker owns is known
//! from what went through this store: a worker is one process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bucket::AT_ONCE;
use super::cache::CachedRecord;
use super::record::{Beats, Document};
use super::{ObjectStore, yaml};
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::Identity;
use crate::model::policy::Lease;
use crate::model::run::{LastHeartbeat, Run};
use crate::model::time::Timestamp;
use crate::store::{Beat, BeatReply, Error, OwnershipView, WorkerCapacity, WorkerRecord};
use crate::util::sync::lock;

/// How often a renewal is tried that others come before.
const TRIES: usize = 8;
/// After how much silence a worker that owns nothing is forgotten.
const FORGOTTEN: std::time::Duration = std::time::Duration::from_secs(3_600);

/// The last reply to a worker.
#[derive(Default)]
pub(super) struct LastAnswer {
    attention: u64,
    /// The runs it owned, and whether each was to be cancelled.
    owned: BTreeMap<RunId, (Epoch, bool)>,
    /// How often it has beaten while it held nothing.
    idle: u64,
}

/// A worker that owns nothing, as the bucket knows it.
#[derive(Serialize, Deserialize)]
struct Presence {
    format: i64,
    identity: Identity,
    lease: Lease,
    beats: u64,
    at: Timestamp,
    #[serde(default = "WorkerCapacity::unsaid")]
    offer: Arc<WorkerCapacity>,
}

impl ObjectStore {
    pub(super) async fn beat_once(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.resolve_unknown_claims(beat.worker).await?;
        let renewing = stream::iter(beat.held.iter().copied())
            .map(async |(id, epoch)| (id, self.renew(beat.worker, id, epoch).await));
        let renewed: Vec<(RunId, Result<Option<OwnershipView>, Error>)> =
            renewing.buffer_unordered(AT_ONCE).collect().await;
        let mut seen = HashMap::new();
        for (id, standing) in renewed {
            seen.insert(id, standing?);
        }
        let owned = self.owned_by(beat.worker);
        if owned.is_empty() && beat.held.is_empty() {
            self.beat_idly(beat).await?;
            if beat.leaving {
                return Ok(BeatReply::default());
            }
        }
        let attention = {
            let mut answers = lock(&self.inner.answers);
            let answers = answers.entry(beat.worker).or_default();
            let now = owned.iter().map(|(id, run)| (*id, (run.epoch, run.cancel.is_some()))).collect();
            if answers.owned != now {
                answers.attention += 1;
                answers.owned = now;
            }
            answers.attention
        };
        self.note_outage().await?;
        BeatReply::compare(beat, attention, owned, |id| Ok(seen.get(&id).cloned().flatten()))
    }

    fn owned_by(&self, worker: WorkerId) -> HashMap<RunId, OwnershipView> {
        let cache = lock(&self.inner.cache);
        let runs = cache.entries().filter_map(|entry| entry.document.as_ref().ok()).map(|document| &document.run);
        runs.filter(|run| run.owner().is_some_and(|owner| owner.worker == worker))
            .map(|run| (run.id, run.into()))
            .collect()
    }

    /// Renews the lease of one run, if it is still held by that claim. Answers with how it stands; none where its whole
    /// registry is gone, so that its holder registers it again.
    async fn renew(&self, worker: WorkerId, id: RunId, epoch: Epoch) -> Result<Option<OwnershipView>, Error> {
        let key = self.place_of(id);
        let mut found = lock(&self.inner.cache).get(&key);
        if found.is_none() {
            found = self.fetch(&key).await?;
        }
        for _ in 0..TRIES {
            // The holder has seen the record once: in a registry that is still there it was deleted since.
            let deleted = OwnershipView { epoch, owner: None, cancel: None };
            let Some(entry) = found else { return Ok(self.is_still_there().await?.then_some(deleted)) };
            if entry.closed.is_some() {
                return Ok(Some(deleted));
            }
            let document = entry.document.clone()?;
            let is_held = |run: &Run| run.epoch == epoch && run.owner().is_some_and(|owner| owner.worker == worker);
            if !is_held(&document.run) {
                return Ok(Some((&document.run).into()));
            }
            let standing = OwnershipView::from(&document.run);
            match self.put(&key, self.beaten(&document)?, Some(&entry.version)).await? {
                Ok(()) => return Ok(Some(standing)),
                Err(now) => found = now,
            }
        }
        Err(Error::Unavailable(format!("run `{id}` changes faster than its lease can be renewed")))
    }

    fn beaten(&self, document: &Document) -> Result<Document, Error> {
        let beats = Beats { count: document.beats.count + 1, at: self.now()?, fresh: true };
        Ok(Document { beats, ..document.clone() })
    }

    /// A claim counts as a beat of its worker: the other runs it owns are renewed with it, where that is due.
    pub(super) async fn renew_other_leases(&self, claimed: &Run) {
        let Some(owner) = claimed.owner() else { return };
        let Ok(now) = self.now() else { return };
        let due: Vec<(RunId, Epoch)> = {
            let cache = lock(&self.inner.cache);
            let is_due = |entry: &&CachedRecord| {
                let Ok(document) = &entry.document else { return false };
                document.run.id != claimed.id
                    && document.run.owner().is_some_and(|other| {
                        other.worker == owner.worker && now.since(document.beats.at) >= other.lease.beat()
                    })
            };
            let runs = cache.entries().filter(is_due).filter_map(|entry| entry.document.as_ref().ok());
            runs.map(|document| (document.run.id, document.run.epoch)).collect()
        };
        let renewing = stream::iter(due).map(async |(id, epoch)| self.renew(owner.worker, id, epoch).await);
        // What is not renewed now is with the next beat.
        renewing.buffer_unordered(AT_ONCE).for_each(async |_| {}).await;
    }

    /// Keeps in mind that a claim may have been carried out.
    pub(super) fn doubt(&self, run: &Run) {
        if let Some(owner) = run.owner() {
            lock(&self.inner.doubtful).entry(owner.worker).or_default().insert(run.id);
        }
    }

    /// Looks what became of claims whose answer was lost.
    async fn resolve_unknown_claims(&self, worker: WorkerId) -> Result<(), Error> {
        let doubtful = lock(&self.inner.doubtful).remove(&worker).unwrap_or_default();
        for id in &doubtful {
            if let Err(error) = self.fetch(&self.place_of(*id)).await {
                lock(&self.inner.doubtful).entry(worker).or_default().extend(doubtful);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A worker that owns nothing is known by an object of its own, which only it writes.
    async fn beat_idly(&self, beat: &Beat) -> Result<(), Error> {
        let key = self.own(&format!("workers/{}.yaml", beat.worker));
        let beats = {
            let mut answers = lock(&self.inner.answers);
            if beat.leaving {
                answers.remove(&beat.worker);
            }
            let idle = if beat.leaving { 0 } else { answers.entry(beat.worker).or_default().idle + 1 };
            if !beat.leaving {
                answers.entry(beat.worker).or_default().idle = idle;
            }
            idle
        };
        if beat.leaving {
            self.bucket().delete(&[key]).await?;
            return Ok(());
        }
        if beats == 1 {
            self.forget_silent().await?;
        }
        let presence = Presence {
            format: 1,
            identity: beat.identity.clone(),
            lease: beat.lease,
            beats,
            at: self.now()?,
            offer: beat.offer.clone(),
        };
        self.bucket().overwrite(&key, yaml::write(&json!(presence)).into()).await
    }

    /// Clears away workers that have gone without a word.
    async fn forget_silent(&self) -> Result<(), Error> {
        let listed = self.bucket().list_all(&self.own("workers")).await?;
        let now = self.now()?;
        let is_silent = |modified: Timestamp| now.since(self.bucket().time.put_at(modified, modified)) > FORGOTTEN;
        let silent: Vec<String> =
            listed.into_iter().filter(|object| is_silent(object.modified)).map(|object| object.key).collect();
        if !silent.is_empty() {
            // The next one does what fails now.
            let _ = self.bucket().delete(&silent).await;
        }
        Ok(())
    }

    pub(super) async fn all_workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        let all = self.refresh().await?;
        let mut workers: BTreeMap<WorkerId, WorkerRecord> = BTreeMap::new();
        let records = self.tell(&all).await?;
        let owners = records.iter().filter(|record| !record.run.copied).filter_map(|record| record.run.owner());
        for owner in owners {
            // It is heard of by the run that it was last heard of by.
            let known = workers.entry(owner.worker).or_insert_with(|| owner.into());
            if owner.heard.silent_for < known.heard.silent_for {
                known.heard = owner.heard;
            }
        }
        // Before an owner is called silent: could a heartbeat have arrived?
        self.learn_reachable_since().await?;
        let owning: BTreeSet<WorkerId> = workers.keys().copied().collect();
        for object in self.bucket().list_all(&self.own("workers")).await? {
            let name = object.key.rsplit('/').next().and_then(|name| name.strip_suffix(".yaml"));
            let Some(id) = name.and_then(|name| name.parse().ok()) else { continue };
            if owning.contains(&id) {
                continue;
            }
            let Some(found) = self.bucket().get(&object.key).await? else { continue };
            // One that cannot be understood says nothing of its worker.
            let read = yaml::read(&found.bytes).ok().and_then(|value| serde_json::from_value::<Presence>(value).ok());
            let Some(Presence { identity, lease, beats, at, offer, .. }) = read else { continue };
            let (now, at) = (self.now()?, self.bucket().time.put_at(found.modified, at));
            let reachable_since = self.reachable_since();
            let heard = LastHeartbeat { beat: beats, at, silent_for: now.since(at.max(reachable_since)) };
            workers.insert(id, WorkerRecord { id, identity, lease, heard, offer });
        }
        Ok(workers.into_values().collect())
    }
}
