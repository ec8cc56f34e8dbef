//! Async handlers: typed input and result, cancellation, panics, limits by kind, and stops that leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::record::GaveUp;
use outlive::registry::{Planned, Registry};
use outlive::run::{DOCUMENT_LIMIT, StateName};
use outlive::store::postgres::PostgresStore;
use outlive::testing::server::Server;
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};
use outlive::{Done, End, Failed, Job, Policy, Spec, Stop, StopReason, TraceParent, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LONG, Shared, eager, lasting, state};
use crate::lifecycle::logging::Logged;
use crate::world::{LEASE, Watched, on_each, unseen};

#[derive(Serialize, Deserialize)]
struct Migrate {
    tenant: String,
    rows: u64,
}

/// A runtime of two threads, as a service would have.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

#[test]
fn typed_input_is_read_and_the_return_value_is_the_result() {
    let runtime = runtime();
    on_each(async |world| {
        let maker = world.process();
        let input = Migrate { tenant: "acme".into(), rows: 7 };
        let run = maker.enqueue(maker.spec("migrate").with_input(&input).unwrap()).await.unwrap();
        // What another attempt cannot change is not retried.
        let retried = |kind: &str| Spec { policy: Policy::default().with_retries(3), ..maker.spec(kind) };
        let odd = maker.enqueue(retried("migrate").with_input(&"no tenant").unwrap()).await.unwrap();
        let none = maker.enqueue(retried("migrate")).await.unwrap();
        let plain = maker.enqueue(maker.spec("plain")).await.unwrap();
        let large = maker.enqueue(retried("large")).await.unwrap();
        let worker = eager(world.process())
            .concurrency(8)
            .runtime(runtime.handle().clone())
            .handle("migrate", |job: Job<Migrate>| async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                job.set_checkpoint(json!({"rows": job.input.rows})).await?;
                Ok::<_, Failed>(json!({"tenant": job.input.tenant, "rows": job.input.rows}))
            })
            .handle("plain", |job: Job| async move {
                assert_eq!(job.input, Value::Null);
                Ok::<_, Failed>(())
            })
            .handle_blocking("large", |_| Ok::<_, Failed>("x".repeat(DOCUMENT_LIMIT)))
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.succeeded == 2 && tally.failed == 3);
        worker.stop();
        let done = world.record(run.id).await.run;
        assert_eq!(done.spec.input, Some(json!({"tenant": "acme", "rows": 7})));
        assert_eq!(done.result.as_deref(), Some(&json!({"tenant": "acme", "rows": 7})));
        assert_eq!(done.checkpoint, Some(json!({"rows": 7})));
        assert_eq!(world.record(plain.id).await.run.result, None);
        for (run, error_type) in [(&odd, "input"), (&none, "input"), (&large, "result")] {
            let run = world.record(run.id).await.run;
            let End::Failed(failure) = &run.ending().unwrap().how else { panic!("{run:?}") };
            assert_eq!((failure.error_type.as_str(), &run.result), (error_type, &None), "{failure:?}");
            assert_eq!((run.failures, failure.gave_up), (1, Some(GaveUp::Permanent)));
        }
    });
}

#[test]
fn async_handler_wakes_on_cancel_and_its_panic_is_contained() {
    let runtime = runtime();
    on_each(async |world| {
        let maker = world.process();
        let waits = maker.enqueue(spec("waits")).await.unwrap();
        let boom = maker.enqueue(spec("boom")).await.unwrap();
        let worker = eager(world.process())
            .concurrency(4)
            .runtime(runtime.handle().clone())
            .handle("waits", |job: Job| async move {
                match job.stopped().await {
                    StopReason::Run(Stop::Cancelled(_)) => Ok(Done::Stopped),
                    other => Err(Failed::new("test", format!("{other:?}"))),
                }
            })
            .handle("boom", |job: Job| async move {
                assert!(job.checkpoint().is_some(), "there is none");
                Ok::<_, Failed>(())
            })
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.running == 1 && tally.failed == 1);
        maker.cancel(waits.id, None).await.unwrap();
        worker.registry().tick().await.unwrap();
        worker.wait_until(|tally| tally.stopped == 1);
        worker.stop();
        assert_eq!(state(&world, &waits).await, StateName::Cancelled);
        let run = world.record(boom.id).await.run;
        let End::Failed(failure) = &run.ending().unwrap().how else { panic!("{run:?}") };
        assert_eq!(failure.error_type, "panic");
        assert!(failure.error_message.contains("there is none"), "{failure:?}");
    });
}

#[test]
fn async_handler_past_its_grace_is_aborted_and_retried() {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = runtime();
    on_each(async |world| {
        let run = world.process().enqueue(lasting("job")).await.unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let (seen, begun) = (dropped.clone(), Shared::<bool>::new());
        let began = begun.clone();
        let worker = eager(world.process())
            .grace(Duration::ZERO, Duration::ZERO)
            .runtime(runtime.handle().clone())
            .handle("job", move |_: Job| {
                let (guard, began) = (Dropped(seen.clone()), began.clone());
                async move {
                    let _guard = guard;
                    began.change(|begun| *begun = true);
                    std::future::pending::<Result<(), Failed>>().await
                }
            })
            .start()
            .unwrap();
        begun.wait(|begun| *begun);
        assert_eq!(worker.stop().stopped, 1);
        assert_eq!(state(&world, &run).await, StateName::Pending);
        let until = SystemClock.awake() + LONG;
        while dropped.load(Ordering::SeqCst) == 0 {
            assert!(SystemClock.awake() < until, "its future was not dropped");
            std::thread::yield_now();
        }
    });
}

#[test]
fn no_more_runs_of_a_kind_are_done_at_a_time_than_its_limit() {
    const RUNS: u64 = 12;
    let runtime = runtime();
    on_each(async |world| {
        let maker = world.process();
        for _ in 0..RUNS {
            maker.enqueue(spec("scarce")).await.unwrap();
            maker.enqueue(spec("free")).await.unwrap();
        }
        let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, seen) = (at_once.clone(), most.clone());
        let worker = eager(world.process())
            .concurrency(6)
            .concurrency_of("scarce", 2)
            .runtime(runtime.handle().clone())
            .handle("scarce", move |_: Job| {
                let (at_once, most) = (counted.clone(), seen.clone());
                async move {
                    most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Failed>(())
                }
            })
            .handle("free", |_: Job| async { Ok::<_, Failed>(()) })
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.succeeded == 2 * RUNS);
        worker.stop();
        let most = most.load(Ordering::SeqCst);
        assert!((1..=2).contains(&most), "{most} at once");
    });
}

#[test]
fn worker_drains_on_the_callers_runtime_and_needs_one() {
    let runtime = runtime();
    on_each(async |world| {
        let maker = world.process();
        for _ in 0..5 {
            maker.enqueue(spec("job")).await.unwrap();
        }
        let worker = |world: &crate::world::World| {
            eager(world.process()).concurrency(2).handle("job", |_: Job| async { Ok::<_, Failed>(()) })
        };
        let refused = worker(&world).start().err().unwrap().to_string();
        assert!(refused.contains("need a tokio runtime"), "{refused}");
        let draining = worker(&world);
        let tally = runtime.block_on(draining.drain()).unwrap();
        assert_eq!((tally.succeeded, tally.running), (5, 0));
        let idle = runtime.block_on(worker(&world).run_until(async {})).unwrap();
        assert_eq!(idle.succeeded, 0);
    });
}

#[test]
fn ten_thousand_async_handlers_need_little_memory() {
    const RUNS: usize = 10_000;
    let runtime = runtime();
    let store = pollster::block_on(PostgresStore::open(&Server::shared().fresh_url().parse().unwrap())).unwrap();
    let beats = Arc::new(AtomicUsize::new(0));
    let counted = beats.clone();
    let watched = Watched::new(Arc::new(store), move |call| {
        counted.fetch_add(usize::from(call == "beat"), Ordering::SeqCst);
        Ok(())
    });
    let registry = Registry::with_store("test:", watched).unwrap();
    let sleeps = |number: usize| registry.spec("sleeps").with_input(&number).unwrap();
    let plan = (0..RUNS).map(|number| Planned { spec: sleeps(number), after: Vec::new() }).collect();
    pollster::block_on(registry.enqueue_all(plan)).unwrap();
    // Those below the number are awake.
    let (before, (awake, waking)) = (status("VmRSS:"), tokio::sync::watch::channel(0));
    let begun = SystemClock.awake();
    let worker = Worker::builder(&registry)
        .concurrency(RUNS)
        .grace(Duration::ZERO, LONG)
        .runtime(runtime.handle().clone())
        .handle("sleeps", move |job: Job<usize>| {
            let mut waking = waking.clone();
            async move {
                tokio::select! {
                    woken = waking.wait_for(|awake| job.input < *awake) => woken.map(|_| Done::Succeeded(Value::Null)),
                    _ = job.stopped() => Ok(Done::Stopped),
                }
            }
        })
        .start()
        .unwrap();
    worker.wait_until(|tally| tally.running == RUNS);
    let (grown, threads) = (status("VmRSS:").saturating_sub(before), status("Threads:"));
    println!("{grown} KiB more for {RUNS} handlers, {threads} threads");
    assert!(grown < 100 << 10, "{grown} KiB");
    assert!(threads < 24, "{threads} threads");
    awake.send(RUNS / 2).unwrap();
    worker.wait_until(|tally| tally.succeeded == RUNS as u64 / 2);
    // One heartbeat for all of them: at most one in each of its intervals, and those of the start and of the end.
    let elapsed = SystemClock.awake() - begun;
    let most = elapsed.as_secs() / outlive::Lease::default().beat().as_secs() + 3;
    let (beats, stopping) = (beats.load(Ordering::SeqCst) as u64, SystemClock.awake());
    assert!((1..=most).contains(&beats), "{beats} heartbeats in {elapsed:?}");
    let tally = worker.stop();
    assert!(SystemClock.awake() - stopping < LONG, "sleepers were not stopped within the grace");
    assert_eq!((tally.most_at_once, tally.stopped, tally.running), (RUNS, RUNS as u64 / 2, 0));
}

/// A number that the kernel tells of this process.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn drain_waits_for_an_unreachable_store_and_a_busy_kind() {
    const RUNS: u64 = 6;
    let runtime = runtime();
    on_each(async |world| {
        for _ in 0..RUNS {
            world.process().enqueue(spec("scarce")).await.unwrap();
        }
        let failures = Arc::new(AtomicUsize::new(3));
        let left = failures.clone();
        let watched = Watched::new(world.store.clone(), move |call| {
            let fails = call == "update"
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if fails { Err(outlive::store::Error::Unavailable("it is away".into())) } else { Ok(()) }
        });
        let worker = eager(world.process_on(watched, unseen(1)))
            .concurrency(4)
            .concurrency_of("scarce", 1)
            .on_start(|_| panic!("a defect of a callback"))
            .on_end(|_| panic!("a defect of a callback"))
            .handle("scarce", |_: Job| async { Ok::<_, Failed>(()) });
        let tally = runtime.block_on(worker.drain()).unwrap();
        assert_eq!((tally.succeeded, failures.load(Ordering::SeqCst)), (RUNS, 0));
    });
}

#[test]
fn what_is_prefetched_is_not_begun_beside_the_slots() {
    let runtime = runtime();
    on_each(async |world| {
        for _ in 0..12 {
            world.process().enqueue(spec("job")).await.unwrap();
        }
        let worker = eager(world.process()).concurrency(2).prefetch(10).runtime(runtime.handle().clone()).handle(
            "job",
            |_: Job| async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<_, Failed>(())
            },
        );
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.succeeded == 12);
        let most = worker.stop().most_at_once;
        assert!(most <= 2, "{most} at once");
    });
}

#[test]
fn handler_is_given_the_trace_parent_of_its_run() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let runtime = runtime();
    let logged = Logged::of_all_threads();
    on_each(async |world| {
        let maker = world.process();
        for kind in ["async", "blocking"] {
            let traced = Spec { traceparent: Some(PARENT.parse().unwrap()), ..spec(kind) };
            maker.enqueue(traced).await.unwrap();
        }
        let found = Shared::<Vec<Option<TraceParent>>>::new();
        let (first, second) = (found.clone(), found.clone());
        let worker = eager(world.process())
            .runtime(runtime.handle().clone())
            .handle("async", move |job: Job| {
                let parent = job.trace_parent();
                first.change(|found| found.push(parent));
                async {
                    tracing::info!("handled");
                    Ok::<_, Failed>(())
                }
            })
            .handle_blocking("blocking", move |job| {
                tracing::info!("handled");
                second.change(|found| found.push(job.trace_parent()));
                Ok::<_, Failed>(())
            })
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.succeeded == 2);
        worker.stop();
        let expected = vec![Some(PARENT.parse::<TraceParent>().unwrap()); 2];
        found.wait(|found| *found == expected);
    });
    let lines = logged.of("handled");
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(PARENT)), "{lines:?}");
}

#[test]
fn handler_is_stopped_at_the_timeout_of_its_kind() {
    let runtime = runtime();
    on_each(async |world| {
        let maker = world.process();
        let slow = maker.enqueue(spec("slow")).await.unwrap();
        let free = maker.enqueue(spec("free")).await.unwrap();
        let (begun, waits) = std::sync::mpsc::channel();
        // A handler that does not listen yet is not trusted to stop at its timeout.
        let until_stopped = move |job: Job| {
            let begun = begun.clone();
            async move {
                tokio::join!(job.stopped(), async { begun.send(()).unwrap() });
                Ok::<_, Failed>(Done::Stopped)
            }
        };
        let worker = eager(world.process())
            .concurrency(2)
            .timeout_of("slow", LEASE / 3)
            .grace(Duration::ZERO, LONG)
            .runtime(runtime.handle().clone())
            .handle("slow", until_stopped.clone())
            .handle("free", until_stopped)
            .start()
            .unwrap();
        waits.iter().take(2).for_each(drop);
        worker.registry().tick().await.unwrap();
        assert_eq!(worker.tally().running, 2, "no time has passed");
        world.clock.pass(LEASE / 2);
        worker.registry().tick().await.unwrap();
        worker.wait_until(|tally| tally.failed == 1);
        assert_eq!(state(&world, &free).await, StateName::Running);
        let run = world.record(slow.id).await.run;
        let End::Failed(failure) = &run.ending().unwrap().how else { panic!("{run:?}") };
        assert_eq!(failure.error_type, "timeout");
        worker.stop();
    });
}
