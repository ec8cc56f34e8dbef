//! Listings are hints, F-76: what they tell may be old, and may change while they are read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::filter::Filter;
use outlive::lifecycle::Report;
use outlive::ownership::reaper::Reaper;
use outlive::run::StateName;
use outlive::store::object::Counted;
use outlive::store::{Page, Store};
use outlive::testing::bucket::Bucket;
use outlive::testing::proxy::{Fate, Proxy, Request, forward};
use outlive::testing::spec;

use super::yard::{Yard, attempt_of};

const LEASE: Duration = Duration::from_secs(60);
/// How many names a listing has at a time.
const PAGE: usize = 1_000;

fn lists(request: &Request, what: &str) -> bool {
    request.method == "GET" && request.target.contains("list-type=2") && request.target.contains(what)
}

fn at_once() -> SweepPolicy {
    SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() }
}

#[test]
fn f_76_a_stale_listing_reaps_no_run() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.registry.start(spec("job")).await.unwrap();
        // The first listing is told again for ever.
        let (told, reads) = (Mutex::new(None), Arc::new(AtomicUsize::new(0)));
        let counts = reads.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            if lists(request, "runs") {
                let mut told = told.lock().unwrap();
                let first = told.get_or_insert_with(|| forward(request, Bucket::shared().port()));
                return Fate::Say(first.clone());
            }
            counts.fetch_add(
                usize::from(request.method == "GET" && request.target.contains("run.yaml")),
                Ordering::SeqCst,
            );
            Fate::Pass
        });
        let (reaping, store) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        assert_eq!(store.list(&Filter::default(), &Page::default()).await.unwrap().records.len(), 1);
        yard.clock.pass(LEASE * 2);
        yard.registry.tick().await.unwrap();
        let before = reads.load(Ordering::SeqCst);
        assert_eq!(Reaper::new(None).pass(&reaping).await.unwrap().ended.len(), 0);
        assert!(reads.load(Ordering::SeqCst) > before, "it was no candidate, so this has proved nothing");
        assert_eq!(yard.registry.get(handle.id()).await.unwrap().state, StateName::Running);
        handle.succeed().await.unwrap();
    });
}

#[test]
fn f_76_changes_during_a_listing_are_read_again_before_deletion() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let record = |status: &str, time: &str| {
            format!(
                "format_version: 1\nrun_id: 'slow'\nwriter_type: x\nstatus: {status}\nstarted_at: '2020-01-01T00:00:00Z'\n\
                 updated_at: '{time}'\nlease_expires_at: '2099-01-01T00:00:00Z'\ns3_prefix: {}\nshard_prefix: shards\n\
                 db_path_template: 'db={{db_id:05d}}'\nmanifest_ref: null\n",
                yard.place()
            )
        };
        let key = format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id=slow_1/run.yaml", yard.prefix);
        yard.store.raw_put(&key, record("failed", "2020-01-01T00:00:00Z").as_bytes()).await.unwrap();
        let all = PAGE + 500;
        yard.shards_of("slow", all).await;
        // It is at work again when the second page is asked for, and the first batch has gone.
        let (pages, store, turned) =
            (AtomicUsize::new(0), yard.store.clone(), record("running", "2026-11-16T00:00:00Z"));
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            if lists(request, "shards") && pages.fetch_add(1, Ordering::SeqCst) == 1 {
                pollster::block_on(store.raw_put(&key, turned.as_bytes())).unwrap();
            }
            Fate::Pass
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert_eq!(report.objects, PAGE as u64, "{report:?}");
        assert_eq!(yard.shards().await.len(), all - PAGE, "what a writer at work has made was deleted");
    });
}

#[test]
fn f_76_pages_are_whole_while_objects_come_and_go() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let id = handle.id().to_string();
        handle.fail("exit", "1").await.unwrap();
        yard.shards_of(&id, 2 * PAGE + 500).await;
        let (pages, store, prefix) = (AtomicUsize::new(0), yard.store.clone(), yard.prefix.clone());
        let late = format!("{prefix}/data/shards/run_id={id}/db=00000/attempt=99/late");
        let (comes, came) = (late.clone(), Arc::new(AtomicBool::new(false)));
        let coming = came.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            // Behind what was told, where no page comes to any more.
            if lists(request, "shards") && pages.fetch_add(1, Ordering::SeqCst) == 1 {
                pollster::block_on(store.raw_put(&comes, b"zombie")).unwrap();
                coming.store(true, Ordering::SeqCst);
            }
            Fate::Pass
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert!(came.load(Ordering::SeqCst), "it came too late to be missed");
        assert_eq!((report.objects, report.left), (2 * PAGE as u64 + 500, 0), "{report:?}");
        assert_eq!(yard.shards().await.len(), 1);
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 1, "what came late is for the next sweep");
        assert!(yard.shards().await.is_empty() && yard.store.raw_get(&late).await.unwrap().is_none());
    });
}

/// `OUTLIVE_BUCKET_RECORDS=12000` for more.
#[test]
fn b08_only_changed_records_of_many_are_read() {
    let many: usize = std::env::var("OUTLIVE_BUCKET_RECORDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_500);
    pollster::block_on(async {
        let yard = Yard::new().await;
        let record = |number: usize| {
            format!(
                "format_version: 1\nrun_id: 'run-{number}'\nwriter_type: x\nstatus: succeeded\n\
                 started_at: '2020-01-01T00:00:00Z'\nupdated_at: '2020-01-01T00:00:01Z'\n\
                 lease_expires_at: '2020-01-01T00:01:00Z'\ns3_prefix: {}\nshard_prefix: shards\n\
                 db_path_template: 'db={{db_id:05d}}'\nmanifest_ref: null\n",
                yard.place()
            )
        };
        let objects = (0..many).map(|number| {
            let key =
                format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id=run-{number}_{number:032x}/run.yaml", yard.prefix);
            (key, record(number).into_bytes())
        });
        yard.store.raw_put_many(objects.collect()).await.unwrap();
        let (_, store) = yard.process_at(Bucket::shared().port(), Duration::from_secs(60)).await;
        let counted = async || {
            let before = store.counted();
            let listed = store.everything().await.unwrap();
            assert_eq!((listed.0.len(), listed.1.len()), (many, 0));
            store.counted() - before
        };
        let pages = many.div_ceil(PAGE) as u64;
        let Counted { gets, lists, .. } = counted().await;
        // One read more: since when anybody could be heard.
        assert!(gets <= many as u64 + 1 && lists <= pages + 1, "{gets} reads and {lists} lists of {many} records");
        for number in [3, many - 1] {
            let key =
                format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id=run-{number}_{number:032x}/run.yaml", yard.prefix);
            yard.store.raw_put(&key, record(number).replace("00:00:01Z", "00:00:02Z").as_bytes()).await.unwrap();
        }
        let again = counted().await;
        assert_eq!((again.gets, again.puts), (2, 0), "what has not changed was read again");
        assert!(again.lists <= pages + 1);
        println!("{many} records: {gets} reads and {lists} lists, then {} and {}", again.gets, again.lists);
    });
}

#[test]
fn requests_of_a_sweep_grow_with_pages_batches_and_changes() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (failing, publishing, many) = (12_u64, 4_u64, 2_200_u64);
        let mut deleted = many;
        for number in 0..failing {
            let handle = yard.start().await;
            let id = handle.id().to_string();
            if number == 0 {
                yard.shards_of(&id, many as usize).await;
            } else {
                yard.shard(&id, 0, 0).await;
                deleted += 1;
            }
            handle.fail("exit", "1").await.unwrap();
        }
        for _ in 0..publishing {
            let handle = yard.start().await;
            let id = handle.id().to_string();
            yard.shard(&id, 0, 0).await;
            yard.shard(&id, 0, 1).await;
            deleted += 1;
            let manifest = yard.publish(&id, &[attempt_of(&id, 0, 1)]).await;
            handle.report(Report { manifest_ref: Some(manifest), ..Report::default() }).await.unwrap();
            handle.succeed().await.unwrap();
        }
        let counts: Arc<[AtomicUsize; 4]> = Arc::default();
        let counting = counts.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            let kind = match request.method.as_str() {
                "GET" if request.target.contains("list-type=2") => 0,
                "GET" => 1,
                "PUT" => 2,
                _ => 3,
            };
            counting[kind].fetch_add(1, Ordering::SeqCst);
            Fate::Pass
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(20)).await;
        counts.iter().for_each(|count| count.store(0, Ordering::SeqCst));
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert_eq!((report.objects, report.left, report.problems.len()), (deleted, 0, 0), "{report:?}");
        let [lists, reads, writes, deletes] = counts.each_ref().map(|count| count.load(Ordering::SeqCst) as u64);
        let (objects, decisions) = (deleted + publishing, failing + publishing);
        // Records, manifests and trees are a prefix each. At the place and at every prefix above it other registries are
        // looked for, however many objects there are.
        const PREFIXES: u64 = 3;
        const NEIGHBOURS: u64 = 12;
        assert!(lists <= objects.div_ceil(PAGE as u64) + PREFIXES + NEIGHBOURS, "{lists} lists of {objects} objects");
        assert_eq!(deletes, deleted.div_ceil(PAGE as u64));
        // Every record once, and then a manifest of each that has one, and the pointer.
        assert_eq!(reads, decisions + publishing + 1, "{reads} reads for {decisions} decisions");
        assert_eq!(writes, 2 * decisions, "each run is marked before and after");
        println!(
            "{objects} objects of {decisions} runs: {lists} lists, {reads} reads, {writes} writes, {deletes} deletes"
        );
    });
}
