//! The worker: claims what waits and has handlers do it, as many at a time as it has slots.
//!
//! Handlers are plain functions on threads of their own, so that a worker needs no executor and blocking work needs no
//! care. One thread claims, by as many as there are free slots; one records ends, all that wait in one write; one looks
//! after what has no other keeper: silent workers, runs that wait for others (ADR 0013).

mod builder;
mod claimer;
mod completer;
mod dispatcher;
mod job;
mod maintenance;
mod timing;

use std::any::Any;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::builder::Builder;
use self::dispatcher::{Dispatcher, Stage};
pub use self::dispatcher::{Tally, Waker};
pub use self::job::{Done, Failed, Job, StopReason};
pub use self::timing::WorkerTiming;
use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::model::run::{Interruption, Run};
use crate::registry::Registry;

/// A callback for errors that the worker survived.
type OnError = Arc<dyn Fn(&Error) + Send + Sync>;
/// A callback for ended attempts.
type OnEnd = Arc<dyn Fn(&Run) + Send + Sync>;

/// A process that executes runs of some kinds.
///
/// # Examples
///
/// ```
/// use outlive::registry::Registry;
/// use outlive::run::Spec;
/// use outlive::engine::worker::Worker;
///
/// # pollster::block_on(async {
/// let registry = Registry::open("memory:").await?;
/// registry.enqueue(Spec::new("migrate", registry.me().clone())).await?;
/// let worker = Worker::builder(registry)
///     .slots(4)
///     .handle("migrate", |job| {
///         let from = job.checkpoint().and_then(|checkpoint| checkpoint.as_u64()).unwrap_or(0);
///         job.set_checkpoint((from + 1).into())?;
///         Ok(())
///     })
///     .start()?;
/// worker.wait_until(|tally| tally.succeeded == 1);
/// worker.stop();
/// # Ok::<_, outlive::error::Error>(())
/// # }).unwrap();
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
    chores: Option<JoinHandle<()>>,
    finishers: Vec<JoinHandle<()>>,
}

impl Worker {
    /// A worker under construction: handlers and settings.
    pub fn builder(registry: Registry) -> Builder {
        Builder::new(registry)
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
        let interrupted = |reason: &str| OwnerEnd::Interrupted(Interruption { signal: None, reason: reason.into() });
        // A claim may be under way: what it brings is released too.
        self.listening = None;
        floor.advance(Stage::Draining);
        self.claimers.drain(..).for_each(|claimer| join(Some(claimer)));
        for task in floor.unbegun() {
            floor.end(task, job::Answer::End(interrupted("its worker ended before it was begun")));
        }
        if !floor.wait_idle(self.grace) {
            floor.advance(Stage::Stopping);
            floor.wait_idle(self.last_grace);
        }
        for task in floor.abandoned() {
            floor.end(task, job::Answer::End(interrupted("its worker was stopped, and its handler was not done")));
        }
        floor.advance(Stage::Over);
        join(self.chores.take());
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
            self.chores.take(),
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
