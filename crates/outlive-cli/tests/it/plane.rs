//! The control plane: runs of every repository, found, repeated, put away and handed out from anywhere.

mod anywhere;
mod crashes;
mod foreign;
mod moved_on;
mod paging;
mod queue;
mod surfaces;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, settled};

/// A repository with a run of cool-workflow for each of these names, known in the home.
fn tree(sandbox: &Sandbox, name: &str, runs: &[(&str, &str)]) -> PathBuf {
    let root = sandbox.path().join(name);
    std::fs::create_dir_all(root.join(".cw/runs")).unwrap();
    runs.iter().for_each(|(id, task)| put(&root, id, task));
    sandbox.outlive(["registry", "add", root.to_str().unwrap()]).succeeds();
    root
}

fn put(root: &Path, id: &str, task: &str) {
    let dir = root.join(".cw/runs").join(id);
    std::fs::create_dir_all(&dir).unwrap();
    let state = json!({
        "schemaVersion": 1, "id": id, "createdAt": "2026-01-02T03:04:05.006Z", "updatedAt": "2026-01-02T04:00:00.000Z",
        "loopStage": "act", "workflow": {"id": "wf", "title": format!("Title of {id}"), "app": {"id": "audit", "version": "1.0"}},
        "paths": {}, "inputs": {"question": "why"}, "phases": [], "tasks": [{"id": "t", "status": task}],
        "dispatches": [], "commits": [], "feedback": [],
    });
    std::fs::write(dir.join("next"), state.to_string()).unwrap();
    std::fs::rename(dir.join("next"), dir.join("state.json")).unwrap();
}

fn refresh(sandbox: &Sandbox) -> Value {
    sandbox.outlive(["registry", "refresh", "--json"]).json()
}

/// The same call from somewhere else.
fn from(command: &mut Command, dir: &Path) -> String {
    command.current_dir(dir).succeeds()
}

#[test]
fn c02_reads_of_the_index_write_not_a_byte() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    tree(&sandbox, "tree", &[("a", "completed"), ("b", "failed")]);
    // The memory that the users of a database share is theirs, not a record.
    let listed = || sandbox.shell("find .. -not -name '*.db-shm' -printf '%p %i %s %T@ %m\\n' | sort").succeeds();
    let before = listed();
    sandbox.outlive(["registry", "show"]).fails_with(101);
    sandbox.outlive(["search", "a"]).succeeds();
    assert_eq!(listed(), before, "a read made an index");
    refresh(&sandbox);
    let before = listed();
    for words in [
        &["registry", "show"][..],
        &["registry", "list"],
        &["search", "title"],
        &["history"],
        &["list", "--scope", "repo"],
        &["show", "a"],
        &["stats"],
        &["gc", "--dry-run"],
        &["queue", "list"],
        &["ps", "-g", "--all"],
    ] {
        sandbox.outlive(words).succeeds();
        assert_eq!(listed(), before, "{words:?} wrote something");
    }
}

#[test]
fn c05_repository_registers_itself_and_answers_are_the_same() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let sources = sandbox.outlive(["registry", "list", "--json"]).json();
    let work = sandbox.work().canonicalize().unwrap();
    assert_eq!(sources["sources"][0]["repo"], work.to_str().unwrap());
    let (one, other) =
        (tree(&sandbox, "one", &[("same", "failed")]), tree(&sandbox, "other", &[("same", "completed")]));
    refresh(&sandbox);
    let search = || sandbox.outlive(["search", "--json", "--scope", "home"]);
    let answers = [from(&mut search(), &one), from(&mut search(), &other), from(&mut search(), Path::new("/"))];
    assert!(answers[0] == answers[1] && answers[1] == answers[2] && answers[0].matches("run_id").count() == 3);
    let refused = sandbox.outlive(["show", "same"]).current_dir("/").fails_with(102);
    assert!(refused.contains("one:same") && refused.contains("other:same"), "{refused}");
    let shown = sandbox.outlive(["show", "one:same", "--json"]).current_dir("/").json();
    assert_eq!((&shown["lifecycle"], &shown["found"]), (&json!("failed"), &json!(true)));
    // A run of another registry is shown, and repeated, from anywhere.
    let shown = sandbox.outlive(["show", "job", "--json"]).current_dir("/").json();
    assert_eq!(shown["state"], "succeeded");
    let again = sandbox.outlive(["rerun", "job", "--reason", "new data", "--json"]).current_dir(&one).json();
    sandbox.wait_for_state(again["id"].as_str().unwrap(), "succeeded");
    let told = sandbox.outlive(["rerun", "one:same", "--json"]).json();
    assert!(told["command"].as_str().unwrap().ends_with("one && cw run rerun same"), "{told}");
    let told = sandbox.outlive(["resume", "one:same", "--json"]).json();
    assert_eq!(told["foreign"][0]["next_actions"][0]["command"], "cw run rerun same", "{told}");
}

#[test]
fn c06_search_is_by_app_status_repository_time_and_words() {
    let sandbox = Sandbox::new();
    let one = tree(&sandbox, "one", &[("alpha", "failed"), ("beta", "completed")]);
    tree(&sandbox, "other", &[("gamma", "failed")]);
    let mark = json!({"archived": {"alpha": {"archivedAt": "2026-02-01T00:00:00.000Z", "reason": "old"}}});
    std::fs::create_dir_all(one.join(".cw/registry")).unwrap();
    std::fs::write(one.join(".cw/registry/archive.json"), mark.to_string()).unwrap();
    refresh(&sandbox);
    let ids = |words: &[&str]| -> Vec<String> {
        let page = sandbox.outlive(["search", "--json"].iter().chain(words)).json();
        page["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().into()).collect()
    };
    assert_eq!(ids(&[]), ["alpha", "beta", "gamma"]);
    assert_eq!(ids(&["--status", "failed"]), ["alpha", "gamma"], "what is under an archive mark is found");
    assert_eq!(ids(&["--status", "archived"]), ["alpha"]);
    assert_eq!(ids(&["--status", "failed", "--unarchived"]), ["gamma"]);
    assert_eq!(ids(&["--app", "AUDIT", "--repo", "other"]), ["gamma"]);
    assert_eq!(ids(&["--repo", one.to_str().unwrap()]), ["alpha", "beta"]);
    assert_eq!(ids(&["title", "bet*"]), ["beta"]);
    assert_eq!(ids(&["--text", "of gamma"]), ["gamma"]);
    assert_eq!(ids(&["--since", "2026-01-02T04:04:05.006+01:00"]).len(), 3);
    assert_eq!(ids(&["--since", "2026-01-02T03:04:05.007Z"]).len(), 0);
    assert_eq!(ids(&["--until", "2026-01-02T03:04:05.006Z"]).len(), 0);
    assert_eq!(ids(&["--since", "2h"]).len(), 0);
    let page = sandbox.outlive(["search", "--limit", "2", "--json"]).json();
    assert_eq!(ids(&["--limit", "2", "--cursor", page["next"].as_str().unwrap()]), ["gamma"]);
}

#[test]
fn c07_what_is_wrong_is_said_by_a_status_of_its_own() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[("same", "failed"), ("gone", "completed"), ("changed", "completed")]);
    tree(&sandbox, "twin", &[("same", "failed")]);
    refresh(&sandbox);
    for words in [
        &["search", "--status", "bogus"][..],
        &["search", "--scope", "galaxy"],
        &["search", "--since", "soon"],
        &["search", "--until", "2026-13-01"],
        &["search", "--colour", "red"],
        &["search", "--limit", "0"],
        &["search", "--cursor", "somewhere"],
        &["search", "--label", "x"],
        &["search", "--repo", "nowhere"],
        &["history", "--status", "bogus"],
        &["list", "--since", ""],
        &["stats", "--until", "never"],
        &["registry", "add", "/nowhere"],
        &["queue", "drain", "--limit", "0"],
    ] {
        sandbox.outlive(words).fails_with(2);
    }
    sandbox.outlive(["registry", "show"]).succeeds();
    sandbox.outlive(["registry", "remove", "/nowhere"]).fails_with(101);
    let not_found = sandbox.outlive(["show", "nothing-like-it"]).fails_with(101);
    assert!(not_found.contains("nothing-like-it"), "{not_found}");
    sandbox.outlive(["show", "same"]).fails_with(102);
    std::fs::remove_dir_all(root.join(".cw/runs/gone")).unwrap();
    std::fs::write(root.join(".cw/runs/changed/state.json"), "{").unwrap();
    sandbox.outlive(["registry", "show"]).fails_with(112);
    sandbox.outlive(["show", "changed"]).fails_with(113);
    refresh(&sandbox);
    sandbox.outlive(["show", "changed"]).fails_with(113);
    let output = sandbox.outlive(["show", "gone", "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(101));
    assert_eq!((&shown["found"], &shown["freshness"]), (&json!(false), &json!("missing")));
    sandbox.outlive(["gc"]).succeeds();
    sandbox.outlive(["show", "gone"]).fails_with(101);
}

#[test]
fn c08_runs_are_archived_by_age_everywhere_and_shown_again() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    let ids = |words: &[&str]| sandbox.outlive(words).json()["runs"].as_array().unwrap().len();
    assert_eq!(ids(&["archive", "--older-than", "30d", "--scope", "home", "--json"]), 0);
    assert_eq!(ids(&["archive", "--older-than", "0s", "--state", "failed", "--scope", "home", "--json"]), 0);
    assert_eq!(ids(&["archive", "--older-than", "0s", "--dry-run", "--json"]), 2);
    let archived = sandbox
        .outlive(["archive", "--older-than", "0s", "--scope", "home", "--yes", "--json"])
        .current_dir("/")
        .json();
    assert_eq!(archived["runs"].as_array().unwrap().len(), 2);
    refresh(&sandbox);
    let found = sandbox.outlive(["search", "--status", "succeeded", "--json"]).json();
    assert_eq!(found["runs"][0]["lifecycle"], "archived");
    sandbox.outlive(["unarchive", "one"]).current_dir("/").succeeds();
    assert_eq!(sandbox.show("one")["archived"], false);
    // What was archived everywhere is said by repository and name, and shown again by what was said.
    let archive = ["archive", "--older-than", "0s", "--scope", "home"];
    let dry = sandbox.outlive(archive).current_dir("/").succeeds();
    let said = sandbox.outlive(archive.iter().chain(&["--yes"])).current_dir("/").succeeds();
    assert!(said.starts_with("work:") && said.ends_with(" one archived\n"), "{said}");
    let would = said.replace("archived", "would be archived");
    assert_eq!(dry, format!("{would}1 selected; nothing was archived; --yes archives\n"));
    sandbox.outlive(["unarchive", said.split(' ').next().unwrap()]).current_dir("/").succeeds();
    assert_eq!(sandbox.show("one")["archived"], false);
}

/// A line without how much memory a command had that may be gone before it is sampled.
fn without_sizes(line: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in line.split(' ') {
        let is_size = ["B", "kB", "MB"].contains(&word) && words.last().is_some_and(|last| last.parse::<f64>().is_ok());
        if is_size {
            words.pop();
        }
        words.push(if is_size { "-" } else { word });
    }
    words.join(" ")
}

#[test]
fn c13_every_panel_is_as_it_was_agreed() {
    let sandbox = Sandbox::new();
    let mut panels = Vec::new();
    let mut panel = |words: &[&str]| {
        let output = sandbox.outlive(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let call = format!("$ outlive {}\n", words.join(" "));
        let text = settled(&sandbox, &(call + &said));
        let line = |line: &str| {
            let words = without_sizes(&super::surface::without_durations(
                &line.split_whitespace().collect::<Vec<_>>().join(" "),
            ));
            let place = words.find("--cursor=").map(|at| at + "--cursor=".len());
            place.map_or(words.clone(), |at| format!("{}[NEXT]", &words[..at]))
        };
        panels.push(text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n");
    };
    panel(&["registry", "list"]);
    panel(&["registry", "show"]);
    panel(&["search", "x"]);
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let root = tree(&sandbox, "tree", &[("alpha", "failed"), ("beta", "completed"), ("gamma", "running")]);
    std::fs::write(root.join(".cw/runs/gamma/state.json"), "{").unwrap();
    panel(&["registry", "add", root.to_str().unwrap()]);
    panel(&["registry", "list"]);
    panel(&["registry", "refresh"]);
    panel(&["registry", "show"]);
    panel(&["search", "title"]);
    panel(&["search", "nothing"]);
    panel(&["history", "--limit", "1"]);
    panel(&["list", "--scope", "repo"]);
    panel(&["show", "alpha"]);
    panel(&["rerun", "alpha", "--reason", "it's late"]);
    panel(&["archive", "alpha"]);
    put(&root, "alpha", "completed");
    std::fs::remove_dir_all(root.join(".cw/runs/beta")).unwrap();
    panel(&["search", "title"]);
    panel(&["registry", "show"]);
    panel(&["registry", "refresh", "--scope", "home"]);
    panel(&["show", "beta"]);
    panel(&["gc", "--dry-run"]);
    panel(&["gc"]);
    panel(&["stats", "--kind", "command"]);
    panel(&["stats", "--kind", "none"]);
    panel(&["ps", "-g", "--all"]);
    panel(&["registry", "remove", root.to_str().unwrap()]);
    panel(&["queue", "list"]);
    panel(&["queue", "drain"]);
    sandbox.outlive(["queue", "add", "--app", "audit", "--note", "nightly"]).succeeds();
    panel(&["queue", "list"]);
    panel(&["queue", "drain"]);
    panel(&["queue", "show", "@last"]);
    panel(&["queue", "beat", "@last", "--epoch", "1"]);
    panel(&["queue", "beat", "@last", "--epoch", "7"]);
    panel(&["queue", "release", "@last", "--epoch", "1"]);
    panel(&["queue", "drain", "--lease", "1h"]);
    panel(&["queue", "done", "@last", "--epoch", "2"]);
    insta::assert_snapshot!("panels", panels.join("\n"));
}

#[test]
fn s_05_hostile_words_of_a_source_are_shown_harmlessly() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[]);
    let hostile = "a\u{1b}[2J\u{202e}b\n\0c";
    put(&root, "evil", "failed");
    let path = root.join(".cw/runs/evil/state.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    state["workflow"]["title"] = json!(format!("{hostile}{}", "x".repeat(1 << 20)));
    (state["id"], state["workflow"]["app"]["id"]) = (json!(hostile), json!(hostile));
    state["inputs"] = json!({"question": hostile});
    std::fs::write(&path, state.to_string()).unwrap();
    refresh(&sandbox);
    for words in [
        &["search"][..],
        &["history"],
        &["show", hostile.split('\0').next().unwrap()],
        &["stats"],
        &["registry", "show"],
    ] {
        let said = sandbox.outlive(words).succeeds();
        assert!(said.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{words:?}: {said:?}");
        assert!(said.len() < 4_096, "{words:?} said {} bytes", said.len());
    }
}

/// The fields that the documentation names for an operation, beside `schema`.
fn documented(operation: &str) -> Vec<String> {
    let docs =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/control-plane.md")).unwrap();
    let named = |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let row = docs.lines().find(|line| {
        line.starts_with('|') && line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{operation}`")))
    });
    named(row.unwrap_or_else(|| panic!("{operation} is not documented")).split('|').nth(2).unwrap())
}

/// What the schemas of answers say is checked beside them, field by field; here, that the answers do.
#[test]
fn c13_every_answer_has_the_documented_fields_and_no_others() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let root = tree(&sandbox, "tree", &[("alpha", "failed")]);
    let fields = |answer: &Value| -> Vec<String> {
        let mut fields: Vec<String> =
            answer.as_object().unwrap().keys().filter(|field| *field != "schema").cloned().collect();
        fields.sort();
        fields
    };
    let sorted = |mut fields: Vec<String>| {
        fields.sort();
        fields
    };
    let root = root.to_str().unwrap();
    for (operation, words) in [
        ("registry add", &["registry", "add", root][..]),
        ("registry list", &["registry", "list"]),
        ("registry refresh", &["registry", "refresh"]),
        ("registry show", &["registry", "show"]),
        ("search", &["search"]),
        ("list", &["list"]),
        ("history", &["history"]),
        ("stats", &["stats"]),
        ("gc", &["gc", "--dry-run"]),
        ("rerun", &["rerun", "alpha"]),
        ("resume", &["resume", "alpha"]),
        ("archive", &["archive", "job"]),
        ("unarchive", &["unarchive", "job"]),
        ("rm", &["rm", "job"]),
        ("queue add", &["queue", "add", "--app", "audit"]),
        ("queue list", &["queue", "list"]),
        ("queue drain", &["queue", "drain"]),
        ("queue show", &["queue", "show", "@last"]),
        ("queue beat", &["queue", "beat", "@last", "--epoch", "1"]),
        ("queue release", &["queue", "release", "@last", "--epoch", "1"]),
        ("queue drain", &["queue", "drain"]),
        ("queue done", &["queue", "done", "@last", "--epoch", "2"]),
        ("queue add", &["queue", "add", "--name", "waits", "--", "true"]),
        ("queue cancel", &["queue", "cancel", "waits"]),
        ("registry remove", &["registry", "remove", root]),
    ] {
        let answer = sandbox.outlive(["--json"].iter().chain(words)).json();
        assert_eq!(fields(&answer), sorted(documented(operation)), "{operation}");
    }
}
