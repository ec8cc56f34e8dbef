//! Detached runs, and what is kept of what commands write.

use std::process::Stdio;

use serde_json::Value;

use super::sandbox::{Ends, Sandbox, signal_pid, text, until};

/// Waits until it is told to go on.
const WAIT: &str = "until [ -e go ]; do sleep 0.02; done";

fn go(sandbox: &Sandbox) {
    std::fs::write(sandbox.work().join("go"), "").unwrap();
}

fn detach(sandbox: &Sandbox, name: &str, script: &str) -> Value {
    let said = sandbox.outlive(["run", "-d", "--name", name, "--", "sh", "-c", script]).succeeds();
    let run = sandbox.show(name);
    assert_eq!(said.trim(), run["id"].as_str().unwrap(), "the id was not said");
    run
}

#[test]
fn r01_detached_run_prints_its_id_and_outlives_its_shell() {
    let sandbox = Sandbox::new();
    // A session of its own, whose processes all get a hangup, as when a terminal is closed.
    let script = format!("outlive run -d --name kept -- sh -c '{WAIT}; cat; echo done; exit 7'; kill -HUP 0");
    let mut shell = sandbox.command("setsid", ["-w", "sh", "-c", &script]);
    shell.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let run = sandbox.wait_for_state("kept", "running");
    let owner = run["owner_pid"].as_u64().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{owner}/stat")).unwrap();
    let session: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, owner, "it is in somebody else's session");
    go(&sandbox);
    assert_eq!(sandbox.outlive(["wait", "kept"]).status().unwrap().code(), Some(7));
    assert_eq!(
        sandbox.outlive(["logs", "kept"]).succeeds(),
        "done\n",
        "its input was not empty, or its output is lost"
    );
}

#[test]
fn detached_run_that_cannot_start_is_reported_to_its_caller() {
    let sandbox = Sandbox::new();
    let said = sandbox.outlive(["run", "-d", "--name", "none", "--", "/none/such"]).output().unwrap();
    assert_eq!(said.status.code(), Some(127), "{}", text(&said.stderr));
    assert!(text(&said.stderr).contains("`/none/such` cannot be executed"), "{}", text(&said.stderr));
    assert_eq!(sandbox.show("none")["error_type"], "spawn");
    detach(&sandbox, "holder", WAIT);
    sandbox.outlive(["cancel", "holder"]).succeeds();
    let locked = ["run", "-d", "--lock", "k", "--name", "first", "--", "sleep", "300"];
    sandbox.outlive(locked).succeeds();
    let refused = sandbox.outlive(["run", "-d", "--json", "--lock", "k", "--", "true"]).fails_with(105);
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["error"]["code"], "busy");
    sandbox.outlive(["cancel", "first", "--wait"]).succeeds();
}

#[test]
fn f_17_a_detached_command_writes_on_after_its_owner_was_killed() {
    let sandbox = Sandbox::new();
    let run = detach(&sandbox, "orphan", &format!("echo before; {WAIT}; echo after; echo error >&2"));
    let owner = u32::try_from(run["owner_pid"].as_u64().unwrap()).unwrap();
    until("the first line", || sandbox.outlive(["logs", "orphan"]).succeeds() == "before\n");
    signal_pid(owner, "KILL");
    sandbox.wait_for("orphan", |run| run["health"] == "orphaned");
    go(&sandbox);
    sandbox.wait_for_state("orphan", "dead");
    let shown = sandbox.outlive(["logs", "orphan"]).output().unwrap();
    assert_eq!((text(&shown.stdout), text(&shown.stderr)), ("before\nafter\n".into(), "error\n".into()));
}

#[test]
fn r04_attach_shows_the_rest_and_ends_as_the_run_ends() {
    let sandbox = Sandbox::new();
    detach(&sandbox, "watched", &format!("echo one; {WAIT}; echo two; exit 5"));
    until("the first line", || sandbox.outlive(["logs", "watched"]).succeeds() == "one\n");
    let attached = sandbox.outlive(["attach", "watched"]).stdout(Stdio::piped()).spawn().unwrap();
    go(&sandbox);
    let ended = attached.wait_with_output().unwrap();
    assert_eq!((text(&ended.stdout), ended.status.code()), ("one\ntwo\n".into(), Some(5)));
    let late = sandbox.outlive(["attach", "watched"]).output().unwrap();
    assert_eq!((text(&late.stdout), late.status.code()), ("one\ntwo\n".into(), Some(5)));
    assert!(text(&late.stderr).ends_with("has already ended: it has failed\n"), "{}", text(&late.stderr));
}

#[test]
fn output_to_a_pipe_or_terminal_is_kept_and_a_file_has_its_own() {
    let sandbox = Sandbox::new();
    let kept = |name: &str| {
        let shown = sandbox.outlive(["logs", name]).output().unwrap();
        (text(&shown.stdout), text(&shown.stderr))
    };
    let both = "echo out; echo err >&2";
    let piped = sandbox.outlive(["run", "--name", "piped", "--", "sh", "-c", both]).output().unwrap();
    assert_eq!((text(&piped.stdout), text(&piped.stderr)), ("out\n".into(), "err\n".into()));
    assert_eq!(kept("piped"), ("out\n".into(), "err\n".into()));
    sandbox.shell(&format!("outlive run --name merged -- sh -c '{both}' 2>&1 | cat > merged")).succeeds();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("merged")).unwrap(), "out\nerr\n");
    assert_eq!(kept("merged"), ("out\nerr\n".into(), String::new()), "one pipe is one stream, in its own order");
    let terminal = format!("script -qec \"outlive run --name shown -- sh -c '{both}; test -t 1'\" /dev/null");
    sandbox.shell(&format!("{terminal} > /dev/null")).succeeds();
    assert_eq!(kept("shown"), ("out\r\nerr\r\n".into(), String::new()));
    sandbox.shell(&format!("outlive run --name filed -- sh -c '{both}' > out 2> err")).succeeds();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("out")).unwrap(), "out\n");
    assert_eq!(kept("filed").0, "", "a file was copied");
    sandbox.outlive(["run", "--no-log", "--name", "secret", "--", "sh", "-c", both]).succeeds();
    assert_eq!(kept("secret").0, "", "it was kept though nobody wanted it");
}

#[test]
fn s_30_a_secret_that_a_command_writes_is_not_in_its_log() {
    const SECRET: &str = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let sandbox = Sandbox::new();
    let script = format!("echo before; printf ghp_abcdefghijklmnop; echo qrstuvwxyz0123456789; echo after; {WAIT}");
    go(&sandbox);
    let passed = sandbox.outlive(["run", "--name", "piped", "--", "sh", "-c", &script]).output().unwrap();
    assert!(text(&passed.stdout).contains(SECRET), "what is passed on was changed");
    detach(&sandbox, "detached", &script);
    sandbox.outlive(["wait", "detached"]).succeeds();
    for name in ["piped", "detached"] {
        let id = sandbox.show(name)["id"].as_str().unwrap().to_owned();
        let log = sandbox.registry().join("runs").join(id).join("attempts/0001.out");
        let kept = std::fs::read_to_string(log).unwrap();
        assert!(kept.starts_with("before\n") && kept.ends_with("after\n"), "{name}: {kept}");
        assert!(!kept.contains(SECRET) && kept.contains("***"), "{name}: {kept}");
    }
}

#[test]
fn r13_log_trouble_is_reported_once_and_not_to_the_command() {
    let sandbox = Sandbox::new();
    let script = format!("echo one; {WAIT}; for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done; exit 3");
    let mut run = sandbox.outlive(["run", "--name", "struck", "--", "sh", "-c", &script]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the first line", || sandbox.outlive(["logs", "struck"]).output().unwrap().stdout == b"one\n");
    let pid = run.id().to_string();
    // Its files can grow no more from here on.
    sandbox.command("prlimit", ["--fsize=4", "--pid", &pid]).succeeds();
    go(&sandbox);
    let ended = run.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert_eq!(text(&ended.stdout), "one\nline 1\nline 2\nline 3\nline 4\nline 5\n", "{said}");
    assert_eq!(said.matches("no longer kept").count(), 1, "{said}");
}

#[test]
fn notify_command_gets_the_outcome_and_delays_nothing() {
    let sandbox = Sandbox::new();
    let note = "cat > note.part; mv note.part note; until [ -e go ]; do sleep 0.02; done";
    let mut run = sandbox.outlive(["run", "--name", "told", "--notify", note, "--", "sh", "-c", "exit 4"]);
    assert_eq!(run.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().code(), Some(4));
    let path = sandbox.work().join("note");
    until("the note", || path.exists());
    let told: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!((&told["name"], &told["state"], &told["exit_code"]), (&"told".into(), &"failed".into(), &4.into()));
    go(&sandbox);
}

#[test]
fn a_detached_run_that_is_started_inside_another_is_none_of_it() {
    let sandbox = Sandbox::new();
    let inner = format!("env > variables; outlive progress 1/2; {WAIT}; exit 3");
    let outer = format!("outlive run -d --name inner -- sh -c '{inner}' > /dev/null; echo made; sleep 300");
    let ended = format!("outlive run -d --name other -- sh -c '{WAIT}'");
    detach(&sandbox, "outer", &outer);
    until("the inner one", || sandbox.outlive(["logs", "outer"]).succeeds() == "made\n");
    let inner = sandbox.wait_for("inner", |run| run["progress_done"] == 1);
    let variables = std::fs::read_to_string(sandbox.work().join("variables")).unwrap();
    assert!(variables.contains(&format!("OUTLIVE_RUN_ID={}\n", inner["id"].as_str().unwrap())), "{variables}");
    // What ends the outer one, with the last of its processes, does not end the inner one.
    sandbox.outlive(["cancel", "outer", "--wait"]).succeeds();
    assert_eq!(sandbox.show("outer")["leftover_pids"], serde_json::json!([]));
    assert_eq!(
        (&sandbox.show("inner")["state"], &sandbox.show("inner")["owner_pid"]),
        (&"running".into(), &inner["owner_pid"])
    );
    // Nor is it waited for.
    let words = ["run", "--name", "waits", "--wait-tree", "--", "sh", "-c", &ended];
    sandbox.outlive(words).stdout(Stdio::null()).succeeds();
    assert_eq!(sandbox.show("waits")["leftover_pids"], serde_json::json!([]));
    assert_eq!(sandbox.show("other")["state"], "running");
    go(&sandbox);
    assert_eq!(sandbox.outlive(["wait", "inner"]).status().unwrap().code(), Some(3));
    sandbox.outlive(["wait", "other"]).succeeds();
}
