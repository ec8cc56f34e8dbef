//! One worker for several registries: slots that claim from each in turn, and outages that stay apart.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use outlive::testing::server::Server;
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, signal_pid, until};

/// Adds runs that note in a file that they were executed, each for a while.
fn add(sandbox: &Sandbox, url: &str, count: usize) {
    let line = r#"{"argv": ["sh", "-c", "echo $OUTLIVE_RUN_ID >> executed; sleep 0.2"]}"#;
    std::fs::write(sandbox.work().join("jobs.jsonl"), format!("{line}\n").repeat(count)).unwrap();
    sandbox.outlive(["--registry", url, "queue", "add", "--file", "jobs.jsonl"]).succeeds();
}

/// How many runs of a registry have succeeded; none while it cannot be asked.
fn succeeded(sandbox: &Sandbox, url: &str) -> usize {
    let words = ["--registry", url, "ps", "--all", "--status", "succeeded", "--json"];
    let output = sandbox.outlive(words).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    said["runs"].as_array().map_or(0, Vec::len)
}

fn work(sandbox: &Sandbox, urls: [&str; 2], slots: &str, more: &[&str]) -> Child {
    let words = ["work", "--slots", slots, "--registry", urls[0], "--registry", urls[1]];
    let mut command = sandbox.outlive(words.iter().chain(more));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// How often each run was executed.
fn executions(sandbox: &Sandbox) -> BTreeMap<String, usize> {
    let executed = std::fs::read_to_string(sandbox.work().join("executed")).unwrap();
    let mut counts = BTreeMap::new();
    executed.lines().for_each(|run| *counts.entry(run.to_owned()).or_default() += 1);
    counts
}

#[test]
fn two_registries_share_slots_in_turn_until_both_are_drained() {
    const EACH: usize = 4;
    let sandbox = Sandbox::new();
    let urls = [Server::shared().fresh_url(), Server::shared().fresh_url()];
    urls.iter().for_each(|url| add(&sandbox, url, EACH));
    let mut worker = work(&sandbox, [&urls[0], &urls[1]], "1", &["--drain"]);
    assert!(worker.wait().unwrap().success());
    let of = |url: &String| -> Vec<String> {
        let words = ["--registry", url, "ps", "--all", "--json"];
        let runs = sandbox.outlive(words).json()["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    let (first, executed) = (of(&urls[0]), std::fs::read_to_string(sandbox.work().join("executed")).unwrap());
    let turns: String = executed.lines().map(|run| if first.iter().any(|id| id == run) { 'a' } else { 'b' }).collect();
    assert_eq!(turns, "ab".repeat(EACH), "one slot claims from one registry and then from the other");
}

#[test]
fn second_server_after_the_first_was_killed_loses_nothing() {
    const EACH: usize = 12;
    let sandbox = Sandbox::new();
    let servers = [Server::alone(&["fsync=off"]), Server::alone(&["fsync=off"])];
    let urls = [servers[0].fresh_url(), servers[1].fresh_url()];
    urls.iter().for_each(|url| add(&sandbox, url, EACH));
    let mut worker = work(&sandbox, [&urls[0], &urls[1]], "2", &[]);
    until("both registries to be worked for", || urls.iter().all(|url| succeeded(&sandbox, url) >= 2));
    servers[1].kill();
    until("the other registry to be drained meanwhile", || succeeded(&sandbox, &urls[0]) == EACH);
    servers[1].start();
    until("the registry that came back to be drained", || succeeded(&sandbox, &urls[1]) == EACH);
    signal_pid(worker.id(), "TERM");
    assert!(worker.wait().unwrap().success());
    let executed = executions(&sandbox);
    assert_eq!(executed.len(), 2 * EACH);
    assert!(executed.values().all(|times| *times == 1), "{executed:?}");
}

#[test]
fn several_registries_are_for_workers_and_named_once_each() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    let twice = sandbox.outlive(["work", "--drain", "--registry", &url, "--registry", &url]).fails_with(2);
    assert!(twice.contains("named twice"), "{twice}");
    let refused = sandbox.outlive(["ps", "--registry", &url, "--registry", &url]).fails_with(2);
    assert!(refused.contains("cannot be used multiple times"), "{refused}");
}
