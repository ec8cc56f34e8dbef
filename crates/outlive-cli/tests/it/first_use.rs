//! What a new user stumbled over (docs/trials.md, T9): hints, reasons and defaults of the first ten tasks.

use std::process::Stdio;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, text, until};

/// A run that was killed with its owner, as a power cut would.
fn killed(sandbox: &Sandbox, name: &str) {
    sandbox.outlive(["run", "-d", "--name", name, "--", "sleep", "300"]).succeeds();
    let owner = u32::try_from(sandbox.show(name)["owner_pid"].as_u64().unwrap()).unwrap();
    let command = super::running::child_of(owner);
    signal_pid(owner, "KILL");
    signal_pid(command, "KILL");
    until("the command to be gone", || !is_alive(command));
    sandbox.wait_for_state(name, "dead");
}

#[test]
fn t9_01_killed_runs_share_one_hint_before_they_are_reaped() {
    let sandbox = Sandbox::new();
    killed(&sandbox, "train");
    let hint =
        |listed: &str| listed.lines().filter_map(|line| line.strip_prefix("next: ")).collect::<Vec<_>>().join("\n");
    let alone = hint(&sandbox.outlive(["ps"]).succeeds());
    let id = sandbox.show("train")["id"].as_str().unwrap().to_owned();
    assert!(!alone.contains(&id) && alone.contains(&id[..13]), "the hint has another id than the list: {alone}");
    killed(&sandbox, "import");
    let both = hint(&sandbox.outlive(["ps"]).succeeds());
    assert_eq!(both, "`outlive resume --all` starts the next attempt of these 2 runs");
    sandbox.outlive(["resume", "--all"]).succeeds();
    for name in ["train", "import"] {
        assert_eq!(sandbox.show(name)["attempt"], 2, "{name}");
    }
    sandbox.outlive(["cancel", "--all", "--yes", "--grace", "0s", "--wait"]).succeeds();
}

#[test]
fn t9_02_schedule_without_a_worker_is_warned_of() {
    let sandbox = Sandbox::new();
    let add = ["queue", "add", "--name", "nightly", "--cron", "0 2 * * *", "--", "true"];
    let warning = |words: &[&str]| text(&sandbox.outlive(words).output().unwrap().stderr);
    let said = warning(&add);
    assert!(said.contains("no worker or supervisor is there") && said.contains("`outlive service install`"), "{said}");
    let listed = sandbox.outlive(["queue", "list"]).succeeds();
    assert!(listed.contains("next: `outlive supervise`"), "{listed}");
    // Work that is due is no schedule, and a call with `--json` prints no warning.
    assert_eq!(warning(&["queue", "add", "--", "true"]), "");
    assert_eq!(warning(&["queue", "add", "--not-before", "2h", "--json", "--", "true"]), "");
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the worker to be there", || {
        let workers = sandbox.outlive(["workers", "--json"]).json();
        workers["workers"].as_array().unwrap().iter().any(|worker| worker["health"] == "alive")
    });
    assert_eq!(warning(&add), "");
    assert!(!sandbox.outlive(["queue", "list"]).succeeds().contains("next: `outlive supervise`"));
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
}

#[test]
fn t9_03_reasons_have_local_times_and_names_of_runs() {
    let sandbox = Sandbox::new();
    let build = sandbox.outlive(["queue", "add", "--name", "build", "--not-before", "2h", "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "deploy", "--needs", "build", "--", "true"]).succeeds();
    for words in [&["ps"][..], &["queue", "list"], &["show", "deploy"]] {
        let said = sandbox.outlive(words).succeeds();
        assert!(said.contains("waits for `build`") && !said.contains(build.trim()), "{words:?}: {said}");
    }
    for words in [&["ps"][..], &["queue", "list"], &["queue", "show", "build"], &["show", "build"], &["why", "build"]] {
        let said = sandbox.outlive(words).succeeds();
        let reason = said.split("waits until ").nth(1).unwrap_or_else(|| panic!("{words:?}: {said}"));
        let reason = reason.lines().next().unwrap();
        assert!(reason.contains(" (in 1h 59m") && !reason.contains('Z'), "{words:?}: {reason}");
    }
    // Programs read what they always did.
    let reason = sandbox.show("build")["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("waits until 2") && reason.ends_with('Z'), "{reason}");
}

#[test]
fn t9_04_wait_for_readiness_says_ready_and_where() {
    let sandbox = Sandbox::new();
    let words = ["run", "-d", "--name", "dev", "--port", "web", "--ready-output", "up", "--", "sh", "-c"];
    sandbox.outlive(words.iter().chain(&["echo up; exec sleep 300"])).succeeds();
    let said = sandbox.outlive(["wait", "dev", "--ready"]).succeeds();
    let url = sandbox.show("dev")["url"].as_str().unwrap().to_owned();
    assert_eq!(said, format!("dev ready at {url}\n"));
    sandbox.outlive(["cancel", "dev", "--grace", "0s", "--wait"]).succeeds();
}

#[test]
fn t9_05_why_means_the_last_run_and_leads_to_its_output() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "broken", "--", "sh", "-c", "echo no such table >&2; exit 3"]).fails_with(3);
    let said = sandbox.outlive(["why"]).succeeds();
    assert!(said.starts_with("broken has failed: exit code 3\n"), "{said}");
    let hint = said.split('`').nth(1).unwrap();
    let printed = sandbox.outlive(hint.split(' ').skip(1)).output().unwrap();
    assert_eq!(text(&printed.stderr), "no such table\n", "`{hint}`");
}

#[test]
fn t9_06_grep_with_its_words_swapped_names_the_right_call() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "chat", "--", "echo", "line 1"]).succeeds();
    let said = sandbox.outlive(["grep", "line 1", "chat"]).fails_with(2);
    assert!(said.contains("`outlive grep chat 'line 1'`"), "{said}");
    // Where neither is a run, the first word is the one that was not found.
    let said = sandbox.outlive(["grep", "nothing", "else"]).fails_with(101);
    assert!(said.contains("no run `nothing`"), "{said}");
}
