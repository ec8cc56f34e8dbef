//! Editing: queued runs whose priority or time a person changes.

use std::time::Duration;

use outlive::testing::server::Server;
use outlive::time::Timestamp;
use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text};

/// Adds a run to the queue that writes its name into a file.
fn add(sandbox: &Sandbox, registry: &str, name: &str, flags: &[&str]) {
    let script = format!("echo {name} >> order");
    let registry = ["--registry", registry].into_iter().filter(|_| !registry.is_empty());
    let words = registry.chain(["queue", "add", "--name", name]).chain(flags.iter().copied());
    sandbox.outlive(words.chain(["--", "sh", "-c", &script])).succeeds();
}

fn edit(sandbox: &Sandbox, registry: &str, words: &[&str]) -> Value {
    let all = ["--registry", registry, "--json", "queue", "edit"].into_iter().chain(words.iter().copied());
    sandbox.outlive(all).json()
}

/// Executes all that is due, and answers with the names of what was executed, in order.
fn executed(sandbox: &Sandbox, registry: &str) -> Vec<String> {
    sandbox.outlive(["--registry", registry, "work", "--drain"]).succeeds();
    let order = std::fs::read_to_string(sandbox.work().join("order")).unwrap_or_default();
    let _ = std::fs::remove_file(sandbox.work().join("order"));
    order.lines().map(Into::into).collect()
}

fn registries(sandbox: &Sandbox) -> [String; 2] {
    sandbox.outlive(["init"]).succeeds();
    [format!("sqlite:{}", sandbox.registry().display()), Server::shared().fresh_url()]
}

#[test]
fn edited_priority_decides_the_order_and_is_shown() {
    let sandbox = Sandbox::new();
    for registry in registries(&sandbox) {
        for name in ["first", "second", "third"] {
            add(&sandbox, &registry, name, &[]);
        }
        let edited = edit(&sandbox, &registry, &["third", "--priority", "-5"]);
        assert_eq!((&edited["runs"][0]["priority"], &edited["runs"][0]["name"]), (&json!(-5), &json!("third")));
        edit(&sandbox, &registry, &["first", "--priority", "9"]);
        let shown = sandbox.outlive(["--registry", &registry, "show", "third", "--json"]).json();
        assert_eq!(shown["priority"], -5, "{shown}");
        let listed = sandbox.outlive(["--registry", &registry, "queue", "list", "--json"]).json();
        let names: Vec<&Value> = listed["waiting"].as_array().unwrap().iter().map(|run| &run["name"]).collect();
        assert_eq!(names, ["third", "second", "first"], "{listed}");
        assert_eq!(executed(&sandbox, &registry), ["third", "second", "first"]);
        let ended = sandbox.outlive(["--registry", &registry, "show", "first", "--json"]).json();
        assert_eq!((&ended["state"], &ended["priority"]), (&json!("succeeded"), &json!(9)), "{ended}");
    }
}

#[test]
fn edited_time_holds_a_run_back_until_it_is_now() {
    let sandbox = Sandbox::new();
    for registry in registries(&sandbox) {
        add(&sandbox, &registry, "report", &[]);
        let edited = edit(&sandbox, &registry, &["report", "--not-before", "2h"]);
        assert!(edited["runs"][0]["not_before"].is_string(), "{edited}");
        assert_eq!(executed(&sandbox, &registry), [""; 0]);
        assert_eq!(edit(&sandbox, &registry, &["report", "--not-before", "now"])["runs"][0]["not_before"], Value::Null);
        assert_eq!(executed(&sandbox, &registry), ["report"]);
        let why = sandbox.outlive(["--registry", &registry, "why", "report", "--json"]).json();
        let edits = why["events"].as_array().unwrap().iter().filter(|event| event["action"] == "edit").count();
        assert_eq!(edits, 2, "{why}");
    }
}

#[test]
fn edited_time_of_a_schedule_leaves_its_slots_alone() {
    let sandbox = Sandbox::new();
    for registry in registries(&sandbox) {
        add(&sandbox, &registry, "nightly", &["--every", "24h"]);
        let slot = || -> Timestamp {
            let shown = sandbox.outlive(["--registry", &registry, "show", "nightly", "--json"]).json();
            assert_eq!(shown["state"], "pending", "{shown}");
            shown["not_before"].as_str().unwrap().parse().unwrap()
        };
        // Its first slot is that of its making.
        assert_eq!(executed(&sandbox, &registry), ["nightly"]);
        let second = slot();
        edit(&sandbox, &registry, &["nightly", "--not-before", "now"]);
        assert_eq!(executed(&sandbox, &registry), ["nightly"]);
        assert_eq!(slot(), second.after(Duration::from_secs(24 * 3_600)), "the slot was used, and the next one stays");
    }
}

#[test]
fn edits_and_pauses_outlive_the_database() {
    let sandbox = Sandbox::new();
    for name in ["edited", "paused"] {
        add(&sandbox, "", name, &[]);
    }
    sandbox.outlive(["queue", "edit", "edited", "--priority", "-3", "--not-before", "2h"]).succeeds();
    sandbox.outlive(["pause", "paused"]).succeeds();
    let waiting = || -> Vec<Value> {
        let listed = sandbox.outlive(["queue", "list", "--json"]).json()["waiting"].clone();
        listed.as_array().unwrap().iter().map(|run| json!([run["name"], run["priority"], run["reason"]])).collect()
    };
    let before = waiting();
    for file in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let _ = std::fs::remove_file(sandbox.registry().join(file));
    }
    sandbox.outlive(["run", "--", "true"]).succeeds();
    assert_eq!((before.len(), waiting()), (2, before));
}

#[test]
fn pause_edit_and_unpause_by_filter_count_first_and_write_pages() {
    const MANY: usize = 1_200;
    let sandbox = Sandbox::new();
    let jobs = format!("{}\n", json!({ "argv": ["true"], "labels": ["tenant=acme"] })).repeat(MANY);
    std::fs::write(sandbox.work().join("jobs.jsonl"), jobs).unwrap();
    for registry in registries(&sandbox) {
        let call = |words: &[&str]| {
            let all = ["--registry", &registry, "--json"].into_iter().chain(words.iter().copied());
            sandbox.outlive(all).json()["bulk"].clone()
        };
        sandbox.outlive(["--registry", &registry, "queue", "add", "--file", "jobs.jsonl"]).succeeds();
        add(&sandbox, &registry, "other", &[]);
        let of_tenant = ["--label", "tenant=acme"];
        for (verb, flags) in
            [(&["queue", "edit"][..], &["--priority", "3"][..]), (&["pause"], &[]), (&["unpause"], &[])]
        {
            let dry = call(&[verb, flags, &of_tenant].concat());
            assert_eq!((&dry["selected"], &dry["changed"]), (&json!(MANY), &json!(0)), "{verb:?} {dry}");
            let done = call(&[verb, flags, &of_tenant, &["--yes"]].concat());
            assert_eq!((&done["changed"], &done["left"]), (&json!(MANY), &json!({})), "{verb:?} {done}");
            if verb == ["pause"] {
                // What is paused already is not meant, and takes no time.
                assert_eq!(call(&["pause", "--label", "tenant=acme", "--yes"])["selected"], 0);
                let late = ["queue", "edit", "--label", "tenant=acme", "--not-before", "1h", "--yes"];
                let output = sandbox.outlive(["--registry", &registry].into_iter().chain(late)).output().unwrap();
                let said = text(&output.stdout);
                assert_eq!(output.status.code(), Some(1), "{said}");
                assert!(
                    said.contains(&format!("{MANY} left alone: it is paused until a person unpauses it")),
                    "{said}"
                );
            }
        }
        assert_eq!(call(&["unpause", "--label", "tenant=acme"])["selected"], 0);
    }
}

#[test]
fn edit_without_a_change_and_of_an_ended_run_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    let refused = |words: &[&str]| {
        let output = sandbox.outlive(["queue", "edit"].into_iter().chain(words.iter().copied())).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    let ended = refused(&["done", "--priority", "1"]);
    assert!(ended.contains("it has already succeeded; only a pending run can be edited"), "{ended}");
    assert!(refused(&["done"]).contains("--priority"));
    assert!(refused(&["done", "--not-before", "whenever"]).contains("whenever"));
    assert!(refused(&["done", "--name", "done", "--priority", "1"]).contains("not both"));
}
