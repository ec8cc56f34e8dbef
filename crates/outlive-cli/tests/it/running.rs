//! A run from its start to its end: exit status, signals, cancel, death and its evidence.

use std::os::unix::process::ExitStatusExt;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};

#[test]
fn the_exit_status_is_the_commands_own() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 7, 125, 255] {
        let ended = sandbox.outlive(["run", "--", "sh", "-c", &format!("exit {code}")]).status().unwrap();
        assert_eq!(ended.code(), Some(code));
    }
    let killed = sandbox.outlive(["run", "--name", "killed", "--", "sh", "-c", "kill -9 $$"]).status().unwrap();
    assert_eq!(killed.signal(), Some(9), "the shell could not see that a signal ended it");
    let run = sandbox.show("killed");
    assert_eq!((&run["state"], &run["signal"], &run["error_type"]), (&"failed".into(), &9.into(), &"signal".into()));
}

#[test]
fn the_command_has_its_streams_and_the_runs_environment() {
    let sandbox = Sandbox::new();
    let script = "echo in=$(cat); echo err >&2; echo id=$OUTLIVE_RUN_ID attempt=$OUTLIVE_ATTEMPT epoch=$OUTLIVE_EPOCH; echo \"$@\"";
    let mut command = sandbox.outlive(["run", "--name", "streams", "--", "sh", "-c", script, "sh", "a  b", "*"]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"given").unwrap();
    let output = child.wait_with_output().unwrap();
    let id = sandbox.show("streams")["id"].as_str().unwrap().to_owned();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("in=given\nid={id} attempt=1 epoch=1\na  b *\n"));
    assert_eq!(output.stderr, b"err\n");
}

#[test]
fn ended_owner_frees_its_lock_and_a_killed_one_keeps_it() {
    let sandbox = Sandbox::new();
    let locks = || {
        let names = std::fs::read_dir(sandbox.registry().join("workers")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    for _ in 0..3 {
        sandbox.outlive(["run", "--", "true"]).succeeds();
        assert_eq!(locks(), ["free"]);
    }
    let mut died = sandbox.start("died", &["sleep", "300"]);
    let own = format!("{}.lock", sandbox.show("died")["owner"].as_str().unwrap());
    assert_eq!(locks(), std::slice::from_ref(&own), "the lock of those before was not taken");
    died.signal("KILL");
    died.wrapper.wait().unwrap();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    assert_eq!(locks(), [own, "free".into()]);
    let seen = sandbox.show("died");
    assert!(seen["health"] == "orphaned" || seen["state"] == "dead", "{seen}");
}

#[test]
fn l18_a_signal_to_the_owner_interrupts_its_run_alone() {
    let sandbox = Sandbox::new();
    let other = sandbox.start("other", &["sleep", "300"]);
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let mut run = sandbox.start(signal, &["sleep", "300"]);
        run.signal(signal);
        let status = run.wrapper.wait().unwrap();
        assert_eq!(status.signal().map(|signal| 128 + signal).or(status.code()), Some(128 + number));
        let seen = sandbox.show(signal);
        assert_eq!(
            (&seen["state"], &seen["reason"]),
            (&"interrupted".into(), &format!("stopped by SIG{signal}").into())
        );
    }
    assert_eq!(sandbox.show("other")["state"], "running");
    drop(other);
}

#[test]
fn t1_11_exit_status_decides_unless_the_signal_killed() {
    let sandbox = Sandbox::new();
    for (signal, exits_with, state) in
        [("TERM", 0, "succeeded"), ("INT", 0, "succeeded"), ("TERM", 3, "failed"), ("TERM", 143, "interrupted")]
    {
        let name = format!("{signal}-{exits_with}");
        let _ = std::fs::remove_file(sandbox.work().join("ready"));
        let handles = format!("trap 'exit {exits_with}' TERM INT; echo > ready; while :; do sleep 0.1; done");
        let mut run = sandbox.start(&name, &["sh", "-c", &handles]);
        until("the trap to be set", || sandbox.work().join("ready").exists());
        run.signal(signal);
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(exits_with), "the exit status is not the command's own");
        let seen = sandbox.show(&name);
        assert_eq!((&seen["state"], &seen["exit_code"]), (&state.into(), &exits_with.into()), "{seen}");
    }
}

#[test]
fn r05_cancel_stops_the_run_and_says_who_asked() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("doomed", &["sleep", "300"]);
    let said = sandbox.outlive(["cancel", "doomed", "--reason", "wrong data", "--json"]).json();
    assert_eq!(said["runs"][0]["outcome"], "cancel_requested");
    run.wrapper.wait().unwrap();
    let seen = sandbox.show("doomed");
    assert_eq!(seen["state"], "cancelled");
    assert!(seen["reason"].as_str().unwrap().ends_with("wrong data"), "{seen}");
    let refused = sandbox.outlive(["cancel", "doomed"]).fails_with(103);
    assert!(refused.contains("it was already cancelled"), "{refused}");
    assert_eq!(sandbox.outlive(["cancel", "--all", "--yes", "--json"]).json()["runs"], serde_json::json!([]));
}

#[test]
fn l17_a_run_past_its_timeout_is_ended_with_that_reason() {
    let sandbox = Sandbox::impatient();
    let said = sandbox.outlive(["run", "--name", "slow", "--timeout", "300ms", "--", "sleep", "300"]).output().unwrap();
    assert!(!said.status.success());
    let run = sandbox.show("slow");
    assert_eq!((&run["state"], &run["error_type"]), (&"failed".into(), &"timeout".into()));
}

#[test]
fn l06_killed_owner_is_dead_at_the_next_read_with_evidence() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("victim", &["sleep", "300"]);
    let child = child_of(run.pid());
    run.kill();
    signal_pid(child, "KILL");
    until("the child to be gone", || !is_alive(child));
    let database = std::fs::read(sandbox.database()).unwrap();
    let seen = sandbox.show("victim");
    assert_eq!(seen["state"], "dead");
    assert_eq!(seen["reason"], "its owner is gone: the lock it held is free");
    assert!(sandbox.outlive(["why", "victim"]).succeeds().contains("not recorded yet"));
    assert_eq!(std::fs::read(sandbox.database()).unwrap(), database, "a read wrote");
    let reaped = sandbox.outlive(["reap", "--json"]).json();
    assert_eq!(reaped["reaped"].as_array().unwrap().len(), 1);
    assert_eq!(sandbox.outlive(["reap", "--json"]).json()["reaped"], serde_json::json!([]));
}

#[test]
fn f_01_r02_live_tree_is_orphaned_and_named_until_cancelled() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("parent", &["sh", "-c", "setsid sleep 301 & sleep 302"]);
    let child = child_of(run.pid());
    until("both of its children to run", || {
        let listed = sandbox.command("pgrep", ["-P", &child.to_string()]).output().unwrap();
        listed.stdout.iter().filter(|byte| **byte == b'\n').count() == 2
    });
    run.kill();
    let seen = sandbox.show("parent");
    assert_eq!((&seen["state"], &seen["health"]), (&"running".into(), &"orphaned".into()));
    let pids: Vec<u64> = seen["leftover_pids"].as_array().unwrap().iter().map(|pid| pid.as_u64().unwrap()).collect();
    assert!(pids.len() == 3 && pids.contains(&child.into()), "{seen}");
    let reaped = sandbox.outlive(["reap", "--json"]).json();
    assert_eq!((&reaped["reaped"], reaped["orphaned"].as_array().unwrap().len()), (&serde_json::json!([]), 1));
    assert_eq!(sandbox.outlive(["cancel", "parent", "--json"]).json()["runs"][0]["outcome"], "cancelled");
    assert!(pids.iter().all(|pid| !is_alive(*pid as u32)), "a process of the tree was left");
}

#[test]
fn a_lock_lets_one_run_in_and_frees_with_its_end() {
    let sandbox = Sandbox::new();
    let words = ["run", "--lock", "db", "--", "true"];
    let mut holder =
        sandbox.outlive(["run", "--name", "holder", "--lock", "db", "--", "sleep", "300"]).spawn().unwrap();
    sandbox.wait_for_state("holder", "running");
    let refused = sandbox.outlive(words).fails_with(105);
    assert!(refused.contains("key `db` is held by"), "{refused}");
    signal_pid(holder.id(), "TERM");
    holder.wait().unwrap();
    sandbox.outlive(words).succeeds();
}

#[test]
fn a_lock_is_alone_whatever_limit_others_ask_for() {
    let sandbox = Sandbox::new();
    let mut holder =
        sandbox.outlive(["run", "--name", "holder", "--lock", "db", "--", "sleep", "300"]).spawn().unwrap();
    sandbox.wait_for_state("holder", "running");
    sandbox.outlive(["run", "--max-concurrent", "db=2", "--", "true"]).fails_with(105);
    // A holder that was killed keeps nobody out.
    let child = child_of(holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    signal_pid(child, "KILL");
    until("the child to be gone", || !is_alive(child));
    sandbox.outlive(["run", "--max-concurrent", "db=2", "--", "true"]).succeeds();
}

#[test]
fn r03_cancel_and_timeout_end_the_whole_tree() {
    let sandbox = Sandbox::impatient();
    let script = "setsid sleep 311 & env -i sleep 312 & echo $! > stripped; sleep 313; true";
    let mut run = sandbox.start("cancelled", &["sh", "-c", script]);
    let stripped =
        || std::fs::read_to_string(sandbox.work().join("stripped")).ok().and_then(|pid| pid.trim().parse().ok());
    until("the tree to be there", || stripped().is_some());
    sandbox.outlive(["cancel", "cancelled"]).succeeds();
    run.wrapper.wait().unwrap();
    assert_eq!(sandbox.show("cancelled")["state"], "cancelled");
    assert!(!is_alive(stripped().unwrap()), "a process without its environment was left");
    let left = sandbox
        .shell("grep -l -z -s \"^OUTLIVE_REGISTRY=sqlite:$PWD/.outlive$\" /proc/[0-9]*/environ || true")
        .succeeds();
    assert_eq!(left, "", "processes of the tree were left");
}

#[test]
fn a_silent_owner_is_ended_by_force_with_its_tree() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("silent", &["sleep", "314"]);
    let child = child_of(run.pid());
    run.signal("STOP");
    sandbox.wait_for("silent", |run| run["health"] == "unresponsive");
    let said = sandbox.outlive(["cancel", "silent"]).succeeds();
    assert!(said.contains("is silent: `outlive cancel --force"), "{said}");
    assert_eq!(sandbox.outlive(["cancel", "--force", "silent", "--json"]).json()["runs"][0]["outcome"], "cancelled");
    run.wrapper.wait().unwrap();
    until("the child to be gone", || !is_alive(child));
}

#[test]
fn names_beginnings_and_at_words_find_a_run() {
    let sandbox = Sandbox::new();
    for name in ["first", "second", "third"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    let id = sandbox.show("second")["id"].as_str().unwrap().to_owned();
    for word in [&id, "second", "@~1", &id[..30]] {
        assert_eq!(sandbox.show(word)["id"], *id, "{word}");
    }
    assert_eq!(sandbox.show("@last")["name"], "third");
    assert!(sandbox.outlive(["show", "01"]).fails_with(102).contains("names several runs"));
}

/// The only child of a process.
pub(crate) fn child_of(pid: u32) -> u32 {
    let children = || std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    until("the command to be started", || !children().trim().is_empty());
    children().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn f_19_what_the_caller_ignored_stays_ignored() {
    let sandbox = Sandbox::new();
    let script = "trap '' HUP; outlive run --name deaf -- sh -c 'while [ ! -e go ]; do sleep 0.05; done; exit 6' & echo $! > pid; wait $!";
    let mut shell = sandbox.shell(script).spawn().unwrap();
    sandbox.wait_for_state("deaf", "running");
    let pid = sandbox.show("deaf")["owner_pid"].as_u64().unwrap();
    signal_pid(pid as u32, "HUP");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(6));
    assert_eq!(sandbox.show("deaf")["exit_code"], 6);
}

#[test]
fn f_47_run_that_deletes_its_own_registry_is_still_recorded() {
    let sandbox = Sandbox::new();
    let ended =
        sandbox.outlive(["run", "--name", "vandal", "--", "sh", "-c", "rm -rf .outlive; exit 4"]).output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned()), (Some(4), String::new()));
    assert_eq!(sandbox.show("vandal")["exit_code"], 4);
}

#[test]
fn t1_22_aliases_and_the_last_run_by_default() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "late", "--", "echo", "said"]).succeeds();
    sandbox.wait_for_state("late", "succeeded");
    assert!(sandbox.outlive(["show"]).succeeds().contains("late"));
    assert_eq!(sandbox.outlive(["logs"]).succeeds(), "said\n");
    assert!(sandbox.outlive(["status", "--all"]).succeeds().contains("late"));
    let _run = sandbox.start("stops", &["sleep", "300"]);
    sandbox.outlive(["stop", "stops", "--wait", "--grace", "1s"]).succeeds();
    assert_eq!(sandbox.show("stops")["state"], "cancelled");
}
