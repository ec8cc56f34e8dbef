//! What a command starts is ended with its run, wherever that is recorded: a registry need not have a directory.

use std::path::Path;
use std::process::{Command, Stdio};

use outlive::testing::server::Server;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};
use super::served::Served;

/// Starts somebody who leaves everything behind, and then does as `rest` says.
fn script(rest: &str) -> String {
    format!("setsid sleep 300 & echo $! > left; {rest}")
}

fn pid_in(path: &Path) -> u32 {
    let mut pid = None;
    until("a process to be named", || {
        pid = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    std::fs::remove_file(path).unwrap();
    pid.unwrap()
}

/// The files that tell of processes, in the home of whoever executes runs.
fn told(home: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut look = vec![home.join("logs")];
    while let Some(dir) = look.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                look.push(path);
            } else if path.extension().is_some_and(|end| end == "tree") {
                found.push(path);
            }
        }
    }
    found
}

fn trees_end_with_their_runs(sandbox: &Sandbox, on: impl Fn(&[&str]) -> Command) {
    let left = sandbox.work().join("left");
    on(&["run", "-d", "--name", "cancelled", "--", "sh", "-c", &script("sleep 300; :")]).succeeds();
    let stray = pid_in(&left);
    on(&["cancel", "cancelled", "--wait"]).succeeds();
    assert!(!is_alive(stray), "what a cancelled run had started lives");
    // Also what an interrupted run left, by whoever cancels it.
    on(&["run", "-d", "--name", "interrupted", "--", "sh", "-c", &script("sleep 300; :")]).succeeds();
    let stray = pid_in(&left);
    let owner = on(&["show", "interrupted", "--json"]).json()["owner_pid"].as_u64().unwrap();
    signal_pid(u32::try_from(owner).unwrap(), "TERM");
    until("it to be interrupted", || on(&["show", "interrupted", "--json"]).json()["state"] == "interrupted");
    let said = on(&["cancel", "interrupted", "--wait", "--json"]).json();
    assert!(said["runs"][0]["outcome"] == "cancelled" && !is_alive(stray), "{said}");
    let orphans = script("exit 0");
    on(&["run", "--orphans", "end", "--name", "left", "--", "sh", "-c", &orphans]).stdout(Stdio::null()).succeeds();
    assert!(!is_alive(pid_in(&left)), "what a run left behind lives");
    let late = script("sleep 300");
    let timed = on(&["run", "--timeout", "300ms", "--name", "late", "--", "sh", "-c", &late]).output().unwrap();
    assert!(!timed.status.success());
    assert!(!is_alive(pid_in(&left)), "what a run had started that took too long lives");
    on(&["run", "--wait-tree", "--", "sh", "-c", "(sleep 0.5; touch over) & exit 0"]).stdout(Stdio::null()).succeeds();
    assert!(sandbox.work().join("over").exists(), "what the command had started was not waited for");
    assert_eq!(told(&sandbox.home()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn r03_what_a_run_through_a_server_starts_is_ended_with_it() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    let url = format!("http://{}", served.address);
    let on = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", &url);
        command
    };
    trees_end_with_their_runs(&sandbox, on);
    // And what is left of one whose owner was killed, by whoever cancels it on that host.
    let mut owner = on(&["run", "--name", "orphan", "--", "sh", "-c", &script("sleep 300; :")]).spawn().unwrap();
    let stray = pid_in(&sandbox.work().join("left"));
    signal_pid(owner.id(), "KILL");
    owner.wait().unwrap();
    until("the run to be orphaned", || on(&["show", "orphan", "--json"]).json()["health"] == "orphaned");
    on(&["cancel", "orphan"]).succeeds();
    assert!(!is_alive(stray), "what is left of a cancelled run lives");
    assert_eq!(sandbox.show("orphan")["state"], "cancelled");
}

#[test]
fn r03_what_a_run_in_a_database_starts_is_ended_with_it() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    trees_end_with_their_runs(&sandbox, |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", &url);
        command
    });
}
