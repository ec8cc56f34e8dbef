//! Verbs that select runs by a filter: counted first, changed with `--yes`, a page of them in one write.

use outlive::testing::server::Server;
use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox};

/// Adds runs of a tenant to the queue.
fn add(sandbox: &Sandbox, registry: &str, tenant: &str, argv: &str, count: usize) {
    let line = json!({ "argv": [argv], "labels": [format!("tenant={tenant}")], "kind": "command" });
    let jobs: String = (0..count).map(|_| format!("{line}\n")).collect();
    std::fs::write(sandbox.work().join("jobs.jsonl"), jobs).unwrap();
    sandbox.outlive(["--registry", registry, "queue", "add", "--file", "jobs.jsonl"]).succeeds();
}

/// The counted outcome of a call.
fn bulk(sandbox: &Sandbox, registry: &str, words: &[&str]) -> Value {
    let words = ["--registry", registry, "--json"].into_iter().chain(words.iter().copied());
    sandbox.outlive(words).json()["bulk"].clone()
}

/// How many runs are in a state.
fn count(sandbox: &Sandbox, registry: &str, state: &str) -> usize {
    let words = ["--registry", registry, "ps", "--all", "--status", state, "--json", "-n", "10000"];
    sandbox.outlive(words).json()["runs"].as_array().unwrap().len()
}

/// The registries that the verbs are tried on.
fn registries(sandbox: &Sandbox) -> [String; 2] {
    sandbox.outlive(["init"]).succeeds();
    [format!("sqlite:{}", sandbox.registry().display()), Server::shared().fresh_url()]
}

#[test]
fn t2_09_cancel_by_filter_counts_first_and_writes_pages() {
    const MANY: usize = 1_500;
    let sandbox = Sandbox::new();
    for registry in registries(&sandbox) {
        add(&sandbox, &registry, "acme", "true", MANY);
        add(&sandbox, &registry, "other", "true", 3);
        let selected = ["--label", "tenant=acme"];
        let dry = bulk(&sandbox, &registry, &[&["cancel"], &selected[..]].concat());
        assert_eq!((&dry["dry_run"], &dry["selected"], &dry["changed"]), (&json!(true), &json!(MANY), &json!(0)));
        assert_eq!(dry["states"], json!({ "pending": MANY }));
        assert_eq!(count(&sandbox, &registry, "cancelled"), 0, "a dry call has changed something");
        let done =
            bulk(&sandbox, &registry, &[&["cancel", "--yes", "--reason", "tenant left"], &selected[..]].concat());
        assert_eq!((&done["selected"], &done["changed"], &done["left"]), (&json!(MANY), &json!(MANY), &json!({})));
        assert_eq!((count(&sandbox, &registry, "cancelled"), count(&sandbox, &registry, "pending")), (MANY, 3));
        // Nothing is left to select.
        assert_eq!(bulk(&sandbox, &registry, &[&["cancel", "--yes"], &selected[..]].concat())["selected"], 0);
        let queued = bulk(&sandbox, &registry, &["queue", "cancel", "--kind", "command", "--until", "0s", "--yes"]);
        assert_eq!(queued["changed"], 3, "{queued}");
    }
}

#[test]
fn rerun_resume_and_archive_by_filter_change_what_they_count() {
    const SOME: usize = 12;
    let sandbox = Sandbox::new();
    for registry in registries(&sandbox) {
        let done = |words: &[&str]| bulk(&sandbox, &registry, words);
        let drain = || sandbox.outlive(["--registry", &registry, "work", "--drain", "--slots", "2"]).status().unwrap();
        add(&sandbox, &registry, "acme", "false", SOME);
        drain();
        assert_eq!(count(&sandbox, &registry, "failed"), SOME);
        let rerun = ["rerun", "--label", "tenant=acme", "--status", "failed", "--idempotency-key", "monday"];
        assert_eq!(done(&rerun)["selected"], SOME);
        assert_eq!(count(&sandbox, &registry, "pending"), 0);
        let yes = [&rerun[..], &["--yes"]].concat();
        assert_eq!(done(&yes)["changed"], SOME);
        // The same key repeats each once.
        assert_eq!((&done(&yes)["selected"], &done(&yes)["changed"]), (&json!(SOME), &json!(0)));
        assert_eq!(count(&sandbox, &registry, "pending"), SOME);
        drain();
        // Failed runs are resumed where that is said; they came from the queue, and wait for a worker again.
        let resume = ["resume", "--label", "tenant=acme", "--yes"];
        assert_eq!(done(&resume)["selected"], 0);
        let resumed = done(&[&resume[..], &["--status", "failed"]].concat());
        assert_eq!((&resumed["selected"], &resumed["changed"]), (&json!(2 * SOME), &json!(2 * SOME)), "{resumed}");
        assert_eq!(count(&sandbox, &registry, "pending"), 2 * SOME);
        drain();
        let archive = |words: &[&str]| {
            let words = ["--registry", &registry, "--json", "archive", "--label", "tenant=acme"]
                .into_iter()
                .chain(words.iter().copied());
            sandbox.outlive(words).json()["runs"].as_array().unwrap().len()
        };
        assert_eq!((archive(&[]), archive(&["--yes"]), archive(&["--yes"])), (2 * SOME, 2 * SOME, 0));
    }
}

#[test]
fn filter_with_names_is_refused_and_left_runs_are_counted() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    for words in [
        &["cancel", "good", "--kind", "command"][..],
        &["resume", "good", "--name", "good"],
        &["rerun", "good", "--status", "failed"],
        &["archive", "good", "--label", "a=b"],
        &["queue", "cancel", "--all", "--kind", "command"],
    ] {
        let refused = sandbox.outlive(words).fails_with(2);
        assert!(refused.contains("not both"), "{words:?}: {refused}");
    }
    let output = sandbox.outlive(["cancel", "--status", "succeeded", "--yes", "--json"]).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left: Vec<u64> =
        said["bulk"]["left"].as_object().unwrap().values().map(|runs| runs.as_u64().unwrap()).collect();
    assert_eq!((output.status.code(), left), (Some(1), vec![1]), "{said}");
    insta::assert_snapshot!(sandbox.outlive(["rerun", "--name", "good"]).succeeds(), @r"
    1 selected: 1 succeeded
    nothing was changed; with --yes they are repeated
    ");
}
