//! Cancelling: what is asked for reaches the owner, and the answer is what is true.

use super::sandbox::{Ends, Sandbox};

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
fn cancel_waits_where_it_is_told_to_and_the_first_request_stands() {
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
fn a_dry_run_of_cancel_and_a_call_with_one_wrong_run_change_nothing() {
    let sandbox = Sandbox::impatient();
    sandbox.outlive(["run", "--name", "over", "--", "true"]).succeeds();
    let _run = sandbox.start("alive", &["sleep", "300"]);
    for words in [&["cancel", "--all", "--dry-run"][..], &["cancel", "alive", "--dry-run"]] {
        let said = sandbox.outlive(words).succeeds();
        assert!(said.lines().count() == 1 && said.ends_with(" would be cancelled\n"), "{said}");
    }
    let over = sandbox.show("over")["id"].as_str().unwrap().to_owned();
    for (wrong, status, named) in [("over", 103, over.as_str()), ("nobody", 101, "nobody")] {
        let said = sandbox.outlive(["cancel", "alive", wrong]).fails_with(status);
        assert!(said.contains(&format!("run `{named}`")), "{said}");
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
fn f_01_who_waits_for_a_run_to_stop_ends_it_where_its_owner_was_killed_meanwhile() {
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
