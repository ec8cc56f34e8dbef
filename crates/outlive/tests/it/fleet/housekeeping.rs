//! What processes do for the tables of all: counts folded, dead rows removed, rows of workers left alone.

use super::*;
use outlive::engine::maintenance::Maintenance;
use outlive::filter::Filter;

fn count(server: &Server, sql: &str) -> u64 {
    server.psql(sql).parse().unwrap()
}

#[test]
fn maintenance_folds_the_counts_of_a_quiet_registry() {
    const RUNS: u64 = 30;
    let url = Server::shared().fresh_url();
    let (store, schema) = (open(&url).unwrap(), schema_of(&url));
    pollster::block_on(async {
        for _ in 0..RUNS {
            store.commit(vec![making(draft())]).await.unwrap();
        }
        let rows = format!("SELECT count(*) FROM {schema}.tally");
        assert!(count(Server::shared(), &rows) >= RUNS);
        store.maintain().await.unwrap();
        assert_eq!(count(Server::shared(), &rows), 1);
        let counts = store.counts().await.unwrap();
        assert_eq!(counts.iter().map(|count| count.runs).sum::<u64>(), RUNS);
    });
}

#[test]
fn workers_share_the_count_after_which_they_vacuum() {
    const WORKERS: usize = 10;
    // Of 10,000 moves by all.
    const SHARE: usize = 1_000;
    let server = Server::alone(&["fsync=off", "autovacuum=off"]);
    let url = server.fresh_url();
    let (store, schema) = (open(&url).unwrap(), schema_of(&url));
    let worker = process(&store, Arc::new(SystemClock));
    pollster::block_on(async {
        for _ in 0..WORKERS {
            process(&store, Arc::new(SystemClock)).tick().await.unwrap();
        }
        assert_eq!(store.workers().await.unwrap().len(), WORKERS);
        worker.enqueue(spec("job")).await.unwrap();
        // What the others have moved, and what is left for this worker.
        server.psql(&format!(
            "SET search_path TO {schema};
             CREATE TEMP TABLE copies AS SELECT gen_random_uuid() AS id, n FROM generate_series(1, 9000) AS n;
             INSERT INTO spec SELECT copies.id, created_at, priority, NULL, kind, NULL, NULL, body FROM copies, spec;
             INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, state, kind, events)
                 SELECT copies.id, 1, gen_random_uuid(), 0, created_at, priority, true, 'pending', kind, events
                 FROM copies, waiting;
             DELETE FROM waiting WHERE id IN (SELECT id FROM copies WHERE n > {SHARE})"
        ));
        let vacuumed = format!(
            "SELECT coalesce(sum(vacuum_count), 0)::int8 FROM pg_stat_user_tables
             WHERE relname = 'waiting' AND schemaname = '{schema}'"
        );
        let claimed = worker.claim(Filter::default(), SHARE - 1).await.unwrap();
        assert_eq!(claimed.len(), SHARE - 1);
        claimed.into_iter().for_each(std::mem::forget);
        assert_eq!(count(&server, &vacuumed), 0, "before this worker has moved its share");
        worker.claim(Filter::default(), 1).await.unwrap().into_iter().for_each(std::mem::forget);
        until("the tables to be vacuumed", || count(&server, &vacuumed) == 1);
    });
}

#[test]
fn claims_leave_the_row_of_a_worker_alone_that_has_just_beaten() {
    let url = Server::shared().fresh_url();
    let (worker, schema) = (registry(&url), schema_of(&url));
    let beat = || count(Server::shared(), &format!("SELECT beat FROM {schema}.worker"));
    pollster::block_on(async {
        worker.tick().await.unwrap();
        for _ in 0..3 {
            worker.enqueue(spec("job")).await.unwrap();
        }
        // As it is right after a beat, for as long as this test may take.
        Server::shared().psql(&format!("UPDATE {schema}.worker SET beat_at = {schema}.clock() + 600000000"));
        let before = beat();
        let mut other = Session::begin(Server::shared());
        other.does(&format!("BEGIN; SELECT 1 FROM {schema}.worker FOR UPDATE;"));
        let claimed = worker.claim(Filter::default(), 1).await.unwrap();
        assert_eq!(claimed.len(), 1, "it waited for the row of its worker");
        claimed.into_iter().for_each(std::mem::forget);
        other.does("ROLLBACK;");
        assert_eq!(beat(), before);
        // One that has not beaten for a second beats with its claim.
        Server::shared().psql(&format!("UPDATE {schema}.worker SET beat_at = {schema}.clock() - 1000000"));
        let claimed = worker.claim(Filter::default(), 1).await.unwrap();
        claimed.into_iter().for_each(std::mem::forget);
        assert_eq!(beat(), before + 1);
        // So does one that does not beat through the store that it claims by.
        Server::shared().psql(&format!("DELETE FROM {schema}.worker"));
        let claimed = worker.claim(Filter::default(), 1).await.unwrap();
        claimed.into_iter().for_each(std::mem::forget);
        assert_eq!(beat(), 1);
    });
}

/// Draws numbers that have a look at all running runs wait for as long as it may.
struct Latest;

impl outlive::id::Entropy for Latest {
    fn draw(&self) -> u128 {
        SystemEntropy.draw() | 0xff
    }
}

#[test]
fn a_beat_tells_whether_workers_are_to_be_looked_at() {
    let server = Server::alone(&["fsync=off", "log_statement=all"]);
    let url = server.fresh_url();
    let (store, schema) = (open(&url).unwrap(), schema_of(&url));
    let made =
        Registry::over(Arc::new(store.clone()), Arc::new(SystemClock), Arc::new(Latest), person("ada"), stranger(1));
    let (worker, other) = (made, process(&store, Arc::new(SystemClock)));
    let looks = || server.log().matches("SELECT id, body, ").count();
    let silent_for = |seconds: u32| {
        server.psql(&format!(
            "UPDATE {schema}.worker SET beat_at = {schema}.clock() - {seconds} * 1000000 WHERE id = '{}'",
            other.worker().unwrap()
        ));
    };
    pollster::block_on(async {
        let held = other.start(spec("job")).await.unwrap();
        worker.tick().await.unwrap();
        other.tick().await.unwrap();
        let mut maintenance = Maintenance::new(worker.worker());
        // A beat that came before the other worker did tells of too few.
        let mut pass = async |beats: bool| {
            if beats {
                worker.tick().await.unwrap();
            }
            let before = looks();
            let reaped = maintenance.reap(&worker).await.unwrap();
            (looks() - before, reaped.ended.len())
        };
        assert_eq!(pass(true).await, (1, 0), "the first look");
        for beats in [true, false, false, true] {
            assert_eq!(pass(beats).await, (0, 0), "all beat in time");
        }
        silent_for(7);
        assert_eq!(pass(true).await, (1, 0), "one is late");
        assert_eq!(pass(false).await, (1, 0), "and is looked at until it is not");
        other.tick().await.unwrap();
        assert_eq!(pass(true).await, (0, 0));
        std::mem::forget(held);
    });
}
