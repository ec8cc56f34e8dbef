//! Whoever is kept waiting: by locks (F-63), for a connection (F-64), by a deadlock (F-66); and clocks that differ (F-57).

use super::*;
use crate::world::with_lease;
use outlive::filter::Filter;
use outlive::lifecycle::{Action, apply};
use outlive::ownership::handle::Persisted;
use outlive::ownership::reaper::Reaper;
use outlive::store::WriteOutcome;
use outlive::testing::ManualClock;
use outlive::time::Timestamp;

#[test]
fn f_57_no_clock_of_a_host_is_asked() {
    let url = Server::shared().fresh_url();
    let store = open(&url).unwrap();
    let (ahead, behind) = (ManualClock::new(), ManualClock::new());
    let server: i64 =
        Server::shared().psql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8").parse().unwrap();
    let off = |clock: &ManualClock| (server - clock.now().as_micros()) / 1_000_000;
    ahead.step_wall(off(&ahead) + 7_200);
    behind.step_wall(off(&behind) - 7_200);
    let (fast, slow) = (process(&store, ahead.clone()), process(&store, behind.clone()));
    pollster::block_on(async {
        let held = [fast.start(spec("a")).await.unwrap(), slow.start(spec("b")).await.unwrap()];
        for reader in [&fast, &slow] {
            reader.tick().await.unwrap();
            let reaped = Reaper::new(None).pass(reader).await.unwrap();
            assert_eq!((reaped.ended.len(), reaped.live), (0, 2), "{reaped:?}");
            for handle in &held {
                let seen = reader.get(handle.id()).await.unwrap();
                assert!(seen.run.owner().unwrap().heard.silent_for < Duration::from_secs(3_600));
            }
        }
        let later = |seconds: i64| Some(Timestamp::from_micros(server + seconds * 1_000_000));
        let mut specs = [spec("due"), spec("not due")];
        (specs[0].not_before, specs[1].not_before) = (later(-1), later(3_600));
        let [due, not_due] = specs;
        let due = slow.enqueue(due).await.unwrap();
        let not_due = fast.enqueue(not_due).await.unwrap();
        let claimed = fast.claim(Filter::of([not_due.id]), 9).await.unwrap();
        assert!(claimed.is_empty(), "claimed an hour early by a host whose clock is two hours ahead");
        let claimed = slow.claim(Filter::of([due.id]), 9).await.unwrap();
        assert_eq!(claimed.len(), 1, "not claimed by a host whose clock is two hours behind");
        for handle in held.into_iter().chain(claimed) {
            handle.succeed().await.unwrap();
        }
    });
}

#[test]
fn f_63_a_call_that_meets_a_lock_fails_and_is_retried() {
    meets_a_lock(Way::straight);
}

#[test]
fn f_63_call_that_meets_a_lock_is_retried_through_a_pooler() {
    meets_a_lock(Way::pooled);
}

fn meets_a_lock(way: fn(&Server) -> Way) {
    let way = way(Server::shared());
    let url = way.url(&Server::shared().fresh_url());
    let (owner, schema) = (registry(&url), schema_of(&url));
    pollster::block_on(async {
        let handle = owner.start(spec("job")).await.unwrap();
        owner.tick().await.unwrap();
        let beats = async || owner.get(handle.id()).await.unwrap().run.owner().unwrap().heard.beat;
        let before = beats().await;
        let mut other = Session::begin(Server::shared());
        other
            .does(&format!("BEGIN; SELECT 1 FROM {schema}.worker FOR UPDATE; SELECT 1 FROM {schema}.live FOR UPDATE;"));
        let told = owner.tick().await.unwrap_err().to_string();
        assert!(told.contains("another session holds"), "{told}");
        let told = handle.set_checkpoint(1.into()).await.unwrap_err();
        assert!(matches!(&told, outlive::error::Error::Store(Error::Unavailable(_))), "{told:?}");
        assert!(told.to_string().contains("another session holds"), "{told}");
        // Readers and reapers pass by.
        assert_eq!(beats().await, before);
        assert_eq!(Reaper::new(None).pass(&registry(&url)).await.unwrap().ended.len(), 0);
        other.does("ROLLBACK;");
        owner.tick().await.unwrap();
        assert!(beats().await > before);
        handle.set_checkpoint(2.into()).await.unwrap();
        handle.succeed().await.unwrap();
    });
}

#[test]
fn t7_06_beats_go_on_while_another_session_locks_the_runs() {
    let url = Server::shared().fresh_url();
    let (owner, schema) = (registry(&url), schema_of(&url));
    pollster::block_on(async {
        let (beat, lease) = (Duration::from_millis(500), Duration::from_secs(2));
        let held = owner.start(with_lease(spec("job"), beat, lease)).await.unwrap();
        let ending = owner.start(with_lease(spec("job"), beat, lease)).await.unwrap();
        owner.tick().await.unwrap();
        let beats = || Server::shared().psql(&format!("SELECT beat FROM {schema}.worker")).parse::<u64>().unwrap();
        let before = beats();
        let mut other = Session::begin(Server::shared());
        other.does(&format!("BEGIN; LOCK TABLE {schema}.live IN ACCESS EXCLUSIVE MODE;"));
        // An end that cannot be written is owed, and every beat would compare what is held with what is owned.
        let recorded = ending.succeed().await.unwrap();
        assert_eq!(recorded, Persisted::Spooled);
        for number in 1..=3 {
            drop(owner.tick().await);
            assert!(beats() >= before + number, "beat {number} waited for the runs");
        }
        other.does("ROLLBACK;");
        owner.tick().await.unwrap();
        let reaped = Reaper::new(None).pass(&registry(&url)).await.unwrap();
        assert_eq!((reaped.ended.len(), reaped.live), (0, 1), "{reaped:?}");
        held.succeed().await.unwrap();
    });
}

#[test]
fn f_64_a_full_server_keeps_its_owners_and_tells_others_so() {
    const MOST: usize = 8;
    let server = Server::alone(&["max_connections=8", "superuser_reserved_connections=0"]);
    let url = server.fresh_url();
    pollster::block_on(async {
        let (beating, new) = (registry(&url), registry(&url));
        let handle = beating.start(spec("job")).await.unwrap();
        beating.tick().await.unwrap();
        let fresh = new.start(spec("job")).await.unwrap();
        // One connection each, and one for the beats of the first.
        let take = |_| {
            let mut session = Session::begin(&server);
            session.does("SELECT 1;");
            session
        };
        let mut others: Vec<Session> = (3..MOST).map(take).collect();
        let told = open(&url).expect_err("more connections than there are").to_string();
        assert!(told.contains("no connection to spare") && told.contains("tried for"), "{told}");
        beating.tick().await.unwrap();
        new.tick().await.expect("a worker that had no connection for its beats yet");
        others.clear();
        until("there to be room", || open(&url).is_ok());
        for (owner, handle) in [(beating, handle), (new, fresh)] {
            handle.succeed().await.unwrap();
            owner.tick().await.unwrap();
        }
    });
}

#[test]
fn f_64_full_server_has_room_for_earlier_owners_with_a_pooler() {
    const MOST: usize = 6;
    let server = Server::alone(&["max_connections=6", "superuser_reserved_connections=0"]);
    let direct = server.fresh_url();
    let pooler = Pooler::start(server.port(), 1);
    let url = pooler.url(&direct);
    pollster::block_on(async {
        let owner = registry(&url);
        let handle = owner.start(spec("job")).await.unwrap();
        owner.tick().await.unwrap();
        let take = |_| {
            let mut session = Session::begin(&server);
            session.does("SELECT 1;");
            session
        };
        let _others: Vec<Session> = (1..MOST).map(take).collect();
        let told = open(&direct).expect_err("more connections than there are").to_string();
        assert!(told.contains("no connection to spare"), "{told}");
        // Those that come through the pooler take turns.
        let fresh = registry(&url);
        let other = fresh.start(spec("job")).await.unwrap();
        for (owner, handle) in [(owner, handle), (fresh, other)] {
            owner.tick().await.unwrap();
            handle.succeed().await.unwrap();
        }
    });
}

/// A run that waits, made by this store.
fn made(store: &PostgresStore) -> outlive::store::Record {
    let write = making(draft());
    let id = write.run.id;
    pollster::block_on(store.commit(vec![write])).unwrap();
    pollster::block_on(record(store, id)).unwrap()
}

/// The write that cancels a run.
fn cancelling(record: &outlive::store::Record) -> Write {
    let action = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
    let change = apply(&record.run, &action, &person("bob"), SystemClock.now()).unwrap();
    Write::change(record, change, stamp(&SystemEntropy))
}

#[test]
fn f_66_batch_broken_off_by_the_server_is_retried() {
    breaks_off_a_batch(Way::straight);
}

#[test]
fn f_66_batch_broken_off_by_the_server_is_retried_with_a_pooler() {
    breaks_off_a_batch(Way::pooled);
}

fn breaks_off_a_batch(way: fn(&Server) -> Way) {
    let way = way(Server::shared());
    let url = way.url(&Server::shared().fresh_url());
    let schema = schema_of(&url);
    let store = open(&url).unwrap();
    let records = [made(&store), made(&store)];
    // The first write of a row is broken off as the server does it, with its code. No real deadlock will do: the suite
    // counts those.
    Server::shared().psql(&format!(
        "CREATE SEQUENCE {schema}.met;
         CREATE FUNCTION {schema}.break_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('{schema}.met') = 1 THEN RAISE EXCEPTION 'broken off' USING ERRCODE = '40P01'; END IF;
             RETURN OLD; END $$;
         CREATE TRIGGER break_off BEFORE DELETE ON {schema}.waiting FOR EACH ROW EXECUTE FUNCTION {schema}.break_off()"
    ));
    let written = pollster::block_on(store.commit(records.iter().map(cancelling).collect())).unwrap();
    assert!(written.iter().all(|written| matches!(written, WriteOutcome::Done(_))), "{written:?}");
    let met = Server::shared().psql(&format!("SELECT last_value FROM {schema}.met"));
    assert_eq!(met, "3", "one row was broken off, and both were written after that");
}

#[test]
fn f_66_batches_in_opposite_order_all_succeed() {
    meets_in_opposite_order(Way::straight);
}

#[test]
fn f_66_batches_in_opposite_order_all_succeed_through_a_pooler() {
    meets_in_opposite_order(Way::pooled);
}

fn meets_in_opposite_order(way: fn(&Server) -> Way) {
    const RUNS: usize = 60;
    let way = way(Server::shared());
    let url = way.url(&Server::shared().fresh_url());
    let store = open(&url).unwrap();
    let (mut won, mut lost) = (0, 0);
    for _ in 0..5 {
        let records: Vec<_> = (0..RUNS).map(|_| made(&store)).collect();
        let answers: Vec<Vec<WriteOutcome>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|number| {
                    let mut writes: Vec<Write> = records.iter().map(cancelling).collect();
                    if number % 2 == 1 {
                        writes.reverse();
                    }
                    let store = open(&url).unwrap();
                    scope.spawn(move || pollster::block_on(store.commit(writes)).unwrap())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let done = answers.iter().flatten().filter(|written| matches!(written, WriteOutcome::Done(_))).count();
        assert_eq!(done, RUNS, "each run is cancelled once");
        (won, lost) = (won + done, lost + 3 * RUNS);
    }
    println!("{won} writes won, {lost} lost");
}

/// How many statements the server has carried out, by its log.
fn statements(server: &Server) -> usize {
    let log = server.log();
    log.lines().filter(|line| line.contains("LOG:  statement:") || line.contains("LOG:  execute")).count()
}

#[test]
fn an_idle_worker_asks_one_thing_and_then_takes_turns() {
    let server = Server::alone(&["fsync=off", "log_statement=all"]);
    let worker = registry(&server.fresh_url());
    let mut claims = outlive::engine::claims::Claims::of([]);
    let of = |tenant: &str| outlive::run::Spec { share: Some(tenant.parse().unwrap()), ..spec("job") };
    pollster::block_on(async {
        let mut claim = async |limit: usize| {
            let (handles, more) = claims.claim(&worker, limit, &|_| true).await.unwrap();
            let mut tenants: Vec<String> = handles.iter().map(|handle| handle.run().tenant().to_owned()).collect();
            tenants.sort();
            handles.into_iter().for_each(std::mem::forget);
            (tenants.join(" "), more)
        };
        // The first claim learns that there is nothing.
        assert_eq!(claim(4).await, (String::new(), false));
        let before = statements(&server);
        for _ in 0..5 {
            assert_eq!(claim(4).await, (String::new(), false));
        }
        assert_eq!(statements(&server) - before, 5, "{}", &server.log());
        // What comes is found as it is; once shares are known, one run is claimed, and the next in turn.
        worker.enqueue(of("a")).await.unwrap();
        assert_eq!(claim(4).await, ("a".to_owned(), false));
        for tenant in ["a", "a", "a", "b", "b"] {
            worker.enqueue(of(tenant)).await.unwrap();
        }
        assert_eq!(claim(4).await, ("a".to_owned(), true));
        assert_eq!(claim(4).await, ("a a b b".to_owned(), true));
        assert_eq!(claim(4).await, (String::new(), false));
    });
}
