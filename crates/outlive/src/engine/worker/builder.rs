//! The builder of a worker: handlers, slots, timing and callbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::runtime;

use super::dispatcher::Dispatcher;
use super::handlers::{Handler, Handlers};
use super::job::{BlockingJob, Job};
use super::outcome::{Failed, IntoDone};
use super::task::Task;
use super::{OnEnd, OnError, OnStart, Tally, Worker, claimer, completer, maintenance};
use crate::engine::worker::WorkerTiming;
use crate::error::Error;
use crate::model::run::{NAME_LIMIT, Run};
use crate::ownership::handle::RunHandle;
use crate::registry::Registry;
use crate::store::{self, WorkerCapacity};

/// The most runs that a worker with a blocking handler does at a time: each has a thread.
pub const SLOTS_LIMIT: usize = 1_024;
/// The most runs that a worker with async handlers alone does at a time.
pub const ASYNC_SLOTS_LIMIT: usize = 65_536;
/// From so many slots on two threads claim and two record ends.
const MANY: usize = 64;
/// How long handlers may take to finish once their worker ends, by default.
const GRACE: Duration = Duration::from_secs(10);
/// How long handlers may take to stop once they are asked to.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// A worker under construction, from [`Worker::builder`](crate::Worker::builder): handlers, concurrency and grace.
/// [`WorkerBuilder::run_until`] is what a service calls last.
#[must_use]
pub struct WorkerBuilder {
    registry: Registry,
    name: Option<String>,
    slots: usize,
    slots_of: BTreeMap<String, usize>,
    timeouts: BTreeMap<String, Duration>,
    prefetch: usize,
    times: WorkerTiming,
    grace: Duration,
    last_grace: Duration,
    kinds: BTreeSet<String>,
    handlers: BTreeMap<String, Handler>,
    runtime: Option<runtime::Handle>,
    on_error: OnError,
    on_start: OnStart,
    on_end: OnEnd,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, name, slots, handlers, .. } = self;
        let mut shown = f.debug_struct("WorkerBuilder");
        shown.field("registry", registry).field("name", name).field("slots", slots);
        shown.field("handlers", &handlers.keys()).finish_non_exhaustive()
    }
}

/// What all threads of a worker know.
pub(crate) struct WorkerContext {
    pub(crate) registry: Arc<Registry>,
    pub(crate) floor: Arc<Dispatcher>,
    pub(super) times: WorkerTiming,
    pub(super) kinds: BTreeSet<String>,
    pub(super) timeouts: BTreeMap<String, Duration>,
    pub(super) on_error: OnError,
    pub(super) on_end: OnEnd,
}

impl WorkerContext {
    /// A claimed run on its way to its handler.
    pub(super) fn task(&self, handle: RunHandle) -> Arc<Task> {
        // Most workers have none, and claims are many.
        if !self.timeouts.is_empty()
            && let Some(timeout) = self.timeouts.get(&handle.spec().kind)
        {
            handle.limit(*timeout);
        }
        Task::new(handle)
    }

    /// What the steps of a worker without threads share: the simulation polls them. It does runs of one kind, and calls
    /// `on_end` as [`WorkerBuilder::on_end`] does.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub(crate) fn stepped(
        registry: Arc<Registry>,
        kind: &str,
        slots: usize,
        times: WorkerTiming,
        on_end: impl Fn(&Run) + Send + Sync + 'static,
    ) -> Self {
        let floor = Dispatcher::new(slots, BTreeMap::new(), 0);
        let (on_error, on_end): (OnError, OnEnd) = (Arc::new(|_| {}), Arc::new(on_end));
        Self { registry, floor, times, kinds: [kind.to_owned()].into(), timeouts: BTreeMap::new(), on_error, on_end }
    }

    /// The callback for errors that the worker survived.
    pub(super) fn survived(&self, error: &Error) {
        self.floor.count(|tally| tally.errors += 1);
        (self.on_error)(error);
    }

    /// A time that is not the same for all workers: three to five quarters of it.
    pub(crate) fn spread(&self, time: Duration) -> Duration {
        time * 3 / 4 + self.part(time / 2)
    }

    /// Any part of a time, nothing and all of it included.
    pub(super) fn part(&self, time: Duration) -> Duration {
        let drawn = (self.registry.entropy().draw() & 0xff) as u32;
        time * drawn / 255
    }
}

impl WorkerBuilder {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            name: None,
            slots: 1,
            slots_of: BTreeMap::new(),
            timeouts: BTreeMap::new(),
            prefetch: 0,
            times: WorkerTiming::default(),
            grace: GRACE,
            last_grace: LAST_GRACE,
            kinds: BTreeSet::new(),
            handlers: BTreeMap::new(),
            runtime: None,
            on_error: Arc::new(|_| {}),
            on_start: Arc::new(|_| {}),
            on_end: Arc::new(|_| {}),
        }
    }

    /// Executes up to so many runs at a time; one by default.
    pub fn concurrency(self, slots: usize) -> Self {
        Self { slots, ..self }
    }

    /// Does up to so many runs of this kind at a time, where that is fewer than of all kinds. It limits this worker; a
    /// [`Key`](crate::model::run::Key) limits all workers together.
    pub fn concurrency_of(mut self, kind: impl Into<String>, slots: usize) -> Self {
        self.slots_of.insert(kind.into(), slots);
        self
    }

    /// Allows handlers of this kind so long, where the policy of a run allows more or says nothing. What happens then is
    /// said at [`Job::stopped`]. It limits this worker; a timeout for all workers, and retries, belong to the policy that
    /// a run is made with: see [`Registry::with_policy`].
    pub fn timeout_of(mut self, kind: impl Into<String>, timeout: Duration) -> Self {
        self.timeouts.insert(kind.into(), timeout);
        self
    }

    /// Calls the worker by this name where workers are listed. A label for people, which need not be unique and never
    /// identifies it: every start of a worker has an id of its own.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Claims so many more than it has slots for, so that none waits for a claim.
    ///
    /// None, if it is not said: what is claimed has begun an attempt, and one that is given back unbegun when the worker
    /// ends is an interrupted attempt. Whether it is tried again is a matter of its policy.
    pub fn prefetch(self, prefetch: usize) -> Self {
        Self { prefetch, ..self }
    }

    /// When it beats, looks and gives up on others.
    pub fn times(self, times: WorkerTiming) -> Self {
        Self { times, ..self }
    }

    /// How long handlers may take to finish once the worker ends, and how long they may take to stop once they are asked to.
    pub fn grace(self, grace: Duration, last_grace: Duration) -> Self {
        Self { grace, last_grace, ..self }
    }

    /// Does only runs of this kind, or of others that are said so, of those that it has handlers for.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kinds.insert(kind.into());
        self
    }

    /// Executes runs of a kind with an async function, on the tokio runtime that [`WorkerBuilder::start`] is called in. What it
    /// returns becomes the run's result; an error or a panic is recorded as a failure.
    ///
    /// The function is this program's own; its input may come from any writer of the registry. An input that cannot be
    /// read as `I` fails the run with the class `input`.
    pub fn handle<I, D, E, F>(
        mut self,
        kind: impl Into<String>,
        handler: impl Fn(Job<I>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        D: IntoDone,
        E: Into<Failed>,
        F: Future<Output = Result<D, E>> + Send + 'static,
    {
        self.handlers.insert(kind.into(), Handler::future(handler));
        self
    }

    /// Executes runs of a kind with a function that may block, on a thread of the worker. As [`WorkerBuilder::handle`] otherwise.
    ///
    /// A thread cannot be aborted: what that means at a timeout is said at [`BlockingJob::wait_for_stop`].
    pub fn handle_blocking<D: IntoDone, E: Into<Failed>>(
        mut self,
        kind: impl Into<String>,
        handler: impl Fn(&BlockingJob) -> Result<D, E> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(kind.into(), Handler::blocking(handler));
        self
    }

    /// The tokio runtime for async handlers, where the worker is started outside of it.
    pub fn runtime(self, runtime: runtime::Handle) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    /// Calls `callback` with errors of the store, all of which are survived.
    pub fn on_error(self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self { on_error: Arc::new(callback), ..self }
    }

    /// Calls `callback` with every run whose handler is about to be called, on the thread that took it: it must be quick.
    pub fn on_start(self, callback: impl Fn(&RunHandle) + Send + Sync + 'static) -> Self {
        Self { on_start: Arc::new(callback), ..self }
    }

    /// Calls `callback` with every attempt whose end this worker has put on record, its own and those of dead workers: of all
    /// workers one calls it. Not for ends that were spooled first.
    pub fn on_end(self, callback: impl Fn(&Run) + Send + Sync + 'static) -> Self {
        Self { on_end: Arc::new(callback), ..self }
    }

    /// Works until `shutdown` is ready, then stops as [`Worker::stop`] does. Answers with what was done.
    ///
    /// Returns at once where the worker cannot be started.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Tally, Error> {
        // Both wait for the store, which would hold up a thread of the runtime.
        let ended = |error| Error::Store(store::Error::Unavailable(format!("the worker has ended: {error}")));
        let worker = tokio::task::spawn_blocking(move || self.start()).await.map_err(ended)??;
        shutdown.await;
        tokio::task::spawn_blocking(move || worker.stop()).await.map_err(ended)
    }

    /// Works until there is nothing more to do, then stops. Answers with what was done. For tests, and for work that a
    /// schedule of the system starts.
    pub async fn drain(self) -> Result<Tally, Error> {
        let drained = tokio::task::spawn_blocking(move || {
            let worker = self.start()?;
            worker.wait_until_drained();
            Ok(worker.stop())
        });
        drained
            .await
            .map_err(|error| Error::Store(store::Error::Unavailable(format!("the worker has ended: {error}"))))?
    }

    /// Starts to work. With async handlers it is called inside a tokio runtime, or after [`WorkerBuilder::runtime`].
    pub fn start(self) -> Result<Worker, Error> {
        let slots = self.slots;
        let (mut worker, order) = self.assemble()?;
        let maintaining = order.clone();
        worker.maintenance = Some(spawn("outlive-maint", move || maintenance::look_after(&maintaining))?);
        // While one waits for the store, another prepares the next writes. A limit of a kind is counted by one alone.
        for _ in 0..if slots >= MANY && !order.floor.limits_kinds() { 2 } else { 1 } {
            worker.finishers.push(finisher(&order)?);
            let claiming = order.clone();
            worker.claimers.push(spawn("outlive-claim", move || claimer::claim(&claiming))?);
        }
        Ok(worker)
    }

    /// Refuses settings that no worker can work with.
    fn check(&self) -> Result<(), Error> {
        let Self { name, slots, slots_of, timeouts, kinds, handlers, .. } = self;
        if name.as_ref().is_some_and(|name| !is_label(name)) {
            return Err(Error::Invalid(format!(
                "the name of a worker is empty, longer than {NAME_LIMIT} bytes or has a control character"
            )));
        }
        if let Some((kind, _)) = timeouts.iter().find(|(kind, time)| time.is_zero() || !handlers.contains_key(*kind)) {
            return Err(Error::Invalid(format!("a timeout for kind `{kind}`, which has no handler, or of 0")));
        }
        let limit = if handlers.values().any(Handler::is_blocking) { SLOTS_LIMIT } else { ASYNC_SLOTS_LIMIT };
        if *slots == 0 || *slots > limit {
            return Err(Error::Invalid(format!("a worker has 1 to {limit} slots, not {slots}")));
        }
        if let Some((kind, _)) = slots_of.iter().find(|(kind, slots)| **slots == 0 || !handlers.contains_key(*kind)) {
            return Err(Error::Invalid(format!("a limit for kind `{kind}`, which has no handler, or of 0")));
        }
        if let Some(kind) = kinds.iter().find(|kind| !handlers.contains_key(*kind)) {
            return Err(Error::Invalid(format!("there is no handler for kind `{kind}`")));
        }
        if handlers.is_empty() {
            return Err(Error::Invalid("a worker without a handler can do nothing".into()));
        }
        Ok(())
    }

    /// A worker with threads that call handlers, and none yet that claims runs, records ends or maintains the registry.
    pub(super) fn assemble(self) -> Result<(Worker, Arc<WorkerContext>), Error> {
        self.check()?;
        let Self { registry, slots, slots_of, timeouts, prefetch, times, grace, last_grace, kinds, handlers, .. } =
            self;
        let (on_error, on_start, on_end) = (self.on_error, self.on_start, self.on_end);
        let on_error: OnError = Arc::new(move |error| contained(|| on_error(error)));
        let on_start: OnStart = Arc::new(move |run| contained(|| on_start(run)));
        let on_end: OnEnd = Arc::new(move |run| contained(|| on_end(run)));
        let has_blocking = handlers.values().any(Handler::is_blocking);
        let runtime = self.runtime.or_else(|| runtime::Handle::try_current().ok());
        if runtime.is_none() && handlers.values().any(|handler| !handler.is_blocking()) {
            return Err(Error::Invalid(
                "async handlers need a tokio runtime: call `start` inside one, or give one with `runtime`".into(),
            ));
        }
        let kinds = if kinds.is_empty() { handlers.keys().cloned().collect() } else { kinds };
        let offer = WorkerCapacity::new(slots as u32, kinds.iter().cloned().collect()).named(self.name);
        let floor = Dispatcher::new(slots, slots_of, prefetch);
        let registry = Arc::new(registry.offering(offer));
        let order = Arc::new(WorkerContext {
            registry: registry.clone(),
            floor: floor.clone(),
            times,
            kinds,
            timeouts,
            on_error,
            on_end,
        });
        if let Err(error) = pollster::block_on(registry.register_worker(times.lease)) {
            order.survived(&error);
        }
        let woken = floor.clone();
        let listening = registry.subscribe(move || woken.wake());
        let mut worker = Worker {
            floor: floor.clone(),
            registry,
            listening,
            is_over: false,
            grace,
            last_grace,
            slots: Vec::new(),
            claimers: Vec::new(),
            maintenance: None,
            finishers: Vec::new(),
        };
        let handlers = Arc::new(Handlers { by_kind: handlers, runtime, on_start });
        for _ in 0..if has_blocking { slots } else { 1 } {
            let (floor, handlers) = (floor.clone(), handlers.clone());
            worker.slots.push(spawn("outlive-slot", move || handlers.serve(&floor))?);
        }
        Ok((worker, order))
    }
}

/// A thread that records ends.
pub(super) fn finisher(order: &Arc<WorkerContext>) -> Result<JoinHandle<()>, Error> {
    let order = order.clone();
    spawn("outlive-finish", move || completer::record_ends(&order))
}

/// Whether a text can be shown as a name.
fn is_label(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= NAME_LIMIT && !text.chars().any(char::is_control)
}

/// Calls a callback of the caller's. What it panics with is printed, and ends no thread of the worker.
fn contained(callback: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(callback));
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let failed = |error| store::Error::Unavailable(format!("a thread of the worker cannot be started: {error}"));
    Ok(std::thread::Builder::new().name(name.into()).spawn(work).map_err(failed)?)
}
