//! `outlive rm` and `delete_after`: which runs are deleted, and which are refused.

use serde_json::json;

use super::sandbox::{Ends, Sandbox, signal_pid, text};
use super::secrets::files;

/// Deletes the database, so that the next command rebuilds it from the files of the runs.
fn lose_database(sandbox: &Sandbox) {
    for rest in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{rest}", sandbox.database().display()));
    }
}

#[test]
fn t1_16_rm_deletes_an_ended_run_with_its_logs_for_good() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "done", "--", "sh", "-c", "echo canary-16; exit 3"]).succeeds();
    sandbox.wait_for_state("done", "failed");
    sandbox.outlive(["run", "--name", "kept", "--", "true"]).succeeds();
    let id = sandbox.show("done")["id"].as_str().unwrap().to_owned();
    for words in [&["rm", "done"][..], &["rm", "done", "--dry-run"], &["rm", "--status", "failed"]] {
        let would = sandbox.outlive(words.iter().chain(&["--json"])).json();
        assert_eq!((&would["dry_run"], &would["runs"][0]["id"]), (&json!(true), &json!(id)), "{words:?}");
        assert_eq!(sandbox.show("done")["state"], "failed", "a dry run deleted it");
    }
    assert_eq!(sandbox.outlive(["logs", "done"]).succeeds(), "canary-16\n");
    let said = sandbox.outlive(["rm", "done", "--yes"]).succeeds();
    assert_eq!(said, format!("{id} done (failed) deleted\n"));
    sandbox.outlive(["show", "done"]).fails_with(101);
    let left = [files(&sandbox.registry()), files(&sandbox.home())].concat();
    assert!(!left.iter().any(|path| path.to_string_lossy().contains(&id)), "{left:?}");
    lose_database(&sandbox);
    assert_eq!(sandbox.runs().len(), 1, "it came back from its files");
    assert_eq!(sandbox.show("kept")["state"], "succeeded");
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn t1_16_rm_refuses_live_runs_and_runs_that_others_wait_for() {
    let sandbox = Sandbox::impatient();
    let live = sandbox.start("live", &["sleep", "300"]);
    sandbox.outlive(["run", "--name", "ended", "--", "true"]).succeeds();
    // One run that is refused keeps the others.
    let refused = sandbox.outlive(["rm", "ended", "live", "--yes"]).fails_with(103);
    assert!(refused.contains("it is running; only a run that has ended can be deleted"), "{refused}");
    assert!(refused.contains("hint: ") && refused.contains("outlive cancel "), "{refused}");
    assert_eq!(sandbox.runs().len(), 2);
    sandbox.outlive(["rm", "--status", "running", "--yes"]).fails_with(2);
    sandbox.outlive(["rm", "--yes"]).fails_with(2);
    // A dead run may be resumed: a run that waits for it keeps it.
    let child = super::running::child_of(live.pid());
    signal_pid(live.pid(), "KILL");
    let orphaned = sandbox.wait_for("live", |run| run["health"] == "orphaned");
    assert_eq!(orphaned["state"], "running");
    sandbox.outlive(["rm", "live", "--yes"]).fails_with(103);
    signal_pid(child, "KILL");
    sandbox.wait_for_state("live", "dead");
    sandbox.outlive(["queue", "add", "--name", "next", "--needs", "live", "--", "true"]).succeeds();
    let refused = sandbox.outlive(["rm", "live", "--yes"]).fails_with(103);
    assert!(refused.contains("waits for it"), "{refused}");
    let kept = sandbox.outlive(["rm", "--status", "dead", "--status", "succeeded", "--yes", "--json"]).json();
    assert_eq!((kept["runs"][0]["title"].as_str(), kept["kept"].as_array().unwrap().len()), (Some("ended"), 1));
    sandbox.outlive(["queue", "cancel", "next"]).succeeds();
    sandbox.outlive(["rm", "live", "--yes"]).succeeds();
    sandbox.outlive(["show", "live"]).fails_with(101);
}

#[test]
fn t1_16_rm_deletes_by_age_what_cannot_be_resumed() {
    let sandbox = Sandbox::new();
    for name in ["a", "b"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    let mut stopped = sandbox.start("stopped", &["sleep", "300"]);
    stopped.signal("TERM");
    stopped.wrapper.wait().unwrap();
    sandbox.wait_for_state("stopped", "interrupted");
    assert_eq!(sandbox.outlive(["rm", "--older-than", "1h", "--json"]).json()["runs"], json!([]));
    sandbox.outlive(["rm", "--older-than", "1ms", "--yes"]).succeeds();
    assert_eq!(sandbox.runs().len(), 1, "an interrupted run may be resumed");
    sandbox.outlive(["archive", "stopped"]).succeeds();
    sandbox.outlive(["rm", "--older-than", "1ms", "--yes"]).succeeds();
    assert!(sandbox.runs().is_empty());
}

#[test]
fn t1_16_supervisor_deletes_old_runs_only_with_delete_after() {
    let sandbox = Sandbox::new();
    for name in ["first", "second", "third"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    sandbox.outlive(["supervise", "--once"]).succeeds();
    assert!(sandbox.show("first")["id"].is_string(), "it was deleted without configuration");
    // The supervisor of before has ended as well, and is the newest.
    sandbox.write_config("[retention]\ndelete_after = \"1ms\"\nkeep_last = 2\n");
    sandbox.outlive(["supervise", "--once"]).succeeds();
    for name in ["first", "second"] {
        sandbox.outlive(["show", name]).fails_with(101);
    }
    assert_eq!(sandbox.show("third")["state"], "succeeded");
}

#[test]
fn t1_16_rm_is_refused_with_a_hint_where_it_is_not_supported() {
    let sandbox = Sandbox::new();
    let bucket = outlive::testing::bucket::Bucket::shared().fresh_url();
    let output = sandbox.outlive(["--registry", &bucket, "rm", "--older-than", "1d"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("not supported yet") && said.contains("hint: `outlive archive`"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    sandbox.write_home_config(&format!("[registries.\"{bucket}\".retention]\ndelete_after = \"30d\"\n"));
    let said = text(&sandbox.outlive(["--registry", &bucket, "run", "--", "true"]).output().unwrap().stderr);
    assert!(said.contains("`delete_after` is not supported there yet"), "{said}");
}
