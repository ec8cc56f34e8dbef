//! A run is named from anywhere by every verb, and what a panel says to type works where it is said.

use std::path::Path;

use super::super::sandbox::{signal_pid, text};
use super::*;

/// The command behind `next:` whose verb this is, as words.
fn hinted(text: &str, verb: &str) -> Vec<String> {
    let part = text.split('`').find(|part| part.starts_with(&format!("outlive {verb} ")));
    let part = part.unwrap_or_else(|| panic!("nothing says `outlive {verb} …`: {text}"));
    part.split(' ').skip(1).map(Into::into).collect()
}

#[test]
fn what_is_said_to_be_typed_next_works_where_it_is_said() {
    let sandbox = Sandbox::new();
    let root = Path::new("/");
    let away = |words: &[String]| {
        let mut command = sandbox.outlive(words);
        command.current_dir(root);
        command
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    // Nothing is indexed: the registries themselves are asked.
    let mut orphan = sandbox.start("orphan", &["sleep", "300"]);
    orphan.kill();
    sandbox.wait_for("orphan", |run| run["health"] == "orphaned");
    let listed = away(&words(&["ps", "--global"])).succeeds();
    let mut adopt = hinted(&listed, "adopt");
    adopt.insert(1, "-d".into());
    away(&adopt).succeeds();
    sandbox.wait_for("orphan", |run| run["health"] == "healthy");
    let refused = away(&words(&["archive", "work:orphan"])).fails_with(103);
    away(&[hinted(&refused, "cancel"), words(&["--wait", "--grace", "1s"])].concat()).succeeds();
    assert_eq!(sandbox.show("orphan")["state"], "cancelled");

    sandbox.outlive(["run", "--name", "job", "--", "echo", "done"]).succeeds();
    let again = away(&words(&["rerun", "work:job"])).succeeds();
    away(&hinted(&again, "wait")).succeeds();
    let id = hinted(&again, "wait").pop().unwrap();
    for run in [id.as_str(), "work:job"] {
        assert_eq!(away(&words(&["logs", run])).succeeds(), "done\n");
        assert_eq!(away(&words(&["attach", run])).succeeds(), "done\n");
        assert!(away(&words(&["why", run])).succeeds().contains("job has succeeded"));
        assert!(away(&words(&["output", run])).succeeds().contains("done"));
    }
    // Of several registries at once, and an index that knows none of it.
    sandbox.outlive(["run", "--name", "here", "--", "true"]).current_dir(root).succeeds();
    refresh(&sandbox);
    sandbox.outlive(["run", "--name", "later", "--", "sh", "-c", "exit 3"]).fails_with(3);
    let waited = away(&words(&["wait", "here", "work:later", &id])).output().unwrap();
    let said = text(&waited.stdout);
    assert!(said.contains("here succeeded") && said.contains("later failed"), "{said}");
    assert_eq!(waited.status.code(), Some(3));
    // If one of several cannot be cancelled, none is, wherever they are.
    let goes_on = sandbox.start("goes on", &["sleep", "300"]);
    away(&words(&["cancel", "work:goes on", "here"])).fails_with(103);
    assert_eq!(sandbox.show("goes on")["cancel_requested_at"], Value::Null);
    drop(goes_on);
}

#[test]
fn t1_19_every_verb_finds_runs_of_other_registries() {
    let sandbox = Sandbox::new();
    let mut lone = sandbox.start("lone", &["sleep", "300"]);
    let away = sandbox.path().join("away");
    std::fs::create_dir(&away).unwrap();
    let outlive = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.current_dir(&away);
        command
    };
    for nothing in [outlive(&["ps"]).succeeds(), outlive(&["ps", "--all"]).succeeds()] {
        assert!(nothing.contains("home/registry") && nothing.contains("`outlive ps -g`"), "{nothing}");
    }
    assert!(outlive(&["show", "lone"]).succeeds().contains("lone"));
    let cancelled = outlive(&["cancel", "lone", "--wait", "--grace", "1s"]).output().unwrap();
    assert!(cancelled.status.success(), "{}", text(&cancelled.stderr));
    assert!(text(&cancelled.stderr).contains("work/.outlive"), "{}", text(&cancelled.stderr));
    lone.wrapper.wait().unwrap();
    assert_eq!(sandbox.show("lone")["state"], "cancelled");
    let nothing = outlive(&["ps"]).succeeds();
    assert!(!nothing.contains("ps -g"), "nothing is in flight anywhere: {nothing}");
}

#[test]
fn what_is_dead_in_another_registry_is_reaped_there() {
    let sandbox = Sandbox::new();
    let mut dead = sandbox.start("dead", &["sleep", "300"]);
    dead.kill();
    let left = sandbox.wait_for("dead", |run| run["health"] == "orphaned")["leftover_pids"].clone();
    left.as_array().unwrap().iter().for_each(|pid| signal_pid(pid.as_u64().unwrap().try_into().unwrap(), "KILL"));
    sandbox.wait_for("dead", |run| run["state"] == "dead");
    let listed = || sandbox.outlive(["ps", "--global"]).current_dir("/").succeeds();
    let place = sandbox.registry().canonicalize().unwrap();
    let reap = format!("outlive --registry sqlite:{} reap", place.display());
    assert!(listed().contains(&format!("`{reap}`")), "{}", listed());
    sandbox.outlive(reap.split(' ').skip(1)).current_dir("/").succeeds();
    assert!(!listed().contains(" reap`"), "{}", listed());
}

#[test]
fn what_is_nowhere_is_said_to_be_nowhere() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let said = |words: &[&str]| sandbox.outlive(words).current_dir("/").fails_with(101);
    for verb in ["show", "why", "logs", "wait", "cancel", "adopt", "attach", "resume", "rerun", "archive"] {
        let unknown = said(&[verb, "nosuch:job"]);
        assert!(unknown.contains("no repository `nosuch`") && unknown.contains("`outlive registry list`"), "{unknown}");
    }
    let none = said(&["show", "work:nothing"]);
    assert!(none.contains("no run `work:nothing`") || none.contains("no run `nothing`"), "{none}");
    tree(&sandbox, "tree", &[("a", "completed")]);
    // Nothing is indexed: the sources themselves are asked.
    sandbox.outlive(["show", "tree:a"]).current_dir("/").succeeds();
    let read = sandbox.outlive(["cancel", "tree:a"]).current_dir("/").fails_with(2);
    assert!(read.contains("tree:a` shows it"), "{read}");
}

#[test]
fn c05_c07_a_scope_says_where_a_run_is_looked_for() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    sandbox.outlive(["archive", "job"]).succeeds();
    let root = tree(&sandbox, "tree", &[("alpha", "failed"), ("gone", "completed")]);
    refresh(&sandbox);
    // Elsewhere, none of them knows it by itself.
    for words in [&["rerun", "job"][..], &["unarchive", "job"], &["resume", "job"], &["show", "job"]] {
        sandbox.outlive(words.iter().chain(&["--scope", "repo"])).current_dir(&root).fails_with(101);
        sandbox.outlive(words.iter().chain(&["--scope", "galaxy"])).current_dir(&root).fails_with(2);
    }
    let home =
        |words: &[&str]| sandbox.outlive(words.iter().chain(&["--scope", "home", "--json"])).current_dir(&root).json();
    assert_eq!(home(&["unarchive", "job"])["runs"].as_array().unwrap().len(), 1);
    assert_eq!(home(&["rerun", "job"])["made"], true);
    assert_eq!(home(&["resume", "alpha"])["foreign"][0]["run_id"], "alpha");
    // What is to be resumed of all registries, or of the one here.
    let mut killed = sandbox.start("killed", &["sleep", "300"]);
    let child = crate::running::child_of(killed.pid());
    killed.kill();
    crate::sandbox::signal_pid(child, "KILL");
    sandbox.wait_for_state("killed", "dead");
    let all = |scope: &str| {
        let words = ["resume", "--all", "--dry-run", "--json", "--scope", scope];
        sandbox.outlive(words).current_dir(&root).json()["resumed"].as_array().unwrap().len()
    };
    assert_eq!((all("repo"), all("home")), (0, 1));
    // What is gone is forgotten here, or everywhere.
    std::fs::remove_dir_all(root.join(".cw/runs/gone")).unwrap();
    refresh(&sandbox);
    let forgotten = |dir: &Path, scope: &str| {
        sandbox.outlive(["gc", "--json", "--scope", scope]).current_dir(dir).json()["count"].clone()
    };
    assert_eq!(forgotten(&sandbox.work(), "repo"), 0);
    assert_eq!(forgotten(&root, "repo"), 1);
    assert_eq!(forgotten(&root, "home"), 0);
}
