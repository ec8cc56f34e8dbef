//! What a sweep deletes and what it leaves: B02 to B08.

use std::collections::BTreeSet;
use std::time::Duration;

use outlive::engine::sweeper::{Decision, ManifestNames, SweepInput, SweepPolicy, decide, sweep};
use outlive::id::RunId;
use outlive::lifecycle::Report;
use outlive::run::{Output, Run, StateName};
use outlive::store::object::Counted;
use outlive::testing::spec;

use super::field::Field;
use super::yard::{HOUR, Yard, attempt_of};

fn at_once() -> SweepPolicy {
    SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() }
}

#[test]
fn b02_b04_winners_stay_as_they_are_and_other_attempts_go() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let id = handle.id().to_string();
        let winners = [attempt_of(&id, 0, 1), attempt_of(&id, 1, 0)];
        let mut all = Vec::new();
        for (part, attempt) in [(0, 0), (0, 1), (0, 10), (1, 0)] {
            all.push(yard.shard(&id, part, attempt).await);
        }
        yard.put(&format!("shards/run_id={id}/notes.txt"), b"not of an attempt").await;
        let manifest = yard.publish(&id, &winners).await;
        handle.report(Report { manifest_ref: Some(manifest.clone()), ..Report::default() }).await.unwrap();
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 0, "it is in flight");
        let run_id = handle.id();
        handle.succeed().await.unwrap();

        let yaml =
            String::from_utf8(yard.store.raw_get(&yard.store.place_of_record(run_id)).await.unwrap().unwrap()).unwrap();
        for line in [
            "status: \"succeeded\"",
            "error_type: null",
            "error_message: null",
            &format!("manifest_ref: \"{manifest}\""),
        ] {
            assert!(yaml.contains(line), "{yaml}");
        }
        let dry = yard.sweep(&at_once(), true).await;
        assert_eq!((dry.objects, dry.bytes, yard.shards().await.len()), (2, 10, 5));
        let done = yard.sweep(&at_once(), false).await;
        assert_eq!((done.objects, done.bytes, done.left), (2, 10, 0));
        let left = yard.shards().await;
        assert_eq!(left, [all[1].clone(), all[3].clone(), format!("shards/run_id={id}/notes.txt")]);
        assert_eq!(yard.get(&all[1]).await.unwrap(), b"12345");
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 0, "it is idempotent");
        let events = yard.registry.events(run_id).await.unwrap();
        let told: Vec<_> = events.iter().filter(|event| event.action == "sweep").collect();
        assert_eq!(told.len(), 2);
        assert_eq!(told[1].reason.as_deref(), Some("2 objects of 10 bytes deleted"));
    });
}

#[test]
fn b03_b04_sweep_deletes_all_of_a_dead_writer_and_no_live_one() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (dying, living) = (yard.process().await, yard.process().await);
        let (dead, alive) = (dying.start(yard.spec()).await.unwrap(), living.start(yard.spec()).await.unwrap());
        yard.shard(&dead.id().to_string(), 0, 0).await;
        let kept = yard.shard(&alive.id().to_string(), 0, 0).await;
        yard.clock.pass(Duration::from_secs(45));
        living.tick().await.unwrap();
        yard.clock.pass(Duration::from_secs(45));
        assert_eq!(yard.sweep(&at_once(), false).await.objects, 0, "its death is not on record");
        assert_eq!(yard.reap().await, 1);
        assert_eq!(yard.sweep(&SweepPolicy::default(), false).await.objects, 0, "it died less than an hour ago");
        let other = yard.process().await;
        let report = sweep(&other, &at_once()).await.unwrap();
        assert_eq!((report.objects, report.swept[0].reason.as_str()), (1, "dead, and it has no manifest"));
        assert_eq!(yard.shards().await, [kept]);

        let refused = yard.registry.resume(dead.id(), outlive::ResumeOptions::default()).await.unwrap_err().to_string();
        assert!(refused.contains("swept"), "{refused}");
        // B09: a writer that was swept learns it before it publishes.
        let lost = dead.report(Report { manifest_ref: Some("m".into()), ..Report::default() }).await.unwrap_err();
        assert_eq!(lost.code(), outlive::error::Code::Lost);
        std::mem::forget((dead, alive));
    });
}

#[test]
fn b05_each_flag_spares_and_none_takes_back_what_another_spares() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            let handle = yard.start().await;
            yard.shard(&handle.id().to_string(), 0, 0).await;
            ids.push(handle.id());
            handle.fail("exit", "1").await.unwrap();
            yard.clock.pass(HOUR);
        }
        // They ended 3, 2 and 1 hours ago.
        let swept = async |spare: SweepPolicy| -> BTreeSet<usize> {
            let report = yard.sweep(&spare, true).await;
            report.swept.iter().map(|line| ids.iter().position(|id| *id == line.id).unwrap()).collect()
        };
        let base = at_once();
        assert_eq!(swept(base.clone()).await, [0, 1, 2].into());
        assert_eq!(swept(SweepPolicy { keep_last: 1, ..base.clone() }).await, [0, 1].into());
        let in_flight = yard.start().await;
        yard.shard(&in_flight.id().to_string(), 0, 0).await;
        assert_eq!(
            swept(SweepPolicy { keep_last: 1, ..base.clone() }).await,
            [0, 1].into(),
            "one in flight is not one that ended"
        );
        assert_eq!(swept(SweepPolicy { older_than: Some(HOUR * 2 + HOUR / 2), ..base.clone() }).await, [0].into());
        assert_eq!(swept(SweepPolicy { grace: HOUR + HOUR / 2, ..base.clone() }).await, [0, 1].into());
        assert_eq!(swept(SweepPolicy { only: [ids[1]].into(), ..base.clone() }).await, [1].into());
        // Some of all combinations, which `b05_no_combination_…` goes through: 37 has nothing in common with how many there
        // are of each flag.
        for (flags, together) in combinations(&ids).step_by(37) {
            let mut expected: BTreeSet<usize> = (0..3).collect();
            for alone in flags {
                let alone = swept(alone).await;
                expected.retain(|index| alone.contains(index));
            }
            assert_eq!(swept(together.clone()).await, expected, "{together:?}");
        }
        std::mem::forget(in_flight);
    });
}

/// Every combination of flags for three runs that ended 3, 2 and 1 hours ago: each flag alone, and all together.
fn combinations(ids: &[RunId]) -> impl Iterator<Item = ([SweepPolicy; 4], SweepPolicy)> {
    (0..4 * 5 * 5 * 8).map(|number: u32| {
        let (keep_last, hours, grace, only) = (number % 4, number / 4 % 5, number / 20 % 5, number / 100);
        let named = (0..3).filter(|index| only & (1 << index) != 0).map(|index| ids[index]).collect();
        let flags = [
            SweepPolicy { keep_last: keep_last as usize, ..at_once() },
            SweepPolicy { older_than: (hours > 0).then(|| HOUR * hours - HOUR / 2), ..at_once() },
            SweepPolicy { grace: HOUR * grace, ..at_once() },
            SweepPolicy { only: named, ..at_once() },
        ];
        let together = flags.iter().fold(at_once(), |all, flag| all.and(flag));
        (flags, together)
    })
}

#[test]
fn b05_no_set_of_flags_deletes_what_one_of_them_keeps() {
    let field = Field::directory();
    let registry = pollster::block_on(field.process());
    let start = || pollster::block_on(registry.start(field.spec())).unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let handle = start();
        ids.push(handle.id());
        pollster::block_on(handle.fail("exit", "1")).unwrap();
        field.clock().pass(HOUR);
    }
    let (in_flight, interrupted) = (start(), start());
    let may_go_on = [in_flight.id(), interrupted.id()];
    pollster::block_on(interrupted.interrupt(Some(15), "SIGTERM")).unwrap();
    let now = outlive::time::Clock::now(field.clock());
    let run = |id| pollster::block_on(field.look().get(id)).unwrap().run;
    let (runs, lasting) = (ids.iter().map(|id| run(*id)).collect::<Vec<_>>(), may_go_on.map(run));
    let mut pointed = ManifestNames::default();
    let needed = format!("{}/x", attempt_of(ids[0], 0, 0));
    pointed.insert(&attempt_of(ids[0], 0, 0));
    let none = ManifestNames::default();
    let decided = |run: &Run, rank: usize, pointer: Result<&ManifestNames, &str>, spare: &SweepPolicy| -> Decision {
        decide(
            &SweepInput { run, writers: &[], manifest: None, pointer, borrowed: &ManifestNames::default(), rank, now },
            spare,
        )
    };
    let goes = |index: usize, spare: &SweepPolicy| {
        matches!(decided(&runs[index], 2 - index, Ok(&none), spare), Decision::Delete { .. })
    };
    let (mut tried, mut swept) = (0, [0; 3]);
    for (flags, together) in combinations(&ids) {
        for (index, swept) in swept.iter_mut().enumerate() {
            let expected = flags.iter().all(|flag| goes(index, flag));
            assert_eq!(goes(index, &together), expected, "run {index}: {together:?}");
            *swept += usize::from(expected);
        }
        for run in &lasting {
            let decision = decided(run, 0, Ok(&none), &together);
            assert!(matches!(decision, Decision::Keep(_)), "{decision:?}: {together:?}");
        }
        if let Decision::Delete { except, .. } = decided(&runs[0], 2, Ok(&pointed), &together) {
            assert!(except.cover(&needed), "{together:?}");
        }
        let unreadable = decided(&runs[0], 2, Err("torn"), &together);
        assert!(matches!(unreadable, Decision::Keep(_)), "{unreadable:?}");
        tried += 1;
    }
    assert_eq!(
        (tried, swept),
        (800, [3 * 4 * 4 * 5, 2 * 3 * 3 * 5, 2 * 2 * 5]),
        "flags that spare nothing prove nothing"
    );
    std::mem::forget(in_flight);
}

#[test]
fn b05_what_the_pointer_names_stays_whatever_the_record_says() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let id = handle.id();
        let (winner, loser) = (yard.shard(&id.to_string(), 0, 1).await, yard.shard(&id.to_string(), 0, 0).await);
        let manifest = yard.publish("elsewhere", &[attempt_of(id, 0, 1)]).await;
        yard.put("_CURRENT", format!(r#"{{"manifest_ref": "{}/{manifest}"}}"#, yard.place()).as_bytes()).await;
        // The writer died after it had moved the pointer and before it had said so.
        std::mem::forget(handle);
        yard.clock.pass(HOUR);
        assert_eq!(yard.reap().await, 1);
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, yard.shards().await), (1, vec![winner.clone()]), "{loser} {report:?}");

        yard.put("_CURRENT", b"nowhere/at/all").await;
        yard.shard(&id.to_string(), 3, 0).await;
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!(report.objects, 0);
        assert!(report.problems.iter().any(|problem| problem.why.contains("pointer")), "{report:?}");
    });
}

#[test]
fn b06_what_cannot_be_understood_is_reported_and_left_alone() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for (manifest, says) in [
            (None, "names no manifest"),
            (Some("manifests/missing"), "there is no"),
            (Some("manifests/torn"), "it is no YAML"),
            (Some("manifests/new"), "format_version"),
            (Some("manifests/empty"), "names nothing of it"),
            (Some("../../etc/passwd"), "is not below"),
            (Some("s3://other/bucket/m"), "is not below"),
        ] {
            yard.put("manifests/torn", b"{\"shards\": [").await;
            yard.put("manifests/new", b"format_version: 7\nshards: []\n").await;
            yard.put("manifests/empty", b"shards: []\n").await;
            let handle = yard.start().await;
            let id = handle.id();
            let path = yard.shard(&id.to_string(), 0, 0).await;
            if let Some(manifest) = manifest {
                handle.report(Report { manifest_ref: Some(manifest.into()), ..Report::default() }).await.unwrap();
            }
            handle.succeed().await.unwrap();
            let report = yard.sweep(&SweepPolicy { only: [id].into(), ..at_once() }, false).await;
            let line = report.kept.iter().find(|line| line.id == id).unwrap();
            assert!(line.reason.contains(says), "{says}: {line:?}");
            assert!(yard.get(&path).await.is_some() && report.objects == 0);
        }
    });
}

#[test]
fn b06_a_record_that_names_other_trees_deletes_nothing() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let victim = yard.shard("victim", 0, 0).await;
        let record = |run_id: &str, shard_prefix: &str, template: &str, place: &str| {
            format!(
                "format_version: 1\nrun_id: '{run_id}'\nwriter_type: x\nstatus: failed\nstarted_at: '2020-01-01T00:00:00Z'\n\
                 updated_at: '2020-01-01T00:00:00Z'\nlease_expires_at: '2020-01-01T00:00:00Z'\ns3_prefix: {place}\n\
                 shard_prefix: '{shard_prefix}'\ndb_path_template: '{template}'\nmanifest_ref: null\n"
            )
        };
        let place = yard.place();
        let hostile = [
            record("../../x", "shards", "db={db_id:05d}", &place),
            record("", "shards", "db={db_id:05d}", &place),
            record("victim/db=00000", "shards", "db={db_id:05d}", &place),
            record("x", "../shards", "db={db_id:05d}", &place),
            record("x", "", "db={db_id:05d}", &place),
            record("x", "shards/run_id=victim", "db={db_id:05d}", &place),
            record("x", "shards", "../{db_id}", &place),
            record("x", "shards", "db={db_id:05d}", &format!("{place}/../data")),
            record("x", "shards", "db={db_id:05d}", "/etc/../etc"),
            "format_version: 2\nrun_id: victim\n".to_owned(),
            "a: &a [1]\nb: [*a, *a]\n".to_owned(),
            "\u{0}".to_owned(),
            "run_id: victim\nstatus: failed\n".to_owned(),
        ];
        for (index, text) in hostile.iter().enumerate() {
            let key = format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id=x_{index}/run.yaml", yard.prefix);
            yard.store.raw_put(&key, text.as_bytes()).await.unwrap();
        }
        let report = yard.sweep(&at_once(), false).await;
        assert_eq!((report.objects, yard.shards().await), (0, vec![victim]), "{report:?}");
        assert!(report.problems.len() >= 5, "{:?}", report.problems);
    });
}

#[test]
fn b07_what_could_not_be_deleted_is_left_to_the_next_sweep() {
    use outlive::testing::bucket::Bucket;
    use outlive::testing::proxy::{Fate, Proxy};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        yard.shard(&handle.id().to_string(), 0, 0).await;
        handle.fail("exit", "1").await.unwrap();
        let denies = Arc::new(AtomicBool::new(true));
        let denying = denies.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            let deletes = request.method == "POST" && request.target.contains("delete");
            if deletes && denying.load(Ordering::SeqCst) { Fate::Answer(403, "AccessDenied") } else { Fate::Pass }
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(5)).await;
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert_eq!((report.objects, report.left, report.problems.len()), (0, 1, 1), "{report:?}");
        denies.store(false, Ordering::SeqCst);
        let report = sweep(&sweeping, &at_once()).await.unwrap();
        assert_eq!((report.objects, report.left), (1, 0), "{report:?}");
        assert!(yard.shards().await.is_empty());
    });
}

#[test]
fn b08_of_two_sweepers_one_reports_each_object() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        for _ in 0..24 {
            let handle = yard.start().await;
            for part in 0..3 {
                yard.shard(&handle.id().to_string(), part, 0).await;
            }
            handle.fail("exit", "1").await.unwrap();
        }
        let (one, other) = (yard.process().await, yard.process().await);
        let reports: Vec<_> = std::thread::scope(|scope| {
            let threads =
                [&one, &other].map(|registry| scope.spawn(|| pollster::block_on(sweep(registry, &at_once())).unwrap()));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let told: u64 = reports.iter().map(|report| report.objects).sum();
        assert_eq!((told, yard.shards().await.len()), (72, 0), "{reports:?}");
    });
}

#[test]
fn requests_grow_with_pages_and_batches_and_not_with_runs() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (runs, parts) = (30_u64, 2_u64);
        for _ in 0..runs {
            let handle = yard.start().await;
            for part in 0..parts as u32 {
                yard.shard(&handle.id().to_string(), part, 0).await;
            }
            handle.fail("exit", "1").await.unwrap();
        }
        let (registry, store) =
            yard.process_at(outlive::testing::bucket::Bucket::shared().port(), Duration::from_secs(20)).await;
        let before = store.counted();
        let report = sweep(&registry, &SweepPolicy { dry_run: true, ..at_once() }).await.unwrap();
        assert_eq!(report.objects, runs * parts);
        let Counted { gets, puts, lists, deletes } = store.counted() - before;
        assert_eq!((puts, deletes), (0, 0));
        assert!(lists == 1 && gets <= runs + 1, "{gets} reads and {lists} lists of {runs} records");
        let before = store.counted();
        sweep(&registry, &SweepPolicy { dry_run: true, ..at_once() }).await.unwrap();
        let again = store.counted() - before;
        assert_eq!((again.lists, again.gets), (1, 0), "what has not changed is not read again");
    });
}

#[test]
fn a_directory_is_swept_as_a_bucket_is() {
    let place = tempfile::tempdir().unwrap();
    let registry_dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", registry_dir.path().join("r").display());
    let registry = pollster::block_on(outlive::registry::Registry::open(&url)).unwrap();
    let output = Output { prefix: place.path().to_str().unwrap().into(), ..Output::default() };
    let start = || {
        pollster::block_on(registry.start(outlive::run::Spec { output: Some(output.clone()), ..spec("w") })).unwrap()
    };
    let put = |path: &str| {
        let path = place.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "12345").unwrap();
    };
    let (failed, done) = (start(), start());
    let (failed_id, done_id) = (failed.id(), done.id());
    for attempt in [1, 10] {
        put(&format!("{}/x", attempt_of(failed_id, 0, attempt)));
        put(&format!("{}/x", attempt_of(done_id, 0, attempt)));
    }
    std::fs::create_dir(place.path().join("manifests")).unwrap();
    std::fs::write(place.path().join("manifests/m.yaml"), format!("winners:\n- {}\n", attempt_of(done_id, 0, 1)))
        .unwrap();
    pollster::block_on(done.report(Report { manifest_ref: Some("manifests/m.yaml".into()), ..Report::default() }))
        .unwrap();
    pollster::block_on(failed.fail("exit", "1")).unwrap();
    pollster::block_on(done.succeed()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("precious"), "of somebody else").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), place.path().join(attempt_of(failed_id, 0, 1)).join("link")).unwrap();
    let report = pollster::block_on(sweep(&registry, &at_once())).unwrap();
    assert_eq!((report.objects, report.left), (3, 0), "{report:?}");
    assert!(elsewhere.path().join("precious").exists(), "what is behind a link was deleted");
    assert!(place.path().join(attempt_of(done_id, 0, 1)).join("x").exists());
    assert!(!place.path().join(format!("shards/run_id={failed_id}")).join("db=00000/attempt=01/x").exists());
    assert_eq!(pollster::block_on(registry.get(failed_id)).unwrap().state, StateName::Failed);
}

#[test]
fn b06_what_a_manifest_names_in_other_words_is_kept_or_reported() {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().canonicalize().unwrap().join("real");
    std::fs::create_dir_all(real.join("manifests")).unwrap();
    // The place is named by a way that leads there.
    let place = root.path().canonicalize().unwrap().join("link");
    std::os::unix::fs::symlink(&real, &place).unwrap();
    let url = format!("sqlite:{}", root.path().join("r").display());
    let registry = pollster::block_on(outlive::registry::Registry::open(&url)).unwrap();
    let output = Output { prefix: place.to_str().unwrap().into(), ..Output::default() };
    let spellings: [(&str, bool); 17] = [
        ("ATTEMPT", true),
        ("PLACE/ATTEMPT", true),
        ("file://PLACE/ATTEMPT/", true),
        ("REAL/ATTEMPT", true),
        ("./ATTEMPT", true),
        ("shards//run_id=ID/db=00000/./attempt=01", true),
        ("shards/../ATTEMPT", false),
        ("../ATTEMPT", false),
        ("/PLACE/ATTEMPT", false),
        ("file://localhost/PLACE/ATTEMPT", false),
        ("shards/run_id%3DID/db=00000/attempt=01", false),
        ("ATTEMPT/x?versionId=3", false),
        ("ATTEMPT/*", false),
        ("ATTEMPT\n", false),
        ("shards\\run_id=ID\\db=00000\\attempt=01", false),
        ("SHARDS/RUN_ID=ID/DB=00000/ATTEMPT=01", false),
        ("db=00000/attempt=01", false),
    ];
    let mut runs = Vec::new();
    for (number, (spelling, understood)) in spellings.into_iter().enumerate() {
        let spec = outlive::run::Spec { output: Some(output.clone()), ..spec("w") };
        let handle = pollster::block_on(registry.start(spec)).unwrap();
        let id = handle.id();
        for attempt in [0, 1, 2] {
            let dir = real.join(attempt_of(id, 0, attempt));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("x"), "12345").unwrap();
        }
        let named = spelling
            .replace("ATTEMPT", &attempt_of(id, 0, 1))
            .replace("PLACE", place.to_str().unwrap())
            .replace("REAL", real.to_str().unwrap())
            .replace("ID", &id.to_string());
        let manifest = format!("manifests/m{number}.json");
        let said = serde_json::json!({ "winners": [attempt_of(id, 0, 0), named], "template": "attempt={attempt:02d}" });
        std::fs::write(real.join(&manifest), said.to_string()).unwrap();
        pollster::block_on(handle.report(Report { manifest_ref: Some(manifest), ..Report::default() })).unwrap();
        pollster::block_on(handle.succeed()).unwrap();
        runs.push((id, spelling, understood));
    }
    let report = pollster::block_on(sweep(&registry, &at_once())).unwrap();
    for (id, spelling, understood) in runs {
        let is_there = |attempt| real.join(attempt_of(id, 0, attempt)).join("x").exists();
        assert!(is_there(0) && is_there(1), "what is named as `{spelling}` was deleted");
        assert_eq!(is_there(2), !understood, "`{spelling}`");
        let is_told = report.problems.iter().any(|problem| problem.what.contains(&id.to_string()));
        assert_eq!(is_told, !understood, "`{spelling}`: {:?}", report.problems);
    }
}

#[test]
fn b06_pointer_that_leads_nowhere_keeps_everything() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().canonicalize().unwrap().join("place");
    std::fs::create_dir_all(place.join("manifests")).unwrap();
    let url = format!("sqlite:{}", root.path().join("r").display());
    let registry = pollster::block_on(outlive::registry::Registry::open(&url)).unwrap();
    let output = Output { prefix: place.to_str().unwrap().into(), ..Output::default() };
    let spec = outlive::run::Spec { output: Some(output), ..spec("w") };
    let handle = pollster::block_on(registry.start(spec)).unwrap();
    let file = place.join(attempt_of(handle.id(), 0, 0)).join("x");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "12345").unwrap();
    std::fs::write(place.join("manifests/old.json"), "{}").unwrap();
    pollster::block_on(handle.fail("exit", "1")).unwrap();
    let pointer = place.join("_CURRENT");
    let old = r#"{"manifest_ref": "manifests/gone.json", "previous": "manifests/old.json"}"#;
    let make: [(&str, &dyn Fn()); 3] = [
        ("a link to nowhere", &|| std::os::unix::fs::symlink("nowhere", &pointer).unwrap()),
        ("a directory", &|| std::fs::create_dir(&pointer).unwrap()),
        ("one to a manifest that is gone", &|| std::fs::write(&pointer, old).unwrap()),
    ];
    for (what, make) in make {
        make();
        let report = pollster::block_on(sweep(&registry, &at_once())).unwrap();
        assert!(file.exists() && report.problems.len() == 1, "{what}: {report:?}");
        if pointer.is_dir() { std::fs::remove_dir(&pointer).unwrap() } else { std::fs::remove_file(&pointer).unwrap() }
    }
    assert_eq!(pollster::block_on(sweep(&registry, &at_once())).unwrap().objects, 1);
}
