//! Records shared with programs that know nothing but seed 001: B01, both ways.
//!
//! `contract.py` was written from the seed's text alone: it creates, beats and ends records as its writer does, and reads
//! ours as its sweeper does.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::engine::sweeper::SweepPolicy;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::Report;
use outlive::run::StateName;
use outlive::store::{Page, Store};
use outlive::testing::bucket::{Bucket, python};
use outlive::testing::proxy::{Fate, Proxy};

use super::yard::Yard;

/// Calls the program, and answers with what it prints.
fn contract(words: &[&str], input: &[u8]) -> String {
    use std::io::Write;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/bucket/contract.py");
    let mut child = Command::new(python("python"))
        .arg(script)
        .args(words)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn b01_ours_are_read_by_a_reader_of_the_contract_in_every_state() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let read = async |id| {
            let key = yard.store.place_of_record(id);
            let bytes = yard.store.raw_get(&key).await.unwrap().unwrap();
            assert!(contract(&["key", &key], b"").trim() == "ok", "{key}");
            let now = outlive::time::Clock::now(&*yard.clock).to_string();
            contract(&["read", &now], &bytes).trim().to_owned()
        };
        let lease = async |id| {
            let bytes = yard.store.raw_get(&yard.store.place_of_record(id)).await.unwrap().unwrap();
            contract(&["lease", &outlive::time::Clock::now(&*yard.clock).to_string()], &bytes).trim().to_owned()
        };
        let handle = yard.start().await;
        let id = handle.id();
        assert_eq!(read(id).await, format!("{id} writer running active {}", yard.place()));
        assert_eq!(lease(id).await, "60.0", "a reader waits as long as we do");
        yard.clock.pass(Duration::from_secs(20));
        assert_eq!(lease(id).await, "40.0");
        yard.registry.tick().await.unwrap();
        assert_eq!(lease(id).await, "60.0", "a beat moves the end of the lease");
        handle.report(Report { manifest_ref: Some("m".into()), ..Report::default() }).await.unwrap();
        handle.succeed().await.unwrap();
        assert_eq!(read(id).await, format!("{id} writer succeeded terminal {}", yard.place()));

        let handle = yard.start().await;
        let id = handle.id();
        handle.fail("ValueError", "a \"bad\"\nvalue: é").await.unwrap();
        assert_eq!(read(id).await, format!("{id} writer failed terminal {}", yard.place()));
        for (resumable, state) in [(true, "running active"), (false, "failed terminal")] {
            let handle = yard.start().await;
            let id = handle.id();
            if resumable {
                handle.interrupt(Some(15), "SIGTERM").await.unwrap();
                yard.clock.pass(Duration::from_secs(86_400));
            } else {
                yard.clock.pass(Duration::from_secs(600));
                assert!(read(id).await.contains("running abandoned"), "a lease that ended is one that a reader sees");
                yard.reap().await;
                std::mem::forget(handle);
            }
            assert!(read(id).await.contains(state), "{}", read(id).await);
        }
    });
}

/// The fields of a run's record, as a reader of the contract reads them.
async fn fields<const N: usize>(yard: &Yard, id: RunId, names: [&str; N]) -> [String; N] {
    let bytes = yard.store.raw_get(&yard.store.place_of_record(id)).await.unwrap().unwrap();
    let read = contract(&[&["fields"], &names[..]].concat(), &bytes);
    read.lines().map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn t6_08_record_has_the_fields_that_the_contract_names() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let mut spec = yard.spec();
        spec.output.as_mut().unwrap().run_id = Some("writer-7".into());
        let handle = yard.registry.start(spec).await.unwrap();
        let id = handle.id();
        let report = |reference: &str| Report { manifest_ref: Some(reference.into()), ..Report::default() };
        let names = ["run_id", "manifest_ref", "s3_prefix"];
        let full = format!("{}/manifests/m.json", yard.place());
        for reference in ["manifests/m.json", &full] {
            handle.report(report(reference)).await.unwrap();
            assert_eq!(fields(&yard, id, names).await, ["writer-7".to_owned(), full.clone(), yard.place()]);
        }
        handle.succeed().await.unwrap();

        let bare = yard.registry.start(outlive::testing::spec("bare")).await.unwrap();
        let expected = [bare.id().to_string(), "None".into(), format!("s3://outlive/{}", yard.prefix)];
        assert_eq!(fields(&yard, bare.id(), names).await, expected);
        let started = fields(&yard, bare.id(), ["started_at"]).await;
        let id = bare.id();
        bare.interrupt(Some(15), "SIGTERM").await.unwrap();
        yard.clock.pass(Duration::from_secs(3_600));
        let resumed = yard.registry.resume(id, outlive::ResumeOptions::default()).await.unwrap();
        assert_eq!(fields(&yard, id, ["started_at"]).await, started, "the second attempt moved the start of the run");
        resumed.succeed().await.unwrap();
        assert_eq!(fields(&yard, id, ["started_at"]).await, started);
    });
}

#[test]
fn t6_08_record_is_put_as_yaml() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let put = heads.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            if request.method == "PUT" && request.target.contains("run.yaml") {
                put.lock().unwrap().push(request.head.to_ascii_lowercase());
            }
            Fate::Pass
        });
        let (registry, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        registry.start(yard.spec()).await.unwrap().succeed().await.unwrap();
        let heads = heads.lock().unwrap();
        assert!(heads.len() == 2, "{heads:?}");
        assert!(heads.iter().all(|head| head.contains("\r\ncontent-type: application/yaml\r\n")), "{heads:?}");
    });
}

#[test]
fn b01_theirs_are_read_listed_and_swept_and_never_changed() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let now = || outlive::time::Clock::now(&*yard.clock).to_string();
        // Each is made by a put, and whatever becomes of it is another over the whole of it.
        let create = async |name: &str| {
            let text = contract(&["create", name, &yard.place(), &now(), "600"], b"");
            let (key, body) = text.split_once('\n').unwrap();
            let key = format!("{}/{key}", yard.prefix);
            yard.store.raw_put(&key, body.as_bytes()).await.unwrap();
            yard.shard(name, 0, 0).await;
            key
        };
        let update = async |key: &str, words: &[&str]| {
            let before = yard.store.raw_get(key).await.unwrap().unwrap();
            yard.store.raw_put(key, contract(words, &before).as_bytes()).await.unwrap();
        };
        let (a, b, c) = (create("run-a").await, create("run-b").await, create("run-c").await);
        // Its lease is what it says, from its last beat on, and nothing of it is judged or swept before.
        let silence = async || {
            let listed = yard.process().await.store().list(&Filter::default(), &Page::default()).await.unwrap().records;
            let run = &listed.iter().find(|record| record.run.spec.name.as_deref() == Some("run-a")).unwrap().run;
            let owner = run.owner().unwrap();
            (
                owner.lease.lasts().as_secs(),
                owner.heard.silent_for.as_secs(),
                owner.lease.lapsed(owner.heard.silent_for),
            )
        };
        assert_eq!(silence().await, (600, 0, false));
        yard.clock.pass(Duration::from_secs(500));
        assert_eq!(silence().await, (600, 500, false));
        update(&a, &["beat", &now(), "600"]).await;
        assert_eq!(silence().await, (600, 0, false), "its beat was not heard");
        yard.clock.pass(Duration::from_secs(500));
        assert_eq!(silence().await, (600, 500, false), "its lease ended with that of the beat before");
        update(&a, &["beat", &now(), "900"]).await;
        assert_eq!(silence().await, (900, 0, false), "a longer lease was not taken");
        let message = format!("it's gone: {}", "long ".repeat(40));
        update(&b, &["fail", &now(), "RuntimeError", &message]).await;
        update(&c, &["succeed", &now(), "manifests/2026-11-16T00:00:00Z_run_id=run-c/manifest.json"]).await;
        let mut keys = Vec::new();
        for key in [a, b, c] {
            let body = yard.store.raw_get(&key).await.unwrap().unwrap();
            keys.push((key, body));
        }
        yard.publish("run-c", &[super::yard::attempt_of("run-c", 0, 1)]).await;
        let winner = yard.shard("run-c", 0, 1).await;
        let listed = yard.store.list(&Filter::default(), &Page::default()).await.unwrap().records;
        let mut states: Vec<_> =
            listed.iter().map(|record| (record.run.spec.name.clone().unwrap(), record.run.state.name())).collect();
        states.sort();
        assert_eq!(
            states,
            [
                ("run-a".into(), StateName::Running),
                ("run-b".into(), StateName::Failed),
                ("run-c".into(), StateName::Succeeded)
            ]
        );
        let id = listed[0].run.id;
        assert_eq!(yard.process().await.get(id).await.unwrap().run.id, id, "found by an id that it never had");
        assert!(yard.registry.cancel(id, None).await.is_err());

        let at_once = SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() };
        assert_eq!(yard.sweep(&at_once, false).await.objects, 2);
        assert_eq!(
            yard.shards().await,
            ["shards/run_id=run-a/db=00000/attempt=00/data.sst".to_owned(), winner.clone()]
        );
        yard.clock.pass(Duration::from_secs(3_600));
        assert_eq!(yard.reap().await, 0, "their records are theirs");
        assert_eq!(yard.sweep(&at_once, false).await.objects, 1, "its lease ended long ago");
        assert_eq!(yard.shards().await, [winner]);
        for (key, body) in keys {
            assert_eq!(yard.store.raw_get(&key).await.unwrap().unwrap(), body, "a record of theirs was written");
        }
    });
}

#[test]
fn b01_record_without_change_has_equal_bytes_and_foreign_fields() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let key = yard.store.place_of_record(handle.id());
        let text = String::from_utf8(yard.store.raw_get(&key).await.unwrap().unwrap()).unwrap();
        assert_eq!(contract(&["sorted"], text.as_bytes()).trim(), "ok", "{text}");
        let added = text.replace("format_version: 1\n", "format_version: 1\nzone:\n  of: \"theirs\"\n");
        yard.store.raw_put(&key, added.as_bytes()).await.unwrap();
        handle.set_checkpoint(1.into()).await.unwrap();
        handle.succeed().await.unwrap();
        let text = String::from_utf8(yard.store.raw_get(&key).await.unwrap().unwrap()).unwrap();
        assert!(text.contains("zone:\n  of: \"theirs\"\n"), "{text}");
    });
}
