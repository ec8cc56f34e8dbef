//! A job: what a handler sees of the run that it does.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::outcome::Failed;
use super::task::{StopReason, Task};
use crate::error::Error;
use crate::lifecycle::{Fence, Report};
use crate::model::id::RunId;
use crate::model::run::{Progress, Run, TraceParent};
use crate::ownership::step::StepError;

/// Reads the input of a task, or its absence as JSON's `null`.
fn read_input<I: DeserializeOwned>(task: &Task) -> Result<I, Failed> {
    let spec = task.handle.spec();
    I::deserialize(spec.input.as_ref().unwrap_or(&Value::Null))
        // No other attempt is given another input.
        .map_err(|error| Failed::new("input", format!("its input cannot be read: {error}")).permanent())
}

/// What async and blocking handlers can ask of their run. [`Job`](crate::Job) and [`BlockingJob`](crate::BlockingJob)
/// dereference to it.
pub struct JobRun {
    task: Arc<Task>,
}

impl JobRun {
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

    /// The span of a distributed trace that the run was enqueued in, for the spans of the work.
    pub fn trace_parent(&self) -> Option<TraceParent> {
        self.task.handle.spec().traceparent.clone()
    }

    /// Why the work should stop, if it should. Cheap: what the last heartbeat brought.
    pub fn stop_requested(&self) -> Option<StopReason> {
        self.task.stop_reason()
    }
}

/// The run that an async handler executes, with its input. For
/// [`WorkerBuilder::handle`](crate::WorkerBuilder::handle); `Worker` has an example.
pub struct Job<I = Value> {
    /// What the run was enqueued with.
    pub input: I,
    run: JobRun,
}

impl<I> Deref for Job<I> {
    type Target = JobRun;

    fn deref(&self) -> &JobRun {
        &self.run
    }
}

impl<I: fmt::Debug> fmt::Debug for Job<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("run", &self.id()).finish_non_exhaustive()
    }
}

impl<I: DeserializeOwned> Job<I> {
    pub(super) fn read(task: Arc<Task>) -> Result<Self, Failed> {
        Ok(Self { input: read_input(&task)?, run: JobRun { task } })
    }
}

impl<I> Job<I> {
    /// Waits until the work should stop. For `select!`, beside the work.
    ///
    /// A handler that has called it is trusted to stop at its timeout, too, and when its run is lost or the store is out of
    /// reach for too long. One that has not, though it may have polled [`JobRun::stop_requested`], is aborted then: its future is
    /// dropped at its next await, and the run ends after that. So no lock is freed and no retry begins while a handler
    /// is at work, unless its future blocks its thread for a whole lease after the timeout.
    pub async fn stopped(&self) -> StopReason {
        self.task.stopped().await
    }

    /// Says how far the work is, and returns at once: the last value is written at most once a second.
    pub fn progress(&self, progress: Progress) -> Result<(), Error> {
        self.task.handle.post_progress(progress)
    }

    /// Writes the progress that waits for its second. Durable when this returns. For a last word before the handler waits
    /// for long: the end of the run writes it anyway.
    pub async fn flush(&self) -> Result<(), Error> {
        self.task.handle.flush().await
    }

    /// Keeps what the next attempt is to be handed. Durable when this returns.
    pub async fn set_checkpoint(&self, checkpoint: Value) -> Result<(), Error> {
        self.task.handle.set_checkpoint(checkpoint).await
    }

    /// Says anything that can be said of a run in flight. Durable when this returns.
    pub async fn report(&self, report: Report) -> Result<(), Error> {
        self.task.handle.report(report).await
    }
}

/// The run that a blocking handler executes. For
/// [`WorkerBuilder::handle_blocking`](crate::WorkerBuilder::handle_blocking): work that computes or calls blocking
/// libraries.
pub struct BlockingJob(JobRun);

impl Deref for BlockingJob {
    type Target = JobRun;

    fn deref(&self) -> &JobRun {
        &self.0
    }
}

impl fmt::Debug for BlockingJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingJob").field("run", &self.id()).finish_non_exhaustive()
    }
}

impl BlockingJob {
    pub(super) fn new(task: Arc<Task>) -> Self {
        Self(JobRun { task })
    }

    /// What the run was enqueued with. A run without input reads as JSON's `null`.
    pub fn input<I: DeserializeOwned>(&self) -> Result<I, Failed> {
        read_input(&self.task)
    }

    /// Waits for a reason to stop, for at most `timeout`.
    ///
    /// A handler that has called it is trusted to stop at its timeout, too. No thread can be aborted: a run whose handler never
    /// has called it is ended when it runs for longer than its policy allows. Its locks are free then and its retry may begin while
    /// the handler still computes; what it answers later is refused. So a blocking handler with a timeout calls this between its
    /// parts, or hands its [`JobRun::fence`] to whatever it writes to.
    pub fn wait_for_stop(&self, timeout: Duration) -> Option<StopReason> {
        self.task.wait_for_stop(timeout)
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

    /// Does a part of the work once, however often the run is tried.
    pub fn step<T, E>(
        &self,
        name: &str,
        inputs: impl AsRef<[u8]>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, StepError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        pollster::block_on(self.task.handle.step(name, inputs, work))
    }
}
