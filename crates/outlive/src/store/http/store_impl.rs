//! The calls of the store trait, on a registry that a server lends.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::HttpStore;
use super::server::{BODY_LIMIT, OFFERED};
use super::wire::{
    Changes, Commit, CommittedChange, List, Listed, ObserveRequest, Offer, Select, WireRecord, WriteResult, read,
};
use crate::lifecycle::Start;
use crate::lifecycle::health::{Observation, ProcessObserver};
use crate::model::filter::Filter;
use crate::model::id::{RunId, WorkerId};
use crate::model::owner::Liveness;
use crate::model::run::{Event, Key, Owner, QueueHead, Run};
use crate::store::{
    Beat, BeatReply, Count, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write, WriteOutcome,
};

/// The fewest runs that a rule is offered at a time: others may take what it wants meanwhile.
const FEWEST: usize = 16;

#[async_trait]
impl Store for HttpStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        Ok(read(self.inner.pool.ask::<Vec<WireRecord>>("get", &ids).await?))
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let list = List { filter: filter.clone(), page: page.clone() };
        Ok(self.inner.pool.ask::<Listed>("list", &list).await?.into())
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let mut written = Vec::with_capacity(writes.len());
        for part in parts(writes) {
            match self.inner.pool.change::<Vec<WriteResult>>("commit", &part).await {
                Ok(became) => written.extend(became.into_iter().map(WriteOutcome::from)),
                Err(error) => return Err(unless_some(written.len(), error)),
            }
        }
        Ok(written)
    }

    /// A rule cannot be sent. It is asked here about what the server offers, and a run that has changed since, or whose
    /// owner was heard of, is one that others hold.
    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        let Selection { filter, order, limit, due } = selection.clone();
        let (mut changed, mut after) = (Vec::<Record>::new(), None);
        while changed.len() < limit {
            let wanted = limit - changed.len();
            let select = Select { filter: filter.clone(), order, due, after, limit: wanted.clamp(FEWEST, OFFERED) };
            let offer: Offer =
                self.inner.pool.ask("select", &select).await.map_err(|error| unless_some(changed.len(), error))?;
            let mut changes = Vec::new();
            for offered in offer.runs {
                let (run, now) = (Run::from(offered.run), offered.now);
                if changes.len() < wanted
                    && let Some(change) = rule(&run, now)
                {
                    changes.push(CommittedChange {
                        mark: offered.mark,
                        transition: change.transition,
                        stamp: change.stamp,
                    });
                }
            }
            if !changes.is_empty() {
                let changes = Changes { order, due, changes };
                let made = self.inner.pool.change::<Vec<WireRecord>>("change", &changes).await;
                changed.extend(read(made.map_err(|error| unless_some(changed.len(), error))?));
            }
            after = offer.next;
            if after.is_none() {
                break;
            }
        }
        Ok(changed)
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.inner.pool.repeat("beat", beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.inner.pool.ask("counts", &()).await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.inner.pool.ask("workers", &()).await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let left: Option<u64> = self.inner.pool.ask("next_due", filter).await?;
        Ok(left.map(Duration::from_micros))
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.inner.pool.ask("heads", filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.inner.pool.ask("starts", &rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.inner.pool.ask("events", &id).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        self.inner.hello.sees.then(|| Arc::new(self.clone()) as Arc<dyn ProcessObserver>)
    }
}

/// The server's eyes.
impl ProcessObserver for HttpStore {
    fn look(&self, runs: &[&Run]) -> Vec<Observation> {
        let look = ObserveRequest { runs: runs.iter().map(|run| (run.id, run.epoch)).collect() };
        self.seen("look", &look, runs.len(), |owner| Observation { owner, leftovers: Default::default() })
    }

    fn look_at_owners(&self, owners: &[Owner]) -> Vec<Liveness> {
        let workers: Vec<WorkerId> = owners.iter().map(|owner| owner.worker).collect();
        self.seen("look_at_workers", &workers, owners.len(), |owner| owner)
    }
}

impl HttpStore {
    /// What the server has observed of so many. What it cannot be asked is unknown.
    fn seen<T: DeserializeOwned + Clone>(
        &self,
        call: &'static str,
        of: &impl Serialize,
        count: usize,
        unseen: impl Fn(Liveness) -> T,
    ) -> Vec<T> {
        match pollster::block_on(self.inner.pool.ask::<Vec<T>>(call, of)) {
            Ok(seen) if seen.len() == count => seen,
            Ok(_) => vec![unseen(Liveness::Unknown("the server answered for others".into())); count],
            Err(error) => vec![unseen(Liveness::Unknown(error.to_string())); count],
        }
    }
}

/// Writes in as many calls as they need.
fn parts(writes: Vec<Write>) -> Vec<Commit> {
    let (mut parts, mut part, mut length) = (Vec::new(), Commit::default(), 0);
    let is_alone = writes.len() == 1;
    for write in writes {
        let more = if is_alone { 0 } else { serde_json::to_vec(&write).map_or(0, |said| said.len()) };
        if length + more > BODY_LIMIT / 2 && !part.writes.is_empty() {
            parts.push(std::mem::take(&mut part));
            length = 0;
        }
        length += more;
        part.writes.push(write);
    }
    parts.push(part);
    parts
}

/// An error says that nothing was written, unless something was.
fn unless_some(done: usize, error: Error) -> Error {
    if done == 0 { error } else { Error::Unknown(error.to_string()) }
}
