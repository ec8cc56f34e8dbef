//! The command, the agents' tools and the HTTP API answer alike: what a filter finds, what is unreadable, and which run of
//! another repository is named.

use super::super::served::{Agent, Served};
use super::*;

/// What each surface answers to one call.
fn on_every_surface(sandbox: &Sandbox, tool: &str, input: &Value, words: &[&str]) -> [Value; 3] {
    let output = sandbox.outlive(["--json"].iter().chain(words)).output().unwrap();
    let told = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let command: Value = serde_json::from_slice(&told).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&told)));
    let agent = Agent::start(sandbox, &["--allow", "destroy"]).call_whole(tool, input);
    let served = Served::start(sandbox, &["--allow", "destroy"]);
    let http = served.post(&format!("/v1/{tool}"), input).json();
    [command, agent, http]
}

fn ids(page: &Value) -> Vec<&str> {
    page["runs"]
        .as_array()
        .unwrap_or_else(|| panic!("{page}"))
        .iter()
        .map(|run| run["run_id"].as_str().unwrap())
        .collect()
}

#[test]
fn t2_01_status_filters_follow_changes_on_every_surface() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("a", "completed"), ("b", "completed")]);
    refresh(&sandbox);
    put(&root, "b", "failed");
    for (status, found, freshness) in [("failed", vec!["b"], "stale"), ("completed", vec!["a"], "valid")] {
        let input = json!({ "status": [status] });
        for page in on_every_surface(&sandbox, "search", &input, &["search", "--status", status]) {
            assert_eq!((ids(&page), &page["runs"][0]["freshness"]), (found.clone(), &json!(freshness)), "{page}");
        }
    }
    let history = sandbox.outlive(["history", "--status", "failed", "--json"]).json();
    let list = sandbox.outlive(["list", "--status", "failed", "--json"]).json();
    assert_eq!((ids(&history), ids(&list)), (vec!["b"], vec!["b"]));
}

#[test]
fn t2_02_an_unreadable_run_is_named_on_every_surface() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("a", "completed"), ("cut", "completed")]);
    refresh(&sandbox);
    std::fs::write(root.join(".cw/runs/cut/state.json"), "{\"schemaVersion\": 1, \"tas").unwrap();
    for refreshed in [false, true] {
        for verb in ["list", "search", "history"] {
            let input = json!({ "status": ["completed"] });
            for page in on_every_surface(&sandbox, verb, &input, &[verb, "--status", "completed"]) {
                assert_eq!(ids(&page), ["a"], "{verb}, refreshed: {refreshed}");
                assert_eq!(page["unreadable"]["count"], 1, "{verb}, refreshed: {refreshed}");
                assert_eq!(page["unreadable"]["runs"][0]["name"], "cut");
            }
            let panel = sandbox.outlive([verb]).succeeds();
            assert!(
                panel.contains("1 unreadable") && panel.contains("unreadable: ") && panel.contains(":cut: "),
                "{panel}"
            );
        }
        let status = if refreshed { 113 } else { 112 };
        sandbox.outlive(["registry", "show"]).fails_with(status);
        sandbox.outlive(["show", "cut"]).fails_with(113);
        refresh(&sandbox);
    }
}

#[test]
fn t2_03_run_of_another_repository_has_one_name_everywhere() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "here", "--", "true"]).succeeds();
    let other = sandbox.path().join("other");
    std::fs::create_dir_all(other.join(".git")).unwrap();
    sandbox.outlive(["run", "--name", "there", "--", "true"]).current_dir(&other).succeeds();
    tree(&sandbox, "tree", &[("cw-run", "failed")]);
    refresh(&sandbox);
    for run in ["other:there", "there"] {
        for shown in on_every_surface(&sandbox, "show", &json!({ "run": run }), &["show", run]) {
            assert_eq!(shown["state"], "succeeded", "{run}: {shown}");
        }
    }
    let home = json!({ "run": "cw-run", "scope": "home" });
    for shown in on_every_surface(&sandbox, "show", &home, &["show", "cw-run", "--scope", "home"]) {
        assert_eq!(shown["lifecycle"], "failed", "{shown}");
    }
    for told in on_every_surface(&sandbox, "why", &json!({ "run": "other:there" }), &["why", "other:there"]) {
        assert_eq!(told["name"], "there", "{told}");
    }
    for told in on_every_surface(&sandbox, "wait", &json!({ "runs": ["other:there"] }), &["wait", "other:there"]) {
        assert_eq!(told["runs"][0]["state"], "succeeded", "{told}");
    }
    for told in on_every_surface(&sandbox, "rerun", &json!({ "run": "other:there" }), &["rerun", "other:there"]) {
        assert_eq!(told["made"], true, "{told}");
    }
    let archived = json!({ "runs": ["other:there"], "dry_run": true });
    let words = ["archive", "other:there", "--dry-run"];
    for told in on_every_surface(&sandbox, "archive", &archived, &words) {
        assert_eq!(told["runs"].as_array().map(Vec::len), Some(1), "{told}");
    }
    let resumed = json!({ "runs": ["other:there"], "dry_run": true });
    for told in on_every_surface(&sandbox, "resume", &resumed, &["resume", "other:there", "--dry-run"]) {
        assert_eq!(told["resumed"], json!([]), "{told}");
        assert_eq!(told["error"], Value::Null, "{told}");
    }
}

#[test]
fn t2_03_a_token_for_one_registry_names_no_run_of_another() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "here", "--", "true"]).succeeds();
    tree(&sandbox, "tree", &[("cw-run", "failed")]);
    let mut served = Served::start(&sandbox, &[]);
    served.token = super::super::serving::token_of(&sandbox, "one", "read");
    assert_eq!(served.post("/v1/show", &json!({ "run": "here" })).status, 200);
    assert_eq!(served.post("/v1/show", &json!({ "run": "cw-run" })).status, 404);
}

#[test]
fn t2_05_reads_work_without_a_refresh_or_a_registered_tree() {
    let sandbox = Sandbox::new();
    tree(&sandbox, "other", &[("r1", "failed")]);
    let here = sandbox.path().join("here");
    std::fs::create_dir_all(here.join(".cw/runs")).unwrap();
    put(&here, "r1", "completed");
    let ask = |words: &[&str]| sandbox.outlive(words.iter().chain(&["--json"])).current_dir(&here).json();
    let page = ask(&["list"]);
    assert_eq!((ids(&page), &page["indexed"]), (vec!["r1", "r1"], &json!(false)));
    assert_eq!(ask(&["show", "r1"])["lifecycle"], "completed", "the run here is meant");
    assert_eq!(ask(&["show", "r1", "--scope", "repo"])["lifecycle"], "completed");
    assert_eq!(ask(&["show", "other:r1"])["lifecycle"], "failed");
    assert_eq!(ask(&["stats"])["kinds"][0]["runs"], 2);
    refresh(&sandbox);
    assert_eq!(ids(&ask(&["list", "--scope", "repo"])), ["r1"]);
    sandbox.outlive(["registry", "show", "--scope", "repo"]).current_dir(&here).fails_with(112);
    let none = sandbox.outlive(["show", "nothing"]).current_dir(&here).fails_with(101);
    assert!(none.contains("no run `nothing`") && !none.contains("no registry"), "{none}");
}
