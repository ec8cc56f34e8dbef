//! Async handlers that do not listen: aborted when their run may not go on, and gone before its keys are free or it is retried.

use std::sync::mpsc::{Receiver, Sender, channel};

use outlive::Job;

use super::*;

/// What happens to handlers, in order.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Begun(u32),
    Dropped(u32),
}

/// Says when it is dropped.
struct Dropped(u32, Sender<Seen>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.send(Seen::Dropped(self.0)).unwrap();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// A run that alone may hold its key, and is retried at once.
fn alone() -> Spec {
    let policy = Policy::default().with_retries(3).with_backoff(Duration::ZERO, Duration::ZERO);
    let limits = outlive::Limits { timeout: Some(LEASE / 3), ..policy.limits };
    Spec { keys: vec![Key::lock("tenant")], policy: Policy { limits, ..policy }, ..spec("job") }
}

/// A worker whose first attempt blocks its thread until it is let go, and then waits for ever without listening.
fn deaf(registry: Registry, runtime: &tokio::runtime::Runtime) -> (Worker, Receiver<Seen>, Sender<()>) {
    let ((seen, sees), (release, released)) = (channel(), channel::<()>());
    let released = Arc::new(Mutex::new(released));
    let handler = move |job: Job| {
        let (seen, released) = (seen.clone(), released.clone());
        async move {
            let attempt = job.run().attempt;
            seen.send(Seen::Begun(attempt)).unwrap();
            let _guard = Dropped(attempt, seen);
            if attempt > 1 {
                return Ok::<_, Failed>(Done::Succeeded(serde_json::Value::Null));
            }
            // To poll is not to listen.
            let _ = job.stop_requested();
            released.lock().unwrap().recv().unwrap();
            std::future::pending().await
        }
    };
    let worker = eager(registry).concurrency(4).runtime(runtime.handle().clone()).handle("job", handler);
    (worker.start().unwrap(), sees, release)
}

#[test]
fn handler_past_its_timeout_is_gone_before_its_retry_begins() {
    let runtime = runtime();
    on_each(async |world| {
        let run = world.process().enqueue(alone()).await.unwrap();
        let (worker, sees, release) = deaf(world.process(), &runtime);
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Begun(1));
        world.clock.pass(LEASE / 2);
        worker.registry().tick().await.unwrap();
        assert_eq!(state(&world, &run).await, StateName::Running, "its lock was freed while it was at work");
        release.send(()).unwrap();
        let next = [(); 3].map(|()| sees.recv_timeout(LONG).unwrap());
        assert_eq!(next, [Seen::Dropped(1), Seen::Begun(2), Seen::Dropped(2)]);
        worker.wait_until(|tally| tally.succeeded == 1);
        worker.stop();
        let run = world.record(run.id).await.run;
        assert_eq!((run.state.name(), run.failures), (StateName::Succeeded, 1));
    });
}

#[test]
fn handler_that_blocks_for_a_lease_past_its_timeout_is_ended() {
    let runtime = runtime();
    on_each(async |world| {
        let run = world.process().enqueue(alone()).await.unwrap();
        let (worker, sees, release) = deaf(world.process(), &runtime);
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Begun(1));
        for _ in 0..3 {
            world.clock.pass(LEASE / 2);
            worker.registry().tick().await.unwrap();
        }
        assert_eq!(world.record(run.id).await.run.failures, 1);
        release.send(()).unwrap();
        worker.wait_until(|tally| tally.succeeded == 1);
        worker.stop();
    });
}

#[test]
fn handler_of_a_lost_run_is_aborted() {
    let runtime = runtime();
    on_each(async |world| {
        let spec = Spec { policy: Policy { orphans: OrphanPolicy::Fail, ..Policy::default() }, ..alone() };
        let run = world.process().enqueue(spec).await.unwrap();
        let (worker, sees, release) = deaf(world.process(), &runtime);
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Begun(1));
        release.send(()).unwrap();
        world.clock.pass(LEASE * 2);
        assert_eq!(world.reap().await.ended.len(), 1);
        worker.registry().tick().await.unwrap();
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Dropped(1));
        worker.wait_until(|tally| tally.lost == 1);
        worker.stop();
        assert_eq!(state(&world, &run).await, StateName::Failed);
    });
}

#[test]
fn handler_with_a_lock_is_aborted_before_its_lease_ends_unheard() {
    let runtime = runtime();
    on_each(async |world| {
        let run = world.process().enqueue(alone()).await.unwrap();
        let away = Arc::new(AtomicBool::new(false));
        let is_away = away.clone();
        let watched = Watched::new(world.store.clone(), move |call| match call {
            "beat" if is_away.load(Ordering::SeqCst) => Err(Error::Unavailable("it is away".into())),
            _ => Ok(()),
        });
        let (worker, sees, release) = deaf(world.process_on(watched, unseen(1)), &runtime);
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Begun(1));
        release.send(()).unwrap();
        away.store(true, Ordering::SeqCst);
        world.clock.pass(LEASE - LEASE / 3);
        worker.registry().tick().await.unwrap_err();
        assert_eq!(sees.recv_timeout(LONG).unwrap(), Seen::Dropped(1));
        away.store(false, Ordering::SeqCst);
        worker.wait_until(|tally| tally.succeeded == 1);
        worker.stop();
        assert_eq!(state(&world, &run).await, StateName::Succeeded);
    });
}

#[test]
fn worker_that_stops_ends_an_attempt_after_its_handler() {
    let runtime = runtime();
    on_each(async |world| {
        let run = world.process().enqueue(Spec { keys: vec![Key::lock("tenant")], ..lasting("job") }).await.unwrap();
        let ((seen, sees), store) = (channel(), world.store.clone());
        let (id, begun) = (run.id, Shared::<bool>::new());
        let begins = begun.clone();
        /// Looks at the run when it is dropped.
        struct Looks<F: Fn()>(F);
        impl<F: Fn()> Drop for Looks<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let worker = eager(world.process())
            .grace(Duration::ZERO, Duration::ZERO)
            .runtime(runtime.handle().clone())
            .handle("job", move |_: Job| {
                let (seen, store, begins) = (seen.clone(), store.clone(), begins.clone());
                async move {
                    let _looks = Looks(move || {
                        let record = pollster::block_on(store.get(&[id])).unwrap().pop().unwrap();
                        seen.send(record.run.state.name()).unwrap();
                    });
                    begins.change(|begun| *begun = true);
                    std::future::pending::<Result<(), Failed>>().await
                }
            });
        let worker = worker.start().unwrap();
        begun.wait(|begun| *begun);
        assert_eq!(worker.stop().stopped, 1);
        assert_eq!(sees.recv_timeout(LONG).unwrap(), StateName::Running, "it was ended while its handler was there");
        assert_eq!(state(&world, &run).await, StateName::Pending);
    });
}
