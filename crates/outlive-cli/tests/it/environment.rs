//! The environment of a command: what later attempts are given of it, and where it never shows up.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::sandbox::{Ends, Sandbox, is_root, text};
use super::secrets::{all_bytes, all_said, files, holds};

const SECRET: &str = "canary-15-env";
/// Writes down which interpreter it is, and what it finds in its environment.
const PYTHON: &str = "python -c 'import os, sys; print(sys.prefix, os.environ.get(\"CUDA_VISIBLE_DEVICES\"), os.environ.get(\"API_TOKEN\"))' > ../found";

/// A virtual environment.
fn venv(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.path().join("venv");
    sandbox.command("python3", ["-m", "venv", "--without-pip", path.to_str().unwrap()]).succeeds();
    path.canonicalize().unwrap()
}

/// As a shell in which the virtual environment is activated.
fn activated(command: &mut Command, venv: &Path) {
    let path = format!("{}:{}", venv.join("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("VIRTUAL_ENV", venv).env("CUDA_VISIBLE_DEVICES", "2").env("API_TOKEN", SECRET);
    command.env("TERM", "canary-term");
}

/// As a daemon that knows nothing of the shell.
fn bare(sandbox: &Sandbox, words: &[&str]) -> Command {
    let mut command = sandbox.outlive(words);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("OUTLIVE_HOME", sandbox.home()).env("DAEMON", "yes");
    command
}

fn found(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path().join("found")).unwrap_or_default().trim().to_owned()
}

/// Ends its owner in the first attempt.
fn killed_once(then: &str) -> String {
    format!("if [ -e ../again ]; then {then}; else touch ../again; kill -9 $PPID; fi")
}

fn assert_nowhere(sandbox: &Sandbox) {
    let everything = [all_bytes(&sandbox.registry()), all_said(sandbox)].concat();
    assert!(!everything.is_empty() && !holds(&everything, SECRET), "a secret left the home");
}

#[test]
fn t1_15_queued_and_resumed_jobs_find_their_virtualenv() {
    let ways: [(&[&str], &[&str]); 3] = [
        (&["queue", "add"], &["work", "--drain"]),
        (&["run"], &["resume", "job"]),
        (&["run", "--resume-on", "crash"], &["supervise", "--once"]),
    ];
    for (make, execute) in ways {
        let sandbox = Sandbox::new();
        let venv = venv(&sandbox);
        let script = if make[0] == "run" { killed_once(PYTHON) } else { PYTHON.to_owned() };
        let words = [make, &["--name", "job", "--", "sh", "-c", &script]].concat();
        let mut making = sandbox.outlive(words);
        activated(&mut making, &venv);
        let made = making.output().unwrap();
        assert!(made.status.success() == (make[0] == "queue"), "{make:?}: {}", text(&made.stderr));
        let kept = files(&sandbox.home().join("environment"));
        // Queued runs share a content that each has a link to; a run that its caller started has a file of its own.
        assert_eq!(kept.len(), if make[0] == "queue" { 2 } else { 1 }, "{kept:?}");
        assert_nowhere(&sandbox);
        bare(&sandbox, execute).succeeds();
        sandbox.wait_for_state("job", "succeeded");
        assert_eq!(found(&sandbox), format!("{} 2 {SECRET}", venv.display()), "{make:?}, {execute:?}");
        super::sandbox::until("the kept environment to be deleted", || {
            files(&sandbox.home().join("environment")).is_empty()
        });
        assert_nowhere(&sandbox);
    }
}

#[test]
fn t1_15_modes_decide_what_a_later_attempt_is_given() {
    let script = "echo \"$MADE $DAEMON $TERM $FOO\" > ../found";
    for (mode, expected) in [("keep", "here  daemon set"), ("inherit", " yes daemon set"), ("clean", "   set")] {
        let sandbox = Sandbox::new();
        let words = ["queue", "add", "--env-mode", mode, "--env", "FOO=set", "--", "sh", "-c", script];
        sandbox.outlive(words).env("MADE", "here").env("TERM", "maker").succeeds();
        bare(&sandbox, &["work", "--drain"]).env("TERM", "daemon").succeeds();
        let found = std::fs::read_to_string(sandbox.path().join("found")).unwrap();
        assert_eq!(found.trim_end(), expected, "{mode}");
    }
}

#[test]
fn t1_15_on_another_host_only_listed_variables_are_handed_over() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let script = "echo \"$MADE $FOO $DAEMON\" > ../found";
    let words = ["queue", "add", "--name", "job", "--env", "FOO=set", "--", "sh", "-c", script];
    sandbox.outlive(words).env("MADE", "here").succeeds();
    let binary = super::sandbox::binary().display();
    let elsewhere = format!("hostname elsewhere && exec {binary} work --drain");
    let mut work = sandbox.command("unshare", ["--uts", "sh", "-ec", &elsewhere]);
    work.env("DAEMON", "yes").succeeds();
    assert_eq!(found(&sandbox), "set yes");
    let log = text(&sandbox.outlive(["logs", "job"]).output().unwrap().stderr);
    assert!(log.contains("the environment of this run was kept for") && log.contains("elsewhere"), "{log}");
}

#[test]
fn t1_14_env_sets_a_variable_and_keeps_those_that_match() {
    let sandbox = Sandbox::new();
    let script = "echo \"$FOO $CUDA_A $CUDA_B $API_TOKEN\" > ../found";
    let env = ["--env", "FOO=a=b", "--env", "CUDA_*", "--env", "API_TOKEN"];
    let words =
        |verb: &[&'static str]| [verb, &env, &["--env-mode", "inherit", "--name", "job", "--", "sh", "-c"]].concat();
    let with = |command: &mut Command| {
        command.env("CUDA_A", "1").env("CUDA_B", "2").env("API_TOKEN", SECRET);
    };
    // In the first attempt, and in one that another process executes.
    let mut run = sandbox.outlive(words(&["run"]).into_iter().chain([script]));
    with(&mut run);
    run.succeeds();
    assert_eq!(found(&sandbox), format!("a=b 1 2 {SECRET}"));
    let mut add = sandbox.outlive(words(&["queue", "add"]).into_iter().chain([script]));
    with(&mut add);
    add.succeeds();
    std::fs::remove_file(sandbox.path().join("found")).unwrap();
    bare(&sandbox, &["work", "--drain"]).succeeds();
    assert_eq!(found(&sandbox), format!("a=b 1 2 {SECRET}"));
    assert_nowhere(&sandbox);
    for (word, why) in
        [("NOT_SET_HERE", "NOT_SET_HERE=VALUE"), ("=x", "names no variable"), ("OUTLIVE_RUN_ID=x", "names no variable")]
    {
        let said = sandbox.outlive(["run", "--env", word, "--", "true"]).fails_with(2);
        assert!(said.contains(why), "{word}: {said}");
    }
}

#[test]
fn t1_15_no_secret_of_an_environment_is_sent_over_http() {
    let sandbox = Sandbox::new();
    let mut add = sandbox.outlive(["queue", "add", "--name", "job", "--", "sh", "-c", "env >/dev/null; exit 3"]);
    add.env("API_TOKEN", SECRET).succeeds();
    bare(&sandbox, &["work", "--drain"]).fails_with(1);
    let served = super::served::Served::start(&sandbox, &[]);
    for (call, input) in [("ps", serde_json::json!({ "all": true })), ("show", serde_json::json!({ "run": "job" }))] {
        let answer = served.post(&format!("/v1/{call}"), &input).body;
        assert!(answer.contains("\"job\"") && !answer.contains(SECRET), "{call}: {answer}");
    }
}
