//! A task: a claimed run on its way through a worker, and the request to stop that reaches its handler.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use super::outcome::{Done, Failed};
use crate::lifecycle::{Outcome, OwnerEnd};
use crate::model::run::Interruption;
use crate::model::time::{Clock, SystemClock};
use crate::ownership::Stop;
use crate::ownership::handle::RunHandle;
use crate::util::sync::lock;

/// Why a handler should stop, from [`Job::stopped`](crate::Job::stopped). It then returns
/// [`Done::Stopped`](crate::Done::Stopped), whatever the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Something about its run.
    Run(Stop),
    /// Its worker is to end, and has waited for as long as it may.
    WorkerEnds,
}

/// What is to be recorded of a task.
pub(crate) enum TaskOutcome {
    End(OwnerEnd),
    Suspend(String),
}

impl TaskOutcome {
    /// The attempt is over without its handler having said how.
    pub(super) fn interrupted(reason: &str) -> Self {
        Self::End(OwnerEnd::Interrupted(Interruption { signal: None, reason: reason.into() }))
    }

    /// Its worker ended before its handler was done.
    pub(super) fn abandoned() -> Self {
        Self::interrupted("its worker was stopped, and its handler was not done")
    }
}

#[derive(Default)]
struct StopSignal {
    state: Mutex<StopState>,
    /// Wakes handlers that wait on a thread.
    rung: Condvar,
    /// Wakes handlers that are futures.
    notified: Notify,
}

#[derive(Default)]
struct StopState {
    stop: Option<Stop>,
    ends: bool,
}

impl StopState {
    fn reason(&self) -> Option<StopReason> {
        self.stop.clone().map(StopReason::Run).or_else(|| self.ends.then_some(StopReason::WorkerEnds))
    }
}

impl StopSignal {
    fn ring(&self, change: impl FnOnce(&mut StopState)) {
        change(&mut lock(&self.state));
        self.rung.notify_all();
        self.notified.notify_waiters();
    }
}

/// A claimed run, from its claim until its end is recorded.
pub(crate) struct Task {
    pub(crate) handle: RunHandle,
    /// Its end has been reported. A second report is ignored.
    pub(super) ended: AtomicBool,
    signal: Arc<StopSignal>,
    watched: OnceLock<()>,
}

impl Task {
    pub(super) fn new(handle: RunHandle) -> Arc<Self> {
        let (ended, signal) = (AtomicBool::new(false), Arc::default());
        Arc::new(Self { handle, ended, signal, watched: OnceLock::new() })
    }

    /// Tells the handler that its worker ends.
    pub(super) fn tell_end(&self) {
        self.signal.ring(|state| state.ends = true);
    }

    /// What is recorded of a handler whose future was dropped before it returned.
    pub(super) fn aborted(&self) -> TaskOutcome {
        match self.stop_reason() {
            Some(StopReason::Run(_)) => self.answer(Ok(Done::Stopped)),
            Some(StopReason::WorkerEnds) | None => TaskOutcome::abandoned(),
        }
    }

    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        let own = || lock(&self.signal.state).reason();
        self.handle.stop_requested().map(StopReason::Run).or_else(own)
    }

    /// From now on the handler hears of a request to stop at once, and is trusted to stop at its timeout, too.
    fn watch(&self) {
        self.watched.get_or_init(|| {
            let signal = self.signal.clone();
            self.handle.on_stop(move |stop| signal.ring(|state| state.stop = Some(stop.clone())));
        });
    }

    /// Blocks until there is a reason to stop, for at most `timeout`.
    pub(super) fn wait_for_stop(&self, timeout: Duration) -> Option<StopReason> {
        self.watch();
        let deadline = SystemClock.awake() + timeout;
        let mut state = lock(&self.signal.state);
        loop {
            let left = deadline.saturating_sub(SystemClock.awake());
            let reason = state.reason();
            if reason.is_some() || left.is_zero() {
                return reason;
            }
            state = self.signal.rung.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there is a reason to stop.
    pub(super) async fn stopped(&self) -> StopReason {
        self.watch();
        loop {
            let notified = self.signal.notified.notified();
            // Made before the state is read: what rings in between is not missed.
            let reason = lock(&self.signal.state).reason();
            match reason {
                Some(reason) => return reason,
                None => notified.await,
            }
        }
    }

    /// What is recorded of a handler that returned so.
    pub(crate) fn answer(&self, returned: Result<Done, Failed>) -> TaskOutcome {
        let failed = |failed: Failed| {
            let Failed { error_type, error_message, permanent } = failed;
            TaskOutcome::End(OwnerEnd::Finished(Outcome::Failed { error_type, error_message, permanent }))
        };
        match returned {
            Ok(Done::Suspended(reason)) => TaskOutcome::Suspend(reason),
            Ok(Done::Succeeded(Value::Null)) => TaskOutcome::End(OwnerEnd::Finished(Outcome::SUCCEEDED)),
            Ok(Done::Succeeded(result)) => {
                TaskOutcome::End(OwnerEnd::Finished(Outcome::Succeeded { result: Some(Arc::new(result)) }))
            }
            Err(error) => failed(error),
            Ok(Done::Stopped) => match self.stop_reason() {
                Some(StopReason::Run(Stop::Cancelled(_))) => TaskOutcome::End(OwnerEnd::Finished(Outcome::Cancelled)),
                Some(StopReason::Run(Stop::TimedOut)) => {
                    failed(Failed::new("timeout", "it ran for longer than its timeout"))
                }
                Some(StopReason::Run(Stop::LeaseOver)) => TaskOutcome::interrupted("its registry could not be reached"),
                Some(StopReason::WorkerEnds) => TaskOutcome::interrupted("its worker was asked to end"),
                Some(StopReason::Run(Stop::Lost)) | None => TaskOutcome::interrupted("it stopped"),
            },
        }
    }
}
