//! What is wrong with a bucket or a URL is told so that one knows what to do, and nothing is deleted over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::filter::Filter;
use outlive::registry::Registry;
use outlive::store::object::ObjectStore;
use outlive::store::{Page, Store};
use outlive::testing::bucket::{BUCKET, Bucket, KEY, READ_KEY, url_at};
use outlive::testing::proxy::{Fate, Proxy};
use outlive::testing::spec;

use super::yard::{Yard, open_within};

fn refused(url: &str) -> String {
    match pollster::block_on(Registry::open(url)) {
        Ok(_) => panic!("`{url}` was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn bucket_key_and_permission_errors_differ() {
    let port = Bucket::shared().port();
    let url = url_at(port, KEY, "x").replace(BUCKET, "no-such-bucket");
    insta::assert_snapshot!(refused(&url), @"bucket `no-such-bucket`: there is no such bucket; make it, or check the name in the URL (NoSuchBucket)");
    insta::assert_snapshot!(refused(&url_at(port, ("NOBODY", "nothing"), "x")), @"bucket `outlive`: the server does not know these credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (InvalidAccessKeyId)");
    insta::assert_snapshot!(refused(&url_at(port, (KEY.0, "wrong"), "x")), @"bucket `outlive`: the server does not know these credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)");
    insta::assert_snapshot!(refused(&url_at(port, READ_KEY, "never-made")), @"bucket `outlive`: this is not permitted with these credentials (AccessDenied)");
    insta::assert_snapshot!(refused("s3://"), @"the registry's URL cannot be used: it names no bucket; it is written `s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME`");
}

#[test]
fn a_wrong_region_is_named() {
    let proxy = Proxy::new(Bucket::shared().port(), |_| Fate::Answer(400, "AuthorizationHeaderMalformed"));
    let clock = outlive::testing::ManualClock::new();
    let error = pollster::block_on(open_within(proxy.port(), "x", &clock, Duration::from_secs(1))).err().unwrap();
    insta::assert_snapshot!(error.to_string(), @"bucket `outlive`: it is in another region; name it in the URL with `?region=…` (AuthorizationHeaderMalformed)");
}

#[test]
fn a_read_only_user_reads() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.registry.start(spec("job")).await.unwrap();
        let url = url_at(Bucket::shared().port(), READ_KEY, &yard.prefix);
        let time = std::sync::Arc::new(crate::ground::ByTheTest(yard.clock.clone()));
        let reading = ObjectStore::open_by(&url.parse().unwrap(), time, Duration::from_secs(2)).await.unwrap();
        assert_eq!(reading.list(&Filter::default(), &Page::default()).await.unwrap().records.len(), 1);
        assert_eq!(reading.get(&[handle.id()]).await.unwrap().len(), 1);
        handle.succeed().await.unwrap();
    });
}

#[test]
fn t6_07_reading_creates_nothing_and_needs_read_permission() {
    pollster::block_on(async {
        let (yard, port) = (Yard::new().await, Bucket::shared().port());
        let missing = format!("{}-missing", yard.prefix);
        let nothing = Registry::read_bucket(&url_at(port, READ_KEY, &missing)).await.unwrap();
        assert!(nothing.store().list(&Filter::default(), &Page::default()).await.unwrap().records.is_empty());
        assert!(nothing.store().workers().await.unwrap().is_empty());
        let left = yard.store.raw_list(&missing).await.unwrap();
        assert!(left.is_empty(), "reading has written {left:?}");

        let (running, ended) = (yard.start().await, yard.start().await);
        let id = ended.id();
        ended.fail("exit", "1").await.unwrap();
        let reading = Registry::read_bucket(&url_at(port, READ_KEY, &yard.prefix)).await.unwrap();
        assert_eq!(reading.store().list(&Filter::default(), &Page::default()).await.unwrap().records.len(), 2);
        assert_eq!(reading.get(id).await.unwrap().state, outlive::run::StateName::Failed);
        assert!(!reading.store().events(id).await.unwrap().is_empty());
        let dry_run = outlive::engine::sweeper::SweepPolicy { dry_run: true, ..Default::default() };
        let dry = outlive::engine::sweeper::sweep(&reading, &dry_run).await.unwrap();
        assert!(dry.problems.is_empty(), "{dry:?}");
        std::mem::forget(running);
    });
}

#[test]
fn t6_06_server_that_never_answers_is_given_up_soon() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let proxy = Proxy::new(Bucket::shared().port(), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Fate::Cut
    });
    let refused = refused(&url_at(proxy.port(), KEY, "x"));
    assert!(refused.contains("cannot be reached"), "{refused}");
    // Twelve seconds of patience, as for a server that has answered before, are eleven tries at least.
    let tries = tries.load(Ordering::SeqCst);
    assert!((2..=9).contains(&tries), "{tries} tries");
}

#[test]
fn unreadable_records_are_reported_and_hide_no_other() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.registry.start(spec("job")).await.unwrap();
        for (index, text) in ["{", "format_version: 99\n", "a: &x [1]\nb: *x\n", "[]", "format_version: 1\nrun_id: 7\n"]
            .iter()
            .enumerate()
        {
            let key = format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id=x_{index}/run.yaml", yard.prefix);
            yard.store.raw_put(&key, text.as_bytes()).await.unwrap();
        }
        assert_eq!(yard.store.list(&Filter::default(), &Page::default()).await.unwrap().records.len(), 1);
        let (_, unreadable, _) = yard.store.everything().await.unwrap();
        let mut told: Vec<String> =
            unreadable.into_iter().map(|(key, error)| error.to_string().replace(&key, "KEY")).collect();
        told.sort();
        insta::assert_snapshot!(told.join("\n"), @r"
        `KEY` cannot be read: `run_id` is 7
        `KEY` cannot be read: it has an alias
        `KEY` cannot be read: it is no YAML: while parsing a node, did not find expected node content at byte 1 line 2 column 1
        `KEY` cannot be read: it is no mapping
        `KEY` has format 99; this outlive knows formats up to 1
        ");
        handle.succeed().await.unwrap();
    });
}

/// Documents that say more than anybody has room for, or go deeper than anybody follows.
fn bombs() -> Vec<Vec<u8>> {
    let mut laughs = "a0: &a0 [lol, lol, lol]\n".to_owned();
    for level in 1..40 {
        let before = level - 1;
        laughs += &format!("a{level}: &a{level} [*a{before}, *a{before}, *a{before}]\n");
    }
    let deep = "[".repeat(200_000);
    let long = format!("x: {}\n", "y".repeat(9 << 20));
    vec![laughs.into_bytes(), deep.into_bytes(), long.into_bytes(), "{\"a\":".repeat(100_000).into_bytes()]
}

#[test]
fn bombs_are_neither_records_nor_manifests_and_delete_nothing() {
    use outlive::engine::sweeper::SweepPolicy;
    pollster::block_on(async {
        let yard = Yard::new().await;
        let mut kept = Vec::new();
        for (index, bomb) in bombs().iter().enumerate() {
            // A record of a run that has another, too; and the manifest of a run that succeeded.
            let name = format!("twin-{index}");
            let good = format!(
                "format_version: 1\nrun_id: {name}\nwriter_type: x\nstatus: failed\nstarted_at: '2020-01-01T00:00:00Z'\n\
                 updated_at: '2020-01-01T00:00:00Z'\nlease_expires_at: '2020-01-01T00:00:00Z'\ns3_prefix: {}\n\
                 shard_prefix: shards\ndb_path_template: 'db={{db_id:05d}}'\nmanifest_ref: null\n",
                yard.place()
            );
            for (number, bytes) in [good.as_bytes(), bomb].into_iter().enumerate() {
                let key = format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id={name}_{number}/run.yaml", yard.prefix);
                yard.store.raw_put(&key, bytes).await.unwrap();
            }
            kept.push(yard.shard(&name, 0, 0).await);
            let handle = yard.start().await;
            kept.push(yard.shard(&handle.id().to_string(), 0, 0).await);
            yard.put(&format!("manifests/{index}"), bomb).await;
            let manifest_ref = Some(format!("manifests/{index}"));
            handle.report(outlive::lifecycle::Report { manifest_ref, ..Default::default() }).await.unwrap();
            handle.succeed().await.unwrap();
        }
        let spare = SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() };
        let report = yard.sweep(&spare, false).await;
        kept.sort();
        assert_eq!((report.objects, yard.shards().await), (0, kept));
        assert!(report.problems.len() >= 3 * bombs().len(), "{:?}", report.problems);
    });
}
