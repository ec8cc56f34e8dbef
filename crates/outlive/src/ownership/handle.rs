//! The run handle: what an owner holds while it does the work.
//!
//! It reports, asks whether to stop, and says how the work came out. Dropping it without an outcome, by an early return
//! or a panic, is recorded as a failure: no run stays running because it was forgotten.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::heartbeat::WorkerState;
use super::held::{Held, Stop};
use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::checks::check_size;
use crate::lifecycle::{Action, Fence, Outcome, Refusal, Report, Transition, apply};
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Event, Exit, Interruption, Progress, Run, Spec, StateName, Usage};
use crate::model::time::show_duration;
use crate::ownership::commit::{UnresolvedWrite, commit_until_known, log_retry};
use crate::redact::Redactor;
use crate::secrets::masking;
#[cfg(feature = "sqlite")]
use crate::store::WriteOutcome;
use crate::store::{Record, Store, Write, fork_guard};
use crate::util::sync::lock;
use crate::util::within::block_on_within;

/// How often an owner's write is tried when others change the run meanwhile.
const TRIES: usize = 16;

/// Where an outcome is after [`RunHandle::succeed`](crate::RunHandle::succeed) and its like: in the store, or spooled
/// on this host. Programs that end at once may want to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persisted {
    /// The store has committed it.
    Committed,
    /// The store could not be written. The outcome is in the spool of the home ([`Registry::open`] says where that is), and is
    /// delivered when the store is reachable: by this process as long as it lives, else by the next worker, supervisor or owner
    /// of runs of this user in the same registry, or by [`Registry::deliver_spooled`].
    ///
    /// [`Registry::open`]: crate::Registry::open
    /// [`Registry::deliver_spooled`]: crate::Registry::deliver_spooled
    Spooled,
}

/// An end that is to be written.
struct PreparedEnd {
    end: OwnerEnd,
    exit: Option<Exit>,
    action: Action,
    /// What is reported with the same write.
    said: Option<Action>,
    stamp: Stamp,
}

/// A run that this process owns, from [`Registry::start`](crate::Registry::start). For work that the program does
/// itself; a [`Worker`](crate::Worker) holds its own.
pub struct RunHandle {
    pub(super) held: Arc<Held>,
    pub(super) keeping: Arc<WorkerState>,
    pub(super) store: Arc<dyn Store>,
    pub(super) redactor: Arc<Redactor>,
    open: AtomicBool,
    /// Keeps the beats going for as long as this run is held, whatever becomes of the registry it was started from.
    pub(super) worker: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle").field("run", &self.id()).field("epoch", &self.held.epoch).finish_non_exhaustive()
    }
}

impl RunHandle {
    pub(crate) fn new(
        record: Record,
        ran_for: Option<Duration>,
        keeping: Arc<WorkerState>,
        store: Arc<dyn Store>,
        worker: Arc<dyn Any + Send + Sync>,
        redactor: Arc<Redactor>,
    ) -> Self {
        let (run, worker_id) = (&record.run, keeping.worker);
        tracing::debug!(run = %run.id, epoch = run.epoch.0, attempt = run.attempt, worker = %worker_id, "run claimed");
        let held = Arc::new(Held::new(record, keeping.clock.since_boot(), ran_for));
        keeping.hold(&held);
        Self { held, keeping, store, redactor, open: AtomicBool::new(true), worker }
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        self.held.id
    }

    /// The run as it was last read or written here.
    pub fn run(&self) -> Run {
        self.held.record().run
    }

    /// What is to be done.
    pub(crate) fn spec(&self) -> Arc<Spec> {
        lock(&self.held.record).run.spec.clone()
    }

    /// Whether the run is still to be ended through this handle.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
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
    /// In a forked child the run is lost: it is the parent's.
    pub fn stop_requested(&self) -> Option<Stop> {
        if !self.keeping.made_by.is_this_process() {
            return Some(Stop::Lost);
        }
        self.held.stop()
    }

    /// Calls `callback` as soon as there is a reason to stop, on a thread of its own: heartbeats continue while it runs.
    /// A run with a callback is also expected to end itself at its timeout; without one, the heartbeat thread ends it.
    pub fn on_stop(&self, callback: impl Fn(&Stop) + Send + 'static) {
        self.held.watch(Box::new(callback));
    }

    /// Waits until there is a reason to stop. For `select!`, beside the work, on any executor.
    ///
    /// A run whose owner waits so is also expected to end itself at its timeout, as with [`RunHandle::on_stop`].
    ///
    /// ```
    /// # fn main() -> Result<(), outlive::Error> {
    /// # pollster::block_on(async {
    /// let registry = outlive::Registry::open("memory:").await?;
    /// let run = registry.start(registry.spec("import")).await?;
    /// registry.cancel(run.id(), Some("no longer needed".into())).await?;
    /// let reason = run.wait_for_stop().await;
    /// assert!(matches!(reason, outlive::Stop::Cancelled(_)));
    /// run.stopped().await?;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn wait_for_stop(&self) -> Stop {
        if !self.keeping.made_by.is_this_process() {
            return Stop::Lost;
        }
        self.held.wait_for_stop().await
    }

    /// Begins the work of a holder that is a future with `spawn`, which answers with what aborts it. Does nothing where the run
    /// has ended before.
    pub(crate) fn spawn(&self, spawn: impl FnOnce() -> AbortHandle) {
        self.held.spawn(spawn);
    }

    /// Aborts the work, where it is a future that has begun. Answers whether it is.
    pub(crate) fn abort(&self) -> bool {
        self.held.abort()
    }

    /// Allows the attempt at most `timeout`, where its policy allows more.
    pub(crate) fn limit(&self, timeout: Duration) {
        self.keeping.limit(&self.held, timeout);
    }

    /// Says how far the work is. At most one report a second is written; a later one waits for the next second, the next
    /// heartbeat or any other write of this run, and replaces the one that waits.
    pub async fn progress(&self, progress: Progress) -> Result<(), Error> {
        fork_guard::check(self.keeping.made_by)?;
        let report = masking::report(&self.redactor, Report { progress: Some(progress), ..Report::default() });
        let Some(progress) = report.progress else { return Ok(()) };
        let (is_due, is_first) = self.held.coalesce(progress, self.keeping.clock.awake());
        if is_due || self.held.stop() == Some(Stop::Lost) {
            return self.report(Report::default()).await;
        }
        if is_first {
            self.keeping.ask_for_progress();
        }
        Ok(())
    }

    /// Says how far the work is and returns at once: the heartbeat thread writes it, at most once a second. An outage is
    /// not reported here; the last progress is written when the store can be reached again.
    pub fn post_progress(&self, progress: Progress) -> Result<(), Error> {
        fork_guard::check(self.keeping.made_by)?;
        let report = masking::report(&self.redactor, Report { progress: Some(progress), ..Report::default() });
        let Some(progress) = report.progress else { return Ok(()) };
        if let (_, true) = self.held.coalesce(progress, self.keeping.clock.awake()) {
            self.keeping.ask_for_progress();
        }
        Ok(())
    }

    /// Writes the progress that waits for its second. Durable when this returns. For a last word before the program waits for
    /// long: the end of the run writes it anyway.
    pub async fn flush(&self) -> Result<(), Error> {
        match self.held.unwritten_progress() {
            Some(_) => self.report(Report::default()).await,
            None => Ok(()),
        }
    }

    /// Says what the attempt has used so far. It is written with the next other write of this run, with a heartbeat if that
    /// takes long, and with the end.
    pub fn note_usage(&self, usage: Usage) {
        self.held.note_usage(usage);
    }

    /// Keeps what the next attempt is to be handed. Durable when this returns.
    pub async fn set_checkpoint(&self, checkpoint: Value) -> Result<(), Error> {
        self.report(Report { checkpoint: Some(checkpoint), ..Report::default() }).await
    }

    /// Says anything that can be said of a run in flight. Durable when this returns.
    pub async fn report(&self, report: Report) -> Result<(), Error> {
        let report = self.with_progress(masking::report(&self.redactor, report));
        let progress = report.progress.clone();
        let action = Action::Report { fence: self.fence(), report };
        self.change(None, &action, Stamp::draw(&*self.keeping.entropy), &mut UnresolvedWrite::default()).await?;
        if let Some(progress) = progress {
            self.held.note_written(&progress, self.keeping.clock.awake());
        }
        Ok(())
    }

    /// A report that also says the progress that waits to be written, unless it says a later one.
    fn with_progress(&self, report: Report) -> Report {
        Report { progress: report.progress.or_else(|| self.held.unwritten_progress()), ..report }
    }

    /// Lets go of the run until it is woken.
    ///
    /// If this fails the run is still held, as if it had not been tried. Of several threads that share the handle none may
    /// end the run meanwhile.
    pub async fn suspend(&self, reason: impl Into<String>) -> Result<(), Error> {
        let reason = self.redactor.text(&reason.into());
        let action = Action::Suspend { fence: self.fence(), reason };
        self.change(None, &action, Stamp::draw(&*self.keeping.entropy), &mut UnresolvedWrite::default()).await?;
        self.close();
        Ok(())
    }

    /// Records that the work succeeded. An end is recorded once: later ends of this handle are refused.
    pub async fn succeed(&self) -> Result<Persisted, Error> {
        self.end(None, OwnerEnd::Finished(Outcome::SUCCEEDED), None).await
    }

    /// Records that the work succeeded, and what it returned: `outlive result RUN` prints it. A result that cannot be
    /// written as JSON, is longer than 1 MiB or nested deeper than 48 levels is refused, and the run is still held.
    ///
    /// ```
    /// # fn main() -> Result<(), outlive::Error> {
    /// # pollster::block_on(async {
    /// let registry = outlive::Registry::open("memory:").await?;
    /// let run = registry.start(registry.spec("import")).await?;
    /// run.succeed_with(&["a.csv", "b.csv"]).await?;
    /// assert_eq!(registry.get(run.id()).await?.run.result.unwrap()[1], "b.csv");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn succeed_with(&self, result: &impl Serialize) -> Result<Persisted, Error> {
        let unwritable = |error| Error::Invalid(format!("a result that cannot be written as JSON: {error}"));
        let result = serde_json::to_value(result).map_err(unwritable)?;
        check_size("result", Some(&result)).map_err(|refusal| Error::Refused { run: self.id(), refusal })?;
        let result = Some(Arc::new(result)).filter(|result| !result.is_null());
        self.end(None, OwnerEnd::Finished(Outcome::Succeeded { result }), None).await
    }

    /// Records that the work failed, with a class that the policy of the run can name and a message for people.
    pub async fn fail(
        &self,
        error_type: impl Into<String>,
        error_message: impl Into<String>,
    ) -> Result<Persisted, Error> {
        let outcome = Outcome::failed(error_type, error_message);
        self.end(None, OwnerEnd::Finished(outcome), None).await
    }

    /// Records that the work stopped because [`Stop::Cancelled`] asked for it.
    pub async fn cancelled(&self) -> Result<Persisted, Error> {
        self.end(None, OwnerEnd::Finished(Outcome::Cancelled), None).await
    }

    /// Records that the work stopped because [`RunHandle::stop_requested`] said so, as what was asked for.
    pub async fn stopped(&self) -> Result<Persisted, Error> {
        match self.stop_requested() {
            Some(Stop::Cancelled(_)) => self.cancelled().await,
            Some(Stop::TimedOut) => self.fail("timeout", "it ran for longer than its timeout").await,
            Some(Stop::LeaseOver) => self.interrupt(None, "its registry could not be reached").await,
            Some(Stop::Lost) | None => self.interrupt(None, "it stopped").await,
        }
    }

    /// Records that the process was asked to stop, by a signal or a graceful shutdown.
    pub async fn interrupt(&self, signal: Option<i32>, reason: impl Into<String>) -> Result<Persisted, Error> {
        self.end(None, OwnerEnd::Interrupted(Interruption { signal, reason: reason.into() }), None).await
    }

    /// Ends the run, and reports with the same write. A store that is away does not lose the result: it is spooled on this
    /// host and delivered later, without the report. Several threads may share the handle; the caller sees to it that the
    /// run is ended once.
    #[doc(hidden)]
    pub async fn end(&self, report: Option<Report>, end: OwnerEnd, exit: Option<Exit>) -> Result<Persisted, Error> {
        let ending = self.prepare_end(report, end, exit)?;
        let written = self.write_end(&ending, UnresolvedWrite::default()).await;
        self.settle_end(ending, written)
    }

    /// Ends the run with `commit`, which may change other runs in the same transaction. Where the end cannot be written so,
    /// it is written alone.
    #[cfg(feature = "sqlite")]
    pub(crate) async fn end_by(
        &self,
        (end, exit): (OwnerEnd, Option<Exit>),
        commit: impl FnOnce(&Write) -> Result<WriteOutcome, crate::store::Error>,
    ) -> Result<Persisted, Error> {
        let ending = self.prepare_end(None, end, exit)?;
        let committed = self.ending(&ending.end, ending.exit, ending.stamp).map(|write| commit(&write));
        let written = match committed {
            Some(Ok(WriteOutcome::Done(_))) => Ok(()),
            Some(Err(error)) => self.write_end(&ending, UnresolvedWrite::after(error)).await,
            _ => self.write_end(&ending, UnresolvedWrite::default()).await,
        };
        self.settle_end(ending, written)
    }

    /// Ends the run as [`RunHandle::end`] does, and blocks until then. An end that the store has not taken within
    /// `limit` is spooled. Its write may still arrive; the delivery recognises it by its stamp.
    #[doc(hidden)]
    pub fn end_within(
        &self,
        limit: Duration,
        report: Option<Report>,
        end: OwnerEnd,
        exit: Option<Exit>,
    ) -> Result<Persisted, Error> {
        let ending = self.prepare_end(report, end, exit)?;
        let written =
            block_on_within(limit, self.write_end(&ending, UnresolvedWrite::default())).unwrap_or_else(|| {
                let why = format!("the store did not answer within {}", show_duration(limit));
                Err(Error::Store(crate::store::Error::Unknown(why)))
            });
        self.settle_end(ending, written)
    }

    fn prepare_end(&self, report: Option<Report>, end: OwnerEnd, exit: Option<Exit>) -> Result<PreparedEnd, Error> {
        fork_guard::check(self.keeping.made_by)?;
        let end = masking::end(&self.redactor, end);
        let action = end.action(self.fence(), exit);
        let said = report.map(|report| masking::report(&self.redactor, report)).unwrap_or_default();
        let said = Some(self.with_progress(said)).filter(|report| *report != Report::default());
        let said = said.map(|report| Action::Report { fence: self.fence(), report });
        Ok(PreparedEnd { end, exit, action, said, stamp: Stamp::draw(&*self.keeping.entropy) })
    }

    async fn write_end(&self, ending: &PreparedEnd, mut doubt: UnresolvedWrite) -> Result<(), Error> {
        let changed = self.change(ending.said.as_ref(), &ending.action, ending.stamp, &mut doubt).await;
        if let (true, Err(Error::Refused { refusal: Refusal::Lost { .. }, .. })) = (doubt.remains(), &changed) {
            // Others may have gone on from the own end before it was read back: then the run was not lost.
            return match self.has_ended_it(&ending.action).await {
                Ok(true) => Ok(()),
                Ok(false) => changed,
                Err(error) => Err(error.into()),
            };
        }
        changed
    }

    /// Lets go of a run whose end is written or void, and spools an end that may still be written.
    fn settle_end(&self, ending: PreparedEnd, written: Result<(), Error>) -> Result<Persisted, Error> {
        match written {
            Ok(()) => {
                log_retry(&self.held.record().run);
                self.close();
                Ok(Persisted::Committed)
            }
            Err(error) if may_pass(&error) => {
                let unspooled = |spool| {
                    Error::Store(crate::store::Error::Unavailable(format!("{error}; nor can it be spooled: {spool}")))
                };
                self.owe(ending.end, ending.exit, ending.stamp).map_err(unspooled)
            }
            Err(error @ Error::Refused { refusal: Refusal::NotAsked, .. }) => Err(error),
            Err(error) => {
                self.close();
                Err(error)
            }
        }
    }

    /// Applies an owner's action to what is on record, starting from what is known of it. What is `said` is reported before
    /// it, in the same write.
    async fn change(
        &self,
        said: Option<&Action>,
        action: &Action,
        stamp: Stamp,
        doubt: &mut UnresolvedWrite,
    ) -> Result<(), Error> {
        fork_guard::check(self.keeping.made_by)?;
        let mut record = self.held.record();
        let mut remembered = true;
        for _ in 0..TRIES {
            let id = record.run.id;
            let now = self.keeping.clock.now();
            let usage = self.held.usage();
            let noted = self.held.noted(&record.run, &self.fence());
            let report = said.map(|said| apply(&noted, said, &self.keeping.me, now)).transpose();
            let after = |report: Option<Transition>| {
                let before = report.as_ref().map_or(&*noted, |report| &report.run);
                let transition = apply(before, action, &self.keeping.me, now)?;
                Ok((report.map(|report| report.event), transition))
            };
            let (reported, transition) = match report.and_then(after) {
                Ok(transitions) => transitions,
                // What is remembered may be outdated: a beat that brings a cancel request does not bring the record.
                Err(_) if std::mem::replace(&mut remembered, false) => {
                    record = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
                    continue;
                }
                // An owner that has lost a run must know, whatever became of its last report.
                Err(refusal @ Refusal::Lost { .. }) => return Err(Error::Refused { run: id, refusal }),
                Err(refusal) => return Err(doubt.or(Error::Refused { run: id, refusal })),
            };
            remembered = false;
            let mut write = Write::change(&record, transition, stamp);
            write.events.splice(0..0, reported);
            match commit_until_known(&*self.store, write, doubt).await? {
                Ok(written) => {
                    *lock(&self.held.record) = written;
                    if let Some(usage) = &usage {
                        self.held.note_usage_written(usage, self.keeping.clock.since_boot());
                    }
                    return Ok(());
                }
                Err(Some(current)) => record = current,
                Err(None) => {
                    // The registry was deleted under the run: what is held here is what is known of it.
                    let again = self.keeping.register_again(&*self.store, &self.held).await;
                    again.map_err(|error| doubt.or(error))?;
                    let found = self.store.get(&[id]).await.map_err(|error| doubt.or(error))?.pop();
                    record = found.ok_or_else(|| doubt.or(Error::NotFound(id.to_string())))?;
                }
            }
        }
        Err(doubt.or(Error::Contended(record.run.id)))
    }

    /// Whether the event log has this end by this claim. The fence allows no other writer to make one.
    async fn has_ended_it(&self, action: &Action) -> Result<bool, crate::store::Error> {
        let ends_so = |to: StateName| match action {
            Action::Finish { outcome: Outcome::Succeeded { .. }, .. } => to == StateName::Succeeded,
            // By its policy it may go on to another attempt at once.
            Action::Finish { outcome: Outcome::Failed { .. }, .. } => {
                matches!(to, StateName::Failed | StateName::Pending)
            }
            Action::Finish { outcome: Outcome::Cancelled, .. } => to == StateName::Cancelled,
            _ => to.is_ended() || to == StateName::Pending,
        };
        let events = self.store.events(self.id()).await?;
        let own = |event: &Event| event.epoch == self.held.epoch && event.action == action.name() && ends_so(event.to);
        Ok(events.iter().any(own))
    }

    /// The write that ends it, as far as what is known of it here allows one. What it says is masked already.
    pub(crate) fn ending(&self, end: &OwnerEnd, exit: Option<Exit>, stamp: Stamp) -> Option<Write> {
        let action = end.action(self.fence(), exit);
        let (me, now) = (&self.keeping.me, self.keeping.clock.now());
        let progress = self.held.unwritten_progress();
        let report = progress.map(|progress| Report { progress: Some(progress), ..Report::default() });
        let report = report.map(|report| Action::Report { fence: self.fence(), report });
        let record = lock(&self.held.record);
        let noted = self.held.noted(&record.run, &self.fence());
        let reported = report.and_then(|report| apply(&noted, &report, me, now).ok());
        let before = reported.as_ref().map_or(&*noted, |reported| &reported.run);
        let ended = apply(before, &action, me, now).ok()?;
        let mut write = Write::change(&record, ended, stamp);
        write.events.splice(0..0, reported.map(|reported| reported.event));
        Some(write)
    }

    /// Leaves an end to the keeper, which delivers it when the store takes it.
    pub(crate) fn owe(&self, end: OwnerEnd, exit: Option<Exit>, stamp: Stamp) -> std::io::Result<Persisted> {
        self.open.store(false, Ordering::SeqCst);
        self.keeping.owe(&self.held, end, exit, stamp).map(|()| Persisted::Spooled)
    }

    /// Lets go of a run that is no longer held.
    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        self.keeping.release(&self.held);
    }
}

/// Whether an end that failed so may still get on record later.
fn may_pass(error: &Error) -> bool {
    use crate::store::Error as Failed;
    match error {
        Error::Contended(_) => true,
        Error::Store(error) => error.is_transient() || error.is_refused() || matches!(error, Failed::Corrupt(_)),
        _ => false,
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if !self.keeping.made_by.is_this_process() {
            // A forked child lets go of nothing: the run, its worker and its connections are the parent's.
            std::mem::forget(self.worker.clone());
            return;
        }
        if !self.open.load(Ordering::SeqCst) {
            return;
        }
        let (error_type, error_message) = if std::thread::panicking() {
            ("panic", "its owner panicked")
        } else {
            ("dropped", "its owner let go of it without an outcome")
        };
        let outcome = Outcome::failed(error_type, error_message);
        let stamp = Stamp::draw(&*self.keeping.entropy);
        // Delivered from memory by the keeper, even where the spool cannot be written.
        let _ = self.keeping.owe(&self.held, OwnerEnd::Finished(outcome), None, stamp);
    }
}
