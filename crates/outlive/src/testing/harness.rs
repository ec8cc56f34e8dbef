//! The harness: a registry in memory with a clock that only tests move, and workers that do one run at a time.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{ManualClock, SeededEntropy, person, stranger};
use crate::engine::worker::WorkerBuilder;
use crate::error::Error;
use crate::model::run::Run;
use crate::registry::Registry;
use crate::store::Notification;
use crate::store::memory::MemoryStore;
use crate::util::sync::lock;

/// A registry in memory for tests of handlers. Nothing is written to disk, no time passes unless a test lets it, and ids
/// follow from a seed.
///
/// # Examples
///
/// A handler that fails first is tried again after its backoff:
///
/// ```
/// use std::time::Duration;
///
/// use outlive::testing::Harness;
/// use outlive::{Failed, Job, StateName, Worker, WorkerBuilder};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), outlive::Error> {
/// let harness = Harness::new();
/// let mut spec = harness.registry().spec("charge").with_input(&7)?;
/// spec.policy = outlive::Policy::default().with_retries(3);
/// harness.registry().enqueue(spec).await?;
///
/// let worker = || -> WorkerBuilder {
///     Worker::builder(harness.registry()).handle("charge", |job: Job<u64>| async move {
///         if job.run().attempt == 1 { Err(Failed::new("network", "no answer")) } else { Ok(job.input * 2) }
///     })
/// };
/// let first = harness.run_one(worker()).await?.unwrap();
/// assert_eq!((first.state.name(), first.failures), (StateName::Pending, 1));
/// assert!(harness.run_one(worker()).await?.is_none(), "it is not due before its backoff is over");
///
/// harness.clock().pass(Duration::from_secs(1));
/// let second = harness.run_one(worker()).await?.unwrap();
/// assert_eq!((second.state.name(), second.result.as_deref()), (StateName::Succeeded, Some(&14.into())));
/// # Ok(())
/// # }
/// ```
pub struct Harness {
    registry: Registry,
    clock: Arc<ManualClock>,
    listeners: Arc<BeatListeners>,
}

/// What is called with notifications.
type BeatListener = Arc<dyn Fn(Notification) + Send + Sync>;

/// The workers that want to be told of requests, each by a number.
#[derive(Default)]
struct BeatListeners {
    listening: Mutex<BTreeMap<u64, BeatListener>>,
    next: AtomicU64,
}

/// Tells its worker of nothing more once it is dropped.
struct BeatSubscription(Arc<BeatListeners>, u64);

impl Drop for BeatSubscription {
    fn drop(&mut self) {
        lock(&self.0.listening).remove(&self.1);
    }
}

impl Harness {
    /// An empty registry.
    pub fn new() -> Self {
        let clock = ManualClock::new();
        let (store, entropy) = (Arc::new(MemoryStore::new(clock.clone())), Arc::new(SeededEntropy::new(1)));
        let listeners: Arc<BeatListeners> = Arc::default();
        let listening = listeners.clone();
        let listen = move |listener: Box<dyn Fn(Notification) + Send + Sync>| {
            let number = listening.next.fetch_add(1, Ordering::SeqCst);
            lock(&listening.listening).insert(number, listener.into());
            Some(Box::new(BeatSubscription(listening.clone(), number)) as Box<dyn Any + Send + Sync>)
        };
        let registry = Registry::over(store, clock.clone(), entropy, person("tester"), stranger(1));
        Self { registry: registry.listening_by(listen), clock, listeners }
    }

    /// Has every worker of this registry beat at once. A handler learns by a heartbeat that its run was cancelled, and no
    /// heartbeat is due while no time passes.
    ///
    /// ```
    /// use outlive::testing::Harness;
    /// use outlive::{Done, Failed, Job, StateName, Worker};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), outlive::Error> {
    /// let harness = Harness::new();
    /// let run = harness.registry().enqueue(harness.registry().spec("watch")).await?.id;
    /// let worker = Worker::builder(harness.registry()).handle("watch", |job: Job| async move {
    ///     job.stopped().await;
    ///     Ok::<_, Failed>(Done::Stopped)
    /// });
    /// let cancel = async {
    ///     while harness.registry().get(run).await?.state != StateName::Running {
    ///         tokio::task::yield_now().await;
    ///     }
    ///     harness.registry().cancel(run, None).await?;
    ///     harness.beat().await
    /// };
    /// let (done, cancelled) = tokio::join!(harness.run_one(worker), cancel);
    /// cancelled?;
    /// assert_eq!(done?.unwrap().state.name(), StateName::Cancelled);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn beat(&self) -> Result<(), Error> {
        let listeners: Vec<BeatListener> = lock(&self.listeners.listening).values().cloned().collect();
        for worker in self.registry.store().workers().await? {
            listeners.iter().for_each(|listener| listener(Notification::Request(worker.id)));
        }
        Ok(())
    }

    /// The registry: what tests enqueue into, build workers for and read from.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The clock of the registry. Backoffs, schedules, leases and timestamps follow it.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Has a worker do the next run that is due, and nothing else. Answers with the run as its attempt left it: ended, or
    /// waiting for its next attempt. None where no run can be claimed.
    ///
    /// Runs that waited for others that have ended by now are due. The worker is built for this registry, and is called
    /// inside a tokio runtime.
    pub async fn run_one(&self, worker: WorkerBuilder) -> Result<Option<Run>, Error> {
        worker.run_one().await
    }
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::engine::worker::{BlockingJob, Failed, Job, Worker};
    use crate::model::run::{Release, StateName};
    use crate::registry::{Parent, Planned};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    }

    #[test]
    fn one_run_is_done_and_the_next_is_left() {
        runtime().block_on(async {
            let harness = Harness::new();
            for input in [1, 2] {
                let spec = harness.registry().spec("job").with_input(&input).unwrap();
                harness.registry().enqueue(spec).await.unwrap();
                // Of runs that were made at the same moment, either may be the next.
                harness.clock().pass(Duration::from_millis(1));
            }
            let worker = || {
                Worker::builder(harness.registry())
                    .concurrency(8)
                    .handle("job", |job: Job<u64>| async move { Ok::<_, Failed>(job.input) })
            };
            for expected in [Some(json!(1)), Some(json!(2)), None] {
                let done = harness.run_one(worker()).await.unwrap();
                assert_eq!(done.map(|run| run.result.as_deref().cloned().unwrap()), expected);
            }
        });
    }

    #[test]
    fn dependant_is_due_after_its_parent_and_a_panic_is_a_failure() {
        runtime().block_on(async {
            let harness = Harness::new();
            let parent = Planned { spec: harness.registry().spec("parent"), after: Vec::new() };
            let after = vec![(Parent::Planned(0), Release::End)];
            let child = Planned { spec: harness.registry().spec("child"), after };
            harness.registry().enqueue_all(vec![parent, child]).await.unwrap();
            let worker = || {
                Worker::builder(harness.registry())
                    .handle_blocking("parent", |_: &BlockingJob| -> Result<(), Failed> { panic!("a defect") })
                    .handle_blocking("child", |_: &BlockingJob| Ok::<_, Failed>(()))
            };
            let mut ends = Vec::new();
            while let Some(run) = harness.run_one(worker()).await.unwrap() {
                ends.push((run.spec.kind.clone(), run.state.name()));
            }
            assert_eq!(ends, [("parent".into(), StateName::Failed), ("child".into(), StateName::Succeeded)]);
        });
    }

    #[test]
    fn time_passes_only_where_the_test_lets_it() {
        runtime().block_on(async {
            let harness = Harness::new();
            let mut spec = harness.registry().spec("job");
            spec.not_before = Some(harness.registry().clock().now().after(Duration::from_secs(3_600)));
            harness.registry().enqueue(spec).await.unwrap();
            let worker =
                || Worker::builder(harness.registry()).handle_blocking("job", |_: &BlockingJob| Ok::<(), Failed>(()));
            assert!(harness.run_one(worker()).await.unwrap().is_none());
            harness.clock().pass(Duration::from_secs(3_600));
            let run = harness.run_one(worker()).await.unwrap().unwrap();
            assert_eq!(run.state.name(), StateName::Succeeded);
            assert_eq!(run.ending().unwrap().at, harness.registry().clock().now());
        });
    }
}
