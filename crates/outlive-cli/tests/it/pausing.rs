//! Pausing: queued runs and schedules that a person holds back.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text};

/// Adds a run to the queue that leaves a file.
fn add(sandbox: &Sandbox, name: &str, flags: &[&str]) {
    let words = ["queue", "add", "--name", name].into_iter().chain(flags.iter().copied());
    let script = format!("echo done >> {name}");
    sandbox.outlive(words.chain(["--", "sh", "-c", &script])).succeeds();
}

/// How often a run was executed, once everything that is due was.
fn executed(sandbox: &Sandbox, name: &str) -> usize {
    sandbox.outlive(["work", "--drain"]).succeeds();
    std::fs::read_to_string(sandbox.work().join(name)).unwrap_or_default().lines().count()
}

fn may(run: &Value, operation: &str) -> bool {
    run["can"].as_array().unwrap().contains(&json!(operation))
}

#[test]
fn paused_schedule_is_not_executed_until_it_is_unpaused() {
    let sandbox = Sandbox::new();
    add(&sandbox, "hourly", &["--every", "1h"]);
    let paused = sandbox.outlive(["pause", "hourly", "--reason", "holidays", "--json"]).json();
    assert_eq!((&paused["paused"], &paused["runs"][0]["schedule"]), (&json!(true), &json!("every 1h 0m")), "{paused}");
    let run = sandbox.show("hourly");
    assert!(may(&run, "unpause") && !may(&run, "pause"), "{run}");
    assert_eq!((&run["state"], &run["not_before"]), (&json!("pending"), &Value::Null));
    let reason = run["reason"].as_str().unwrap();
    assert!(reason.starts_with("paused by ") && reason.ends_with(": holidays"), "{reason}");
    assert_eq!(executed(&sandbox, "hourly"), 0);
    sandbox.outlive(["unpause", "hourly"]).succeeds();
    assert_eq!(executed(&sandbox, "hourly"), 1, "it was due when it was paused");
    // The next slot is an hour away; it keeps its time through a pause.
    let next = sandbox.show("hourly");
    assert_eq!(next["state"], "pending", "{next}");
    sandbox.outlive(["pause", "hourly"]).succeeds();
    let unpaused = sandbox.outlive(["unpause", "hourly", "--json"]).json();
    assert_eq!(unpaused["runs"][0]["not_before"], next["not_before"], "{unpaused}");
    assert_eq!(executed(&sandbox, "hourly"), 1);
    let events = sandbox.outlive(["why", "hourly", "--json"]).json();
    let actions: Vec<&Value> = events["events"].as_array().unwrap().iter().map(|event| &event["action"]).collect();
    assert_eq!(actions, ["enqueue", "pause", "unpause"]);
}

#[test]
fn paused_run_lets_others_pass_and_is_cancelled_like_any_other() {
    let sandbox = Sandbox::new();
    for name in ["first", "second"] {
        add(&sandbox, name, &[]);
    }
    sandbox.outlive(["pause", "first"]).succeeds();
    assert_eq!((executed(&sandbox, "second"), executed(&sandbox, "first")), (1, 0));
    let again = sandbox.outlive(["pause", "first"]).output().unwrap();
    assert!(!again.status.success());
    let said = text(&again.stderr);
    assert!(said.contains("it is paused until a person unpauses it") && said.contains("outlive unpause"), "{said}");
    let over = text(&sandbox.outlive(["pause", "second"]).output().unwrap().stderr);
    assert!(over.contains("it has already succeeded; only a pending run can be paused"), "{over}");
    sandbox.outlive(["cancel", "first"]).succeeds();
    assert_eq!(sandbox.show("first")["state"], "cancelled");
}
