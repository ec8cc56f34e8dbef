//! What may be done to a run: one answer on every surface, and hints that are commands which work.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};
use super::served::Served;

/// The commands that a text names between backticks.
fn commands(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("outlive ")).map(Into::into).collect()
}

fn owner_of(sandbox: &Sandbox, name: &str) -> u32 {
    u32::try_from(sandbox.show(name)["owner_pid"].as_u64().unwrap()).unwrap()
}

/// A run that was stopped by a signal, with or without a process that it left.
fn stopped(sandbox: &Sandbox, name: &str, signal: &str, leaves: bool) {
    let script = if leaves { "sleep 300 & wait" } else { "exec sleep 300" };
    sandbox.outlive(["run", "-d", "--name", name, "--", "sh", "-c", script]).succeeds();
    let owner = owner_of(sandbox, name);
    if leaves {
        until("a process to be left", || !children(sandbox, name).is_empty());
    }
    signal_pid(owner, signal);
    sandbox.wait_for_state(name, "interrupted");
}

/// The processes whose parent is the command of a run.
fn children(sandbox: &Sandbox, name: &str) -> Vec<u32> {
    let command = super::running::child_of(owner_of(sandbox, name));
    let path = format!("/proc/{command}/task/{command}/children");
    let listed = std::fs::read_to_string(path).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A run whose owner was killed; its processes live on, or do not.
fn killed(sandbox: &Sandbox, name: &str, lives: bool) {
    sandbox.outlive(["run", "-d", "--name", name, "--", "sleep", "300"]).succeeds();
    let owner = owner_of(sandbox, name);
    let command = super::running::child_of(owner);
    signal_pid(owner, "KILL");
    if lives {
        sandbox.wait_for(name, |run| run["health"] == "orphaned");
    } else {
        signal_pid(command, "KILL");
        until("the command to be gone", || !is_alive(command));
        sandbox.wait_for_state(name, "dead");
    }
}

#[test]
fn t1_12_every_hint_of_ps_is_a_command_that_works() {
    let sandbox = Sandbox::impatient();
    // Two that a person stopped from a keyboard, which `--all` leaves alone, and two that it resumes.
    stopped(&sandbox, "keyboard1", "INT", false);
    stopped(&sandbox, "keyboard2", "INT", false);
    stopped(&sandbox, "term1", "TERM", false);
    stopped(&sandbox, "term2", "TERM", false);
    stopped(&sandbox, "leaves", "TERM", true);
    killed(&sandbox, "orphan", true);
    let listed = sandbox.outlive(["ps"]).succeeds();
    let hints = commands(&listed);
    assert!(hints.iter().any(|hint| hint == "outlive resume --all"), "{listed}");
    assert!(listed.contains("of these 2 runs"), "{listed}");
    for hint in &hints {
        // What is still there for a hint is as it was listed: each of them is about other runs, or ends what is left.
        let is_adoption = hint.starts_with("outlive adopt ");
        let words: Vec<&str> = hint.split(' ').skip(1).collect();
        let words = if is_adoption { [&["adopt", "-d"], &words[1..]].concat() } else { words };
        let said = sandbox.outlive(&words).output().unwrap();
        let stdout = String::from_utf8_lossy(&said.stdout);
        let has_passed = hint.contains("--end-leftovers") || hint.starts_with("outlive resume");
        assert!(said.status.success() || has_passed && was_cancelled(&sandbox, &words), "`{hint}`: {said:?}");
        assert!(!stdout.contains("nothing to resume"), "`{hint}` did nothing: {stdout}");
    }
    for name in ["keyboard1", "keyboard2", "term1", "term2"] {
        assert_eq!(sandbox.show(name)["attempt"], 2, "{name} was not resumed by any hint of:\n{listed}");
    }
}

/// Whether a hint comes too late because the hint before it, about the same run, was followed.
fn was_cancelled(sandbox: &Sandbox, words: &[&str]) -> bool {
    words.last().is_some_and(|id| sandbox.show(id)["state"] == "cancelled")
}

#[test]
fn t1_17_every_surface_says_the_same_of_what_may_be_done() {
    let sandbox = Sandbox::impatient();
    stopped(&sandbox, "stopped", "TERM", false);
    stopped(&sandbox, "leaves", "TERM", true);
    killed(&sandbox, "dead", false);
    killed(&sandbox, "orphan", true);
    sandbox.outlive(["run", "--name", "failed", "--", "false"]).fails_with(1);
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "waits", "--", "true"]).succeeds();
    let expected = [
        ("stopped", json!(["archive", "cancel", "rerun", "resume"])),
        ("leaves", json!(["archive", "cancel", "rerun"])),
        ("dead", json!(["cancel", "reap", "rerun", "resume"])),
        ("orphan", json!(["adopt", "cancel"])),
        ("failed", json!(["archive", "rerun", "resume"])),
        ("done", json!(["archive", "rerun"])),
        ("waits", json!(["cancel", "edit", "pause"])),
    ];
    let served = Served::start(&sandbox, &[]);
    let listed = served.post("/v1/ps", &json!({ "all": true })).json();
    let told = sandbox.outlive(["ps", "--all", "--json"]).json();
    let can_of = |runs: &Value, name: &str| {
        let found = runs["runs"].as_array().unwrap().iter().find(|run| run["name"] == name).cloned();
        found.map(|run| run["can"].clone()).unwrap_or_default()
    };
    for (name, can) in expected {
        assert_eq!(sandbox.show(name)["can"], can, "show {name}");
        assert_eq!(can_of(&told, name), can, "ps {name}");
        assert_eq!(can_of(&listed, name), can, "/v1/ps {name}");
        // What is said to be allowed is, and what is not is refused.
        for (verb, words) in
            [("resume", &["resume", "--failed", "--dry-run"][..]), ("cancel", &["cancel", "--dry-run"])]
        {
            let said = sandbox.outlive(words.iter().copied().chain([name])).output().unwrap();
            let is_refused =
                said.status.code() == Some(103) || String::from_utf8_lossy(&said.stdout).contains("nothing");
            let offered = can.as_array().unwrap().iter().any(|one| one == verb);
            // A run that waits for its first attempt may be started early; that is not resuming.
            assert!(offered != is_refused || name == "waits", "{verb} {name}: {said:?}");
        }
    }
}

#[test]
fn t1_10_adopt_waits_for_an_owner_that_was_just_killed() {
    let sandbox = Sandbox::new();
    for round in 0..5 {
        let name = format!("job{round}");
        sandbox.outlive(["run", "-d", "--name", &name, "--", "sleep", "300"]).succeeds();
        let owner = owner_of(&sandbox, &name);
        sandbox.shell(&format!("kill -9 {owner}; exec outlive adopt -d {name}")).succeeds();
        sandbox.outlive(["cancel", &name, "--grace", "0s", "--wait"]).succeeds();
    }
}

#[test]
fn t1_04_rerun_answers_with_the_run_that_a_free_worker_claimed() {
    let sandbox = Sandbox::impatient();
    sandbox.outlive(["run", "--name", "x", "--", "false"]).fails_with(1);
    let mut worker = sandbox.outlive(["work", "--slots", "4"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    until("the worker to be there", || {
        !sandbox.outlive(["workers", "--json"]).json()["workers"].as_array().unwrap().is_empty()
    });
    for _ in 0..5 {
        let made = sandbox.outlive(["rerun", "x", "--json"]).json();
        let id = made["id"].as_str().unwrap();
        assert_eq!(sandbox.outlive(["wait", id]).status().unwrap().code(), Some(1));
        let run = sandbox.show(id);
        assert_eq!((&run["state"], &run["attempt"]), (&"failed".into(), &1.into()), "{run}");
    }
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
}

#[test]
fn failed_run_is_resumed_as_the_hints_say() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "flaky", "--", "sh", "-c", "test -e fixed"]).status().unwrap();
    let refused = sandbox.outlive(["resume", "flaky"]).fails_with(103);
    assert!(refused.starts_with("error: run `flaky`: it has already failed"), "{refused}");
    assert!(refused.contains("\nhint: `outlive resume --failed flaky` starts its next attempt"), "{refused}");
    let why = sandbox.outlive(["why", "flaky"]).succeeds();
    assert!(why.starts_with("flaky has failed") && why.contains("`outlive resume --failed flaky`"), "{why}");
    let all = sandbox.outlive(["resume"]).succeeds();
    assert!(all.contains("`outlive resume --all --failed` also resumes runs that failed"), "{all}");
    std::fs::write(sandbox.work().join("fixed"), "").unwrap();
    sandbox.outlive(["resume", "--failed", "flaky"]).succeeds();
    sandbox.wait_for_state("flaky", "succeeded");
    assert_eq!(sandbox.outlive(["resume"]).succeeds(), "nothing to resume\n");
}

#[test]
fn run_that_was_named_by_its_id_keeps_it_in_hints() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    let id = sandbox.show("done")["id"].as_str().unwrap().to_owned();
    for word in [&id[..], &id[..20]] {
        let refused = sandbox.outlive(["cancel", word]).fails_with(103);
        assert!(refused.contains(&format!("hint: `outlive why {word}` ")), "{refused}");
    }
}

#[test]
fn times_are_in_utc_where_that_is_asked_for() {
    let sandbox = Sandbox::new();
    let add = ["queue", "add", "--utc", "--name", "later", "--not-before", "2099-07-01 09:30", "--", "true"];
    sandbox.outlive(add).env("TZ", "Asia/Tokyo").succeeds();
    assert_eq!(sandbox.show("later")["not_before"], "2099-07-01T09:30:00.000000Z");
    let shown =
        |words: &[&str]| sandbox.outlive(["why", "later"].iter().chain(words)).env("TZ", "Asia/Tokyo").succeeds();
    assert!(shown(&["--utc"]).contains("2099-07-01 09:30:00Z (in "), "{}", shown(&["--utc"]));
    assert!(shown(&[]).contains("2099-07-01 18:30:00 (in "), "{}", shown(&[]));
    let refused = sandbox.outlive(["run", "--rate", "api=1/1h", "--", "true"]);
    let mut again = sandbox.outlive(["run", "--utc", "--rate", "api=1/1h", "--", "true"]);
    { refused }.succeeds();
    let refused = again.fails_with(105);
    assert!(refused.contains("Z (in 59m "), "{refused}");
}
