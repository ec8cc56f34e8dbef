//! Owners that nobody knows (W08), and owners that are busy (L14).

use super::*;
use outlive::error::Code;
use outlive::filter::Filter;
use outlive::id::WorkerId;
use outlive::owner::Evidence;
use outlive::ownership::reaper::Reaper;
use outlive::policy::Lease;
use outlive::run::{End, Key, Spec, StateName};
use outlive::store::{Beat, Page};

use crate::world::with_lease;

/// Has the server's clock say that so many seconds more have passed.
fn later(schema: &str, seconds: i64) {
    let body = format!("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 + {seconds} * 1000000");
    let sql = format!("CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS int8 LANGUAGE sql AS $$ {body} $$");
    Server::shared().psql(&sql);
}

#[test]
fn w08_run_with_an_unknown_owner_is_shown_so_and_reaped() {
    let url = Server::shared().fresh_url();
    let (owner, schema) = (registry(&url), schema_of(&url));
    let keyed = || Spec { keys: vec![Key::limit("door", 1)], ..spec("job") };
    pollster::block_on(async {
        let done = owner.start(spec("done")).await.unwrap();
        let past = done.id();
        done.succeed().await.unwrap();
        let handle = owner.start(keyed()).await.unwrap();
        let id = handle.id();
        Server::shared().psql(&format!("DELETE FROM {schema}.owner"));
        // Whoever has met the owner knows it.
        let reader = registry(&url);
        assert_eq!(reader.get(past).await.unwrap().state, StateName::Succeeded);
        let listed = reader.list(&Filter::default(), &Page::default()).await.unwrap().0;
        assert_eq!(listed.len(), 2, "{listed:?}");
        let seen = reader.get(id).await.unwrap();
        assert_eq!(seen.state, StateName::Running);
        assert_eq!(seen.reason.as_deref(), Some("its owner is unknown: it has no record"));
        // It is heard of: nobody takes it away.
        owner.tick().await.unwrap();
        let reaped = Reaper::new(None).pass(&reader).await.unwrap();
        assert_eq!((reaped.ended.len(), reaped.live), (0, 1), "{reaped:?}");
        handle.set_checkpoint(1.into()).await.unwrap();
        Server::shared().psql(&format!("DELETE FROM {schema}.owner; UPDATE {schema}.live SET body = NULL"));

        later(&schema, 60);
        let reader = registry(&url);
        let seen = reader.get(id).await.unwrap();
        assert_eq!(seen.state, StateName::Dead, "{:?}", seen.reason);
        let reaped = Reaper::new(None).pass(&reader).await.unwrap();
        let ended: Vec<_> = reaped.ended.iter().map(|run| (run.id, run.ending().map(|ending| &ending.how))).collect();
        let [(ended, Some(End::Dead(reap)))] = ended[..] else { panic!("{reaped:?}") };
        assert_eq!(ended, id);
        assert!(matches!(reap.evidence, Evidence::OwnerUnknown { silent_ms: 12_000.. }), "{reap:?}");
        assert_eq!(Server::shared().psql(&format!("SELECT count(*) FROM {schema}.held_key")), "0");
        let events: Vec<String> =
            reader.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect();
        assert_eq!(events, ["enqueue", "claim", "report", "reap"]);
        let lost = handle.succeed().await.unwrap_err();
        assert_eq!(lost.code(), Code::Lost, "{lost}");
        let next = reader.start(keyed()).await.expect("its key is free");
        next.succeed().await.unwrap();
    });
}

#[test]
fn t7_02_owner_without_a_beat_on_record_has_a_full_lease() {
    let url = Server::shared().fresh_url();
    let (owner, schema) = (registry(&url), schema_of(&url));
    pollster::block_on(async {
        let mut held = Vec::new();
        for kind in ["kept", "left"] {
            held.push(owner.start(spec(kind)).await.unwrap());
        }
        let left = registry(&url);
        let abandoned = left.start(spec("left")).await.unwrap();
        // As after a backup was put back in part, on a server that has been up for ten minutes.
        Server::shared().psql(&format!("DELETE FROM {schema}.worker; DELETE FROM {schema}.process"));
        later(&schema, 600);
        let reader = registry(&url);
        let pass = async || Reaper::new(None).pass(&reader).await.unwrap();
        for seconds in [600, 605] {
            later(&schema, seconds);
            let reaped = pass().await;
            assert_eq!((reaped.ended.len(), reaped.live), (0, 3), "{reaped:?}");
            assert_eq!(reader.get(abandoned.id()).await.unwrap().state, StateName::Running);
        }
        owner.tick().await.unwrap();
        let known = format!("SELECT count(*) FROM {schema}.worker JOIN {schema}.process USING (id) WHERE beat > 0");
        assert_eq!(Server::shared().psql(&known), "1", "whoever beats again is known again");
        later(&schema, 614);
        let reaped = pass().await;
        let ended: Vec<_> = reaped.ended.iter().map(|run| (run.id, run.ending().map(|ending| &ending.how))).collect();
        let [(ended, Some(End::Dead(reap)))] = ended[..] else { panic!("{reaped:?}") };
        assert_eq!(ended, abandoned.id());
        // What is told is how long it was missed, not how long the server has been up.
        assert!(matches!(reap.evidence, Evidence::LeaseLapsed { silent_ms: 12_000..=30_000, .. }), "{reap:?}");
        for handle in held {
            handle.succeed().await.unwrap();
        }
    });
}

#[test]
fn l14_heartbeats_continue_while_a_transaction_is_open() {
    let url = Server::shared().fresh_url();
    let (owner, reader) = (pollster::block_on(Registry::open(&url)).unwrap(), registry(&url));
    let (beat, lease) = (Duration::from_millis(500), Duration::from_secs(12));
    let handle = pollster::block_on(owner.start(with_lease(spec("job"), beat, lease))).unwrap();
    let id = handle.id();
    let beats = || pollster::block_on(reader.get(id)).unwrap().run.owner().unwrap().heard.beat;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The work: its own transaction, which it has seen something in and written something, and no pause.
        let mut work = Session::begin(Server::shared());
        work.does("BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE TEMP TABLE mine AS SELECT * FROM pg_class;");
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..processors * 2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let before = beats();
        let enough = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("beats", || beats() >= before + 5);
        }));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        enough.unwrap();
        work.does("ROLLBACK;");
    });
    assert_eq!(pollster::block_on(Reaper::new(None).pass(&reader)).unwrap().live, 1);
    pollster::block_on(handle.succeed()).unwrap();
}

#[test]
fn heartbeats_stay_on_a_page_while_a_transaction_is_open() {
    const BEATS: usize = 420;
    let url = Server::shared().fresh_url();
    let (store, schema) = (open(&url).unwrap(), schema_of(&url));
    let workers: Vec<WorkerId> = (0..3).map(|_| WorkerId::draw(SystemClock.now(), &SystemEntropy)).collect();
    let beat = |worker: WorkerId| {
        let (identity, lease, held) = (stranger(1), Lease::default(), [].into());
        let beat = Beat { worker, identity, lease, held, attention: Some(0), leaving: false, offer: Arc::default() };
        pollster::block_on(store.beat(&beat)).unwrap();
    };
    // Each has another way behind it when what beats leave can no longer be cleared up.
    for (place, worker) in workers.iter().enumerate() {
        (0..place * 17 + 1).for_each(|_| beat(*worker));
    }
    let (mut holder, mut watcher) = (Session::begin(Server::shared()), Session::begin(Server::shared()));
    holder.does("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id();");
    watcher.does(&format!("CREATE TABLE {schema}.seen (id uuid, page int);"));
    for _ in 0..BEATS {
        workers.iter().for_each(|worker| beat(*worker));
        watcher.does(&format!("INSERT INTO {schema}.seen SELECT id, (ctid::text::point)[0] FROM {schema}.worker;"));
    }
    let pages = format!("SELECT id, count(DISTINCT page) AS pages FROM {schema}.seen GROUP BY id");
    let pages = Server::shared().psql(&format!("SELECT string_agg(pages::text, ' ' ORDER BY id) FROM ({pages}) AS p"));
    println!("{BEATS} beats of each worker were on {pages} pages");
    // On as many as a hundred each need, and the one that they were on.
    assert!(pages.split(' ').all(|pages| pages.parse::<usize>().unwrap() <= BEATS / 100 + 1), "{pages}");
}
