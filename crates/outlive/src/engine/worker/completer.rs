//! Recording ends: all that wait go to the store in one write, each fenced by itself.
//!
//! No slot waits for it. What the store does not take is left to the keeper, which has it on disk and delivers it; what
//! is refused belonged to another owner by then, and is counted.

use std::sync::Arc;
use std::time::Duration;

use super::builder::WorkerContext;
use super::dispatcher::{Ended, Tally};
use super::task::{Answer, Task};
use crate::error::{Code, Error};
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::Verdict;
use crate::model::id::Stamp;
use crate::model::run::{Interruption, Run, State};
use crate::ownership::Stop;
use crate::ownership::handle::Persisted;
use crate::secrets::masking;
use crate::store::{self, Write, WriteOutcome};

/// The most ends of one write.
const BATCH: usize = 500;
/// How often a write is tried before its ends are left to the keeper.
const TRIES: usize = 3;
/// The wait between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Records ends until there will be none.
pub(super) fn record_ends(order: &WorkerContext) {
    while let Some(ends) = order.floor.take_ends(BATCH) {
        let mut batch = Batch { order, tally: Tally::default(), more: false };
        let count = ends.len();
        batch.record(ends);
        let Batch { tally, more, .. } = batch;
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
}

/// An end that can be written as far as is known here.
struct Ready {
    task: Arc<Task>,
    end: OwnerEnd,
    write: Write,
}

struct Batch<'a> {
    order: &'a WorkerContext,
    tally: Tally,
    /// Something can be claimed that could not before.
    more: bool,
}

impl Batch<'_> {
    fn record(&mut self, ends: Vec<Ended>) {
        let mut ready = Vec::new();
        for Ended { task, answer } in ends {
            if task.handle.stop_requested() == Some(Stop::Lost) {
                task.handle.close();
                self.tally.lost += 1;
                continue;
            }
            match answer {
                Answer::Suspend(reason) => self.suspend(&task, reason),
                Answer::End(end) => {
                    let end = masking::end(self.order.registry.redactor(), end);
                    match task.handle.ending(&end, Stamp::draw(self.order.registry.entropy())) {
                        Some(write) => ready.push(Ready { task, end, write }),
                        None => self.alone(&task, end),
                    }
                }
            }
        }
        self.write(ready);
    }

    /// Writes them all at once.
    fn write(&mut self, ready: Vec<Ready>) {
        if ready.is_empty() {
            return;
        }
        let mut doubt = false;
        for _ in 0..TRIES {
            let writes = ready.iter().map(|ready| ready.write.clone()).collect();
            self.tally.commits += 1;
            match pollster::block_on(self.order.registry.store().commit(writes)) {
                Ok(written) => return self.note(ready, written, doubt),
                Err(error) => {
                    doubt |= matches!(error, store::Error::Unknown(_));
                    let passes = error.is_transient();
                    self.order.survived(&Error::Store(error));
                    if !passes {
                        break;
                    }
                    self.order.floor.pause(self.order.spread(PAUSE));
                }
            }
        }
        for ready in ready {
            self.owe(ready);
        }
    }

    fn note(&mut self, ready: Vec<Ready>, written: Vec<WriteOutcome>, doubt: bool) {
        let mut written = written.into_iter();
        for ready in ready {
            let stamp = ready.write.stamp;
            match written.next() {
                Some(WriteOutcome::Done(_)) => self.done(ready),
                Some(WriteOutcome::Conflict(Some(found))) if found.stamp == stamp => self.done(ready),
                // It may be on record, with others having gone on from there: the keeper finds out.
                _ if doubt => self.owe(ready),
                _ => {
                    let lost = self.tally.lost;
                    self.alone(&ready.task, ready.end);
                    self.tally.refused += self.tally.lost - lost;
                }
            }
        }
    }

    fn done(&mut self, Ready { task, end, write }: Ready) {
        task.handle.close();
        self.count(&end);
        self.notify_end(write.ended.as_deref().unwrap_or(&write.run), &write.run);
    }

    fn notify_end(&mut self, attempt: &Run, run: &Run) {
        let goes_on = matches!(&run.state, State::Pending(pending) if pending.not_before.is_none());
        self.more |= goes_on || !run.spec.keys.is_empty();
        (self.order.on_end)(attempt);
    }

    fn count(&mut self, end: &OwnerEnd) {
        match end {
            OwnerEnd::Finished(Verdict::Succeeded { .. }) => self.tally.succeeded += 1,
            OwnerEnd::Finished(Verdict::Failed { .. }) => self.tally.failed += 1,
            OwnerEnd::Finished(Verdict::Cancelled) | OwnerEnd::Interrupted(_) => self.tally.stopped += 1,
        }
    }

    fn owe(&mut self, Ready { task, end, write }: Ready) {
        self.tally.later += 1;
        // A spool that cannot be written leaves it to be delivered from memory.
        let _ = task.handle.owe(end, None, write.stamp);
    }

    /// Ends one by itself: what is known of it here is outdated, or wrong.
    fn alone(&mut self, task: &Task, end: OwnerEnd) {
        self.tally.commits += 1;
        match pollster::block_on(task.handle.end_shared(None, end.clone(), None)) {
            Ok(Persisted::Committed) => {
                self.count(&end);
                let run = task.handle.run();
                self.notify_end(&run, &run);
            }
            Ok(Persisted::Spooled) => self.tally.later += 1,
            // The store has no cancel request for it.
            Err(_) if end == OwnerEnd::Finished(Verdict::Cancelled) => {
                let interruption = Interruption { signal: None, reason: "it stopped".into() };
                self.alone(task, OwnerEnd::Interrupted(interruption));
            }
            Err(error) => {
                self.tally.lost += u64::from(error.code() == Code::Lost);
                self.order.survived(&error);
            }
        }
    }

    fn suspend(&mut self, task: &Task, reason: String) {
        for _ in 0..TRIES {
            self.tally.commits += 1;
            match pollster::block_on(task.handle.suspend_shared(reason.clone())) {
                Ok(()) => {
                    self.tally.suspended += 1;
                    return;
                }
                Err(error) if error.code() == Code::Lost => {
                    task.handle.close();
                    self.tally.lost += 1;
                    return;
                }
                Err(error) => self.order.survived(&error),
            }
            self.order.floor.pause(self.order.spread(PAUSE));
        }
        // It must not stay claimed without an owner.
        let reason = format!("it could not be suspended: {reason}");
        self.alone(task, OwnerEnd::Interrupted(Interruption { signal: None, reason }));
    }
}
