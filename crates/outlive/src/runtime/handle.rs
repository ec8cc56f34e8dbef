//! The run handle: what an owner holds while it does the work.
//!
//! It reports, asks whether to stop, and says how the work came out. Dropping it without a verdict, by an early return
//! or a panic, is recorded as a failure: no run stays running because somebody forgot it.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::keeper::{Held, Keeping, Stop, lock};
use crate::error::Error;
use crate::id::{RunId, Stamp};
use crate::run::{Exit, Interruption, Progress, Run};
use crate::spool::OwnEnd;
use crate::store::{Record, Store, Write};
use crate::transition::{Action, Fence, Refusal, Report, Verdict, apply};

/// How often an owner's write is tried when others change the run meanwhile.
const TRIES: usize = 16;

/// Whether a verdict is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is.
    Now,
    /// The store did not take it. It is kept on disk and delivered as soon as the store does.
    Later,
}

/// A run that this process owns.
pub struct RunHandle {
    held: Arc<Held>,
    keeping: Arc<Keeping>,
    store: Arc<dyn Store>,
    open: bool,
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("run", &self.id()).field("epoch", &self.held.epoch).finish_non_exhaustive()
    }
}

impl RunHandle {
    pub(crate) fn new(record: Record, keeping: Arc<Keeping>, store: Arc<dyn Store>) -> Self {
        let held = Arc::new(Held::new(record));
        keeping.hold(&held);
        Self { held, keeping, store, open: true }
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        lock(&self.held.record).run.id
    }

    /// The run as it was last read or written here.
    pub fn run(&self) -> Run {
        self.held.record().run
    }

    /// The claim, for whatever the work writes elsewhere.
    pub fn fence(&self) -> Fence {
        self.keeping.fence(self.held.epoch)
    }

    /// What the last attempt left for this one.
    pub fn checkpoint(&self) -> Option<Value> {
        lock(&self.held.record).run.checkpoint.clone()
    }

    /// Why the work should stop, if it should. Cheap: what the last beat brought.
    pub fn stop_requested(&self) -> Option<Stop> {
        self.held.stop()
    }

    /// Has `watcher` called from the keeper's thread as soon as there is a reason to stop. Whoever watches also ends
    /// runs that are past their timeout; without a watcher the keeper does.
    pub fn on_stop(&self, watcher: impl Fn(&Stop) + Send + 'static) {
        self.held.watch(Box::new(watcher));
    }

    /// Says how far the work is.
    pub async fn progress(&self, progress: Progress) -> Result<(), Error> {
        self.report(Report { progress: Some(progress), ..Report::default() }).await
    }

    /// Keeps what the next attempt is to be handed. Durable when this returns.
    pub async fn set_checkpoint(&self, checkpoint: Value) -> Result<(), Error> {
        self.report(Report { checkpoint: Some(checkpoint), ..Report::default() }).await
    }

    /// Says anything that can be said of a run in flight. Durable when this returns.
    pub async fn report(&self, report: Report) -> Result<(), Error> {
        let action = Action::Report { fence: self.fence(), report };
        self.change(&action, Stamp::draw(&*self.keeping.entropy)).await
    }

    /// Lets go of the run until somebody wakes it.
    pub async fn suspend(mut self, reason: impl Into<String>) -> Result<(), Error> {
        let action = Action::Suspend { fence: self.fence(), reason: reason.into() };
        self.change(&action, Stamp::draw(&*self.keeping.entropy)).await?;
        self.close();
        Ok(())
    }

    /// The work did what it was to do.
    pub async fn succeed(self) -> Result<Recorded, Error> {
        self.end(OwnEnd::Finished(Verdict::Succeeded), None).await
    }

    /// The work failed.
    pub async fn fail(
        self,
        error_type: impl Into<String>,
        error_message: impl Into<String>,
    ) -> Result<Recorded, Error> {
        let verdict = Verdict::Failed { error_type: error_type.into(), error_message: error_message.into() };
        self.end(OwnEnd::Finished(verdict), None).await
    }

    /// The work stopped because [`Stop::Cancelled`] asked for it.
    pub async fn cancelled(self) -> Result<Recorded, Error> {
        self.end(OwnEnd::Finished(Verdict::Cancelled), None).await
    }

    /// The process was asked to stop, by a signal or a graceful shutdown.
    pub async fn interrupt(self, signal: Option<i32>, reason: impl Into<String>) -> Result<Recorded, Error> {
        self.end(OwnEnd::Interrupted(Interruption { signal, reason: reason.into() }), None).await
    }

    /// Ends the run. A store that is away does not lose the result: it is kept on disk and delivered later.
    pub async fn end(mut self, end: OwnEnd, exit: Option<Exit>) -> Result<Recorded, Error> {
        let fence = self.fence();
        let action = match end.clone() {
            OwnEnd::Finished(verdict) => Action::Finish { fence, verdict, exit },
            OwnEnd::Interrupted(interruption) => Action::Interrupt { fence, interruption, exit },
        };
        let stamp = Stamp::draw(&*self.keeping.entropy);
        match self.change(&action, stamp).await {
            Ok(()) => {
                self.close();
                Ok(Recorded::Now)
            }
            Err(Error::Store(error))
                if error.is_passing()
                    || matches!(error, crate::store::Error::Denied(_) | crate::store::Error::Corrupt(_)) =>
            {
                self.open = false;
                match self.keeping.owe(&self.held, end, exit, stamp) {
                    Ok(()) => Ok(Recorded::Later),
                    Err(spool) => Err(Error::Store(crate::store::Error::Unavailable(format!(
                        "{error}; nor can it be spooled: {spool}"
                    )))),
                }
            }
            Err(error @ Error::Refused { refusal: Refusal::NotAsked, .. }) => Err(error),
            Err(error) => {
                self.close();
                Err(error)
            }
        }
    }

    /// Applies an owner's action to what is on record, starting from what is known of it.
    async fn change(&self, action: &Action, stamp: Stamp) -> Result<(), Error> {
        let mut record = self.held.record();
        let id = record.run.id;
        // What is known here lags behind what others wrote, a cancel request for one: it alone refuses nothing.
        let mut current = false;
        for _ in 0..TRIES {
            let transition = match apply(&record.run, action, &self.keeping.me, self.keeping.clock.now()) {
                Ok(transition) => transition,
                Err(refusal) if current => return Err(Error::Refused { run: id, refusal }),
                Err(_) => {
                    let found = self.store.get(&[id]).await?.pop();
                    record = found.ok_or_else(|| Error::NotFound(id.to_string()))?;
                    current = true;
                    continue;
                }
            };
            let write = Write::change(&record, transition, stamp);
            match crate::registry::settle(&*self.store, write).await? {
                Ok(written) => {
                    *lock(&self.held.record) = written;
                    return Ok(());
                }
                Err(Some(found)) => record = found,
                Err(None) => match self.store.get(&[id]).await?.pop() {
                    Some(found) => record = found,
                    None => return Err(Error::NotFound(id.to_string())),
                },
            }
            current = true;
        }
        Err(Error::Contended(id))
    }

    fn close(&mut self) {
        self.open = false;
        self.keeping.release(self.id());
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (error_type, error_message) = if std::thread::panicking() {
            ("panic", "its owner panicked")
        } else {
            ("dropped", "its owner let go of it without a verdict")
        };
        let verdict = Verdict::Failed { error_type: error_type.into(), error_message: error_message.into() };
        let stamp = Stamp::draw(&*self.keeping.entropy);
        // Delivered from memory by the keeper, even where the spool cannot be written.
        let _ = self.keeping.owe(&self.held, OwnEnd::Finished(verdict), None, stamp);
    }
}
