//! Deleting while things go wrong: F-77, F-81, and servers that fail in the middle of a sweep.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, SweepReport, sweep};
use outlive::id::RunId;
use outlive::store::Store;
use outlive::store::object::ObjectStore;
use outlive::testing::bucket::Bucket;
use outlive::testing::proxy::{Fate, Gate, Proxy, Request, document};

use super::faults::{first, is_change};
use super::yard::Yard;

fn at_once() -> SweepPolicy {
    SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() }
}

fn deletes(request: &Request) -> bool {
    request.method == "POST" && request.target.contains("delete")
}

/// The keys that a request asks to delete.
fn keys(request: &Request) -> BTreeSet<String> {
    let body = String::from_utf8_lossy(&request.body).into_owned();
    body.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned()).collect()
}

/// A run that failed, with that many objects.
async fn failed(yard: &Yard, objects: u32) -> RunId {
    let handle = yard.start().await;
    let id = handle.id();
    for part in 0..objects {
        yard.shard(&id.to_string(), part, 0).await;
    }
    handle.fail("exit", "1").await.unwrap();
    id
}

#[test]
fn f_81_of_a_batch_only_what_failed_is_asked_for_again() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        failed(&yard, 5).await;
        let asked: Arc<Mutex<Vec<BTreeSet<String>>>> = Arc::default();
        let (hears, store) = (asked.clone(), yard.store.clone());
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            if !deletes(request) {
                return Fate::Pass;
            }
            let keys = keys(request);
            hears.lock().unwrap().push(keys.clone());
            if hears.lock().unwrap().len() > 1 {
                return Fate::Pass;
            }
            // Two fail for now, one for good.
            let mut said = String::new();
            let mut gone = Vec::new();
            for (key, code) in keys.iter().zip(["", "InternalError", "SlowDown", "AccessDenied", ""]) {
                if code.is_empty() {
                    gone.push(key.clone());
                    said += &format!("<Deleted><Key>{key}</Key></Deleted>");
                } else {
                    said += &format!("<Error><Key>{key}</Key><Code>{code}</Code><Message>no</Message></Error>");
                }
            }
            pollster::block_on(store.raw_delete(&gone)).unwrap();
            Fate::Say(document(&format!("<DeleteResult>{said}</DeleteResult>")))
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        let asked = asked.lock().unwrap().clone();
        let first: Vec<String> = asked[0].iter().cloned().collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert_eq!(asked[1], BTreeSet::from([first[1].clone(), first[2].clone()]));
        assert_eq!((report.objects, report.left), (4, 1), "{report:?}");
        let told: Vec<_> = report.problems.iter().map(|problem| problem.why.as_str()).collect();
        assert_eq!(
            told,
            [
                "1 objects could not be deleted: bucket `outlive`: this is not permitted with these credentials (AccessDenied)"
            ]
        );
        assert_eq!(yard.shards().await.len(), 1);
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 1, "what was left is for the next sweep");
    });
}

#[test]
fn f_81_a_batch_that_fails_as_a_whole_is_asked_for_again() {
    pollster::block_on(async {
        for fate in [
            Fate::Answer(503, "SlowDown"),
            Fate::Answer(500, "InternalError"),
            Fate::PassAndAnswer(500, "InternalError"),
            Fate::Cut,
            Fate::LoseAnswer,
        ] {
            let yard = Yard::new().await;
            failed(&yard, 3).await;
            let (proxy, left) = first(2, deletes, fate.clone());
            let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
            let report = sweep(&sweeping, &at_once()).await.unwrap();
            assert_eq!((report.objects, report.left, left.load(Ordering::SeqCst)), (3, 0, 0), "{fate:?}");
            assert!(yard.shards().await.is_empty());
        }
    });
}

/// What was told of sweeps in the event log of a run.
async fn events(store: &ObjectStore, id: RunId) -> Vec<String> {
    let events = store.events(id).await.unwrap();
    events.into_iter().filter(|event| event.action == "sweep").filter_map(|event| event.reason).collect()
}

#[test]
fn server_faults_during_a_sweep_lose_and_repeat_nothing() {
    pollster::block_on(async {
        let marks = |request: &Request| is_change(request);
        let lists = |request: &Request| request.target.contains("list-type=2");
        for is_meant in [deletes as fn(&Request) -> bool, marks, lists] {
            for fate in [
                Fate::Answer(503, "SlowDown"),
                Fate::Answer(500, "InternalError"),
                Fate::PassAndAnswer(503, "SlowDown"),
                Fate::Cut,
                Fate::LoseAnswer,
            ] {
                let yard = Yard::new().await;
                let id = failed(&yard, 2).await;
                let living = yard.start().await;
                let kept = yard.shard(&living.id().to_string(), 0, 0).await;
                let (proxy, left) = first(0, is_meant, fate.clone());
                let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
                left.store(2, Ordering::SeqCst);
                let report = sweep(&sweeping, &at_once()).await.unwrap();
                assert_eq!(left.load(Ordering::SeqCst), 0, "{fate:?}: nothing went wrong");
                assert_eq!((report.objects, report.left, report.problems.len()), (2, 0, 0), "{fate:?} {report:?}");
                assert_eq!(yard.shards().await, [kept], "{fate:?}");
                let told = events(&yard.store, id).await;
                assert_eq!(told, ["failed, and it has no manifest", "2 objects of 10 bytes deleted"], "{fate:?}");
                living.succeed().await.unwrap();
            }
        }
    });
}

#[test]
fn sweep_without_answers_says_so_and_the_next_completes_it() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (one, other) = (failed(&yard, 2).await, failed(&yard, 2).await);
        let (proxy, left) = first(0, deletes, Fate::Cut);
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_millis(300)).await;
        left.store(usize::MAX, Ordering::SeqCst);
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert_eq!((report.objects, report.left), (0, 4), "{report:?}");
        assert!(report.problems.iter().any(|problem| problem.why.contains("4 objects could not be deleted")));
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, report.left, report.problems.len()), (4, 0, 0), "{report:?}");
        for id in [one, other] {
            let told = events(&yard.store, id).await;
            assert_eq!(told.last().map(String::as_str), Some("2 objects of 10 bytes deleted"), "{told:?}");
            assert_eq!(told[1], "0 objects of 0 bytes deleted, 2 are left");
        }
    });
}

#[test]
fn f_84_server_killed_or_stopped_during_a_sweep_loses_nothing() {
    pollster::block_on(async {
        let server = Arc::new(Bucket::alone());
        let yard = Yard::at(server.port()).await;
        for kills in [true, false] {
            let id = failed(&yard, 3).await;
            let living = yard.start().await;
            let kept = yard.shard(&living.id().to_string(), 0, 0).await;
            let (gate, met) = (Gate::new(), AtomicUsize::new(0));
            let (tell, told) = std::sync::mpsc::channel();
            let holds = gate.clone();
            let proxy = Proxy::new(server.port(), move |request| {
                // The batch is on its way when the server goes.
                if !deletes(request) || met.fetch_add(1, Ordering::SeqCst) > 0 {
                    return Fate::Pass;
                }
                tell.send(()).unwrap();
                Fate::Hold(holds.clone())
            });
            let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(90)).await;
            let sweeper = std::thread::spawn(move || pollster::block_on(sweep(&sweeping, &at_once())).unwrap());
            told.recv().unwrap();
            if kills {
                server.kill()
            } else {
                server.pause()
            }
            gate.open();
            if kills {
                server.start()
            } else {
                server.go_on()
            }
            let report: SweepReport = sweeper.join().unwrap();
            assert_eq!(report.objects + report.left, 3, "{report:?}");
            // A server that is away for longer than one waits for leaves it to the next.
            let rest = if report.left > 0 { yard.sweep(&at_once(), false).await.objects } else { 0 };
            assert_eq!((report.objects + rest, yard.shards().await), (3, vec![kept.clone()]), "{report:?}");
            let told = events(&yard.store, id).await;
            assert_eq!(told.last().map(String::as_str), Some("3 objects of 15 bytes deleted"), "{told:?}");
            living.succeed().await.unwrap();
            yard.store.raw_delete(&[format!("{}/data/{kept}", yard.prefix)]).await.unwrap();
        }
    });
}

#[test]
fn f_77_deleted_objects_of_a_versioned_bucket_are_hidden() {
    pollster::block_on(async {
        let yard = Yard::versioned().await;
        let (gone, id) = (yard.start().await, failed(&yard, 2).await);
        // Nothing keeps a new object from being put over a deleted one, so whoever knew it must not.
        let key = yard.store.place_of_record(gone.id());
        yard.store.raw_delete(std::slice::from_ref(&key)).await.unwrap();
        assert!(gone.set_checkpoint(1.into()).await.is_err());
        assert!(yard.store.raw_get(&key).await.unwrap().is_none(), "a deleted record came back");
        std::mem::forget(gone);

        let dry = yard.sweep(&at_once(), true).await;
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((dry.objects, report.objects, report.left), (2, 2, 0), "{report:?}");
        assert!(yard.shards().await.is_empty());
        assert_eq!((dry.versioned, report.versioned), (vec![yard.place()], vec![yard.place()]));
        // What is hidden is not found again, and counted, by the next.
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 0);
        yard.shard(&id.to_string(), 0, 0).await;
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 1, "what a zombie put over it is swept like any other");

        let without = Yard::new().await;
        failed(&without, 1).await;
        assert_eq!(without.sweep(&at_once(), false).await.versioned, Vec::<String>::new());
    });
}
