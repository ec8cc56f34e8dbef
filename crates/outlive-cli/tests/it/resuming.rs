//! Runs that go on: by a person, once, with what the last attempt left.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, Started, is_alive, text, until};

/// Notes each attempt and what it was handed, leaves something for the next, and ends with the second.
const JOB: &str = "echo \"$OUTLIVE_ATTEMPT ${OUTLIVE_CHECKPOINT:-none}\" >> log; \
                   outlive checkpoint set \"{\\\"left_by\\\":$OUTLIVE_ATTEMPT}\"; touch set; \
                   [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";

fn log(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.work().join("log")).unwrap_or_default()
}

/// Everything that carries this sandbox in its environment.
pub(crate) fn processes(sandbox: &Sandbox) -> Vec<u32> {
    let mark = format!("OUTLIVE_HOME={}", sandbox.home().display());
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let carries = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(carries).filter(|pid| is_alive(*pid)).collect()
}

/// Kills everything of this sandbox, as a power cut does. A process whose first thread has ended may have others that still
/// hold its locks: it is gone with the last of them.
pub(crate) fn kill_everything(sandbox: &Sandbox) {
    let mut killed = std::collections::BTreeSet::new();
    until("everything to be gone", || {
        let left = processes(sandbox);
        // Stopped first, so that nobody lives to tell how another ended.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &left {
                // It may have ended by itself.
                let _ = kill_process(Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap(), signal);
            }
        }
        killed.extend(left.iter().copied());
        let threads = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        killed.retain(|pid| threads(pid) > 1 || is_alive(*pid));
        left.is_empty() && killed.is_empty()
    });
}

/// A run whose owner and command were killed after it had left something.
fn dead_run(sandbox: &Sandbox, name: &str, flags: &[&str]) {
    let words = ["run", "-d", "--name", name].into_iter().chain(flags.iter().copied());
    sandbox.outlive(words.chain(["--", "sh", "-c", JOB])).succeeds();
    until("the first attempt to leave something", || sandbox.work().join("set").exists());
    kill_everything(sandbox);
}

#[test]
fn r06_concurrent_resumes_start_one_attempt() {
    let sandbox = Sandbox::new();
    dead_run(&sandbox, "train", &[]);
    let resumers: Vec<_> = (0..8)
        .map(|_| {
            sandbox
                .outlive(["resume", "train"])
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let told: Vec<String> =
        resumers.into_iter().map(|resumer| text(&resumer.wait_with_output().unwrap().stdout)).collect();
    sandbox.outlive(["wait", "train"]).succeeds();
    let won = told.iter().filter(|told| told.contains("resumed, attempt 2")).count();
    println!("{won} of 8 resumed it, {} were told that they did not", 8 - won);
    assert_eq!(won, 1, "{told:?}");
    assert_eq!(log(&sandbox), "1 none\n2 {\"left_by\":1}\n");
    let run = sandbox.show("train");
    assert_eq!((&run["state"], &run["attempt"], &run["exit_code"]), (&"succeeded".into(), &2.into(), &0.into()));
}

#[test]
fn r07_resuming_a_healthy_system_100_times_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "failed", "--", "false"]).fails_with(1);
    let _running: Started = sandbox.start("running", &["sleep", "300"]);
    let mut cancelled = sandbox.start("cancelled", &["sleep", "300"]);
    sandbox.outlive(["cancel", "cancelled"]).succeeds();
    cancelled.wrapper.wait().unwrap();
    let records = || -> Vec<(String, i64)> {
        let database = rusqlite::Connection::open(sandbox.database()).unwrap();
        let mut rows = database.prepare("SELECT id, revision FROM runs ORDER BY id").unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    let before = records();
    let nothing = "nothing to resume\nnext: `outlive resume --all --failed` also resumes runs that failed\n";
    for _ in 0..100 {
        assert_eq!(sandbox.outlive(["resume"]).succeeds(), nothing);
    }
    for name in ["done", "running"] {
        assert_eq!(sandbox.outlive(["resume", name]).succeeds(), "nothing to resume\n");
    }
    assert_eq!(records(), before);
    assert_eq!(before.len(), 4);
    // What a person stopped is not revived, by whatever name it is called.
    sandbox.outlive(["resume", "cancelled", "--failed"]).fails_with(103);
}

#[test]
fn r07_a_dry_run_says_what_would_be_resumed_and_changes_nothing() {
    let sandbox = Sandbox::new();
    dead_run(&sandbox, "train", &[]);
    let told = sandbox.outlive(["resume", "--all", "--dry-run"]).succeeds();
    assert!(told.contains("train would be resumed, attempt 2"), "{told}");
    assert_eq!(sandbox.show("train")["attempt"], 1);
    let asked: Value = sandbox.outlive(["resume", "--all", "--dry-run", "--json"]).json();
    assert_eq!((&asked["dry_run"], &asked["resumed"][0]["attempt"]), (&true.into(), &2.into()));
    assert_eq!(log(&sandbox), "1 none\n");
}

#[test]
fn f_91_resume_is_refused_while_an_old_process_lives() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "train", "--", "sh", "-c", JOB]).succeeds();
    until("the first attempt to leave something", || sandbox.work().join("set").exists());
    let owner = sandbox.show("train")["owner_pid"].as_u64().unwrap();
    super::sandbox::signal_pid(u32::try_from(owner).unwrap(), "KILL");
    let orphaned = sandbox.wait_for("train", |run| run["health"] == "orphaned");
    let left: Vec<u32> = orphaned["leftover_pids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap())
        .collect();
    assert!(!left.is_empty());
    let refused = sandbox.outlive(["resume", "train"]).fails_with(103);
    assert!(refused.contains("still alive") && refused.contains("--end-leftovers"), "{refused}");
    assert!(left.iter().all(|pid| is_alive(*pid)), "refusing ended something");
    sandbox.outlive(["resume", "train", "--end-leftovers"]).succeeds();
    assert!(!left.iter().any(|pid| is_alive(*pid)), "two copies ran at once");
    sandbox.outlive(["wait", "train"]).succeeds();
    assert_eq!(log(&sandbox), "1 none\n2 {\"left_by\":1}\n");
}

#[test]
fn f_91_failed_attempt_with_live_processes_is_not_retried() {
    let sandbox = Sandbox::new();
    let job = "echo $OUTLIVE_ATTEMPT >> tries; [ $OUTLIVE_ATTEMPT -gt 1 ] && exit 0; sleep 300 & exit 1";
    let words = ["run", "-d", "--name", "job", "--retry", "3", "--backoff", "1ms", "--", "sh", "-c", job];
    sandbox.outlive(words).succeeds();
    let waits =
        sandbox.wait_for("job", |run| run["state"] == "pending" && run["leftover_pids"] != serde_json::json!([]));
    assert!(
        waits["reason"].as_str().unwrap().starts_with("waits for what is left of its last attempt: pid"),
        "{waits}"
    );
    let refused = sandbox.outlive(["resume", "job"]).fails_with(103);
    assert!(refused.contains("still alive"), "{refused}");
    let left = u32::try_from(waits["leftover_pids"][0].as_u64().unwrap()).unwrap();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("tries")).unwrap(), "1\n");
    super::sandbox::signal_pid(left, "KILL");
    sandbox.outlive(["wait", "job"]).succeeds();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("tries")).unwrap(), "1\n2\n");
}

#[test]
fn run_stopped_from_a_keyboard_resumes_only_by_name() {
    let sandbox = Sandbox::new();
    let mut stopped = sandbox.start("stopped", &["sh", "-c", JOB]);
    until("the first attempt to leave something", || sandbox.work().join("set").exists());
    stopped.signal("INT");
    stopped.wrapper.wait().unwrap();
    assert_eq!(sandbox.show("stopped")["state"], "interrupted");
    assert_eq!(sandbox.outlive(["resume", "--all"]).succeeds(), "nothing to resume\n");
    sandbox.outlive(["resume", "stopped"]).succeeds();
    sandbox.outlive(["wait", "stopped"]).succeeds();
    assert_eq!(log(&sandbox), "1 none\n2 {\"left_by\":1}\n");
}

#[test]
fn run_with_resume_on_never_resumes_only_by_name() {
    let sandbox = Sandbox::new();
    dead_run(&sandbox, "once", &["--resume-on", "never"]);
    assert_eq!(sandbox.outlive(["resume"]).succeeds(), "nothing to resume\n");
    sandbox.outlive(["resume", "once"]).succeeds();
    sandbox.outlive(["wait", "once"]).succeeds();
}

#[test]
fn r08_failing_run_is_retried_up_to_its_limit_and_then_failed() {
    let sandbox = Sandbox::new();
    let fails = "echo $OUTLIVE_ATTEMPT >> tries; exit 3";
    let mut run =
        sandbox.outlive(["run", "--name", "fails", "--retry", "2", "--backoff", "10ms", "--", "sh", "-c", fails]);
    let told = run.fails_with(3);
    assert!(told.contains("attempt 2 begins in") && told.contains("attempt 3 begins in"), "{told}");
    let tries = || std::fs::read_to_string(sandbox.work().join("tries")).unwrap();
    assert_eq!(tries(), "1\n2\n3\n");
    let failed = sandbox.show("fails");
    assert_eq!((&failed["state"], &failed["failures"], &failed["attempt"]), (&"failed".into(), &3.into(), &3.into()));
    assert_eq!(failed["reason"], "exit code 3 (no attempts left)");
    let refused = sandbox.outlive(["resume", "fails", "--failed"]).fails_with(103);
    assert!(refused.contains("no attempts left"), "{refused}");

    std::fs::remove_file(sandbox.work().join("tries")).unwrap();
    let words = ["run", "--name", "hopeless", "--retry", "5", "--permanent", "3", "--", "sh", "-c", fails];
    sandbox.outlive(words).fails_with(3);
    assert_eq!(tries(), "1\n", "a failure that no attempt would change was tried again");
    assert_eq!(sandbox.show("hopeless")["reason"], "exit code 3 (permanent)");
    sandbox
        .outlive(["run", "--retry", "5", "--backoff", "1ms", "--", "sh", "-c", "[ $OUTLIVE_ATTEMPT -ge 3 ]"])
        .succeeds();
}

#[test]
fn keyboard_stop_between_attempts_ends_the_run() {
    let sandbox = Sandbox::new();
    for (signal, state) in [("INT", "cancelled"), ("TERM", "pending")] {
        let words = ["run", "--name", state, "--retry", "5", "--backoff", "1h", "--", "false"];
        let mut run = sandbox.outlive(words).stderr(std::process::Stdio::null()).spawn().unwrap();
        sandbox.wait_for_state(state, "pending");
        super::sandbox::signal_pid(run.id(), signal);
        run.wait().unwrap();
        sandbox.wait_for_state(state, state);
    }
    // What waits for its time goes on at once where somebody asks for it.
    assert!(sandbox.outlive(["resume", "pending"]).succeeds().contains("attempt 2"));
    sandbox.wait_for("pending", |run| run["failures"] == 2);
    sandbox.outlive(["cancel", "pending"]).succeeds();
}

/// A run that costs its owners their lives, until it is parked.
pub(crate) fn park(sandbox: &Sandbox, name: &str) {
    let words = ["run", "-d", "--name", name, "--resume-on", "crash", "--backoff", "1ms", "--"];
    let poison = ["sh", "-c", "echo $OUTLIVE_ATTEMPT >> tries; kill -9 $PPID"];
    // It may be so quick that nobody hears that it has begun.
    sandbox.outlive(words.iter().chain(&poison)).output().unwrap();
    until("it to be parked", || {
        sandbox.outlive(["reap"]).succeeds();
        let run = sandbox.show(name);
        if run["state"] == "pending" {
            // Whoever starts it sees it die, or does not.
            sandbox.outlive(["resume", name]).output().unwrap();
        }
        run["state"] == "suspended"
    });
}

#[test]
fn f_90_run_that_kills_its_owners_is_parked_for_a_person() {
    let sandbox = Sandbox::new();
    park(&sandbox, "poison");
    let parked = sandbox.show("poison");
    for (status, wanted) in [("parked", 1), ("suspended", 1), ("dead", 0)] {
        let listed = sandbox.outlive(["ps", "--status", status, "--json"]).succeeds();
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed["runs"].as_array().unwrap().len(), wanted, "{status}: {listed}");
    }
    assert!(parked["reason"].as_str().unwrap().starts_with("parked: 10 of its attempts were reaped"), "{parked}");
    let tries = std::fs::read_to_string(sandbox.work().join("tries")).unwrap();
    assert_eq!(tries.lines().count(), 10);
    let refused = sandbox.outlive(["resume", "poison"]).fails_with(103);
    assert!(refused.contains("suspended"), "{refused}");
    sandbox.outlive(["unpark", "poison"]).succeeds();
    let waiting = sandbox.show("poison");
    assert_eq!((&waiting["state"], &waiting["reaps"]), (&"pending".into(), &0.into()));
    sandbox.outlive(["cancel", "poison"]).succeeds();
}

#[test]
fn s_46_later_attempt_warns_of_another_program() {
    let sandbox = Sandbox::new();
    let program = sandbox.work().join("tool");
    let write = |text: &str| {
        std::fs::write(&program, text).unwrap();
        std::process::Command::new("chmod").arg("+x").arg(&program).status().unwrap();
    };
    write("#!/bin/sh\necho one >> out\nexec sleep 300\n");
    let path = format!("{}:{}", sandbox.work().display(), std::env::var("PATH").unwrap());
    let mut run = sandbox.outlive(["run", "-d", "--name", "tool", "--env", "KEPT", "--", "tool"]);
    let outlive = super::sandbox::binary().parent().unwrap().display().to_string();
    run.env("PATH", format!("{outlive}:{path}")).env("KEPT", "as it was").succeeds();
    until("it to begin", || sandbox.has_line("out"));
    kill_everything(&sandbox);
    write("#!/bin/sh\necho \"two $KEPT\" >> out\n");
    // The program is not on the path of whoever resumes it, and is found all the same.
    let told = sandbox.outlive(["resume", "tool"]).env("KEPT", "as it is").succeeds();
    assert!(told.contains("has changed since run"), "{told}");
    sandbox.outlive(["wait", "tool"]).succeeds();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("out")).unwrap(), "one\ntwo as it was\n");
}

#[test]
fn checkpoint_of_ten_megabytes_is_refused_and_the_last_stays() {
    let sandbox = Sandbox::new();
    let script = "outlive checkpoint set 1; \
                  python3 -c 'print(\"\\\"\" + \"x\" * 10_000_000 + \"\\\"\")' > large; \
                  outlive checkpoint set - < large; echo $? > status; outlive checkpoint get > kept";
    sandbox.outlive(["run", "--name", "large", "--", "sh", "-c", script]).output().unwrap();
    let read = |name: &str| std::fs::read_to_string(sandbox.work().join(name)).unwrap();
    assert_ne!(read("status").trim(), "0");
    assert_eq!(read("kept").trim(), "1");
}

#[test]
fn r04_wait_for_a_retried_run_ends_with_its_last_attempt() {
    let sandbox = Sandbox::new();
    let job = "echo attempt $OUTLIVE_ATTEMPT; [ $OUTLIVE_ATTEMPT -gt 1 ] && exit 7; echo > begun; exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "job", "--resume-on", "crash", "--", "sh", "-c", job]).succeeds();
    until("it to have begun", || sandbox.has_line("begun"));
    kill_everything(&sandbox);
    let dead = sandbox.show("job");
    assert_eq!(dead["state"], "dead");
    let reason = dead["reason"].as_str().unwrap();
    assert!(reason.ends_with("; a worker or supervisor tries it again"), "{reason}");
    let waited = sandbox.outlive(["wait", "job", "--timeout", "200ms"]).output().unwrap();
    assert_eq!(waited.status.code(), Some(1));
    assert!(text(&waited.stdout).ends_with("has not ended yet\n"), "{}", text(&waited.stdout));
    let mut followed = sandbox.outlive(["logs", "-f", "--exit-status", "job"]).stdout(Stdio::piped()).spawn().unwrap();
    let (mut lines, mut first) = (BufReader::new(followed.stdout.take().unwrap()), String::new());
    lines.read_line(&mut first).unwrap();
    sandbox.outlive(["supervise", "--once"]).succeeds();
    sandbox.outlive(["wait", "job"]).fails_with(7);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!((first.as_str(), rest.as_str()), ("attempt 1\n", "attempt 2\n"));
    assert_eq!(followed.wait().unwrap().code(), Some(7));
}

#[test]
fn t1_21_resume_by_name_prefers_the_bearer_that_can_be_resumed() {
    let sandbox = Sandbox::new();
    let script = "if [ -e again ]; then echo > resumed; else touch again; kill -9 $PPID; fi";
    assert!(!sandbox.outlive(["run", "--name", "twin", "--", "sh", "-c", script]).output().unwrap().status.success());
    let dead = sandbox.wait_for_state("twin", "dead")["id"].clone();
    let _running = sandbox.start("twin", &["sleep", "300"]);
    let resumed = sandbox.outlive(["resume", "twin", "--json"]).json();
    assert_eq!(resumed["resumed"][0]["id"], dead);
    crate::sandbox::until("the dead bearer to be resumed", || sandbox.work().join("resumed").exists());
}
