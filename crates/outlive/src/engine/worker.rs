//! The worker: claims what waits and has handlers do it, as many at a time as it has slots.
//!
//! Async handlers are spawned on the caller's tokio runtime; blocking ones have threads of the worker. One thread claims,
//! by as many as there are free slots; one records ends, all that wait in one write; one looks after what has no other
//! keeper: silent workers, runs that wait for others (ADR 0013).

mod builder;
mod claimer;
mod completer;
mod dispatcher;
mod handlers;
mod job;
mod maintenance;
mod outcome;
#[cfg(any(test, feature = "testing"))]
mod single;
mod task;
mod timing;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::builder::WorkerBuilder;
use self::dispatcher::{Dispatcher, Stage};
pub use self::dispatcher::{Tally, Waker};
pub use self::job::{BlockingJob, Job, JobRun};
pub use self::outcome::{Done, Failed, IntoDone};
pub use self::task::StopReason;
use self::task::TaskOutcome;
pub use self::timing::WorkerTiming;
#[cfg(all(any(test, feature = "testing"), feature = "object"))]
pub(crate) use self::{
    builder::WorkerContext,
    claimer::{BATCH as CLAIM_BATCH, Claimer, NextClaim},
    completer::{BATCH as END_BATCH, Batch},
    maintenance::WorkerMaintenance,
    task::Task,
};
use crate::error::Error;
use crate::model::run::Run;
use crate::ownership::handle::RunHandle;
use crate::registry::Registry;

/// How long futures that were aborted may take to reach their next await before their runs are ended without them.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// A callback for errors that the worker survived.
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;
/// A callback for runs whose handler is about to be called.
type OnStart = Arc<dyn Fn(&RunHandle) + Send + Sync>;
/// A callback for ended attempts.
type OnEnd = Arc<dyn Fn(&Run) + Send + Sync>;

/// A process that executes runs of the kinds that it has handlers for. The front page has a whole service.
///
/// # Examples
///
/// ```
/// use outlive::{Error, Failed, Job, Registry, Worker};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Migrate { tenant: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let registry = Registry::open("memory:").await?;
/// let run = registry.enqueue(registry.spec("migrate").with_input(&Migrate { tenant: "acme".into() })?).await?;
/// let worker = Worker::builder(&registry)
///     .concurrency(100)
///     .handle("migrate", |job: Job<Migrate>| async move {
///         // … move the tenant, ask `job.stop_requested()` now and then …
///         Ok::<_, Failed>(format!("{} has moved", job.input.tenant))
///     });
/// worker.drain().await?; // a service calls `run_until` with its shutdown signal
/// assert_eq!(registry.get(run.id).await?.run.result.as_deref(), Some(&"acme has moved".into()));
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    floor: Arc<Dispatcher>,
    registry: Arc<Registry>,
    listening: Option<Box<dyn Any + Send + Sync>>,
    is_over: bool,
    grace: Duration,
    last_grace: Duration,
    slots: Vec<JoinHandle<()>>,
    claimers: Vec<JoinHandle<()>>,
    maintenance: Option<JoinHandle<()>>,
    finishers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("registry", &self.registry).field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker under construction: handlers and settings. It works for a registry that it is given, or for one that the
    /// caller keeps, as it is or in an [`Arc`]: `Worker::builder(&registry)`.
    pub fn builder(registry: impl Into<Registry>) -> WorkerBuilder {
        WorkerBuilder::new(registry.into())
    }

    /// The registry that it works for.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What it has done so far.
    pub fn tally(&self) -> Tally {
        self.floor.tally()
    }

    /// Waits until what it has done is as asked for.
    pub fn wait_until(&self, so: impl FnMut(&Tally) -> bool) {
        self.floor.wait_until(so);
    }

    /// Waits until it finds nothing more to do. Blocks, as [`Worker::stop`] does: async callers use [`WorkerBuilder::drain`] and
    /// [`WorkerBuilder::run_until`]. A run that is due later, or waits for another that is not done here,
    /// does not count.
    pub fn wait_until_drained(&self) {
        self.floor.wait_until_drained();
    }

    /// Something that has it look for work at once, from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.floor.clone())
    }

    /// Claims nothing more, lets handlers finish, tells those that take longer than its grace to stop, and interrupts
    /// what is left then. A run that its policy has tried again can be claimed by others as soon as that is written.
    /// What a handler answers that goes on after that is refused by its fence.
    pub fn stop(mut self) -> Tally {
        self.end();
        self.floor.tally()
    }

    fn end(&mut self) {
        if !self.registry.is_usable() {
            self.leave_threads_to_the_parent();
            return;
        }
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let floor = self.floor.clone();
        // A claim may be under way: what it brings is released too.
        self.listening = None;
        floor.advance(Stage::Draining);
        self.claimers.drain(..).for_each(|claimer| join(Some(claimer)));
        for task in floor.unbegun() {
            floor.end(task, TaskOutcome::interrupted("its worker ended before it was begun"));
        }
        if !floor.wait_idle(self.grace) {
            floor.advance(Stage::Stopping);
            floor.wait_idle(self.last_grace);
        }
        // A future that is dropped reports its end itself, so that its retry begins after it.
        let aborts = floor.abandoned().iter().filter(|task| task.handle.abort()).count();
        if aborts > 0 {
            floor.wait_idle(ABORT_GRACE);
        }
        for task in floor.abandoned() {
            floor.end(task, TaskOutcome::abandoned());
        }
        floor.advance(Stage::Over);
        join(self.maintenance.take());
        self.finishers.drain(..).for_each(|finisher| join(Some(finisher)));
        // A thread whose handler never returns ends with the process.
        for slot in self.slots.drain(..) {
            if slot.is_finished() || floor.is_idle() {
                join(Some(slot));
            }
        }
        pollster::block_on(self.registry.leave());
    }
}

impl Worker {
    /// In a forked child there is no thread to join, and nothing to end.
    fn leave_threads_to_the_parent(&mut self) {
        std::mem::forget((
            std::mem::take(&mut self.slots),
            std::mem::take(&mut self.claimers),
            self.maintenance.take(),
            std::mem::take(&mut self.finishers),
            self.listening.take(),
            self.registry.clone(),
        ));
    }
}

impl Drop for Worker {
    /// As [`Worker::stop`], without grace.
    fn drop(&mut self) {
        (self.grace, self.last_grace) = (Duration::ZERO, Duration::ZERO);
        self.end();
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // A panic of the thread was its own; no caller is left to report it to.
    drop(thread.map(JoinHandle::join));
}
