//! What is derived from the files of cool-workflow is what cool-workflow derives.

use std::path::Path;

use outlive::index::NextSteps;
use serde_json::{Value, json};

use super::yard::{Yard, put, put_bytes, state};

fn vectors() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/index/cw_vectors/expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn c01_every_vector_is_derived_as_cool_workflow_derives_it() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let vectors = vectors();
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/index/cw_vectors/runs");
    for name in vectors.as_object().unwrap().keys() {
        if let Ok(bytes) = std::fs::read(runs.join(name).join("state.json")) {
            put_bytes(&repo, name, &bytes);
        }
    }
    yard.index().refresh(None).unwrap();
    let found: Vec<Value> = yard.all().iter().map(|listed| serde_json::to_value(listed).unwrap()).collect();
    let unreadable = yard.index().report(None).unwrap().unreadable_runs;
    let mut refused = 0;
    for (name, expected) in vectors.as_object().unwrap() {
        let is_it = |run: &&Value| run["run_dir"].as_str().unwrap().ends_with(&format!("/{name}"));
        let run = found.iter().find(is_it);
        if expected["found"] == false {
            assert_eq!(run, None, "{name}");
            refused += usize::from(unreadable.runs.iter().any(|named| named.name == *name));
            continue;
        }
        let run = run.unwrap_or_else(|| panic!("{name} is not found"));
        assert_eq!(run["freshness"], "valid", "{name}");
        for (field, wanted) in expected.as_object().unwrap().iter().filter(|(field, _)| *field != "found") {
            assert_eq!(&run[snake(field)], wanted, "{name}: {field}");
        }
    }
    // One of them has no file at all, and so is no run.
    assert_eq!((refused, unreadable.count), (4, 4));
    assert!(unreadable.runs.iter().all(|named| named.reason.is_some()));
}

/// `runId` is `run_id`.
fn snake(field: &str) -> String {
    field.chars().flat_map(|c| [c.is_uppercase().then_some('_'), Some(c.to_ascii_lowercase())]).flatten().collect()
}

#[test]
fn t2_04_next_tasks_and_actions_are_those_of_cool_workflow() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/index/cw_vectors");
    let expected: Value = serde_json::from_slice(&std::fs::read(data.join("resume_expected.json")).unwrap()).unwrap();
    let root = repo.to_str().unwrap();
    let mut checked = 0;
    for (name, expected) in expected.as_object().unwrap().iter().filter(|(_, expected)| expected["found"] == true) {
        put_bytes(&repo, name, &std::fs::read(data.join("runs").join(name).join("state.json")).unwrap());
        let found = yard.index().find(name, None, 5).unwrap().runs;
        let steps = serde_json::to_value(NextSteps::of(&found[0].record, 5).unwrap()).unwrap();
        let wanted: Value = serde_json::from_str(&expected.to_string().replace("<repo>", root)).unwrap();
        assert_eq!(steps["lifecycle"], wanted["lifecycle"], "{name}");
        assert_eq!(steps["resumable"], wanted["resumable"], "{name}");
        assert_eq!(steps["next_actions"], wanted["nextActions"], "{name}");
        let tasks = steps["next_tasks"].as_array().unwrap().iter();
        let tasks: Vec<Value> = tasks.map(|task| json!({"id": task["id"], "status": task["status"]})).collect();
        assert_eq!(json!(tasks), wanted["nextTasks"], "{name}");
        checked += 1;
    }
    assert_eq!(checked, 9);
    let mut state = state("many", "2026-01-01T00:00:00.000Z", &["running", "completed", "pending", "pending"]);
    state["tasks"][0]["phase"] = json!("Build");
    state["tasks"][0]["taskPath"] = json!("tasks/t0.md");
    put(&repo, "many", &state);
    let steps = NextSteps::of(&yard.index().find("many", None, 5).unwrap().runs[0].record, 2).unwrap();
    let tasks = serde_json::to_value(&steps.next_tasks).unwrap();
    let first = json!({"id": "t0", "phase": "Build", "status": "running", "task_path": "tasks/t0.md"});
    assert_eq!(tasks, json!([first, {"id": "t2", "phase": null, "status": "pending", "task_path": null}]));
}

#[test]
fn t2_00_lone_surrogates_are_read_and_null_is_no_text() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let text = state("odd", "2026-01-01T00:00:00.000Z", &["completed"]).to_string();
    put_bytes(&repo, "odd", text.replace("Title of odd", r"lone \ud800 half").as_bytes());
    let mut nulls = state("nulls", "2026-01-02T00:00:00.000Z", &["completed"]);
    for field in ["createdAt", "id", "loopStage"] {
        nulls[field] = Value::Null;
    }
    nulls["workflow"] = json!({"id": null, "title": null, "app": {"id": null, "version": null}});
    nulls["dispatches"] = json!([{"id": "d", "backendId": null}]);
    put(&repo, "nulls", &nulls);
    yard.index().refresh(None).unwrap();
    let all = yard.all();
    assert_eq!(all.len(), 2, "{:?}", yard.index().report(None).unwrap().unreadable_runs);
    assert_eq!(all[0].record.title, "lone \u{fffd} half");
    let record = serde_json::to_value(&all[1].record).unwrap();
    assert!(record.as_object().unwrap().values().all(|value| value != "null"), "{record}");
    assert_eq!((&record["app_id"], &record["run_id"]), (&Value::Null, &json!("nulls")));
    assert_eq!(record["created_at"], "2026-01-02T00:00:00.000Z");
}

#[test]
fn c01_the_seven_rules_are_tried_in_their_order() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let make = |name: &str, tasks: &[&str], feedback: Value, commits: Value| {
        let mut state = state(name, "2026-01-01T00:00:00.000Z", tasks);
        (state["feedback"], state["commits"]) = (feedback, commits);
        put(&repo, name, &state);
    };
    let (open, gated) = (json!([{"id": "f", "status": "open"}]), json!([{"id": "c", "verifierGated": true}]));
    make("1-running", &["running", "failed"], open.clone(), json!([]));
    make("2-blocked", &["failed"], open, json!([]));
    make("3-failed", &["failed", "completed"], json!([null, 7]), json!([]));
    make("4-completed", &["completed"], json!([{"id": "f", "status": "resolved"}]), json!([]));
    make("5-completed", &[], json!([]), gated.clone());
    make("5-completed-odd", &["skipped"], json!([]), gated.clone());
    make("5-not", &["pending"], json!([]), gated);
    make("6-running", &["completed", "skipped"], json!([]), json!([]));
    make("7-queued", &["pending"], json!([]), json!([{"id": "c", "verifierGated": false}]));
    yard.index().refresh(None).unwrap();
    let stands: Vec<String> =
        yard.all().iter().map(|run| format!("{} {}", run.record.run_id, run.record.lifecycle)).collect();
    assert_eq!(
        stands,
        [
            "1-running running",
            "2-blocked blocked",
            "3-failed failed",
            "4-completed completed",
            "5-completed completed",
            "5-completed-odd completed",
            "5-not queued",
            "6-running running",
            "7-queued queued"
        ]
    );
}

#[test]
fn c01_marks_beside_a_run_change_its_status_and_not_its_spec() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for name in ["a", "b", "c"] {
        put(&repo, name, &state(name, "2026-01-01T00:00:00.000Z", &["completed"]));
    }
    let registry = repo.join(".cw/registry");
    std::fs::create_dir_all(&registry).unwrap();
    let archived =
        json!({"schemaVersion": 1, "archived": {"a": {"archivedAt": "2026-02-01T00:00:00.000Z", "reason": "old"}}});
    std::fs::write(registry.join("archive.json"), archived.to_string()).unwrap();
    let links = json!({"links": {"b": {"rerunOf": "a", "originRunId": "a", "generation": 1, "reason": "again"}}});
    std::fs::write(registry.join("provenance.json"), links.to_string()).unwrap();
    let stone = json!({"schemaVersion": 1, "runId": "c", "tombstones": [{"reclaimedAt": "x"}]});
    std::fs::write(repo.join(".cw/runs/c/reclaimed.json"), stone.to_string()).unwrap();
    yard.index().refresh(None).unwrap();
    let all = yard.all();
    let stands: Vec<[String; 2]> =
        all.iter().map(|run| [run.record.lifecycle.to_string(), run.record.derived_lifecycle.to_string()]).collect();
    assert_eq!(stands, [["archived", "completed"], ["completed", "completed"], ["reclaimed", "completed"]]);
    assert_eq!(all[0].record.archive_reason.as_deref(), Some("old"));
    assert_eq!(all[1].record.provenance.as_ref().unwrap().generation, Some(1));
    // The marks are taken away, and nothing else is touched.
    std::fs::write(registry.join("archive.json"), "{}").unwrap();
    std::fs::remove_file(repo.join(".cw/runs/c/reclaimed.json")).unwrap();
    let stale = yard.index().report(None).unwrap().stale_runs;
    assert_eq!(stale.runs.iter().map(|named| named.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    assert!(yard.all().iter().all(|run| run.record.lifecycle.as_str() == "completed"), "shown is what is");
    assert_eq!(yard.index().refresh(None).unwrap().read, 2);
    assert_eq!(yard.index().report(None).unwrap().stale_runs.count, 0);
}

#[test]
fn c01_truncated_file_is_not_believed_where_the_run_has_more() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    put(&repo, "fresh", &json!({}));
    put(&repo, "lost", &json!({}));
    std::fs::create_dir_all(repo.join(".cw/runs/lost/tasks")).unwrap();
    std::fs::write(repo.join(".cw/runs/lost/tasks/t1.json"), "{}").unwrap();
    yard.index().refresh(None).unwrap();
    let all = yard.all();
    assert_eq!(all.iter().map(|run| run.record.run_id.as_str()).collect::<Vec<_>>(), ["fresh"]);
    assert_eq!(
        (all[0].record.title.as_str(), all[0].record.created_at.as_str()),
        ("Unknown Workflow", "1970-01-01T00:00:00.000Z")
    );
    let unreadable = yard.index().report(None).unwrap().unreadable_runs;
    assert_eq!(unreadable.runs[0].name, "lost");
}
