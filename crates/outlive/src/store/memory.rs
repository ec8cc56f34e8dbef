//! Runs in memory: the reference for every other store, and the ground of the simulation.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Beat, BeatReply, Count, Cursor, Error, Expect, Listing, Order, OwnershipView, Page, Record, Revision, Rule,
    RunCounts, Selection, Store, WorkerRecord, Write, WriteOutcome, heads_of, next_due_of, silence,
};
use crate::lifecycle::health::ProcessObserver;
use crate::lifecycle::{Start, has_room, starts_at};
use crate::model::filter::Filter;
use crate::model::id::{RunId, WorkerId};
use crate::model::run::{Event, Key, LastHeartbeat, QueueHead, Run};
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::util::sync::lock;

/// A map of runs. Clones share it.
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Mutex<Tables>>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Tables {
    runs: BTreeMap<RunId, (Record, Vec<Event>)>,
    workers: HashMap<WorkerId, WorkerEntry>,
    /// What rates count, by the slot of their key.
    starts: HashMap<String, Vec<Start>>,
    reachable_since: Duration,
}

struct WorkerEntry {
    worker: WorkerRecord,
    heard: Duration,
    attention: u64,
}

impl MemoryStore {
    /// An empty store that lives by `clock`.
    #[doc(hidden)]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { inner: Arc::default(), clock }
    }

    /// Says that no heartbeat could arrive until now, as after an outage.
    pub fn was_deaf(&self) {
        self.lock().reachable_since = self.clock.awake();
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic while the lock was held cannot leave a half-made change: every change is made from finished values.
        lock(&self.inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl Tables {
    fn read(&self, record: &Record, now: Duration) -> Record {
        let mut record = record.clone();
        if let Some(owner) = record.run.owner_mut() {
            owner.heard = match self.workers.get(&owner.worker) {
                Some(known) => known.heard(now, self.reachable_since),
                None => {
                    LastHeartbeat { silent_for: now.saturating_sub(self.reachable_since), ..LastHeartbeat::default() }
                }
            };
        }
        record
    }

    fn sorted(&self, filter: &Filter, order: Order, now: Duration) -> Vec<Record> {
        let mut found: Vec<Record> = self
            .runs
            .values()
            .filter(|(record, _)| filter.matches(&record.run))
            .map(|(record, _)| self.read(record, now))
            .collect();
        found.sort_by_key(|record| Cursor::at(&record.run).sort_key(order));
        found
    }

    fn write(&mut self, write: Write, now: (Timestamp, Duration)) -> WriteOutcome {
        let current = self.runs.get(&write.run.id).map(|(record, _)| record);
        let revision = match (current, write.expect) {
            (None, Expect::Absent) => Revision(1),
            (Some(record), Expect::Revision(expected)) if record.revision == expected => Revision(expected.0 + 1),
            (current, _) => return WriteOutcome::Conflict(current.map(|record| Box::new(self.read(record, now.1)))),
        };
        if let Some(busy) = self.busy_key(current.map(|record| &record.run), &write.run) {
            return busy;
        }
        let used_up = |(key, _): &(&Key, Duration)| {
            starts_at(key, &self.counted(key, now.0), now.0).map(|free_at| WriteOutcome::not_before(key, free_at))
        };
        let counted = write.counted();
        if let Some(busy) = counted.iter().find_map(used_up) {
            return busy;
        }
        let before = current.and_then(|record| record.run.owner()).map(|owner| owner.worker);
        let after = write.run.owner().cloned();
        if let Some(owner) = &after {
            let known = self.workers.entry(owner.worker).or_insert_with(|| WorkerEntry::new(owner.into()));
            if before != Some(owner.worker) {
                known.beat(now);
            }
        }
        for worker in [before, after.map(|owner| owner.worker)].into_iter().flatten() {
            if let Some(known) = self.workers.get_mut(&worker) {
                known.attention += 1;
            }
        }
        for (key, per) in counted {
            let start = Start { at: now.0, until: now.0.after(per) };
            let starts = self.starts.entry(key.slot()).or_default();
            starts.retain(|start| start.counts(now.0));
            starts.push(start);
        }
        let record = Record { run: write.run, revision, stamp: write.stamp };
        let slot = self.runs.entry(record.run.id).or_insert_with(|| (record.clone(), Vec::new()));
        slot.0 = record;
        slot.1.extend(write.events);
        WriteOutcome::Done(revision)
    }

    fn busy_key(&self, before: Option<&Run>, after: &Run) -> Option<WriteOutcome> {
        after.held_keys().filter(|key| !before.is_some_and(|before| before.holds(key))).find_map(|key| {
            let holds = |run: &&Run| run.id != after.id && run.holds(key);
            let holders: Vec<&Run> = self.runs.values().map(|(record, _)| &record.run).filter(holds).collect();
            let busy = || WriteOutcome::held(key, holders.iter().map(|run| run.id).collect());
            (!has_room(key, &holders)).then(busy)
        })
    }

    fn counted(&self, key: &Key, now: Timestamp) -> Vec<Start> {
        let starts = self.starts.get(&key.slot()).into_iter().flatten();
        starts.copied().filter(|start| start.counts(now)).collect()
    }
}

impl WorkerEntry {
    fn new(worker: WorkerRecord) -> Self {
        Self { worker, heard: Duration::ZERO, attention: 0 }
    }

    fn beat(&mut self, (at, now): (Timestamp, Duration)) {
        self.worker.heard.beat += 1;
        self.worker.heard.at = at;
        self.heard = now;
    }

    fn heard(&self, now: Duration, reachable_since: Duration) -> LastHeartbeat {
        LastHeartbeat { silent_for: silence(now, self.heard, reachable_since), ..self.worker.heard }
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        let (inner, now) = (self.lock(), self.clock.awake());
        Ok(ids.iter().filter_map(|id| inner.runs.get(id)).map(|(record, _)| inner.read(record, now)).collect())
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let (inner, now) = (self.lock(), self.clock.awake());
        Ok(Listing::of(inner.sorted(filter, page.order, now), page))
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let (mut inner, now) = (self.lock(), (self.clock.now(), self.clock.awake()));
        Ok(writes.into_iter().map(|write| inner.write(write, now)).collect())
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        let (mut inner, now) = (self.lock(), (self.clock.now(), self.clock.awake()));
        let mut changed = Vec::new();
        for record in inner.sorted(&selection.filter, selection.order, now.1) {
            if changed.len() >= selection.limit {
                break;
            }
            if !selection.takes(&record.run, now.0) {
                continue;
            }
            let Some(change) = rule(&record.run, now.0) else { continue };
            if let WriteOutcome::Done(_) = inner.write(Write::change(&record, change.transition, change.stamp), now) {
                changed.extend(inner.runs.get(&record.run.id).map(|(record, _)| inner.read(record, now.1)));
            }
        }
        Ok(changed)
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        let (mut inner, now) = (self.lock(), (self.clock.now(), self.clock.awake()));
        let owned: HashMap<RunId, OwnershipView> = inner
            .runs
            .iter()
            .filter(|(_, (record, _))| record.run.owner().is_some_and(|owner| owner.worker == beat.worker))
            .map(|(id, (record, _))| (*id, (&record.run).into()))
            .collect();
        if beat.leaving && owned.is_empty() {
            inner.workers.remove(&beat.worker);
            return Ok(BeatReply::default());
        }
        let known = inner.workers.entry(beat.worker).or_insert_with(|| WorkerEntry::new(beat.into()));
        known.worker.offer = beat.offer.clone();
        known.beat(now);
        let attention = known.attention;
        let find = |id| Ok(inner.runs.get(&id).map(|(record, _)| (&record.run).into()));
        BeatReply::compare(beat, attention, owned, find)
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        let (inner, mut tally) = (self.lock(), RunCounts::default());
        let idle = inner.runs.values().map(|(record, _)| &record.run).filter(|run| run.owner().is_none());
        idle.for_each(|run| tally.add(run));
        Ok(tally.counts())
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        let (inner, now) = (self.lock(), self.clock.awake());
        let seen = |known: &WorkerEntry| WorkerRecord {
            heard: known.heard(now, inner.reachable_since),
            ..known.worker.clone()
        };
        let mut workers: Vec<WorkerRecord> = inner.workers.values().map(seen).collect();
        workers.sort_by_key(|worker| worker.id);
        Ok(workers)
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let (inner, now) = (self.lock(), self.clock.now());
        let runs = inner.runs.values().map(|(record, _)| &record.run).filter(|run| filter.matches(run));
        Ok(next_due_of(runs, now))
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        let (inner, now) = (self.lock(), self.clock.now());
        let runs = inner.runs.values().map(|(record, _)| &record.run).filter(|run| filter.matches(run));
        Ok(heads_of(runs, now))
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        let (inner, now) = (self.lock(), self.clock.now());
        Ok(rates.iter().map(|key| inner.counted(key, now)).collect())
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        Ok(self.lock().runs.get(&id).map(|(_, events)| events.clone()).unwrap_or_default())
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        None
    }
}
