//! A job: what a handler sees of the run that it does, and what it may answer.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::{Fence, Report, Verdict};
use crate::model::id::RunId;
use crate::model::run::{Interruption, Progress, Run};
use crate::model::time::{Clock, SystemClock};
use crate::ownership::Stop;
use crate::ownership::handle::RunHandle;
use crate::ownership::step::StepError;
use crate::util::sync::lock;

/// How a job came out that has not failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// It did what it was to do.
    Succeeded,
    /// It waits for something, such as a person; the caller that wakes the run continues it.
    Suspended(String),
    /// It stopped because [`Job::stop_requested`] said so, and is recorded as what was asked for.
    Stopped,
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::Succeeded
    }
}

/// How a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// A class that a policy can name.
    pub error_type: String,
    /// For people.
    pub error_message: String,
}

impl Failed {
    /// A failure of this class.
    pub fn new(error_type: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), error_message: error_message.into() }
    }
}

impl<E: std::error::Error> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::new("error", error.to_string())
    }
}

/// Why a handler should stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// Something about its run.
    Run(Stop),
    /// Its worker is to end, and has waited for as long as it may.
    WorkerEnds,
}

/// What is to be recorded of a task.
pub(super) enum Answer {
    End(OwnerEnd),
    Suspend(String),
}

#[derive(Default)]
struct StopSignal {
    state: Mutex<StopState>,
    rung: Condvar,
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

/// A claimed run, from its claim until its end is recorded.
pub(super) struct Task {
    pub(super) handle: RunHandle,
    /// Its end has been reported. A second report is ignored.
    pub(super) ended: AtomicBool,
    bell: Arc<StopSignal>,
    watched: OnceLock<()>,
}

impl Task {
    pub(super) fn new(handle: RunHandle) -> Arc<Self> {
        Arc::new(Self { handle, ended: AtomicBool::new(false), bell: Arc::default(), watched: OnceLock::new() })
    }

    /// Tells the handler that its worker ends.
    pub(super) fn tell_end(&self) {
        lock(&self.bell.state).ends = true;
        self.bell.rung.notify_all();
    }

    fn stop_reason(&self) -> Option<StopReason> {
        let own = || lock(&self.bell.state).reason();
        self.handle.stop_requested().map(StopReason::Run).or_else(own)
    }

    /// What is recorded of a handler that returned so.
    pub(super) fn answer(&self, returned: Result<Done, Failed>) -> Answer {
        let interrupted = |reason: &str| OwnerEnd::Interrupted(Interruption { signal: None, reason: reason.into() });
        let failed = |failed: Failed| {
            let Failed { error_type, error_message } = failed;
            OwnerEnd::Finished(Verdict::Failed { error_type, error_message })
        };
        Answer::End(match returned {
            Ok(Done::Suspended(reason)) => return Answer::Suspend(reason),
            Ok(Done::Succeeded) => OwnerEnd::Finished(Verdict::Succeeded),
            Err(error) => failed(error),
            Ok(Done::Stopped) => match self.stop_reason() {
                Some(StopReason::Run(Stop::Cancelled(_))) => OwnerEnd::Finished(Verdict::Cancelled),
                Some(StopReason::Run(Stop::TimedOut)) => {
                    failed(Failed::new("timeout", "it ran for longer than its timeout"))
                }
                Some(StopReason::Run(Stop::LeaseOver)) => interrupted("its registry could not be reached"),
                Some(StopReason::WorkerEnds) => interrupted("its worker was asked to end"),
                Some(StopReason::Run(Stop::Lost)) | None => interrupted("it stopped"),
            },
        })
    }
}

/// A run in the hands of a handler.
pub struct Job {
    pub(super) task: Arc<Task>,
}

impl Job {
    /// Its id.
    pub fn id(&self) -> RunId {
        self.task.handle.id()
    }

    /// The run as it was last read or written here: its spec, its attempt, and what it said before.
    pub fn run(&self) -> Run {
        self.task.handle.run()
    }

    /// What the last attempt left for this one.
    pub fn checkpoint(&self) -> Option<Value> {
        self.task.handle.checkpoint()
    }

    /// The claim, for whatever the work writes elsewhere.
    pub fn fence(&self) -> Fence {
        self.task.handle.fence()
    }

    /// Why the work should stop, if it should. Cheap: what the last beat brought.
    pub fn stop_requested(&self) -> Option<StopReason> {
        self.task.stop_reason()
    }

    /// Waits for a reason to stop, for at most `patience`.
    ///
    /// A handler that has called it is trusted to stop at its timeout, too. A run whose handler never has is ended when it runs
    /// for longer than its policy allows, and what its handler answers later is refused.
    pub fn wait_for_stop(&self, patience: Duration) -> Option<StopReason> {
        let bell = &self.task.bell;
        self.task.watched.get_or_init(|| {
            let bell = bell.clone();
            self.task.handle.on_stop(move |stop| {
                lock(&bell.state).stop = Some(stop.clone());
                bell.rung.notify_all();
            });
        });
        let deadline = SystemClock.awake() + patience;
        let mut state = lock(&bell.state);
        loop {
            let left = deadline.saturating_sub(SystemClock.awake());
            let reason = state.reason();
            if reason.is_some() || left.is_zero() {
                return reason;
            }
            state = bell.rung.wait_timeout(state, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Says how far the work is.
    pub fn progress(&self, progress: Progress) -> Result<(), Error> {
        pollster::block_on(self.task.handle.progress(progress))
    }

    /// Keeps what the next attempt is to be handed. Durable when this returns.
    pub fn set_checkpoint(&self, checkpoint: Value) -> Result<(), Error> {
        pollster::block_on(self.task.handle.set_checkpoint(checkpoint))
    }

    /// Says anything that can be said of a run in flight. Durable when this returns.
    pub fn report(&self, report: Report) -> Result<(), Error> {
        pollster::block_on(self.task.handle.report(report))
    }

    /// Does a part of the work once, however often the run is tried: see [`RunHandle::step`].
    pub fn step<T, E>(
        &self,
        name: &str,
        inputs: impl AsRef<[u8]>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, StepError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: std::fmt::Display,
    {
        pollster::block_on(self.task.handle.step(name, inputs, work))
    }
}
