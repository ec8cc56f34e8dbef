//! The store as one process sees it: every call takes its time, and any may go wrong.
//!
//! What takes effect does so at one moment, between two moments in which others may do anything. The ledger learns of it
//! at that moment. A call goes wrong in the ways that the contract of [`Store`] knows: refused without effect, or not
//! answered, with the effect there already, never, or later.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;

use super::history::{Fact, What};
use super::rules::Wrote;
use super::world::{Late, World, WorldState};
use crate::lifecycle::Start;
use crate::lifecycle::health::ProcessObserver;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, QueueHead, Run};
use crate::model::time::Clock;
use crate::store::{
    Beat, BeatReply, Change, Count, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write,
    WriteOutcome,
};
use crate::util::sync::lock;

/// The store of one process.
pub(super) struct Faulty {
    pub(super) world: Arc<World>,
    pub(super) process: usize,
    /// What the process saw when it last listed runs. Only a planted defect looks at it.
    pub(super) seen: Mutex<BTreeMap<RunId, Run>>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("process", &self.process).finish_non_exhaustive()
    }
}

/// How a call goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    Refused,
    /// It takes effect, and its reply is lost.
    AnswerLost,
    /// It takes no effect, and its reply is lost.
    Swallowed,
    /// It takes effect later, if it still can.
    Late,
}

pub(super) fn unavailable() -> Error {
    Error::Unavailable("the simulated store is away".into())
}

pub(super) fn unknown() -> Error {
    Error::Unknown("the simulated store did not answer".into())
}

/// The result of a future of the memory store, which never waits.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("the memory store waited"),
    }
}

impl Faulty {
    pub(super) fn new(world: Arc<World>, process: usize) -> Self {
        Self { world, process, seen: Mutex::default() }
    }

    /// A call: time passes, `effect` happens or does not, time passes, and there is an answer or none.
    async fn call<T>(
        &self,
        operation: &'static str,
        effect: impl FnOnce(&mut WorldState, Fate) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.world.yield_now().await;
        let answer = {
            let state = &mut *self.world.state();
            assert!(state.processes[self.process].lives, "a dead process calls the store");
            let fate = self.fate(state, operation);
            match fate {
                Fate::Refused => {
                    state.history.counters.saw(Fact::Refusal);
                    Err(unavailable())
                }
                fate => effect(state, fate),
            }
        };
        self.world.yield_now().await;
        if self.world.entropy.one_in(12) {
            // A slow answer: the world has moved on when it arrives.
            let slow = self.world.between(100, 4_000);
            self.world.nap(slow).await;
        }
        answer
    }

    fn fate(&self, state: &mut WorldState, operation: &'static str) -> Fate {
        let entropy = &self.world.entropy;
        let (fate, word) = if state.outage_until.is_some() {
            (Fate::Refused, "refused, the store is away")
        } else if state.calm || !entropy.one_in(7) {
            return Fate::Well;
        } else {
            match (operation, entropy.below(6)) {
                ("get" | "list" | "events" | "starts" | "counts" | "workers", 3..) => return Fate::Well,
                ("get" | "list" | "events" | "starts" | "counts" | "workers", _) | (_, 0) => (Fate::Refused, "refused"),
                (_, 1) => (Fate::Swallowed, "its answer is lost, it has no effect"),
                ("commit", 2..=4) => (Fate::Late, "its answer is lost, it is on its way"),
                _ => (Fate::AnswerLost, "its answer is lost, it takes effect"),
            }
        };
        self.world.tell(state, Some(self.process), What::Fault(operation, word));
        fate
    }

    /// Tries one write, and enters it if it takes effect.
    fn write(&self, state: &mut WorldState, write: Write) -> Result<WriteOutcome, Error> {
        let author = self.world.author(state, self.process);
        if let Some(forgotten) = self.forgotten(&write) {
            return Ok(forgotten);
        }
        let write = self.forget_epoch(write);
        let written = deliver(&self.world, state, &author, write, false)?;
        match &written {
            WriteOutcome::Conflict(_) => state.history.counters.saw(Fact::Conflict),
            WriteOutcome::KeyBusy { .. } => state.history.counters.saw(Fact::KeyBusy),
            WriteOutcome::Done(_) => {}
        }
        Ok(written)
    }
}

/// Hands a write to the store below, and enters it if it takes effect.
pub(super) fn deliver(
    world: &World,
    state: &mut WorldState,
    author: &super::ledger::Author,
    write: Write,
    late: bool,
) -> Result<WriteOutcome, Error> {
    let (run, events, ended, stamp) = (write.run.clone(), write.events.clone(), write.ended.clone(), write.stamp);
    let written = at_once(world.memory.commit(vec![write]))?.pop().expect("one answer for one write");
    if let WriteOutcome::Done(revision) = written {
        let after = Record { run, revision, stamp };
        let wrote = Wrote { worker: author.worker, after: &after, events: &events, ended: ended.as_deref() };
        world.wrote(state, author, &wrote, late);
    }
    Ok(written)
}

#[async_trait]
impl Store for Faulty {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.call("get", |_, _| at_once(self.world.memory.get(ids))).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        self.call("list", |state, _| {
            state.ledger.looked(self.process, self.world.clock.awake());
            let mut listing = at_once(self.world.memory.list(filter, page))?;
            listing.records.retain(|record| !self.hides(state, &record.run));
            *lock(&self.seen) = listing.records.iter().map(|record| (record.run.id, record.run.clone())).collect();
            Ok(listing)
        })
        .await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.call("commit", |state, fate| {
            let counters = &mut state.history.counters;
            match fate {
                Fate::Swallowed => {
                    counters.saw(Fact::UnknownNotLanded);
                    return Err(unknown());
                }
                Fate::Late => {
                    let author = self.world.author(state, self.process);
                    let due = self.world.clock.awake() + self.world.between(0, 8_000);
                    state.late.extend(writes.into_iter().map(|write| Late { due, author, write }));
                    return Err(unknown());
                }
                _ => {}
            }
            let written: Result<Vec<WriteOutcome>, Error> =
                writes.into_iter().map(|write| self.write(state, write)).collect();
            if fate == Fate::AnswerLost {
                let landed = written?.iter().any(|written| matches!(written, WriteOutcome::Done(_)));
                state.history.counters.saw(if landed { Fact::UnknownLanded } else { Fact::UnknownNotLanded });
                return Err(unknown());
            }
            written
        })
        .await
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        let reaps = selection.filter.ids.is_some();
        self.call("update", |state, fate| {
            if fate == Fate::Swallowed || reaps && self.swallows_reap() {
                // The rule is applied where the call was made, and what it makes of the runs does not arrive.
                for record in at_once(self.world.memory.list(&selection.filter, &Page::default()))?.records {
                    let _ = rule(&record.run, self.world.clock.now());
                }
                state.history.counters.saw(Fact::UnknownNotLanded);
                return Err(unknown());
            }
            let changes: Mutex<BTreeMap<RunId, Change>> = Mutex::default();
            let claimed: Mutex<Option<Run>> = Mutex::default();
            let watched = |run: &Run, now| {
                if selection.due && self.is_passed_over(run) {
                    return None;
                }
                let change = rule(self.outdated(run).as_ref().filter(|_| reaps).unwrap_or(run), now)?;
                lock(&changes).insert(run.id, change.clone());
                if selection.due {
                    *lock(&claimed) = Some(run.clone());
                }
                Some(change)
            };
            let mut changed = at_once(self.world.memory.update(selection, &watched))?;
            if selection.due && changed.is_empty() {
                changed.extend(self.give_twice(state, rule)?);
            }
            state.last_claimed =
                claimed.into_inner().unwrap_or_else(PoisonError::into_inner).or(state.last_claimed.take());
            let mut changes = changes.into_inner().unwrap_or_else(PoisonError::into_inner);
            let author = self.world.author(state, self.process);
            for record in &changed {
                let Some(Change { transition, stamp }) = changes.remove(&record.run.id) else { continue };
                let after = Record { run: transition.run, revision: record.revision, stamp };
                let events = [transition.event];
                let ended = transition.ended.as_deref();
                let wrote = Wrote { worker: author.worker, after: &after, events: &events, ended };
                self.world.wrote(state, &author, &wrote, false);
            }
            if reaps && changed.len() < selection.limit {
                state.history.counters.saw(Fact::ReapGivenUp);
            }
            if fate == Fate::AnswerLost {
                let landed = !changed.is_empty();
                state.history.counters.saw(if landed { Fact::UnknownLanded } else { Fact::UnknownNotLanded });
                return Err(unknown());
            }
            Ok(changed)
        })
        .await
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.call("beat", |state, fate| {
            if fate == Fate::Swallowed {
                return Err(unknown());
            }
            let reply = match self.forgets_beat() {
                true => BeatReply::default(),
                false => at_once(self.world.memory.beat(beat))?,
            };
            state.ledger.beat(beat.worker, self.world.clock.awake());
            self.world.tell(state, Some(self.process), What::Beat);
            if fate == Fate::AnswerLost { Err(unknown()) } else { Ok(reply) }
        })
        .await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.call("counts", |_, _| at_once(self.world.memory.counts())).await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.call("workers", |_, _| at_once(self.world.memory.workers())).await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.call("next_due", |_, _| at_once(self.world.memory.next_due(filter))).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.call("heads", |_, _| at_once(self.world.memory.heads(filter))).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.call("starts", |_, _| at_once(self.world.memory.starts(rates))).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.call("events", |_, _| at_once(self.world.memory.events(id))).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        None
    }
}
