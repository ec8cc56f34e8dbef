//! Records shared with programs that know nothing but seed 001: B01, both ways.
//!
//! `contract.py` was written from the seed's text alone: it creates, beats and ends records as its writer does, and reads
//! ours as its sweeper does.

use std::process::Command;
use std::time::Duration;

use outlive::filter::Filter;
use outlive::run::StateName;
use outlive::runtime::sweeper::Spare;
use outlive::store::{Page, Store};
use outlive::testing::bucket::python;
use outlive::transition::Report;

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
            let bytes = yard.store.get_by_hand(&key).await.unwrap().unwrap();
            assert!(contract(&["key", &key], b"").trim() == "ok", "{key}");
            let now = outlive::time::Clock::now(&*yard.clock).to_string();
            contract(&["read", &now], &bytes).trim().to_owned()
        };
        let handle = yard.start().await;
        let id = handle.id();
        assert_eq!(read(id).await, format!("{id} writer running active {}", yard.place()));
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

#[test]
fn b01_theirs_are_read_listed_and_swept_and_never_changed() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let now = outlive::time::Clock::now(&*yard.clock).to_string();
        let mut keys = Vec::new();
        for (name, status) in [("run-a", "running"), ("run-b", "failed"), ("run-c", "succeeded")] {
            let text = contract(&["write", name, status, &yard.place(), &now], b"");
            let (key, body) = text.split_once('\n').unwrap();
            let key = format!("{}/{key}", yard.prefix);
            yard.store.put_by_hand(&key, body.as_bytes()).await.unwrap();
            keys.push((key, body.to_owned()));
            yard.shard(name, 0, 0).await;
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

        let at_once = Spare { grace: Duration::ZERO, unsure: Duration::ZERO, ..Spare::default() };
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
            assert_eq!(
                yard.store.get_by_hand(&key).await.unwrap().unwrap(),
                body.as_bytes(),
                "a record of theirs was written"
            );
        }
    });
}

#[test]
fn b01_a_record_is_the_same_bytes_when_nothing_has_changed_and_keeps_what_others_added() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let key = yard.store.place_of_record(handle.id());
        let text = String::from_utf8(yard.store.get_by_hand(&key).await.unwrap().unwrap()).unwrap();
        assert_eq!(contract(&["sorted"], text.as_bytes()).trim(), "ok", "{text}");
        let added = text.replace("format_version: 1\n", "format_version: 1\nzone:\n  of: \"theirs\"\n");
        yard.store.put_by_hand(&key, added.as_bytes()).await.unwrap();
        handle.set_checkpoint(1.into()).await.unwrap();
        handle.succeed().await.unwrap();
        let text = String::from_utf8(yard.store.get_by_hand(&key).await.unwrap().unwrap()).unwrap();
        assert!(text.contains("zone:\n  of: \"theirs\"\n"), "{text}");
    });
}
