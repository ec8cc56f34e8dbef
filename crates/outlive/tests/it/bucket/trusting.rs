//! Records that this user did not make: copies, forgeries, and records of other programs (ADR 0018).

use std::net::TcpListener;
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, SweepReport, sweep};
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::{Output, Spec, StateName};
use outlive::secrets::trust::NamedLocation;
use outlive::store::memory::MemoryStore;
use outlive::testing::{ManualClock, spec};

use super::field::{key, registry};
use super::hostile::record_of;
use super::yard::{HOUR, Yard, attempt_of};

fn at_once() -> SweepPolicy {
    SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() }
}

fn swept(registry: &Registry, dry_run: bool) -> SweepReport {
    pollster::block_on(sweep(registry, &SweepPolicy { dry_run, ..at_once() })).unwrap()
}

const LONG_AGO: &str = "2020-01-01T00:10:00Z";
const FAR_AHEAD: &str = "2220-01-01T00:00:00Z";

async fn put_record(yard: &Yard, prefix: &str, name: &str, text: &str) {
    let key = format!("{prefix}/runs/2020-01-01T00:00:00.000000Z_run_id={name}_{}/run.yaml", "0".repeat(32));
    yard.store.raw_put(&key, text.as_bytes()).await.unwrap();
}

/// Copies the records of a registry to another prefix, as `cp -r` would.
async fn copy_records(yard: &Yard, from: &str, to: &str) {
    for key in yard.store.raw_list(&format!("{from}/runs")).await.unwrap() {
        let bytes = yard.store.raw_get(&key).await.unwrap().unwrap();
        yard.store.raw_put(&key.replacen(from, to, 1), &bytes).await.unwrap();
    }
}

#[test]
fn t6_01_sweep_of_a_copied_bucket_deletes_nothing_elsewhere() {
    pollster::block_on(async {
        let (yard, copy) = (Yard::new().await, Yard::new().await);
        let handle = yard.start().await;
        let kept = yard.shard(&handle.id().to_string(), 0, 0).await;
        put_record(&yard, &yard.prefix, "theirs", &record_of("theirs", &yard.place(), "running", FAR_AHEAD)).await;
        let theirs = yard.shard("theirs", 0, 0).await;
        copy_records(&yard, &yard.prefix, &copy.prefix).await;
        put_record(&yard, &copy.prefix, "theirs", &record_of("theirs", &yard.place(), "running", LONG_AGO)).await;
        copy.clock.pass(HOUR);
        copy.reap().await;
        let report = copy.sweep(&at_once(), false).await;
        assert_eq!((report.objects, yard.shards().await), (0, vec![kept, theirs]), "{report:?}");
        assert_eq!(report.kept.len(), 2, "{report:?}");
        assert!(report.kept.iter().all(|line| line.reason.contains("not a location that this user has named")));
        std::mem::forget(handle);
    });
}

#[test]
fn t6_01_registry_at_the_place_is_asked_before_a_sweep() {
    pollster::block_on(async {
        // The registry that is swept is around the other: what that one has records of is not touched.
        let yard = Yard::new().await;
        let inner = format!("{}/data", yard.prefix);
        put_record(&yard, &inner, "live", &record_of("live", &yard.place(), "running", FAR_AHEAD)).await;
        put_record(&yard, &yard.prefix, "live", &record_of("live", &yard.place(), "failed", LONG_AGO)).await;
        put_record(&yard, &inner, "torn", "no record").await;
        put_record(&yard, &yard.prefix, "torn", &record_of("torn", &yard.place(), "failed", LONG_AGO)).await;
        put_record(&yard, &yard.prefix, "gone", &record_of("gone", &yard.place(), "failed", LONG_AGO)).await;
        let kept = [yard.shard("live", 0, 0).await, yard.shard("torn", 0, 0).await];
        yard.shard("gone", 0, 0).await;
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, yard.shards().await), (1, kept.to_vec()), "{report:?}");
        assert!(report.problems.iter().any(|problem| problem.why.contains("sweep that registry")), "{report:?}");
    });
}

#[test]
fn t6_02_bucket_record_reaches_no_other_prefix_or_endpoint() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let evil = format!("http://{}", listener.local_addr().unwrap());
    pollster::block_on(async {
        let (yard, other) = (Yard::new().await, Yard::new().await);
        let precious = other.shard("x", 0, 0).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(attempt_of("x", 0, 0)).join("x");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "12345").unwrap();
        let bucket = yard.place().strip_prefix("s3://").unwrap().split('/').next().unwrap().to_owned();
        let places = [
            other.place(),
            format!("s3://elsewhere/{}", yard.prefix),
            format!("s3://{bucket}/{}/data?endpoint={evil}", yard.prefix),
            format!("s3://K:S@{bucket}/{}/data?endpoint={evil}", yard.prefix),
            directory.path().to_str().unwrap().to_owned(),
        ];
        for (number, place) in places.iter().enumerate() {
            put_record(&yard, &yard.prefix, &format!("x{number}"), &record_of("x", place, "failed", LONG_AGO)).await;
        }
        for dry_run in [true, false] {
            let report = yard.sweep(&at_once(), dry_run).await;
            assert_eq!((report.objects, report.kept.len()), (0, places.len()), "{report:?}");
        }
        assert_eq!(other.shards().await, [precious]);
        assert!(file.exists());
    });
    let asked = listener.accept().expect_err("an endpoint that a record names was connected to");
    assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
}

/// A directory with an object of each of these runs.
fn directory(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let tree = dir.path().join(attempt_of(name, 0, 0));
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::write(tree.join("x"), "12345").unwrap();
    }
    dir
}

fn names_it(dir: &tempfile::TempDir, name: &str) -> Spec {
    let output = Output { prefix: dir.path().to_str().unwrap().into(), run_id: Some(name.into()), ..Output::default() };
    Spec { output: Some(output), ..spec("writer") }
}

fn fail(registry: &Registry, spec: Spec) {
    pollster::block_on(async { registry.start(spec).await.unwrap().fail("exit", "1").await.unwrap() });
}

#[test]
fn t8_01_forged_record_of_a_shared_store_deletes_nothing() {
    let (clock, me, them) = (ManualClock::new(), key(), key());
    let store = MemoryStore::new(clock.clone());
    let dir = directory(&["victim", "mine"]);
    let is_there = |name: &str| dir.path().join(attempt_of(name, 0, 0)).join("x").exists();
    fail(&registry(&store, &clock, &them, 1), names_it(&dir, "victim"));
    fail(&registry(&store, &clock, &me, 2), names_it(&dir, "mine"));
    let mine = registry(&store, &clock, &me, 3);
    let report = swept(&mine, false);
    assert_eq!((report.objects, is_there("victim"), is_there("mine")), (1, true, false), "{report:?}");
    assert!(report.kept.iter().any(|line| line.reason.contains("not signed by this user")), "{report:?}");

    // Where the user names the directory for this registry, records of others count, and links out of it do not.
    let elsewhere = directory(&["precious"]);
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("link")).unwrap();
    let output = Output { prefix: dir.path().join("link").to_str().unwrap().into(), ..Output::default() };
    let behind = Spec { output: Some(Output { run_id: Some("precious".into()), ..output }), ..spec("writer") };
    fail(&registry(&store, &clock, &them, 4), behind);
    let named = NamedLocation::parse(dir.path().to_str().unwrap()).unwrap();
    let report = swept(&registry(&store, &clock, &me, 5).naming_artifacts([named]), false);
    assert_eq!((report.objects, is_there("victim")), (1, false), "{report:?}");
    assert!(elsewhere.path().join(attempt_of("precious", 0, 0)).join("x").exists(), "{report:?}");
    assert!(report.problems.iter().any(|problem| problem.why.contains("leads out of")), "{report:?}");
}

#[test]
fn t8_02_manifest_that_an_untrusted_record_names_is_not_read() {
    let (clock, me, them) = (ManualClock::new(), key(), key());
    let store = MemoryStore::new(clock.clone());
    let dir = directory(&["victim"]);
    let secret = "run_id=victim/hunter2/attempt=00 [";
    std::fs::write(dir.path().join("secret"), secret).unwrap();
    // A pipe that is opened to be read would block for ever.
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    for (number, manifest) in ["secret", "pipe", "/etc/passwd"].into_iter().enumerate() {
        let theirs = registry(&store, &clock, &them, 10 + number as u64);
        pollster::block_on(async {
            let handle = theirs.start(names_it(&dir, "victim")).await.unwrap();
            let report = outlive::lifecycle::Report { manifest_ref: Some(manifest.into()), ..Default::default() };
            handle.report(report).await.unwrap();
            handle.succeed().await.unwrap();
        });
    }
    let report = swept(&registry(&store, &clock, &me, 2), true);
    let said = format!("{report:?}");
    assert!(!said.contains("hunter2") && !said.contains("root:"), "{said}");
    assert_eq!((report.kept.len(), report.problems.len()), (3, 0), "{said}");
    // A manifest that leads out of a place that is trusted is not read either.
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("passwd")).unwrap();
    pollster::block_on(async {
        let handle = registry(&store, &clock, &me, 3).start(names_it(&dir, "mine")).await.unwrap();
        let tree = dir.path().join(attempt_of("mine", 0, 0));
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::write(tree.join("x"), "12345").unwrap();
        std::fs::remove_file(dir.path().join("pipe")).unwrap();
        let report = outlive::lifecycle::Report { manifest_ref: Some("passwd".into()), ..Default::default() };
        handle.report(report).await.unwrap();
        handle.succeed().await.unwrap();
    });
    let said = format!("{:?}", swept(&registry(&store, &clock, &me, 4), true));
    assert!(said.contains("leads out of") && !said.contains("root:"), "{said}");
}

#[test]
fn t8_01_copy_of_a_directory_deletes_nothing_of_the_original() {
    let root = tempfile::tempdir().unwrap();
    let (original, copy) = (root.path().join("original"), root.path().join("copy"));
    let open =
        |path: &std::path::Path| pollster::block_on(Registry::open(&format!("sqlite:{}", path.display()))).unwrap();
    let dir = directory(&[]);
    let output = Output { prefix: dir.path().to_str().unwrap().into(), ..Output::default() };
    let ours = Spec { output: Some(output), ..spec("writer") };
    let registry = open(&original);
    let handle = pollster::block_on(registry.start(ours.clone())).unwrap();
    let id = handle.id();
    let file = dir.path().join(attempt_of(id, 0, 0)).join("x");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "12345").unwrap();
    pollster::block_on(handle.fail("exit", "1")).unwrap();
    drop(registry);
    assert!(std::process::Command::new("cp").args(["-r"]).args([&original, &copy]).status().unwrap().success());
    // The copy knows of the failed run alone; the original may have been resumed since.
    let copied = open(&copy);
    for dry_run in [true, false] {
        let report = swept(&copied, dry_run);
        assert_eq!((report.objects, file.exists()), (0, true), "{report:?}");
        // The first write makes the copy a registry of its own.
        fail(&copied, Spec { output: None, ..ours.clone() });
    }
    assert_eq!(swept(&open(&original), false).objects, 1, "the original has lost its own run");
}

#[test]
fn t6_03_run_and_the_record_of_its_writer_are_one_run() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let name = handle.id().to_string();
        yard.shard(&name, 0, 0).await;
        put_record(&yard, &yard.prefix, &name, &record_of(&name, &yard.place(), "running", FAR_AHEAD)).await;
        handle.fail("exit", "1").await.unwrap();
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!(report.objects, 0, "its writer has not ended: {report:?}");
        assert!(report.kept[0].reason.contains("the record of its writer"), "{report:?}");
        assert!(report.problems.is_empty(), "{report:?}");
        put_record(&yard, &yard.prefix, &name, &record_of(&name, &yard.place(), "failed", LONG_AGO)).await;
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, report.problems.len()), (1, 0), "{report:?}");
        assert!(yard.shards().await.is_empty());

        // A manifest that either names keeps what it names.
        let handle = yard.start().await;
        let name = handle.id().to_string();
        let winner = yard.shard(&name, 0, 1).await;
        yard.shard(&name, 0, 0).await;
        let manifest = yard.publish("another", &[attempt_of(&name, 0, 1)]).await;
        let record = record_of(&name, &yard.place(), "succeeded", LONG_AGO);
        let record = record.replace("manifest_ref: null", &format!("manifest_ref: '{}/{manifest}'", yard.place()));
        put_record(&yard, &yard.prefix, &name, &record).await;
        handle.fail("exit", "1").await.unwrap();
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, yard.shards().await), (1, vec![winner]), "{report:?}");
    });
}

#[test]
fn t6_05_counts_of_two_sweepers_of_foreign_records_add_up() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for number in 0..7 {
            let name = format!("r{number}");
            put_record(&yard, &yard.prefix, &name, &record_of(&name, &yard.place(), "failed", LONG_AGO)).await;
            for part in 0..3 {
                yard.shard(&name, part, 0).await;
            }
        }
        let sweepers = [yard.process().await, yard.process().await, yard.process().await];
        let reports: Vec<SweepReport> = std::thread::scope(|scope| {
            let threads = sweepers.each_ref().map(|registry| scope.spawn(|| swept(registry, false)));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let told: u64 = reports.iter().map(|report| report.objects).sum();
        assert_eq!((told, yard.shards().await.len()), (21, 0), "{reports:?}");
        let marks = yard.store.raw_list(&format!("{}/.outlive/runs/sweeps", yard.prefix)).await.unwrap();
        assert!(marks.is_empty(), "marks were left: {marks:?}");
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 0);
    });
}

#[test]
fn t6_04_foreign_run_is_abandoned_when_its_lease_is_over() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let now = outlive::time::Clock::now(&*yard.clock);
        let record = record_of("dead", &yard.place(), "running", &now.after(Duration::from_secs(600)).to_string());
        let record = record.replace("updated_at: '2020-01-01T00:00:00Z'", &format!("updated_at: '{now}'"));
        put_record(&yard, &yard.prefix, "dead", &record).await;
        let lasting = record_of("lasting", &yard.place(), "running", FAR_AHEAD);
        put_record(&yard, &yard.prefix, "lasting", &lasting).await;
        let seen = yard.registry.find("dead").await.unwrap();
        assert_eq!(seen.state, StateName::Running);
        assert!(seen.reason.unwrap().starts_with("written by another program, with a lease until"));
        yard.clock.pass(HOUR);
        let seen = yard.process().await.find("dead").await.unwrap();
        assert_eq!(seen.state, StateName::Dead);
        assert!(seen.reason.unwrap().starts_with("abandoned: written by another program, whose lease ended"));
        let reaped = Reaper::new(None).pass(&yard.process().await).await.unwrap();
        assert_eq!((reaped.live, reaped.abandoned, reaped.ended.len()), (1, 1, 0), "a lease of 200 years is cut short");
    });
}

#[test]
fn t6_10_kept_run_has_the_reason_for_which_it_is_kept() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let name = handle.id().to_string();
        yard.shard(&name, 0, 0).await;
        let manifest = yard.publish(&name, &[attempt_of(&name, 0, 0)]).await;
        let said = outlive::lifecycle::Report { manifest_ref: Some(manifest), ..Default::default() };
        handle.report(said).await.unwrap();
        handle.succeed().await.unwrap();
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!(report.kept[0].reason, "all that is left of it is named by a manifest, or is of no attempt");
    });
}

#[test]
fn t8_01_tree_of_another_user_is_kept() {
    // Only a privileged process can make a file another user's.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (clock, me) = (ManualClock::new(), key());
    let store = MemoryStore::new(clock.clone());
    let dir = directory(&["mine"]);
    let tree = dir.path().join("shards/run_id=mine");
    fail(&registry(&store, &clock, &me, 1), names_it(&dir, "mine"));
    std::os::unix::fs::chown(&tree, Some(12_345), None).unwrap();
    let report = swept(&registry(&store, &clock, &me, 2), false);
    assert_eq!(report.objects, 0, "{report:?}");
    assert!(report.problems[0].why.contains("belongs to user 12345"), "{report:?}");
    std::os::unix::fs::chown(&tree, Some(0), None).unwrap();
    assert_eq!(swept(&registry(&store, &clock, &me, 3), false).objects, 1);
}
