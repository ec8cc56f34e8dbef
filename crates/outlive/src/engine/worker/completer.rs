//! Recording ends: all that wait go to the store in one write, each fenced by itself.
//!
//! No slot waits for it. What the store does not take is left to the keeper, which has it on disk and delivers it; what
//! is refused belonged to another owner by then, and is counted.

use std::sync::Arc;
use std::time::Duration;

use super::builder::WorkerContext;
use super::dispatcher::{PendingEnd, Tally};
use super::task::{Task, TaskOutcome};
use crate::error::{Code, Error};
use crate::lifecycle::Outcome;
use crate::lifecycle::OwnerEnd;
use crate::model::id::Stamp;
use crate::model::run::{Interruption, Run, State};
use crate::ownership::Stop;
use crate::ownership::commit::log_retry;
use crate::ownership::handle::Persisted;
use crate::secrets::masking;
use crate::store::{self, Write, WriteOutcome};

/// The most ends of one write.
pub(crate) const BATCH: usize = 500;
/// How often a write is tried before its ends are left to the keeper.
const TRIES: usize = 3;
/// The wait between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Records ends until there will be none.
pub(super) fn record_ends(order: &WorkerContext) {
    while let Some(ends) = order.floor.take_ends(BATCH) {
        let mut batch = Batch::new(order, ends);
        while let Some(pause) = pollster::block_on(batch.step()) {
            order.floor.pause(pause);
        }
        batch.close();
    }
}

/// An end that can be written as far as is known here.
struct Ready {
    task: Arc<Task>,
    end: OwnerEnd,
    write: Write,
}

/// A task that is to be suspended, and how often that was tried.
struct Suspending {
    task: Arc<Task>,
    reason: String,
    tries: usize,
}

/// Ends that were taken at once, until all of them are recorded or left to the keeper. A step never waits but for the store.
pub(crate) struct Batch<'a> {
    order: &'a WorkerContext,
    count: usize,
    ends: std::vec::IntoIter<PendingEnd>,
    suspending: Option<Suspending>,
    ready: Vec<Ready>,
    /// How often their write was tried.
    tries: usize,
    /// The answer of a write was lost.
    doubt: bool,
    tally: Tally,
    /// Something can be claimed that could not before.
    more: bool,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(order: &'a WorkerContext, ends: Vec<PendingEnd>) -> Self {
        Self {
            order,
            count: ends.len(),
            ends: ends.into_iter(),
            suspending: None,
            ready: Vec::new(),
            tries: 0,
            doubt: false,
            tally: Tally::default(),
            more: false,
        }
    }

    /// Records what it can. Answers with how long to wait before the next step; with nothing when there is none.
    pub(crate) async fn step(&mut self) -> Option<Duration> {
        loop {
            if let Some(suspending) = self.suspending.take() {
                self.suspending = self.suspend(suspending).await;
                if self.suspending.is_some() {
                    return Some(self.order.spread(PAUSE));
                }
            }
            match self.ends.next() {
                Some(ended) => self.prepare(ended).await,
                None => return self.write().await,
            }
        }
    }

    /// Counts what became of them.
    pub(crate) fn close(self) {
        let Self { order, count, tally, more, .. } = self;
        if more {
            order.floor.wake();
        }
        order.floor.recorded(count, |all| {
            all.succeeded += tally.succeeded;
            all.failed += tally.failed;
            all.suspended += tally.suspended;
            all.stopped += tally.stopped;
            all.lost += tally.lost;
            all.refused += tally.refused;
            all.later += tally.later;
            all.commits += tally.commits;
            all.errors += tally.errors;
        });
    }

    async fn prepare(&mut self, PendingEnd { task, answer }: PendingEnd) {
        if task.handle.stop_requested() == Some(Stop::Lost) {
            task.handle.close();
            self.tally.lost += 1;
            return;
        }
        match answer {
            TaskOutcome::Suspend(reason) => self.suspending = Some(Suspending { task, reason, tries: 0 }),
            TaskOutcome::End(end) => {
                let end = masking::end(self.order.registry.redactor(), end);
                match task.handle.ending(&end, None, Stamp::draw(self.order.registry.entropy())) {
                    Some(write) => self.ready.push(Ready { task, end, write }),
                    None => self.alone(&task, end).await,
                }
            }
        }
    }

    /// Writes all that are ready at once. Answers with the pause before it is tried again.
    async fn write(&mut self) -> Option<Duration> {
        if self.ready.is_empty() {
            return None;
        }
        if self.tries < TRIES {
            self.tries += 1;
            self.tally.commits += 1;
            let writes = self.ready.iter().map(|ready| ready.write.clone()).collect();
            match self.order.registry.store().commit(writes).await {
                Ok(written) => {
                    self.note(written).await;
                    return None;
                }
                Err(error) => {
                    self.doubt |= matches!(error, store::Error::Unknown(_));
                    let passes = error.is_transient();
                    self.order.survived(&Error::Store(error));
                    if passes {
                        return Some(self.order.spread(PAUSE));
                    }
                }
            }
        }
        for ready in std::mem::take(&mut self.ready) {
            self.owe(ready);
        }
        None
    }

    async fn note(&mut self, written: Vec<WriteOutcome>) {
        let mut written = written.into_iter();
        for ready in std::mem::take(&mut self.ready) {
            let stamp = ready.write.stamp;
            match written.next() {
                Some(WriteOutcome::Done(_)) => self.done(ready),
                Some(WriteOutcome::Conflict(Some(found))) if found.stamp == stamp => self.done(ready),
                // It may be on record, with others having gone on from there: the keeper finds out.
                _ if self.doubt => self.owe(ready),
                _ => {
                    let lost = self.tally.lost;
                    self.alone(&ready.task, ready.end).await;
                    self.tally.refused += self.tally.lost - lost;
                }
            }
        }
    }

    fn done(&mut self, Ready { task, end, write }: Ready) {
        task.handle.close();
        self.count(&end);
        log_retry(&write.run);
        self.notify_end(write.ended.as_deref().unwrap_or(&write.run), &write.run);
    }

    fn notify_end(&mut self, attempt: &Run, run: &Run) {
        let goes_on = matches!(&run.state, State::Pending(pending) if pending.not_before.is_none());
        self.more |= goes_on || !run.spec.keys.is_empty();
        (self.order.on_end)(attempt);
    }

    fn count(&mut self, end: &OwnerEnd) {
        match end {
            OwnerEnd::Finished(Outcome::Succeeded { .. }) => self.tally.succeeded += 1,
            OwnerEnd::Finished(Outcome::Failed { .. }) => self.tally.failed += 1,
            OwnerEnd::Finished(Outcome::Cancelled) | OwnerEnd::Interrupted(_) => self.tally.stopped += 1,
        }
    }

    fn owe(&mut self, Ready { task, end, write }: Ready) {
        self.tally.later += 1;
        // A spool that cannot be written leaves it to be delivered from memory.
        let _ = task.handle.owe(end, None, write.stamp);
    }

    /// Ends one by itself: what is known of it here is outdated, or wrong.
    async fn alone(&mut self, task: &Task, mut end: OwnerEnd) {
        loop {
            self.tally.commits += 1;
            match task.handle.end(None, end.clone(), None).await {
                Ok(Persisted::Committed) => {
                    self.count(&end);
                    let run = task.handle.run();
                    return self.notify_end(&run, &run);
                }
                Ok(Persisted::Spooled) => return self.tally.later += 1,
                // The store has no cancel request for it.
                Err(_) if end == OwnerEnd::Finished(Outcome::Cancelled) => {
                    end = OwnerEnd::Interrupted(Interruption { signal: None, reason: "it stopped".into() });
                }
                Err(error) => {
                    self.tally.lost += u64::from(error.code() == Code::Lost);
                    return self.order.survived(&error);
                }
            }
        }
    }

    /// Tries to suspend a task. Answers with what is to be tried again.
    async fn suspend(&mut self, Suspending { task, reason, tries }: Suspending) -> Option<Suspending> {
        if tries == TRIES {
            // It must not stay claimed without an owner.
            let reason = format!("it could not be suspended: {reason}");
            self.alone(&task, OwnerEnd::Interrupted(Interruption { signal: None, reason })).await;
            return None;
        }
        self.tally.commits += 1;
        match task.handle.suspend(reason.clone()).await {
            Ok(()) => self.tally.suspended += 1,
            Err(error) if error.code() == Code::Lost => {
                task.handle.close();
                self.tally.lost += 1;
            }
            Err(error) => {
                self.order.survived(&error);
                return Some(Suspending { task, reason, tries: tries + 1 });
            }
        }
        None
    }
}
