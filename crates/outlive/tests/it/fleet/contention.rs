//! Claims that contend for keys: nothing is waited for, nothing is broken off, and nothing is executed twice.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use outlive::filter::Filter;
use outlive::run::{Key, Spec, StateName};
use outlive::store::{Order, Page};

fn keyed(key: &str) -> Spec {
    Spec { keys: vec![Key::limit(key, 1)], ..spec("job") }
}

/// Locks a key as a claim of another process does that is about to give it away.
fn lock(server: &Server, store: &PostgresStore, key: &str) -> Session {
    let mut session = Session::begin(server);
    let name = format!("outlive key {} {key}", store.id());
    session.does(&format!("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('{name}', 1));"));
    session
}

#[test]
fn t7_01_claim_skips_a_key_that_another_claim_has_locked() {
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let store = open(&url).unwrap();
    let worker = process(&store, Arc::new(SystemClock));
    pollster::block_on(async {
        for key in ["a", "b", "a", "b"] {
            worker.enqueue(keyed(key)).await.unwrap();
        }
        let other = lock(&server, &store, "a");
        let claimed = worker.claim(Filter::default(), 4).await.unwrap();
        let keys: Vec<String> = claimed.iter().map(|handle| handle.run().spec.keys[0].name.clone()).collect();
        assert_eq!((keys, store.contended_keys()), (vec!["b".to_owned()], 1));
        // Nor is a key locked that has no room: whoever frees it, or takes it next, finds nobody there.
        let advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(server.psql(advisory), "1", "the other session's");
        drop(other);
        until("the other session to end", || server.psql(advisory) == "0");
        let more = worker.claim(Filter::default(), 4).await.unwrap();
        assert_eq!(more.len(), 1);
        for handle in claimed.into_iter().chain(more) {
            handle.succeed().await.unwrap();
        }
    });
}

#[test]
fn t7_01_processes_that_share_keys_execute_each_run_once() {
    const PROCESSES: usize = 4;
    const RUNS: usize = 80;
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let maker = registry(&url);
    let all = pollster::block_on(async {
        let mut all = Vec::new();
        for number in 0..RUNS {
            // Some want two keys, in either order.
            let (one, other) = (format!("k{}", number % 4), format!("k{}", (number / 4) % 4));
            let mut spec = keyed(&one);
            if number % 5 == 0 && one != other {
                spec.keys.push(Key::limit(other, 1));
            }
            all.push(maker.enqueue(spec).await.unwrap().id);
        }
        all
    });
    let executed: Mutex<BTreeMap<RunId, usize>> = Mutex::default();
    let (held, overlaps, contended) = (Mutex::new(BTreeMap::new()), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                let store = open(&url).unwrap();
                let worker = process(&store, Arc::new(SystemClock));
                while executed.lock().unwrap().len() < RUNS {
                    for handle in pollster::block_on(worker.claim(Filter::default(), 3)).unwrap() {
                        let keys: Vec<String> = handle.run().spec.keys.iter().map(|key| key.name.clone()).collect();
                        for key in &keys {
                            let other = held.lock().unwrap().insert(key.clone(), handle.id());
                            overlaps.fetch_add(usize::from(other.is_some()), Ordering::Relaxed);
                        }
                        *executed.lock().unwrap().entry(handle.id()).or_default() += 1;
                        for key in &keys {
                            held.lock().unwrap().remove(key);
                        }
                        pollster::block_on(handle.succeed()).unwrap();
                    }
                }
                contended.fetch_add(store.contended_keys() as usize, Ordering::Relaxed);
            });
        }
    });
    let executed = executed.into_inner().unwrap();
    let (overlaps, contended) = (overlaps.into_inner(), contended.into_inner());
    println!("{contended} keys were locked by another claim");
    assert_eq!((executed.len(), executed.values().copied().max(), overlaps), (RUNS, Some(1), 0));
    assert!(contended > 0, "nobody met anybody");
    let page = Page { order: Order::Oldest, ..Page::default() };
    let done = pollster::block_on(maker.store().list(&Filter::in_states([StateName::Succeeded]), &page)).unwrap();
    assert_eq!(done.records.len(), all.len());
    // Recorded times of what shares a key follow each other, too.
    let times = done.records.iter().flat_map(|record| {
        let ending = record.run.ending().unwrap();
        record.run.spec.keys.iter().map(move |key| (key.name.clone(), ending.started_at.unwrap(), ending.at))
    });
    let mut times: Vec<_> = times.collect();
    times.sort();
    for pair in times.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[0].2 <= pair[1].1, "{} ended at {} after the next began at {}", pair[0].0, pair[0].2, pair[1].1);
    }
    // Dropping the server checks its log for deadlocks.
}

#[test]
fn t7_10_claims_pass_over_runs_whose_key_is_busy() {
    const LOCKED: usize = 20_000;
    const FREE: usize = 100;
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let (worker, schema) = (registry(&url), schema_of(&url));
    pollster::block_on(async {
        let holder = worker.start(keyed("busy")).await.unwrap();
        let waits = worker.enqueue(keyed("busy")).await.unwrap();
        // As many as it takes, without the time that making them would take.
        server.psql(&format!(
            "CREATE TEMP TABLE copied AS SELECT gen_random_uuid() AS id, '{0}'::uuid AS of
                 FROM generate_series(2, {LOCKED});
             INSERT INTO {schema}.spec SELECT copied.id, created_at - 1000000, priority, name, kind, step_of, signature, body
                 FROM {schema}.spec JOIN copied ON spec.id = of;
             INSERT INTO {schema}.waiting (id, revision, stamp, epoch, created_at, priority, ready, state, kind, events, keys)
                 SELECT copied.id, revision, stamp, epoch, created_at - 1000000, priority, ready, state, kind, events, keys
                 FROM {schema}.waiting JOIN copied ON waiting.id = of",
            waits.id
        ));
        for _ in 0..FREE {
            worker.enqueue(spec("free")).await.unwrap();
        }
        let claimed = worker.claim(Filter::default(), FREE).await.unwrap();
        assert!(claimed.iter().all(|handle| handle.run().spec.keys.is_empty()));
        assert_eq!(claimed.len(), FREE);
        // A row that was locked still says by whom.
        let locked = server.psql(&format!("SELECT count(*) FROM {schema}.waiting WHERE xmax <> 0"));
        assert!(locked.parse::<usize>().unwrap() <= FREE, "{locked} runs were locked though their key is busy");
        for handle in claimed.into_iter().chain([holder]) {
            handle.succeed().await.unwrap();
        }
        assert_eq!(worker.claim(Filter::default(), FREE).await.unwrap().len(), 1, "the key is free again");
    });
}

#[test]
fn t7_10_idle_poll_is_one_statement() {
    let server = Server::alone(&["fsync=off", "log_statement=all"]);
    let worker = registry(&server.fresh_url());
    let poll = || assert!(pollster::block_on(worker.claim(Filter::default(), 4)).unwrap().is_empty());
    (0..5).for_each(|_| poll());
    let begun = server.log().len();
    (0..3).for_each(|_| poll());
    let log = &server.log()[begun..];
    let asked = log.lines().filter(|line| line.contains("LOG:  statement:") || line.contains("LOG:  execute")).count();
    assert_eq!(asked, 3, "{log}");
    // What comes meanwhile is claimed all the same.
    pollster::block_on(worker.enqueue(spec("job"))).unwrap();
    let claimed = pollster::block_on(worker.claim(Filter::default(), 4)).unwrap();
    assert_eq!(claimed.len(), 1);
    for handle in claimed {
        pollster::block_on(handle.succeed()).unwrap();
    }
}
