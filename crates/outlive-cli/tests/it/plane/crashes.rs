//! A refresh that is killed leaves the old index or the new one, and keeps nobody waiting.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{put, refresh, tree};
use crate::sandbox::{Ends, Sandbox, signal_pid, until};

/// The variable that has more refreshes killed.
const KILLS: &str = "OUTLIVE_INDEX_KILLS";

#[test]
#[allow(clippy::disallowed_methods, reason = "a refresh is killed at points of its real duration")]
fn c12_refresh_killed_anywhere_leaves_the_old_or_new_index() {
    let kills: u32 = std::env::var(KILLS).ok().and_then(|kills| kills.parse().ok()).unwrap_or(30);
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[]);
    for number in 0..200 {
        put(&root, &format!("run-{number:03}"), "pending");
    }
    // How long one takes that changes everything, to be killed in between.
    let start = std::time::Instant::now();
    refresh(&sandbox);
    let whole = start.elapsed();
    let (mut old, mut new) = (0, 0);
    for kill in 0..kills {
        let (before, after) = if kill % 2 == 0 { ("pending", "completed") } else { ("completed", "pending") };
        if kill % 5 == 4 {
            // From nothing: there is no index, or a whole one.
            std::fs::remove_dir_all(sandbox.home().join("index")).unwrap();
        }
        for number in 0..200 {
            put(&root, &format!("run-{number:03}"), after);
        }
        let mut child =
            sandbox.outlive(["registry", "refresh"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Not in step with anything: points from the first moment to the last.
        let point = whole.mul_f64(f64::from(kill * 37 % 100) / 100.0);
        std::thread::park_timeout(point.max(Duration::from_millis(1)));
        let _ = child.kill();
        child.wait().unwrap();
        let report = sandbox.outlive(["registry", "show", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        match report["freshness"].as_str().unwrap() {
            "valid" => {
                new += 1;
                assert_eq!(report["counts"][lifecycle(after)], 200, "{report}");
            }
            "stale" => {
                old += 1;
                assert_eq!(report["counts"][lifecycle(before)], 200, "{report}");
                assert_eq!(report["stale_runs"]["count"], 200, "{report}");
            }
            _ => assert!(kill % 5 == 4, "{report}"),
        }
        // Whatever is listed is as it is.
        let found = sandbox.outlive(["search", "--limit", "300", "--json"]).output().unwrap();
        if found.status.success() {
            let found: Value = serde_json::from_slice(&found.stdout).unwrap();
            let runs = found["runs"].as_array().unwrap();
            assert!(runs.len() == 200 && runs.iter().all(|run| run["lifecycle"] == lifecycle(after)), "{found}");
        }
        refresh(&sandbox);
    }
    println!("{old} left the old index, {new} the new one");
    assert!(old > 0, "no refresh was killed in time");
    let left = std::fs::read_dir(sandbox.home().join("index")).unwrap().count();
    assert!(left <= 5, "{left} files were left behind");
}

fn lifecycle(task: &str) -> &'static str {
    if task == "pending" { "queued" } else { "completed" }
}

#[test]
fn c12_holder_of_the_index_lock_is_named_after_a_timeout() {
    let sandbox = Sandbox::new();
    tree(&sandbox, "tree", &[("a", "completed")]);
    refresh(&sandbox);
    let lock = sandbox.home().join("index/lock");
    let lock = lock.to_str().unwrap();
    let mut holder = sandbox.command("flock", ["--no-fork", lock, "sleep", "600"]).spawn().unwrap();
    until("the lock to be held", || !sandbox.command("flock", ["-n", lock, "true"]).status().unwrap().success());
    signal_pid(holder.id(), "STOP");
    let told = sandbox.outlive(["registry", "refresh"]).fails_with(107);
    let named = format!("`lock` of the index is held by process {}, which is stopped", holder.id());
    assert!(told.contains(&named), "{told}");
    // Whoever reads does not wait at all.
    sandbox.outlive(["search", "a"]).succeeds();
    signal_pid(holder.id(), "KILL");
    holder.wait().unwrap();
    refresh(&sandbox);
}
