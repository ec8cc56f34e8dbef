//! The builder of a worker: handlers, slots, timing and callbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::dispatcher::Dispatcher;
use super::job::{Done, Failed, Job, Task};
use super::{OnEnd, OnError, Worker, claimer, completer, maintenance};
use crate::engine::worker::WorkerTiming;
use crate::error::Error;
use crate::model::run::Run;
use crate::registry::Registry;
use crate::store::{self, WorkerCapacity};

/// The most runs that a worker does at a time.
pub const SLOTS_LIMIT: usize = 1_024;
/// From so many slots on two threads claim and two record ends.
const MANY: usize = 64;
/// How long handlers may take to finish once their worker ends, by default.
const GRACE: Duration = Duration::from_secs(10);
/// How long handlers may take to stop once they are asked to.
const LAST_GRACE: Duration = Duration::from_secs(5);

pub(super) type Handler = Arc<dyn Fn(&Job) -> Result<Done, Failed> + Send + Sync>;

/// The builder of a worker.
#[must_use]
pub struct Builder {
    registry: Registry,
    slots: usize,
    prefetch: usize,
    times: WorkerTiming,
    grace: Duration,
    last_grace: Duration,
    kinds: BTreeSet<String>,
    handlers: BTreeMap<String, Handler>,
    on_error: OnError,
    on_end: OnEnd,
}

/// What all threads of a worker know.
pub(super) struct WorkerContext {
    pub(super) registry: Arc<Registry>,
    pub(super) floor: Arc<Dispatcher>,
    pub(super) times: WorkerTiming,
    pub(super) kinds: BTreeSet<String>,
    pub(super) on_error: OnError,
    pub(super) on_end: OnEnd,
}

impl WorkerContext {
    /// The callback for errors that the worker survived.
    pub(super) fn survived(&self, error: &Error) {
        self.floor.count(|tally| tally.errors += 1);
        (self.on_error)(error);
    }

    /// A time that is not the same for all workers: three to five quarters of it.
    pub(super) fn spread(&self, time: Duration) -> Duration {
        time * 3 / 4 + self.part(time / 2)
    }

    /// Any part of a time, nothing and all of it included.
    pub(super) fn part(&self, time: Duration) -> Duration {
        let drawn = (self.registry.entropy().draw() & 0xff) as u32;
        time * drawn / 255
    }
}

impl Builder {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            slots: 1,
            prefetch: 0,
            times: WorkerTiming::default(),
            grace: GRACE,
            last_grace: LAST_GRACE,
            kinds: BTreeSet::new(),
            handlers: BTreeMap::new(),
            on_error: Arc::new(|_| {}),
            on_end: Arc::new(|_| {}),
        }
    }

    /// Does up to so many runs at a time. One, if it is not said.
    pub fn slots(self, slots: usize) -> Self {
        Self { slots, ..self }
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

    /// Has runs of a kind done by a function, which may block. What it panics with is recorded as a failure.
    ///
    /// The function is this program's own; its input may come from any writer of the registry.
    pub fn handle<D: Into<Done>>(
        mut self,
        kind: impl Into<String>,
        handler: impl Fn(&Job) -> Result<D, Failed> + Send + Sync + 'static,
    ) -> Self {
        self.handlers.insert(kind.into(), Arc::new(move |job| handler(job).map(Into::into)));
        self
    }

    /// Calls `callback` with errors of the store, all of which are survived.
    pub fn on_error(self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self { on_error: Arc::new(callback), ..self }
    }

    /// Calls `callback` with every attempt whose end this worker has put on record, its own and those of dead workers: of all
    /// workers one calls it. Not for ends that were spooled first.
    pub fn on_end(self, callback: impl Fn(&Run) + Send + Sync + 'static) -> Self {
        Self { on_end: Arc::new(callback), ..self }
    }

    /// Starts to work.
    pub fn start(self) -> Result<Worker, Error> {
        let Self { registry, slots, prefetch, times, grace, last_grace, kinds, handlers, on_error, on_end } = self;
        if slots == 0 || slots > SLOTS_LIMIT {
            return Err(Error::Invalid(format!("a worker has 1 to {SLOTS_LIMIT} slots, not {slots}")));
        }
        if let Some(kind) = kinds.iter().find(|kind| !handlers.contains_key(*kind)) {
            return Err(Error::Invalid(format!("there is no handler for kind `{kind}`")));
        }
        if handlers.is_empty() {
            return Err(Error::Invalid("a worker without a handler can do nothing".into()));
        }
        let kinds = if kinds.is_empty() { handlers.keys().cloned().collect() } else { kinds };
        let offer = WorkerCapacity::new(slots as u32, kinds.iter().cloned().collect());
        let (registry, floor) = (Arc::new(registry.offering(offer)), Dispatcher::new(slots, prefetch));
        let order = Arc::new(WorkerContext {
            registry: registry.clone(),
            floor: floor.clone(),
            times,
            kinds,
            on_error,
            on_end,
        });
        if let Err(error) = pollster::block_on(registry.come(times.lease)) {
            order.survived(&error);
        }
        let woken = floor.clone();
        let listening = registry.hear(move || woken.wake());
        let mut worker = Worker {
            floor: floor.clone(),
            registry,
            listening,
            is_over: false,
            grace,
            last_grace,
            slots: Vec::new(),
            claimers: Vec::new(),
            chores: None,
            finishers: Vec::new(),
        };
        let handlers = Arc::new(handlers);
        for _ in 0..slots {
            let (floor, handlers) = (floor.clone(), handlers.clone());
            worker.slots.push(spawn("outlive-slot", move || work(&floor, &handlers))?);
        }
        let tidying = order.clone();
        worker.chores = Some(spawn("outlive-chores", move || maintenance::look_after(&tidying))?);
        // While one waits for the store, another prepares the next writes.
        for _ in 0..if slots >= MANY { 2 } else { 1 } {
            let (claiming, finishing) = (order.clone(), order.clone());
            worker.finishers.push(spawn("outlive-finish", move || completer::record_ends(&finishing))?);
            worker.claimers.push(spawn("outlive-claim", move || claimer::claim(&claiming))?);
        }
        Ok(worker)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let failed = |error| store::Error::Unavailable(format!("a thread of the worker cannot be started: {error}"));
    Ok(std::thread::Builder::new().name(name.into()).spawn(work).map_err(failed)?)
}

/// Does one task after the other.
fn work(floor: &Dispatcher, handlers: &BTreeMap<String, Handler>) {
    while let Some(task) = floor.next() {
        let returned = std::panic::catch_unwind(AssertUnwindSafe(|| do_task(&task, handlers)));
        let returned = returned.unwrap_or_else(|panic| Err(Failed::new("panic", panicked(&*panic))));
        let answer = task.answer(returned);
        floor.returned(task, answer);
    }
}

fn do_task(task: &Arc<Task>, handlers: &BTreeMap<String, Handler>) -> Result<Done, Failed> {
    let spec = task.handle.spec();
    match handlers.get(&spec.kind) {
        Some(handler) => handler(&Job { task: task.clone() }),
        None => Err(Failed::new("kind", format!("its worker has no handler for kind `{}`", spec.kind))),
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.map_or_else(|| "its handler panicked".into(), |text| format!("its handler panicked: {text}"))
}
