//! Runs of cool-workflow: what to do next with them, marks that outlive keeps on them, and commands that are delegated.

use super::super::served::Agent;
use super::*;

fn runs(page: &Value) -> Vec<&str> {
    page["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap()).collect()
}

#[test]
fn t2_04_resume_names_tasks_and_actions_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("waits", "pending"), ("over", "completed")]);
    let state = root.join(".cw/runs/waits/state.json");
    let before = std::fs::metadata(&state).unwrap().modified().unwrap();
    let told = sandbox.outlive(["resume", "waits", "--dry-run", "--json"]).json();
    assert_eq!(told["dry_run"], true);
    let agent = Agent::start(&sandbox, &["--allow", "write"]).call_whole("resume", &json!({ "runs": ["tree:waits"] }));
    for told in [told, agent] {
        let steps = &told["foreign"][0];
        assert_eq!(steps["next_tasks"], json!([{"id": "t", "phase": null, "status": "pending", "task_path": null}]));
        let command = format!("cw dispatch waits --cwd {}", root.canonicalize().unwrap().display());
        assert_eq!((&steps["next_actions"][0]["command"], &steps["resumable"]), (&json!(command), &json!(true)));
    }
    let over = sandbox.outlive(["resume", "over", "--json"]).json();
    assert_eq!((&over["foreign"][0]["resumable"], &over["foreign"][0]["next_tasks"]), (&json!(false), &json!([])));
    let panel = sandbox.outlive(["resume", "waits"]).succeeds();
    assert!(panel.contains("task t pending") && panel.contains("next: cw dispatch waits --cwd "), "{panel}");
    assert_eq!(std::fs::metadata(&state).unwrap().modified().unwrap(), before);
}

#[test]
fn t2_04_runs_of_cool_workflow_are_archived_by_name_and_by_age() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("a", "completed"), ("b", "failed"), ("c", "running")]);
    let files = || sandbox.shell(&format!("find {} | sort", root.display())).succeeds();
    let before = files();
    let archived = sandbox.outlive(["archive", "a", "--reason", "old", "--json"]).json();
    assert!(archived["runs"][0].as_str().unwrap().ends_with("tree:a"), "{archived}");
    let shown = sandbox.outlive(["show", "a", "--json"]).json();
    assert_eq!((&shown["lifecycle"], &shown["derived_lifecycle"]), (&json!("archived"), &json!("completed")));
    assert_eq!(shown["archive_reason"], "old");
    sandbox.outlive(["archive", "a"]).fails_with(2);
    let by_age =
        ["archive", "--older-than", "30d", "--state", "completed", "--state", "failed", "--scope", "home", "--json"];
    let dry = sandbox.outlive(by_age).json();
    let done = sandbox.outlive(by_age.iter().chain(&["--yes"])).json();
    assert_eq!(dry["runs"], done["runs"]);
    assert_eq!(done["runs"].as_array().unwrap().len(), 1, "{done}");
    assert_eq!(runs(&sandbox.outlive(["list", "--unarchived", "--json"]).json()), ["c"]);
    let told = done["runs"][0].as_str().unwrap().to_owned();
    let again = sandbox.outlive(["unarchive", "a", &told, "--json"]).current_dir("/").json();
    assert_eq!(again["runs"].as_array().unwrap().len(), 2);
    assert_eq!(runs(&sandbox.outlive(["list", "--unarchived", "--json"]).json()), ["a", "b", "c"]);
    assert_eq!(files(), before, "the repository was touched");
}

#[test]
fn t2_04_rerun_and_drive_are_named_or_delegated_as_tracked_runs() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("r", "failed")]);
    let told = sandbox.outlive(["rerun", "r", "--reason", "it broke", "--json"]).json();
    let command = format!("cd {} && cw run rerun r --reason 'it broke'", root.canonicalize().unwrap().display());
    assert_eq!((&told["command"], &told["id"], &told["made"]), (&json!(command), &Value::Null, &json!(false)));
    let told = sandbox.outlive(["resume", "r", "--drive", "--incremental", "--json"]).json();
    assert!(told["commands"][0].as_str().unwrap().ends_with("cw run resume r --drive --incremental"), "{told}");
    // A repository cannot name a command; the home can.
    sandbox.write_home_config("[cool_workflow]\ncommand = [\"sh\", \"-c\", \"pwd; echo $0 $@\", \"tool\"]\n");
    let rerun = sandbox.outlive(["rerun", "r", "--reason", "it broke", "--json"]).json();
    let drive = sandbox.outlive(["resume", "r", "--once", "--json"]).json();
    for (id, said) in [
        (&rerun["id"], "tool run rerun r --reason it broke"),
        (&drive["foreign"][0]["delegated"], "tool run resume r --once"),
    ] {
        let id = id.as_str().unwrap_or_else(|| panic!("{rerun} {drive}"));
        sandbox.outlive(["wait", id]).succeeds();
        let log = sandbox.outlive(["logs", id]).succeeds();
        assert_eq!(log, format!("{}\n{said}\n", root.canonicalize().unwrap().display()));
        let shown = sandbox.outlive(["show", id, "--json"]).json();
        assert_eq!((&shown["labels"]["run"], &shown["labels"]["source"]), (&json!("r"), &json!("cool-workflow")));
    }
    // What outlive executes itself is not driven.
    sandbox.outlive(["run", "--name", "own", "--", "true"]).succeeds();
    sandbox.outlive(["resume", "own", "--drive"]).fails_with(2);
}

#[test]
fn t2_04_the_queue_of_cool_workflow_is_listed() {
    let sandbox = Sandbox::new();
    let queue = sandbox.path().join("cool-workflow/registry/queue.json");
    std::fs::create_dir_all(queue.parent().unwrap()).unwrap();
    let entry = |id: &str, status: &str, priority: u32| {
        json!({"schemaVersion": 1, "id": id, "status": status, "priority": priority, "appId": "audit", "repo": "/r",
               "enqueuedAt": "2026-01-01T00:00:00.000Z", "note": "n"})
    };
    let file = json!({"schemaVersion": 1, "entries": [entry("q2", "pending", 20), entry("q1", "drained", 10), 7]});
    std::fs::write(&queue, file.to_string()).unwrap();
    let ids = |words: &[&str]| -> Vec<String> {
        let listed = sandbox.outlive(["queue", "list", "--json"].iter().chain(words)).json();
        let entries = listed["peer_entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["q1", "q2"]);
    assert_eq!(ids(&["--status", "pending"]), ["q2"]);
    assert_eq!(ids(&["--repo", "/elsewhere"]), Vec::<String>::new());
    assert!(sandbox.outlive(["queue", "list"]).succeeds().contains("app audit in /r (n)"));
    std::fs::write(&queue, "{\"entries\": 1}").unwrap();
    let listed = sandbox.outlive(["queue", "list", "--json"]).json();
    assert!(listed["peer_problem"]["what"].as_str().unwrap().ends_with("queue.json"), "{listed}");
    // A blank variable names no home.
    let blank = sandbox.outlive(["registry", "list", "--json"]).env("CW_HOME", "  ").env("HOME", sandbox.path()).json();
    assert_eq!(blank["problems"], json!([]));
}

#[test]
fn t2_08_home_entries_are_cancelled_from_a_repository() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "own", "--", "true"]).succeeds();
    let added = sandbox.outlive(["queue", "add", "--app", "audit", "--json"]).json();
    let id = added["runs"][0]["id"].as_str().unwrap();
    let refused = sandbox.outlive(["unpark", id]).fails_with(103);
    assert!(refused.contains("only a parked run"), "{refused}");
    let cancelled = sandbox.outlive(["queue", "cancel", id, "--json"]).json();
    assert_eq!(cancelled["cancelled"], json!([id]));
    sandbox.outlive(["queue", "cancel", "nothing"]).fails_with(101);
}

#[test]
fn t2_08_ids_are_not_cut_where_no_terminal_shows_them() {
    let sandbox = Sandbox::new();
    let id = "long-".repeat(20);
    tree(&sandbox, "tree", &[(&id, "completed")]);
    assert!(sandbox.outlive(["list"]).succeeds().contains(&id));
}

#[test]
fn t2_09_queue_add_of_nothing_is_refused_and_makes_no_registry() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.work().join(".git")).unwrap();
    sandbox.outlive(["queue", "add"]).fails_with(2);
    sandbox.outlive(["queue", "add", "--app", ""]).fails_with(2);
    assert!(!sandbox.work().join(".outlive").exists() && !sandbox.home().join("registry").exists());
}

#[test]
fn t2_09_many_runs_are_unarchived_and_cancelled_in_one_write() {
    const MANY: usize = 300;
    let sandbox = Sandbox::new();
    let jobs: String = (0..MANY).map(|_| "{\"argv\": [\"true\"]}\n").collect();
    std::fs::write(sandbox.work().join("jobs.jsonl"), jobs).unwrap();
    sandbox.outlive(["queue", "add", "--file", "jobs.jsonl"]).succeeds();
    let events = |action: &str| {
        let shown = sandbox.outlive(["list", "--limit", "1", "--status", "cancelled", "--json"]).json();
        let id = shown["runs"][0]["run_id"].as_str().unwrap().to_owned();
        let told = sandbox.outlive(["why", &id, "--json"]).json();
        told["events"].as_array().unwrap().iter().filter(|event| event["action"] == action).count()
    };
    let cancelled = sandbox.outlive(["queue", "cancel", "--all", "--yes", "--json"]).json();
    assert_eq!(cancelled["cancelled"].as_array().unwrap().len(), MANY);
    assert_eq!(events("request cancel") + events("cancel"), 1);
    let ids: Vec<String> =
        cancelled["cancelled"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
    let all =
        |verb: &'static str| ["--json", verb].into_iter().chain(ids.iter().map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(sandbox.outlive(all("archive")).current_dir("/").json()["runs"].as_array().unwrap().len(), MANY);
    assert_eq!(sandbox.outlive(all("unarchive")).json()["runs"].as_array().unwrap().len(), MANY);
    // A name that is wrong changes none of them.
    let mut wrong = all("archive");
    wrong.push("nothing");
    sandbox.outlive(wrong).fails_with(101);
    assert_eq!(sandbox.outlive(["list", "--status", "archived", "--total", "--json"]).json()["total"], 0);
    let page = sandbox.outlive(["list", "--total", "--offset", "299", "--json"]).json();
    assert_eq!((&page["total"], page["runs"].as_array().unwrap().len()), (&json!(MANY), 1));
}

#[test]
fn t2_09_why_a_run_was_archived_is_kept_with_it() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    sandbox.outlive(["archive", "job", "--reason", "superseded"]).succeeds();
    assert_eq!(sandbox.outlive(["list", "--json"]).json()["runs"][0]["archive_reason"], "superseded");
    assert!(sandbox.outlive(["why", "job"]).succeeds().contains("superseded"));
}
