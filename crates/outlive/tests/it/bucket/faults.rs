//! Faults of object stores, F-67 to F-87, each with somebody between the client and the server.
//!
//! F-67 and F-68 are in `servers.rs`; F-75 is proved where the server's time is read, and by commands whose clocks are off;
//! F-76 is in `listing.rs`, F-77 and F-81 in `deleting.rs`; F-85 has no test, because nothing is ever copied.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::ownership::Stop;
use outlive::ownership::reaper::Reaper;
use outlive::run::StateName;
use outlive::store::{Error, Store};
use outlive::testing::bucket::Bucket;
use outlive::testing::proxy::{Fate, Gate, Proxy, Request, forward};
use outlive::testing::spec;

use super::yard::Yard;

const LEASE: Duration = Duration::from_secs(60);

/// A proxy that does `fate` to the first `count` requests that are meant.
pub(crate) fn first(count: usize, is_meant: fn(&Request) -> bool, fate: Fate) -> (Proxy, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(count));
    let counted = left.clone();
    let proxy = Proxy::new(Bucket::shared().port(), move |request| {
        let next = |left: usize| left.checked_sub(1);
        let hit = is_meant(request) && counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok();
        if hit { fate.clone() } else { Fate::Pass }
    });
    (proxy, left)
}

pub(crate) fn is_record(request: &Request) -> bool {
    request.is_conditional() && request.target.contains("run.yaml")
}

pub(crate) fn is_create(request: &Request) -> bool {
    is_record(request) && request.head.to_ascii_lowercase().contains("if-none-match")
}

pub(crate) fn is_change(request: &Request) -> bool {
    is_record(request) && !is_create(request)
}

/// Starts a run through a proxy, reports, beats and ends it: all of it once, whatever the proxy does.
async fn live(yard: &Yard, proxy: &Proxy) {
    let (registry, store) = yard.process_at(proxy.port(), Duration::from_secs(15)).await;
    let handle = registry.start(spec("job")).await.unwrap();
    let id = handle.id();
    handle.set_checkpoint(7.into()).await.unwrap();
    registry.tick().await.unwrap();
    assert_eq!(handle.stop_requested(), None, "it is told to be lost and is not");
    handle.succeed().await.unwrap();
    let run = yard.registry.get(id).await.unwrap().run;
    assert_eq!((run.state.name(), run.checkpoint, run.epoch.0), (StateName::Succeeded, Some(7.into()), 1));
    let actions: Vec<String> = store.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect();
    assert_eq!(actions, ["enqueue", "claim", "report", "finish"]);
}

#[test]
fn f_69_a_lost_answer_is_read_back_and_nothing_is_done_twice() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for (is_meant, count) in [(is_create as fn(&Request) -> bool, 1), (is_change, 3), (is_record, 4)] {
            let (proxy, left) = first(count, is_meant, Fate::LoseAnswer);
            live(&yard, &proxy).await;
            assert_eq!(left.load(Ordering::SeqCst), 0, "not as many answers were lost as were to be");
        }
    });
}

#[test]
fn f_69_request_that_never_arrived_is_sent_again_at_every_step() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for fate in [Fate::Cut, Fate::LoseAnswer, Fate::Answer(503, "SlowDown")] {
            let (proxy, left) = first(0, is_record, fate.clone());
            let (registry, store) = yard.process_at(proxy.port(), Duration::from_secs(15)).await;
            // What has landed is read back, and not asked for again.
            let times = if matches!(fate, Fate::LoseAnswer) { 1 } else { 2 };
            let arm = || left.store(times, Ordering::SeqCst);
            let is_hit = |step: &str| assert_eq!(left.load(Ordering::SeqCst), 0, "{fate:?} never met its {step}");
            arm();
            let handle = registry.start(spec("job")).await.unwrap();
            is_hit("create");
            arm();
            handle.set_checkpoint(7.into()).await.unwrap();
            is_hit("report");
            let beats = async || store.get(&[handle.id()]).await.unwrap()[0].run.owner().unwrap().heard.beat;
            let before = beats().await;
            yard.clock.pass(LEASE / 3);
            arm();
            registry.tick().await.unwrap();
            is_hit("beat");
            assert_eq!((handle.stop_requested(), beats().await), (None, before + 1), "{fate:?}: of its beat");
            let id = handle.id();
            arm();
            handle.succeed().await.unwrap();
            is_hit("finish");
            let told: Vec<String> =
                store.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect();
            assert_eq!(told, ["enqueue", "claim", "report", "finish"], "{fate:?}");
        }
    });
}

#[test]
fn f_70_request_after_the_run_was_resumed_changes_nothing() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let gate = Gate::new();
        let (proxy, left) = first(0, is_change, Fate::Late(gate.clone()));
        let (owner, _) = yard.process_at(proxy.port(), Duration::from_millis(300)).await;
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        left.store(usize::MAX, Ordering::SeqCst);
        let unknown = handle.set_checkpoint(1.into()).await.unwrap_err();
        assert!(unknown.to_string().contains("no answer"), "{unknown}");
        let sent = usize::MAX - left.load(Ordering::SeqCst);
        yard.clock.pass(LEASE * 2);
        let mut reaper = Reaper::new(None);
        assert_eq!(reaper.pass(&yard.registry).await.unwrap().ended.len(), 1);
        let resumed = yard.registry.resume(id, outlive::ResumeOptions::default()).await.unwrap();
        let before = yard.store.get(&[id]).await.unwrap();
        gate.open();
        gate.wait_passed(sent);
        assert!(sent > 0);
        assert_eq!(yard.store.get(&[id]).await.unwrap(), before);
        resumed.succeed().await.unwrap();
        std::mem::forget(handle);
    });
}

#[test]
fn f_71_a_conflict_on_create_proves_no_earlier_writer() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for fate in
            [Fate::Answer(409, "ConditionalRequestConflict"), Fate::PassAndAnswer(409, "ConditionalRequestConflict")]
        {
            let (proxy, left) = first(1, is_create, fate);
            live(&yard, &proxy).await;
            assert_eq!(left.load(Ordering::SeqCst), 0);
        }
    });
}

#[test]
fn f_71_a_conflict_on_a_change_is_looked_into() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (proxy, left) = first(2, is_change, Fate::Answer(409, "ConcurrentModification"));
        live(&yard, &proxy).await;
        assert_eq!(left.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn f_72_slow_down_and_errors_of_the_server_are_waited_out() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for (status, code) in [(503, "SlowDown"), (429, "TooManyRequests"), (500, "InternalError")] {
            let (proxy, left) = first(5, |_| true, Fate::Answer(status, code));
            live(&yard, &proxy).await;
            assert_eq!(left.load(Ordering::SeqCst), 0);
            let (proxy, _) = first(3, is_record, Fate::PassAndAnswer(status, code));
            live(&yard, &proxy).await;
        }
    });
}

#[test]
fn f_73_vanished_record_is_not_created_by_a_late_writer() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for answer in [None, Some(Fate::Answer(404, "NoSuchKey")), Some(Fate::Answer(412, "PreconditionFailed"))] {
            let (proxy, left) = first(0, is_change, answer.clone().unwrap_or(Fate::Pass));
            let (owner, store) = yard.process_at(proxy.port(), Duration::from_secs(5)).await;
            let handle = owner.start(spec("job")).await.unwrap();
            let key = store.place_of_record(handle.id());
            yard.store.raw_delete(std::slice::from_ref(&key)).await.unwrap();
            left.store(usize::MAX, Ordering::SeqCst);
            let error = handle.set_checkpoint(1.into()).await.unwrap_err();
            assert!(yard.store.raw_get(&key).await.unwrap().is_none(), "{error}");
            std::mem::forget(handle);
        }
    });
}

#[test]
fn f_74_a_clock_that_the_server_refuses_is_named() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (proxy, left) = first(0, |_| true, Fate::Answer(403, "RequestTimeTooSkewed"));
        let (registry, _) = yard.process_at(proxy.port(), Duration::from_secs(5)).await;
        let handle = registry.start(spec("job")).await.unwrap();
        left.store(usize::MAX, Ordering::SeqCst);
        let error = registry.get(handle.id()).await.unwrap_err().to_string();
        assert!(error.contains("clock of this host"), "{error}");
        assert!(registry.tick().await.is_err());
        assert_eq!(handle.stop_requested(), None, "an error was taken for a loss");
        left.store(0, Ordering::SeqCst);
        handle.succeed().await.unwrap();
    });
}

#[test]
fn f_78_f_79_late_uploads_of_a_zombie_go_with_the_next_sweep() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let id = handle.id().to_string();
        yard.shard(&id, 0, 0).await;
        yard.clock.pass(LEASE * 2);
        assert_eq!(yard.reap().await, 1);
        let at_once = SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() };
        assert_eq!(yard.sweep(&at_once, false).await.objects, 1);
        yard.shard(&id, 0, 0).await;
        yard.shard(&id, 1, 0).await;
        assert_eq!(yard.sweep(&at_once, false).await.objects, 2);
        assert!(yard.shards().await.is_empty());
        std::mem::forget(handle);
    });
}

#[test]
fn f_83_a_bucket_that_forbids_deletion_is_asked_once() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        yard.shard(&handle.id().to_string(), 0, 0).await;
        handle.fail("exit", "1").await.unwrap();
        let (proxy, left) =
            first(usize::MAX, |request| request.target.contains("delete"), Fate::Answer(403, "AccessDenied"));
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        let report =
            sweep(&sweeping, &SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() })
                .await
                .unwrap();
        assert_eq!((report.objects, report.left), (0, 1));
        assert_eq!(usize::MAX - left.load(Ordering::SeqCst), 1, "a refusal was asked for again");
        assert!(report.problems.iter().any(|problem| problem.why.contains("not permitted")), "{report:?}");
    });
}

#[test]
fn f_84_reads_that_fail_after_a_restart_are_no_absence() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.registry.start(spec("job")).await.unwrap();
        let (proxy, left) = first(0, |request| request.method == "GET", Fate::Answer(500, "InternalError"));
        let (reading, _) = yard.process_at(proxy.port(), Duration::from_millis(400)).await;
        left.store(usize::MAX, Ordering::SeqCst);
        let error = reading.get(handle.id()).await.unwrap_err();
        assert_eq!(error.code(), outlive::error::Code::Unavailable, "{error}");
        yard.clock.pass(LEASE * 2);
        assert!(Reaper::new(None).pass(&reading).await.is_err(), "whoever cannot read has judged");
        std::mem::forget(handle);
    });
}

#[test]
fn f_86_expired_credentials_are_reported_and_end_no_run() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (proxy, left) = first(0, |_| true, Fate::Answer(403, "ExpiredToken"));
        let (registry, _) = yard.process_at(proxy.port(), Duration::from_secs(5)).await;
        let handle = registry.start(spec("job")).await.unwrap();
        assert!(handle.run().spec.policy.lease.lasts() >= LEASE);
        left.store(usize::MAX, Ordering::SeqCst);
        let error = registry.tick().await.unwrap_err().to_string();
        assert!(error.contains("expired"), "{error}");
        assert_eq!(handle.stop_requested(), None);
        left.store(0, Ordering::SeqCst);
        registry.tick().await.unwrap();
        handle.succeed().await.unwrap();
    });
}

#[test]
fn f_87_owner_cut_off_and_reaped_learns_it_when_it_is_back() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let proxy = Proxy::new(Bucket::shared().port(), |_| Fate::Pass);
        let (owner, _) = yard.process_at(proxy.port(), Duration::from_millis(300)).await;
        let handle = owner.start(spec("job")).await.unwrap();
        let other = yard.process().await;
        let witness = other.start(spec("heard meanwhile")).await.unwrap();
        proxy.cut_off(true);
        assert!(owner.tick().await.is_err());
        assert_eq!(handle.stop_requested(), None);
        for _ in 0..3 {
            yard.clock.pass(LEASE / 2 + Duration::from_secs(1));
            other.tick().await.unwrap();
        }
        assert_eq!(Reaper::new(None).pass(&other).await.unwrap().ended.len(), 1);
        proxy.cut_off(false);
        owner.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), Some(Stop::Lost));
        witness.succeed().await.unwrap();
        std::mem::forget(handle);
    });
}

/// What befalls a server when the next request to write a record has come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Blow {
    /// It is killed before it has seen it, and starts again.
    Killed,
    /// It is killed when it has done it, before anybody knows, and starts again.
    KilledAfter,
    /// It stands still for a while, with the request before it.
    Stopped,
}

/// Deals a blow to a server with the next request to write a record, once it is armed.
struct Blows {
    proxy: Proxy,
    armed: Arc<Mutex<Option<Blow>>>,
}

impl Blows {
    fn on(server: &Arc<Bucket>) -> Self {
        let armed: Arc<Mutex<Option<Blow>>> = Arc::default();
        // The server goes with the test, whoever is still asked.
        let (arm, standing) = (armed.clone(), Arc::downgrade(server));
        let proxy = Proxy::new(server.port(), move |request| {
            let Some(blow) = is_record(request).then(|| arm.lock().unwrap().take()).flatten() else {
                return Fate::Pass;
            };
            let Some(server) = standing.upgrade() else { return Fate::Cut };
            if blow == Blow::Stopped {
                server.pause();
                // Longer than anybody would take for the time that an answer takes.
                let wait = Duration::from_millis(1_500);
                std::thread::spawn(move || (std::thread::park_timeout(wait), server.go_on()));
                return Fate::Pass;
            }
            if blow == Blow::KilledAfter {
                forward(request, server.port());
            }
            server.kill();
            std::thread::spawn(move || server.start());
            Fate::Cut
        });
        Self { proxy, armed }
    }

    /// Does something that is hit by a blow.
    async fn amid<T>(&self, blow: Option<Blow>, work: impl Future<Output = T>) -> T {
        *self.armed.lock().unwrap() = blow;
        let done = work.await;
        assert_eq!(self.armed.lock().unwrap().take(), None, "nothing was under way to be hit");
        done
    }
}

#[test]
fn f_84_server_killed_or_stopped_at_any_step_loses_no_run() {
    pollster::block_on(async {
        let server = Arc::new(Bucket::alone());
        let blows = Blows::on(&server);
        let clock = outlive::testing::ManualClock::new();
        let store = super::yard::open(blows.proxy.port(), "p", &clock, Duration::from_secs(90)).await;
        let store: Arc<dyn Store> = Arc::new(store);
        let entropy = Arc::new(outlive::testing::SeededEntropy::new(5));
        let registry = outlive::registry::Registry::over(
            store.clone(),
            clock.clone(),
            entropy,
            outlive::testing::person("ada"),
            crate::world::unseen(1),
        );
        let mut ids = Vec::new();
        // Its create, its report, its beat and its finish. A kill takes long to come back from.
        let all = [(0, Blow::Killed), (2, Blow::KilledAfter), (3, Blow::KilledAfter)];
        for (hit, blow) in (0..4).map(|hit| (hit, Blow::Stopped)).chain(all) {
            let amid = |step| (step == hit).then_some(blow);
            let handle = blows.amid(amid(0), registry.start(spec("job"))).await.unwrap();
            blows.amid(amid(1), handle.set_checkpoint(1.into())).await.unwrap();
            clock.pass(Duration::from_secs(4));
            blows.amid(amid(2), registry.tick()).await.unwrap();
            ids.push(handle.id());
            blows.amid(amid(3), handle.succeed()).await.unwrap();
        }
        for id in ids {
            let told: Vec<String> =
                store.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect();
            assert_eq!(told, ["enqueue", "claim", "report", "finish"]);
        }
        server.kill();
        let gone = super::yard::open_within(server.port(), "p", &clock, Duration::from_millis(200)).await;
        assert!(matches!(gone, Err(Error::Unavailable(_))), "{:?}", gone.err());
    });
}
