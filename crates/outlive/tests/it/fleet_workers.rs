//! Workers of a fleet: who does what waits, in which order, and what becomes of it when something goes wrong. W02 to W09.

mod aborted;
mod chaos;
mod fairness;
mod handlers;
mod killed;
mod rolling;
mod scarce;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use outlive::engine::worker::{BlockingJob, Done, Failed, StopReason, Tally, Worker, WorkerBuilder, WorkerTiming};
use outlive::ownership::Stop;
use outlive::policy::{OrphanPolicy, Policy, Retry};
use outlive::registry::{Parent, Planned, Registry};
use outlive::run::{End, Key, Release, Run, Spec, StateName};
use outlive::store::{Error, WorkerCapacity};
use outlive::testing::spec;
use outlive::time::Clock;

use crate::world::{LEASE, Watched, World, on_each, unseen};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

/// Something that many threads change and wait for.
#[derive(Default)]
struct Shared<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T: Default> Shared<T> {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let changed = change(&mut self.value.lock().unwrap());
        self.changed.notify_all();
        changed
    }

    fn wait(&self, so: impl Fn(&T) -> bool) {
        let value = self.value.lock().unwrap();
        let (_value, waited) = self.changed.wait_timeout_while(value, LONG, |value| !so(value)).unwrap();
        assert!(!waited.timed_out(), "waited in vain");
    }
}

/// A worker that looks as often as a test wants.
fn eager(registry: Registry) -> WorkerBuilder {
    let look = Duration::from_millis(20);
    Worker::builder(registry).times(WorkerTiming::new(LEASE / 3, LEASE, look, look).unwrap())
}

/// Is tried again when its worker ends or dies.
fn lasting(kind: &str) -> Spec {
    let retry = Retry { on_interrupt: true, ..Retry::default() };
    Spec { policy: Policy { retry, orphans: OrphanPolicy::Requeue, ..Policy::default() }, ..spec(kind) }
}

async fn state(world: &World, run: &Run) -> StateName {
    world.record(run.id).await.run.state.name()
}

#[test]
fn w02_each_run_is_executed_once_and_slots_are_not_exceeded() {
    const WORKERS: usize = 4;
    const SLOTS: usize = 3;
    const RUNS: usize = 60;
    on_each(async |world| {
        let maker = world.process();
        for _ in 0..RUNS {
            maker.enqueue(spec("job")).await.unwrap();
        }
        // By whom each was done.
        let done = Shared::<Vec<(outlive::id::RunId, usize)>>::new();
        let work = |number: usize| {
            let done = done.clone();
            move |job: &BlockingJob| {
                done.change(|done| done.push((job.id(), number)));
                // Nobody does it all before another has come.
                done.wait(|done| done.iter().any(|(_, other)| *other != number));
                Ok::<_, Failed>(())
            }
        };
        let start =
            |number| eager(world.process()).concurrency(SLOTS).handle_blocking("job", work(number)).start().unwrap();
        let workers: Vec<Worker> = (0..WORKERS).map(start).collect();
        done.wait(|done| done.len() >= RUNS);
        let tallies: Vec<Tally> = workers.into_iter().map(Worker::stop).collect();
        let mut times: BTreeMap<_, usize> = BTreeMap::new();
        done.change(|done| done.iter().for_each(|(id, _)| *times.entry(*id).or_default() += 1));
        assert_eq!((times.len(), times.values().copied().max()), (RUNS, Some(1)));
        for id in times.keys() {
            assert_eq!(world.actions(*id).await, ["enqueue", "claim", "finish"]);
        }
        assert!(tallies.iter().all(|tally| tally.most_at_once <= SLOTS), "{tallies:?}");
        let claimed: Vec<u64> = tallies.iter().map(|tally| tally.claimed).collect();
        println!("claimed by each: {claimed:?}");
        assert_eq!(claimed.iter().sum::<u64>(), RUNS as u64);
        assert!(claimed.iter().filter(|claimed| **claimed > 0).count() > 1, "nobody raced");
    });
}

#[test]
fn w02_runs_start_by_priority_time_and_dependencies() {
    on_each(async |world| {
        let maker = world.process();
        let named = |name: &str| Spec { name: Some(name.into()), ..spec("job") };
        let later = Some(world.clock.now().after(LONG * 60));
        for spec in [
            Spec { priority: 5, ..named("last") },
            Spec { priority: -9, not_before: later, ..named("not yet") },
            Spec { priority: -1, ..named("first") },
            named("second"),
            named("third"),
        ] {
            maker.enqueue(spec).await.unwrap();
            world.clock.pass(Duration::from_millis(1));
        }
        let parent = Planned { spec: Spec { priority: 6, ..named("parent") }, after: Vec::new() };
        let child = Planned {
            spec: Spec { priority: -9, ..named("child") },
            after: vec![(Parent::Planned(0), Release::Success)],
        };
        maker.enqueue_all(vec![parent, child]).await.unwrap();
        let begun = Shared::<Vec<String>>::new();
        let told = begun.clone();
        let worker = eager(world.process()).handle_blocking("job", move |job| {
            told.change(|begun| begun.push(job.run().spec.name.clone().unwrap()));
            Ok::<_, Failed>(())
        });
        let worker = worker.start().unwrap();
        begun.wait(|begun| begun.len() == 6);
        world.clock.pass(LONG * 61);
        worker.waker().wake();
        begun.wait(|begun| begun.len() == 7);
        worker.stop();
        begun.change(|begun| assert_eq!(*begun, ["first", "second", "third", "last", "parent", "child", "not yet"]));
    });
}

#[test]
fn w03_key_never_exceeds_its_limit_and_the_next_run_follows() {
    const RUNS: u64 = 10;
    on_each(async |world| {
        let maker = world.process();
        for _ in 0..RUNS {
            let key = Key::limit("gpu", 2);
            maker.enqueue(Spec { keys: vec![key], ..spec("job") }).await.unwrap();
        }
        // How many are at it, and the most that ever were.
        let at_it = Shared::<(usize, usize)>::new();
        let held = at_it.clone();
        let worker = eager(world.process()).concurrency(8).handle_blocking("job", move |_| {
            held.change(|(now, most)| {
                *now += 1;
                *most = (*most).max(*now);
            });
            held.wait(|(_, most)| *most == 2);
            held.change(|(now, _)| *now -= 1);
            Ok::<_, Failed>(())
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.succeeded == RUNS);
        worker.stop();
        at_it.change(|(_, most)| assert_eq!(*most, 2));
    });
}

#[test]
fn w04_a_claim_whose_answer_was_lost_is_done_once() {
    on_each(async |world| {
        let run = world.process().enqueue(spec("job")).await.unwrap();
        let watched = Watched::new(world.store.clone(), |_| Ok(()));
        watched.silent_updates.store(1, Ordering::SeqCst);
        let worker = eager(world.process_on(watched.clone(), unseen(1)))
            .handle_blocking("job", |_| Ok::<_, Failed>(()))
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.succeeded == 1);
        worker.stop();
        assert_eq!(watched.silent_updates.load(Ordering::SeqCst), 0, "no answer was lost");
        assert_eq!(world.actions(run.id).await, ["enqueue", "claim", "finish"]);
    });
}

#[test]
fn w04_a_run_lost_inside_a_live_worker_is_found_by_its_beats() {
    on_each(async |world| {
        let run = world.process().enqueue(lasting("job")).await.unwrap();
        let deaf = Arc::new(AtomicBool::new(true));
        let hears = deaf.clone();
        let watched = Watched::new(world.store.clone(), move |call| match call {
            "get" if hears.swap(false, Ordering::SeqCst) => Err(Error::Unavailable("it is away".into())),
            _ => Ok(()),
        });
        watched.silent_updates.store(1, Ordering::SeqCst);
        let worker = eager(world.process_on(watched, unseen(1)))
            .handle_blocking("job", |_| Ok::<_, Failed>(()))
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.errors > 0);
        assert!(!deaf.load(Ordering::SeqCst));
        while worker.tally().claimed == 0 {
            worker.registry().tick().await.unwrap();
            world.clock.pass(Duration::from_secs(1));
        }
        worker.wait_until(|tally| tally.succeeded == 1);
        worker.stop();
        assert_eq!(world.actions(run.id).await, ["enqueue", "claim", "interrupt", "claim", "finish"]);
    });
}

#[test]
fn w05_a_cancel_reaches_the_handler_by_the_next_beat_alone() {
    on_each(async |world| {
        let run = world.process().enqueue(spec("job")).await.unwrap();
        let told = Shared::<Option<StopReason>>::new();
        let tell = told.clone();
        let worker = eager(world.process()).handle_blocking("job", move |job| {
            let reason = job.wait_for_stop(LONG);
            tell.change(|told| *told = reason);
            Ok::<_, Failed>(Done::Stopped)
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.running == 1);
        world.process().cancel(run.id, Some("no longer wanted".into())).await.unwrap();
        worker.registry().tick().await.unwrap();
        worker.wait_until(|tally| tally.stopped == 1);
        worker.stop();
        told.change(|told| assert!(matches!(told, Some(StopReason::Run(Stop::Cancelled(_)))), "{told:?}"));
        assert_eq!(state(&world, &run).await, StateName::Cancelled);
    });
}

#[test]
fn w06_a_store_that_is_away_loses_no_run_and_no_end() {
    on_each(async |world| {
        let away = Arc::new(AtomicUsize::new(0));
        let is_away = away.clone();
        let watched = Watched::new(world.store.clone(), move |call| {
            let meant = call == "update" && is_away.load(Ordering::SeqCst) == 1
                || call == "commit" && is_away.load(Ordering::SeqCst) == 2;
            if meant { Err(Error::Unavailable("it is away".into())) } else { Ok(()) }
        });
        let begun = Shared::<bool>::new();
        let (go, out) = (begun.clone(), away.clone());
        out.store(1, Ordering::SeqCst);
        let run = world.process().enqueue(spec("job")).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let registry = world.process_on(watched, unseen(1)).spooling_to(home.path());
        let worker = eager(registry).handle_blocking("job", move |_| {
            go.wait(|go| *go);
            Ok::<_, Failed>(())
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.errors > 1);
        away.store(2, Ordering::SeqCst);
        worker.wait_until(|tally| tally.running == 1);
        begun.change(|go| *go = true);
        worker.wait_until(|tally| tally.later == 1);
        assert_eq!(std::fs::read_dir(home.path().join("spool")).unwrap().count(), 1);
        away.store(0, Ordering::SeqCst);
        worker.registry().tick().await.unwrap();
        assert_eq!(state(&world, &run).await, StateName::Succeeded);
        worker.stop();
        assert_eq!(world.actions(run.id).await, ["enqueue", "claim", "finish"]);
    });
}

#[test]
fn w07_a_worker_that_ends_lets_others_go_on_with_its_runs() {
    on_each(async |world| {
        let maker = world.process();
        let (lasts, rests) = (maker.enqueue(lasting("job")).await.unwrap(), maker.enqueue(spec("job")).await.unwrap());
        let stops = |job: &BlockingJob| match job.wait_for_stop(LONG) {
            Some(StopReason::WorkerEnds) => Ok(Done::Stopped),
            other => Err(Failed::new("test", format!("{other:?}"))),
        };
        let worker = eager(world.process())
            .concurrency(2)
            .grace(Duration::ZERO, LONG)
            .handle_blocking("job", stops)
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.running == 2);
        assert_eq!(worker.stop().stopped, 2);
        assert_eq!(state(&world, &lasts).await, StateName::Pending);
        let ended = world.record(rests.id).await.run;
        assert!(matches!(ended.ending().map(|ending| &ending.how), Some(End::Interrupted(_))), "{ended:?}");
        let next = eager(world.process()).handle_blocking("job", |_| Ok::<_, Failed>(())).start().unwrap();
        next.wait_until(|tally| tally.succeeded == 1);
        next.stop();
        let run = world.record(lasts.id).await.run;
        assert_eq!((run.state.name(), run.attempt, run.failures, run.reaps), (StateName::Succeeded, 2, 0, 0));
    });
}

#[test]
fn w07_handler_that_does_not_stop_is_left_and_changes_nothing() {
    on_each(async |world| {
        let run = world.process().enqueue(lasting("job")).await.unwrap();
        let gate = Shared::<(bool, bool)>::new();
        let (held, prefetched) = (gate.clone(), world.process().enqueue(lasting("job")).await.unwrap());
        let worker = eager(world.process()).prefetch(1).grace(Duration::ZERO, Duration::ZERO).handle_blocking(
            "job",
            move |_| {
                held.wait(|(open, _)| *open);
                held.change(|(_, returned)| *returned = true);
                Ok::<_, Failed>(())
            },
        );
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.running == 1 && tally.claimed == 2);
        let tally = worker.stop();
        assert_eq!((tally.stopped, tally.succeeded), (2, 0));
        let before = world.record(run.id).await;
        assert_eq!((before.run.state.name(), before.run.attempt), (StateName::Pending, 2));
        assert_eq!(state(&world, &prefetched).await, StateName::Pending, "what was not begun was not given back");
        gate.change(|(open, _)| *open = true);
        gate.wait(|(_, returned)| *returned);
        assert_eq!(world.record(run.id).await, before);
    });
}

#[test]
fn t7_10_worker_is_gone_after_a_stop_past_its_grace() {
    on_each(async |world| {
        let run = world.process().enqueue(lasting("job")).await.unwrap();
        let gate = Shared::<bool>::new();
        let held = gate.clone();
        let worker = eager(world.process()).grace(Duration::ZERO, Duration::ZERO).handle_blocking("job", move |_| {
            held.wait(|open| *open);
            Ok::<_, Failed>(())
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.running == 1);
        assert_eq!(world.process().store().workers().await.unwrap().len(), 1);
        assert_eq!(worker.stop().stopped, 1);
        assert_eq!(state(&world, &run).await, StateName::Pending);
        // Its handler goes on, and owns nothing.
        assert_eq!(world.process().store().workers().await.unwrap().len(), 0);
        gate.change(|open| *open = true);
    });
}

#[test]
fn w09_one_of_all_workers_reports_a_reap() {
    const RUNS: usize = 20;
    on_each(async |world| {
        let dead = world.process();
        for _ in 0..RUNS {
            std::mem::forget(dead.start(spec("job")).await.unwrap());
        }
        world.clock.pass(LEASE * 2);
        let told = Shared::<Vec<outlive::id::RunId>>::new();
        let start = |_| {
            let told = told.clone();
            let worker = eager(world.process()).handle_blocking("job", |_| Ok::<_, Failed>(()));
            worker.on_end(move |run| told.change(|told| told.push(run.id))).start().unwrap()
        };
        let workers: Vec<Worker> = (0..3).map(start).collect();
        told.wait(|told| told.len() >= RUNS);
        let reaped: Vec<u64> = workers.into_iter().map(|worker| worker.stop().reaped).collect();
        println!("reaped by each: {reaped:?}");
        assert_eq!(reaped.iter().sum::<u64>(), RUNS as u64);
        let mut told = told.change(std::mem::take);
        told.sort();
        told.dedup();
        assert_eq!(told.len(), RUNS);
        for id in told {
            assert_eq!(world.actions(id).await, ["enqueue", "claim", "reap"]);
        }
    });
}

#[test]
fn an_end_that_comes_after_a_reap_is_refused_and_counted() {
    on_each(async |world| {
        let run = world.process().enqueue(spec("job")).await.unwrap();
        let gate = Shared::<bool>::new();
        let held = gate.clone();
        let worker = eager(world.process()).handle_blocking("job", move |_| {
            held.wait(|open| *open);
            Ok::<_, Failed>(())
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.running == 1);
        world.clock.pass(LEASE * 2);
        assert_eq!(world.reap().await.ended.len(), 1);
        let reaped = world.record(run.id).await;
        gate.change(|open| *open = true);
        worker.wait_until(|tally| tally.lost == 1);
        assert_eq!(worker.stop().succeeded, 0);
        assert_eq!(world.record(run.id).await, reaped);
    });
}

#[test]
fn ends_that_come_together_are_recorded_by_one_write() {
    const RUNS: usize = 20;
    on_each(async |world| {
        for _ in 0..RUNS {
            world.process().enqueue(spec("job")).await.unwrap();
        }
        let worker: Arc<OnceLock<Worker>> = Arc::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (known, counted) = (worker.clone(), begun.clone());
        // The first write is held back until all have ended.
        let watched = Watched::new(world.store.clone(), move |call| {
            if call == "commit" {
                known.wait().wait_until(|tally| counted.load(Ordering::SeqCst) == RUNS && tally.running == 0);
            }
            Ok(())
        });
        let slots = eager(world.process_on(watched, unseen(1))).concurrency(RUNS);
        let started = slots.handle_blocking("job", move |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failed>(())
        });
        let started = started.start();
        let worker = worker.get_or_init(|| started.unwrap());
        worker.wait_until(|tally| tally.succeeded == RUNS as u64);
        let commits = worker.tally().commits;
        println!("{RUNS} ends in {commits} writes");
        assert!(commits <= 2, "{commits}");
    });
}

#[test]
fn a_handler_that_panics_fails_its_run_and_the_worker_goes_on() {
    on_each(async |world| {
        let maker = world.process();
        let (bad, good) = (maker.enqueue(spec("bad")).await.unwrap(), maker.enqueue(spec("good")).await.unwrap());
        let boom = |_: &BlockingJob| -> Result<(), Failed> { panic!("the handler has a defect") };
        let worker = eager(world.process()).handle_blocking("bad", boom).handle_blocking("good", |job| {
            job.set_checkpoint(7.into())?;
            Ok::<_, Failed>(Done::Suspended("waits for a signature".into()))
        });
        let worker = worker.start().unwrap();
        worker.wait_until(|tally| tally.failed == 1 && tally.suspended == 1);
        worker.stop();
        let run = world.record(bad.id).await.run;
        let Some(End::Failed(failure)) = run.ending().map(|ending| &ending.how) else { panic!("{run:?}") };
        assert_eq!(failure.error_type, "panic");
        assert!(failure.error_message.contains("the handler has a defect"), "{failure:?}");
        let run = world.record(good.id).await.run;
        assert_eq!((run.state.name(), run.checkpoint), (StateName::Suspended, Some(7.into())));
    });
}

#[test]
fn a_worker_promises_no_longer_a_lease_than_its_own() {
    on_each(async |world| {
        let run = world.process().enqueue(spec("job")).await.unwrap();
        let worker = eager(world.process()).times(WorkerTiming::fast()).handle_blocking("job", |job| {
            job.wait_for_stop(LONG);
            Ok::<_, Failed>(Done::Stopped)
        });
        let worker = worker.grace(Duration::ZERO, LONG).start().unwrap();
        worker.wait_until(|tally| tally.running == 1);
        let owner = world.record(run.id).await.run.owner().cloned().unwrap();
        worker.stop();
        assert_eq!(owner.lease.lasts(), Duration::from_secs(2));
    });
}

#[test]
fn a_worker_without_slots_or_handlers_is_refused() {
    let world = World::memory();
    assert!(eager(world.process()).start().is_err());
    assert!(eager(world.process()).handle_blocking("job", |_| Ok::<_, Failed>(())).concurrency(0).start().is_err());
    assert!(eager(world.process()).handle_blocking("job", |_| Ok::<_, Failed>(())).kind("other").start().is_err());
    let second = Duration::from_secs(1);
    assert!(
        eager(world.process())
            .handle_blocking("job", |_| Ok::<_, Failed>(()))
            .timeout_of("other", second)
            .start()
            .is_err()
    );
    assert!(
        eager(world.process())
            .handle_blocking("job", |_| Ok::<_, Failed>(()))
            .timeout_of("job", Duration::ZERO)
            .start()
            .is_err()
    );
    assert!(eager(world.process()).handle_blocking("job", |_| Ok::<_, Failed>(())).name("a\nb").start().is_err());
}

#[test]
fn w01_worker_says_what_it_takes_by_heartbeat_or_claim_first() {
    on_each(async |world| {
        let claims_first = world.process().offering(WorkerCapacity::new(1, Vec::new()));
        let handle = claims_first.start(spec("job")).await.unwrap();
        claims_first.tick().await.unwrap();
        let worker = eager(world.process())
            .concurrency(3)
            .name("crew")
            .handle_blocking("a", |_| Ok::<_, Failed>(()))
            .handle_blocking("b", |_| Ok::<_, Failed>(()))
            .start()
            .unwrap();
        let known = world.store.workers().await.unwrap();
        let offer = |id| known.iter().find(|known| Some(known.id) == id).unwrap().offer.clone();
        let expected = WorkerCapacity::new(3, vec!["a".into(), "b".into()]).named(Some("crew".into()));
        assert_eq!(*offer(worker.registry().worker()), expected);
        // In a bucket whoever owns runs is known by them alone.
        if !world.is_slow {
            assert_eq!(*offer(claims_first.worker()), WorkerCapacity::new(1, Vec::new()));
        }
        worker.stop();
        handle.succeed().await.unwrap();
    });
}

#[test]
fn w10_five_hundred_workers_that_join_ask_once_each() {
    const WORKERS: usize = 500;
    const RUNS: usize = 100;
    let world = World::postgres();
    pollster::block_on(async {
        let plan = (0..RUNS).map(|_| Planned { spec: spec("job"), after: Vec::new() });
        world.process().enqueue_all(plan.collect()).await.unwrap();
        let calls = Shared::<BTreeMap<&'static str, usize>>::new();
        let counted = calls.clone();
        let watched = Watched::new(world.store.clone(), move |call| {
            counted.change(|calls| *calls.entry(call).or_default() += 1);
            Ok(())
        });
        let (done, errors) = (Shared::<usize>::new(), Shared::<usize>::new());
        let times = WorkerTiming::new(Duration::from_secs(60), LONG * 10, LONG, LONG).unwrap();
        let start = |_| {
            let (done, errors) = (done.clone(), errors.clone());
            let worker = Worker::builder(world.process_on(watched.clone(), unseen(1))).times(times);
            let worker = worker.on_error(move |_| errors.change(|errors| *errors += 1));
            let count = move |_: &_| {
                done.change(|done| *done += 1);
                Ok::<_, Failed>(())
            };
            worker.handle_blocking("job", count).start().unwrap()
        };
        let workers: Vec<Worker> = (0..WORKERS).map(start).collect();
        assert_eq!(world.store.workers().await.unwrap().len(), WORKERS);
        done.wait(|done| *done == RUNS);
        // Each asks when it comes, and whoever was given a run asks once more.
        calls.wait(|calls| calls.get("update").is_some_and(|claims| *claims >= WORKERS + RUNS));
        calls.change(|calls| {
            println!("{calls:?}");
            assert_eq!((calls["update"], calls["beat"]), (WORKERS + RUNS, WORKERS));
            assert!(calls["commit"] <= RUNS, "ends were written more than once");
            // A worker that does not know whether runs have shares looks once with a claim.
            assert!(calls["heads"] <= WORKERS + RUNS, "shares were looked for more than once with a claim");
            assert_eq!(calls.keys().copied().collect::<Vec<_>>(), ["beat", "commit", "heads", "update", "witness"]);
        });
        errors.change(|errors| assert_eq!(*errors, 0));
        let claimed: u64 = workers.into_iter().map(|worker| worker.stop().claimed).sum();
        assert_eq!(claimed, RUNS as u64);
    });
}

#[test]
fn w01_rows_of_workers_silent_for_an_hour_are_deleted() {
    let world = World::postgres();
    pollster::block_on(async {
        let (idle, busy) = (world.process(), world.process());
        idle.tick().await.unwrap();
        std::mem::forget(busy.start(spec("job")).await.unwrap());
        world.clock.pass(Duration::from_secs(3_700));
        let comer = world.process();
        comer.tick().await.unwrap();
        let left: Vec<_> = world.store.workers().await.unwrap().into_iter().map(|worker| worker.id).collect();
        let mut expected = vec![busy.worker().unwrap(), comer.worker().unwrap()];
        expected.sort();
        assert_eq!(left, expected);
    });
}
