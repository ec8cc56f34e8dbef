//! Runs that a worker adds for the process that asks it at its socket, beside those that the process adds itself.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::resuming::kill_everything;
use super::sandbox::{Ends, Sandbox, is_root, signal_pid, text, until};

/// The system calls by which a worker answers and reaches the disk.
const CALLS: &str = "pwrite64,write,sendto,fdatasync,fsync,linkat,mkdirat,unlinkat,ftruncate,fallocate,execve";

/// A worker that stands by, and listens.
struct Standing(Child);

impl Standing {
    fn start(sandbox: &Sandbox, flags: &[&str]) -> Self {
        let mut command = sandbox.outlive(["work"].iter().chain(flags));
        let worker = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        until("a slot to be there", || has_slot(sandbox));
        worker
    }

    /// Sends a signal to the worker and its slots.
    fn signal(&self, name: &str) {
        let pid = self.0.id();
        let slots = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let slots = slots.split_whitespace().map(|pid| pid.parse().unwrap());
        slots.chain([pid]).for_each(|pid| signal_pid(pid, name));
    }
}

/// Whether a slot is there. A worker listens before its slots are.
fn has_slot(sandbox: &Sandbox) -> bool {
    text(&sandbox.outlive(["workers", "--json"]).output().unwrap().stdout).contains("\"id\"")
}

/// Starts a worker of which a process is killed at its call of that number, and what it says.
fn start_with_kill(sandbox: &Sandbox, point: usize) -> (Child, PathBuf) {
    let inject = format!("inject={CALLS}:signal=SIGKILL:when={point}");
    let (trace, spoken) = (format!("trace={CALLS}"), sandbox.path().join("spoken"));
    let strace = ["-qq", "-f", "-o", "/dev/null", "-e", &trace, "-e", &inject, "outlive", "work"];
    let output = std::fs::File::create(&spoken).unwrap();
    let mut command: Command = sandbox.command("strace", strace);
    (command.stdout(Stdio::null()).stderr(output).spawn().expect("strace is installed"), spoken)
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The files of the registry's database that a call opens, as the kernel sees it.
fn opened(sandbox: &Sandbox, words: &[&str]) -> (Vec<String>, String) {
    let trace = sandbox.path().join("trace");
    let strace = ["-qq", "-f", "-e", "trace=openat", "-o", trace.to_str().unwrap(), "outlive"];
    let said = sandbox.command("strace", strace.iter().chain(words)).succeeds();
    let traced = std::fs::read_to_string(trace).unwrap();
    (traced.lines().filter(|line| line.contains("registry.db")).map(str::to_owned).collect(), said)
}

/// Whether the worker made a run and owned it in the same write: no claim of its first attempt is on disk.
fn is_made_by_worker(sandbox: &Sandbox, name: &str) -> bool {
    let id = sandbox.show(name)["id"].as_str().unwrap().to_owned();
    !std::fs::exists(sandbox.registry().join("runs").join(id).join("attempts/0001.running-1.json")).unwrap()
}

/// What an attempt has used, which no two attempts share.
const USAGE: [&str; 6] = ["cpu_ms", "memory_bytes", "peak_memory_bytes", "read_bytes", "written_bytes", "processes"];

/// A run as it is on record, without what two runs of the same command differ in.
fn settled(run: &Value) -> Value {
    fn settle(name: &str, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| settle(name, value)),
            Value::Array(values) => values.iter_mut().for_each(|value| settle(name, value)),
            _ if USAGE.contains(&name) => *value = "[SETTLED]".into(),
            Value::Null => {}
            _ if ["id", "path", "duration_ms"].contains(&name) || name.ends_with("_at") => *value = "[SETTLED]".into(),
            _ => {}
        }
    }
    let mut run = run.clone();
    settle("", &mut run);
    run
}

#[test]
fn a_run_added_by_a_worker_is_as_one_added_by_its_caller() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let worker = Standing::start(&sandbox, &[]);
    let words = |name| {
        let flags = ["queue", "add", "--wait", "--label", "api_key=canary", "--priority", "3", "--name", name];
        flags.into_iter().chain(["--", "sh", "-c", "echo $GIVEN; exit 4", "--password", "canary"]).collect::<Vec<_>>()
    };
    let add = |name| {
        let mut command = sandbox.outlive(words(name));
        let output = command.env("GIVEN", "kept").output().unwrap();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(4), "{said}{}", text(&output.stderr));
        assert_eq!(sandbox.outlive(["logs", name]).succeeds(), "kept\n", "{name} had another environment");
        said.lines().last().unwrap().replace(name, "[NAME]")
    };
    let by_worker = add("by-worker");
    // Without its name the socket is not found.
    for socket in std::fs::read_dir(sandbox.home().join("workers")).unwrap() {
        std::fs::remove_file(socket.unwrap().path()).unwrap();
    }
    assert_eq!(by_worker, add("by-caller"));
    drop(worker);
    let is_made_by_worker = |name: &str| is_made_by_worker(&sandbox, name);
    assert!(is_made_by_worker("by-worker") && !is_made_by_worker("by-caller"), "they were not added in two ways");
    let record = |name| settled(&sandbox.show(name)).to_string().replace(name, "[NAME]");
    assert_eq!(record("by-worker"), record("by-caller"));
    assert!(!record("by-worker").contains("canary"));
}

#[test]
fn a_caller_of_a_worker_opens_no_registry() {
    let sandbox = Sandbox::new();
    let plain = ["queue", "add", "--wait", "--", "true"];
    sandbox.outlive(["init"]).succeeds();
    let worker = Standing::start(&sandbox, &[]);
    // A worker that answers too late on a busy machine is asked again.
    until("a caller to open no registry", || opened(&sandbox, &plain).0.is_empty());
    // While its slot is busy, too.
    sandbox
        .outlive(["queue", "add", "--name", "busy", "--", "sh", "-c", "until [ -e go ]; do sleep 0.02; done"])
        .succeeds();
    sandbox.wait_for_state("busy", "running");
    let mut said = String::new();
    until("a caller of a busy worker to open no registry", || {
        let files;
        (files, said) = opened(&sandbox, &["queue", "add", "--", "true"]);
        files.is_empty()
    });
    assert_eq!(sandbox.show(said.trim())["state"], "pending");
    // What asks for more than a worker is asked for, and what stands under other settings, is added by the call itself.
    assert_ne!(opened(&sandbox, &["queue", "add", "--lock", "db", "--", "true"]).0, Vec::<String>::new());
    sandbox.write_config("timeout = \"1h\"\n");
    let (files, said) = opened(&sandbox, &["queue", "add", "--", "true"]);
    assert_ne!(files, Vec::<String>::new());
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.wait_for_state(said.trim(), "succeeded");
    drop(worker);
}

#[test]
fn silent_worker_is_passed_over_and_the_run_is_made_once() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let worker = Standing::start(&sandbox, &[]);
    worker.signal("STOP");
    let said = sandbox.outlive(["queue", "add", "--", "sh", "-c", "echo done >> done"]).succeeds();
    worker.signal("CONT");
    sandbox.wait_for_state(said.trim(), "succeeded");
    // The request is met by then: it came before what this call asks for.
    sandbox.outlive(["queue", "add", "--wait", "--", "true"]).succeeds();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("done")).unwrap(), "done\n");
    assert_eq!(sandbox.runs().len(), 2);
}

#[test]
fn a_slot_that_is_busy_with_a_requested_run_maintains_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let _worker = Standing::start(&sandbox, &[]);
    let long = ["queue", "add", "--name", "long", "--", "sh", "-c", "until [ -e go ]; do sleep 0.02; done"];
    sandbox.outlive(long).succeeds();
    sandbox.wait_for_state("long", "running");
    sandbox.outlive(["queue", "add", "--name", "parent", "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "child", "--needs", "parent", "--", "true"]).succeeds();
    // Only a slot that maintains the registry releases the child.
    let mut other = Standing(sandbox.outlive(["work", "--drain"]).stdout(Stdio::null()).spawn().unwrap());
    until("another worker to drain the queue", || other.0.try_wait().unwrap().is_some());
    assert_eq!(
        (&sandbox.show("child")["state"], &sandbox.show("long")["state"]),
        (&"succeeded".into(), &"running".into())
    );
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.wait_for_state("long", "succeeded");
}

#[test]
fn run_that_cannot_be_executed_stays_pending_and_ends_no_wait() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let _worker = Standing::start(&sandbox, &[]);
    let withheld = ["queue", "add", "--wait", "--no-argv", "--name", "withheld", "--", "sh", "-c", "exit 3"];
    let mut caller = Standing(sandbox.outlive(withheld).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    sandbox.wait_for("withheld", |_| true);
    // A file in place of the directory: the words with their secrets cannot be kept.
    std::fs::write(sandbox.home().join("argv"), "").unwrap();
    sandbox.outlive(["queue", "add", "--name", "secret", "--", "echo", "--password", "canary"]).succeeds();
    sandbox.outlive(["queue", "add", "--wait", "--", "true"]).succeeds();
    for name in ["withheld", "secret"] {
        assert_eq!(sandbox.show(name)["state"], "pending", "{name}");
    }
    assert!(caller.0.try_wait().unwrap().is_none(), "the end of another run ended the wait");
    sandbox.outlive(["queue", "cancel", "withheld"]).succeeds();
    until("the caller to end with its own run", || caller.0.try_wait().unwrap().is_some());
}

#[test]
fn a_request_whose_caller_has_gone_makes_no_run() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let worker = Standing::start(&sandbox, &[]);
    worker.signal("STOP");
    let said = sandbox.outlive(["queue", "add", "--name", "gone", "--", "sh", "-c", "echo done >> done"]).succeeds();
    // The caller made the run itself, and it is deleted before the worker meets the request.
    sandbox.outlive(["queue", "cancel", "gone"]).succeeds();
    sandbox.outlive(["archive", "gone"]).succeeds();
    sandbox.outlive(["rm", "--yes", "gone"]).succeeds();
    worker.signal("CONT");
    sandbox.outlive(["queue", "add", "--wait", "--", "true"]).succeeds();
    assert!(sandbox.runs().iter().all(|run| run["id"] != said.trim()), "it was made again");
    assert!(!sandbox.work().join("done").exists());
}

#[test]
fn a_caller_in_another_pid_namespace_makes_its_run_itself() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let _worker = Standing::start(&sandbox, &[]);
    let call = ["-p", "-f", "--mount-proc", "outlive", "queue", "add", "--name", "inner", "--", "true"];
    sandbox.command("unshare", call).succeeds();
    sandbox.wait_for_state("inner", "succeeded");
    assert!(!is_made_by_worker(&sandbox, "inner"), "its maker has the pid of another namespace");
}

#[test]
fn f_03_a_worker_killed_at_every_call_loses_and_repeats_no_run() {
    // The last calls of a session may be struck after all that is looked for.
    const UNSTRUCK: usize = 3;
    let (mut points, mut dead, mut by_worker, mut unstruck) = (0, 0, 0, 0);
    for point in 1.. {
        let sandbox = Sandbox::new();
        sandbox.outlive(["init"]).succeeds();
        let (mut worker, spoken) = start_with_kill(&sandbox, point);
        let mut is_struck = || {
            let said = std::fs::read_to_string(&spoken).unwrap_or_default();
            said.contains("was killed") || worker.try_wait().unwrap().is_some()
        };
        until("a slot to be there", || has_slot(&sandbox) || is_struck());
        let job = ["queue", "add", "--wait", "--", "sh", "-c", "echo $OUTLIVE_RUN_ID >> done"];
        let mut callers = Vec::new();
        for count in 1..=2 {
            let mut caller = sandbox.outlive(job).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            until("the run to be over or the worker to be struck", || {
                is_struck() || caller.try_wait().unwrap().is_some()
            });
            // A caller whose worker was struck makes the run itself, and waits for another worker.
            until("the run to be made", || sandbox.runs().len() == count);
            callers.push(caller);
        }
        let is_whole = !is_struck() && sandbox.runs().iter().all(|run| run["state"] == "succeeded");
        unstruck = if is_whole { unstruck + 1 } else { 0 };
        kill_everything(&sandbox);
        let _ = worker.wait();
        callers.into_iter().for_each(|mut caller| drop(caller.wait()));
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        sandbox.outlive(["reap"]).succeeds();
        let drained = sandbox.outlive(["work", "--drain"]).output().unwrap();
        assert!(drained.status.success(), "point {point}: {}", text(&drained.stderr));
        sandbox.outlive(["doctor"]).succeeds();
        let done = std::fs::read_to_string(sandbox.work().join("done")).unwrap_or_default();
        let runs = sandbox.runs();
        assert_eq!(runs.len(), 2, "point {point}");
        for run in runs {
            let (id, state) = (run["id"].as_str().unwrap(), run["state"].as_str().unwrap());
            let times = done.lines().filter(|line| *line == id).count();
            assert!(times <= 1 && (times == 1 || state != "succeeded"), "point {point}: {state}, {times} times");
            assert!(["succeeded", "failed", "dead"].contains(&state), "point {point}: {state}");
            dead += usize::from(state == "dead");
            by_worker += usize::from(is_made_by_worker(&sandbox, id));
        }
        points = point;
        if unstruck == UNSTRUCK {
            break;
        }
    }
    println!("{points} kill points, {by_worker} runs made by the worker, {dead} runs of a dead owner");
    assert!(points > 20 && dead > 0, "the kill points missed the runs: {points} points, {dead} dead");
    assert!(by_worker > points, "the kill points missed the socket: {by_worker} runs made by the worker");
}
