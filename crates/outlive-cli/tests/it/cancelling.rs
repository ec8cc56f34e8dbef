//! Cancelling: what is asked for reaches the owner, and the answer is what is true.

use serde_json::json;

use super::faults_tree::number;
use super::sandbox::{Ends, Sandbox, is_alive, is_root, signal_pid};
use super::served::Served;
use super::supervising::after_boot;

/// Leaves a process behind when it is terminated.
const LEAVES: &str = "sleep 222 & echo $! > left; wait; exit 1";

/// A detached run whose owner was terminated, and a process that it left.
fn interrupted(sandbox: &Sandbox, name: &str, flags: &[&str], state: &str) -> u32 {
    let words = ["run", "-d", "--name", name].into_iter().chain(flags.iter().copied());
    sandbox.outlive(words.chain(["--", "sh", "-c", LEAVES])).succeeds();
    let left = number(sandbox, "left");
    let owner = sandbox.show(name)["owner_pid"].as_u64().unwrap();
    signal_pid(u32::try_from(owner).unwrap(), "TERM");
    sandbox.wait_for_state(name, state);
    std::fs::remove_file(sandbox.work().join("left")).unwrap();
    left
}

/// A run that is dead on record, of which nothing is left.
fn dead(sandbox: &Sandbox, name: &str, reaped: bool) {
    let mut run = sandbox.start(name, &["sleep", "300"]);
    let child = super::running::child_of(run.pid());
    run.kill();
    signal_pid(child, "KILL");
    sandbox.wait_for_state(name, "dead");
    if reaped {
        sandbox.outlive(["reap"]).succeeds();
    }
}

#[test]
fn t1_03_cancel_of_a_retried_run_ends_its_last_attempt() {
    let sandbox = Sandbox::impatient();
    let left = interrupted(&sandbox, "t", &["--resume-on", "interrupt"], "pending");
    assert!(is_alive(left), "nothing was left to be ended");
    let said = sandbox.outlive(["cancel", "t", "--wait", "--json"]).json();
    assert!(!is_alive(left), "`cancelled` while a process of the tree lives: {said}");
    assert_eq!((&said["runs"][0]["outcome"], &said["runs"][0]["live_pids"]), (&"cancelled".into(), &json!([])));
    assert_eq!(sandbox.show("t")["state"], "cancelled");
}

#[test]
fn t1_08_interrupted_run_names_processes_that_cancel_ends() {
    let sandbox = Sandbox::impatient();
    let left = interrupted(&sandbox, "t", &[], "interrupted");
    let listed = sandbox.outlive(["ps"]).succeeds();
    assert!(listed.contains(&format!("still alive: pid {left} (sleep)")), "{listed}");
    let listed = sandbox.outlive(["ps", "--json"]).json();
    assert_eq!(listed["runs"][0]["leftover_pids"], json!([left]), "{listed}");
    sandbox.outlive(["resume", "t"]).fails_with(103);
    assert!(sandbox.outlive(["cancel", "t"]).succeeds().ends_with(" cancelled\n"));
    assert!(!is_alive(left), "a process of the tree was left");
    assert_eq!(sandbox.show("t")["state"], "cancelled");
}

#[test]
fn t1_13_cancel_of_a_dead_run_is_final_around_its_reap() {
    let sandbox = Sandbox::impatient();
    for (name, reaped) in [("seen", false), ("reaped", true)] {
        dead(&sandbox, name, reaped);
        assert!(sandbox.outlive(["cancel", name, "--reason", "enough"]).succeeds().ends_with(" cancelled\n"));
        sandbox.outlive(["resume", name]).fails_with(103);
        sandbox.outlive(["cancel", name]).fails_with(103);
    }
    interrupted(&sandbox, "interrupted", &[], "interrupted");
    sandbox.outlive(["cancel", "interrupted", "--reason", "enough"]).succeeds();
    // The files of the runs know it as well: the database may be lost.
    for file in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let _ = std::fs::remove_file(sandbox.registry().join(file));
    }
    for name in ["seen", "reaped", "interrupted"] {
        let run = sandbox.show(name);
        assert_eq!(run["state"], "cancelled", "{run}");
        assert!(run["reason"].as_str().unwrap().ends_with(": enough"), "{run}");
    }
    assert!(sandbox.outlive(["doctor"]).succeeds().contains("sound"), "the files contradict each other");
}

#[test]
fn t1_13_dependents_name_a_dead_run_and_fail_with_its_cancel() {
    let sandbox = Sandbox::impatient();
    dead(&sandbox, "parent", true);
    sandbox.outlive(["queue", "add", "--name", "child", "--needs", "parent", "--", "true"]).succeeds();
    let id = sandbox.show("parent")["id"].as_str().unwrap().to_owned();
    let reason = sandbox.show("child")["reason"].as_str().unwrap().to_owned();
    let told = format!("`{id}` is dead: `outlive resume {id}` continues it, `outlive cancel {id}` gives it up");
    assert!(reason.contains(&told), "{reason}");
    // What the reason says can be typed.
    sandbox.outlive(["cancel", &id]).succeeds();
    sandbox.outlive(["work", "--drain"]).succeeds();
    let child = sandbox.show("child");
    assert_eq!((&child["state"], &child["error_type"]), (&"failed".into(), &"parent".into()), "{child}");
}

#[test]
fn t8_03_held_lock_is_proof_of_life_under_another_boot_id() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let run = sandbox.start("far", &["sh", "-c", "echo $$ > command; exec sleep 300"]);
    let command = number(&sandbox, "command");
    let there = |words: &[&str]| after_boot(&sandbox, 1, words);
    let seen = there(&["show", "far", "--json"]).json();
    assert_eq!((&seen["state"], &seen["health"]), (&"running".into(), &"healthy".into()), "{seen}");
    let refused = there(&["adopt", "far"]).fails_with(103);
    assert!(refused.contains("its owner lives"), "{refused}");
    assert_eq!(there(&["reap", "--json"]).json()["reaped"], json!([]));
    assert!(is_alive(run.pid()) && is_alive(command), "a live owner or its command was ended");
}

#[test]
fn a_grace_reaches_the_owner_and_what_takes_longer_is_killed() {
    let sandbox = Sandbox::impatient();
    // Within the owner's own grace it would have the time to clean up.
    let slow = "trap 'sleep 5; echo > clean; exit 0' TERM; echo > ready; while :; do sleep 0.05; done";
    let _run = sandbox.start("slow", &["sh", "-c", slow]);
    super::sandbox::until("the trap to be set", || sandbox.work().join("ready").exists());
    let said = sandbox.outlive(["cancel", "slow", "--grace", "0s", "--wait", "--json"]).json();
    assert_eq!(said["runs"][0]["outcome"], "cancelled");
    let run = sandbox.show("slow");
    assert_eq!((&run["state"], &run["signal"]), (&"cancelled".into(), &9.into()));
    assert!(!sandbox.work().join("clean").exists());
}

#[test]
fn cancel_with_wait_waits_and_the_first_request_stands() {
    let sandbox = Sandbox::impatient();
    let stubborn = "trap '' TERM; while [ ! -e stop ]; do sleep 0.05; done";
    let _run = sandbox.start("stubborn", &["sh", "-c", stubborn]);
    let first = sandbox.outlive(["cancel", "stubborn", "--grace", "1h", "--reason", "first"]).succeeds();
    assert!(first.contains("cancel requested; `outlive wait "), "{first}");
    let second = sandbox.outlive(["cancel", "stubborn", "--grace", "0s", "--reason", "second"]).succeeds();
    assert!(second.contains("cancel requested before, by ") && second.contains("that request stands"), "{second}");
    assert_eq!(sandbox.show("stubborn")["state"], "running");
    std::fs::write(sandbox.work().join("stop"), "").unwrap();
    assert!(sandbox.outlive(["cancel", "stubborn", "--wait"]).succeeds().ends_with(" cancelled\n"));
    assert!(sandbox.show("stubborn")["reason"].as_str().unwrap().ends_with(": first"));
}

#[test]
fn cancel_dry_run_or_one_wrong_run_changes_nothing() {
    let sandbox = Sandbox::impatient();
    sandbox.outlive(["run", "--name", "over", "--", "true"]).succeeds();
    let _run = sandbox.start("alive", &["sleep", "300"]);
    for words in [&["cancel", "--all", "--dry-run"][..], &["cancel", "alive", "--dry-run"]] {
        let said = sandbox.outlive(words).succeeds();
        assert!(said.lines().count() == 1 && said.ends_with(" would be cancelled\n"), "{said}");
    }
    for (wrong, status) in [("over", 103), ("nobody", 101)] {
        let said = sandbox.outlive(["cancel", "alive", wrong]).fails_with(status);
        assert!(said.contains(&format!("run `{wrong}`")), "{said}");
    }
    sandbox.outlive(["cancel", "over", "--dry-run"]).fails_with(103);
    assert!(sandbox.show("alive")["cancel_requested_at"].is_null());
    assert_eq!(
        sandbox.outlive(["cancel", "alive", "alive", "--wait", "--json"]).json()["runs"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_name_means_its_newest_bearer_in_flight_else_its_newest() {
    let sandbox = Sandbox::impatient();
    let _run = sandbox.start("twin", &["sleep", "300"]);
    sandbox.outlive(["run", "--name", "twin", "--", "true"]).succeeds();
    assert_eq!(sandbox.show("twin")["state"], "running");
    sandbox.outlive(["cancel", "twin", "--wait"]).succeeds();
    assert_eq!(sandbox.show("twin")["state"], "succeeded");
}

#[test]
fn f_01_caller_waiting_for_a_stop_ends_it_after_the_owner_died() {
    let sandbox = Sandbox::impatient();
    let stubborn = "trap '' TERM; echo $$ > command; while :; do sleep 0.05; done";
    let mut run = sandbox.start("stubborn", &["sh", "-c", stubborn]);
    let command = super::faults_tree::number(&sandbox, "command");
    let mut cancel = sandbox.outlive(["cancel", "stubborn", "--grace", "1s", "--wait"]);
    let cancel = cancel.stdout(std::process::Stdio::piped()).spawn().unwrap();
    sandbox.wait_for("stubborn", |run| !run["cancel_requested_by"].is_null());
    run.kill();
    let said = cancel.wait_with_output().unwrap();
    assert!(said.status.success() && super::sandbox::text(&said.stdout).ends_with(" cancelled\n"), "{said:?}");
    assert!(!super::sandbox::is_alive(command), "a process of the tree was left");
    assert_eq!(sandbox.show("stubborn")["state"], "cancelled");
}

#[test]
fn t4_06_server_does_not_say_done_of_a_stopped_owner() {
    let sandbox = Sandbox::impatient();
    let run = sandbox.start("stopped", &["sleep", "300"]);
    let id = sandbox.show("stopped")["id"].as_str().unwrap().to_owned();
    run.signal("STOP");
    sandbox.wait_for("stopped", |run| run["health"] == "unresponsive");
    let served = Served::start(&sandbox, &["--allow", "stop"]);
    let reply = served.post("/v1/cancel", &json!({ "runs": [id], "wait": true }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer = reply.json();
    let one = &answer["runs"][0];
    assert_eq!((&one["outcome"], &one["silent_owner"]), (&"cancel_requested".into(), &run.pid().into()), "{answer}");
    let note = one["note"].as_str().unwrap();
    assert!(note.contains("is silent") && note.contains("cancel --force"), "{note}");
    assert!(is_alive(run.pid()), "a stopped owner was ended though nothing asked for that");
    sandbox.outlive(["cancel", &id, "--force", "--wait"]).succeeds();
    assert!(!is_alive(run.pid()));
}

#[test]
fn cancel_all_without_yes_lists_and_cancels_nothing() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        sandbox.outlive(["queue", "add", "--name", name, "--", "true"]).succeeds();
    }
    for verb in [&["cancel", "--all"][..], &["queue", "cancel", "--all"]] {
        let listed = sandbox.outlive(verb).succeeds();
        assert!(listed.ends_with("2 runs selected; nothing was cancelled, --yes cancels\n"), "{listed}");
        assert_eq!(listed.matches("would be cancelled").count(), 2, "{listed}");
    }
    assert!(["one", "two"].iter().all(|name| sandbox.show(name)["state"] == "pending"));
    sandbox.outlive(["queue", "cancel", "--all", "--yes"]).succeeds();
    assert!(["one", "two"].iter().all(|name| sandbox.show(name)["state"] == "cancelled"));
}
