//! What attempts use: sampled by their owners, kept with them, and shown on every surface.

use serde_json::Value;

use super::sandbox::{Ends, Sandbox, signal_pid};

/// A script that takes some processor time and 30 MB of memory, with each attempt 30 more: the kernel tells the peak of all
/// children together, so that of a later one it is known where it is the highest.
const HOG: &str = "n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n; \
    x=$(head -c $((n * 30000000)) /dev/zero | tr '\\0' x); i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

fn number(run: &Value, field: &str) -> u64 {
    run[field].as_u64().unwrap_or_else(|| panic!("no {field} in {run}"))
}

#[test]
fn usage_of_every_attempt_is_kept_with_its_end() {
    let sandbox = Sandbox::new();
    let words = ["run", "--name", "hog", "--retry", "1", "--backoff", "10ms", "--", "sh", "-c"];
    sandbox.outlive(words.into_iter().chain([&*format!("{HOG}; exit 3")])).output().unwrap();
    let run = sandbox.show("hog");
    assert_eq!((&run["state"], &run["attempt"]), (&"failed".into(), &2.into()), "{run}");
    assert!(number(&run, "peak_memory_bytes") > 30_000_000, "{run}");
    assert!(number(&run, "cpu_ms") >= 50, "{run}");
    assert_eq!((&run["memory_bytes"], &run["processes"]), (&Value::Null, &Value::Null), "it has ended: {run}");
    assert_eq!(run["usage_points"], Value::Array(Vec::new()), "they were not asked for");
    let why = sandbox.outlive(["why", "hog", "--json"]).json();
    let ends: Vec<&Value> =
        why["events"].as_array().unwrap().iter().filter(|event| event["action"] == "finish").collect();
    assert_eq!(ends.len(), 2, "{why}");
    for end in ends {
        assert!(number(&end["usage"], "cpu_ms") >= 50 && end["usage"]["points"].is_null(), "{end}");
    }
    let shown = sandbox.outlive(["show", "hog"]).succeeds();
    let line = shown.lines().find(|line| line.starts_with("used ")).unwrap();
    let line: String = line.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect();
    // What is read from storage depends on what is in memory already.
    assert!(
        line.starts_with("used       ms of CPU,  MB at its peak") || line.starts_with("used       s of CPU,"),
        "{shown}"
    );
}

#[test]
fn usage_of_a_brief_command_is_what_the_kernel_tells_its_parent() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "brief", "--", "true"]).succeeds();
    let run = sandbox.show("brief");
    assert!(run["cpu_ms"].is_u64(), "{run}");
    // Nothing is made up of a process that was gone before it could be looked at.
    assert!(run["peak_memory_bytes"].as_u64().is_none_or(|peak| peak < 100_000_000), "{run}");
}

#[test]
fn usage_of_a_running_command_is_in_heartbeats_and_no_event() {
    let sandbox = Sandbox::impatient();
    let script = format!("{HOG}; sleep 300 & echo ready; wait");
    sandbox.outlive(["run", "-d", "--name", "holds", "--", "sh", "-c", &script]).succeeds();
    let run = sandbox.wait_for("holds", |run| run["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 30_000_000));
    assert!(number(&run, "processes") >= 1, "{run}");
    let run = sandbox.wait_for("holds", |run| run["processes"] == 2);
    let points = sandbox.outlive(["show", "holds", "--points", "--json"]).json();
    let points = points["usage_points"].as_array().unwrap().clone();
    assert!(points.len() >= 2 && points.iter().all(|point| point.as_array().unwrap().len() == 6), "{points:?}");
    let why = sandbox.outlive(["why", "holds", "--json"]).json();
    let actions: Vec<&str> =
        why["events"].as_array().unwrap().iter().filter_map(|event| event["action"].as_str()).collect();
    assert_eq!(actions, ["enqueue", "claim"], "{run}");
    let listed = sandbox.outlive(["ps", "--wide"]).succeeds();
    assert!(listed.contains("MEMORY") && listed.contains(" MB"), "{listed}");
    sandbox.outlive(["cancel", "holds"]).succeeds();
    let run = sandbox.wait_for_state("holds", "cancelled");
    assert!(number(&run, "peak_memory_bytes") > 30_000_000, "{run}");
}

#[test]
fn usage_continues_where_a_dead_owner_left_off() {
    let sandbox = Sandbox::impatient();
    let script = format!("{HOG}; exec sleep 300");
    sandbox.outlive(["run", "-d", "--name", "orphan", "--", "sh", "-c", &script]).succeeds();
    let before = sandbox.wait_for("orphan", |run| run["cpu_ms"].as_u64().is_some_and(|cpu| cpu >= 50));
    let owner = u32::try_from(number(&before, "owner_pid")).unwrap();
    signal_pid(owner, "KILL");
    sandbox.wait_for("orphan", |run| run["health"] == "orphaned");
    sandbox.outlive(["adopt", "-d", "orphan"]).succeeds();
    let after = sandbox.wait_for("orphan", |run| run["health"] == "healthy" && run["processes"] == 1);
    assert!(number(&after, "cpu_ms") >= number(&before, "cpu_ms"), "{before} {after}");
    sandbox.outlive(["cancel", "orphan"]).succeeds();
}

#[test]
fn usage_of_kinds_is_in_the_statistics() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--kind", "hog", "--", "sh", "-c", HOG]).succeeds();
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let stats = sandbox.outlive(["stats", "--json"]).json();
    let kind = stats["kinds"].as_array().unwrap().iter().find(|kind| kind["kind"] == "hog").unwrap();
    assert!(number(kind, "memory_p50_bytes") > 30_000_000 && number(kind, "cpu_p95_ms") >= 50, "{kind}");
    let table = sandbox.outlive(["stats"]).succeeds();
    assert!(table.contains("CPU P95") && table.contains("MEMORY P95"), "{table}");
}
