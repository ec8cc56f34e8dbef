//! Faults of the processes that a command starts; the ids are those of `docs/faults.md`.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::running::child_of;
use super::sandbox::{Ends, Sandbox, is_alive, is_root, signal_pid, text, until};

/// Starts a process that has left everything by which it could be told: parent, session, environment and lock. It ends
/// when there is a file `go`.
pub(crate) const ESCAPE: &str = r#"( setsid env -i bash -c '
    for fd in /proc/$$/fd/*; do n=${fd##*/}; [ $n -gt 2 ] && eval "exec $n>&-"; done
    echo $$ > escaping; mv escaping escaped; while [ ! -e go ]; do sleep 0.1; done
' </dev/null >/dev/null 2>&1 & )
until [ -e escaped ]; do sleep 0.02; done"#;

pub(crate) fn number(sandbox: &Sandbox, file: &str) -> u32 {
    until(file, || sandbox.has_line(file));
    std::fs::read_to_string(sandbox.work().join(file)).unwrap().trim().parse().unwrap()
}

/// The process that has escaped, which really has.
pub(crate) fn escaped(sandbox: &Sandbox, owner: u32) -> u32 {
    let pid = number(sandbox, "escaped");
    let environment = text(&std::fs::read(format!("/proc/{pid}/environ")).unwrap());
    assert!(!environment.contains("OUTLIVE"), "{environment}");
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let files: Vec<PathBuf> = files.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    assert!(!files.iter().any(|file| file.to_string_lossy().ends_with(".tree")), "{files:?}");
    until("it to lose its parent", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().any(|line| line.split_whitespace().eq(["PPid:", &owner.to_string()]))
    });
    pid
}

/// The processes that carry a run's id.
fn carriers(run: &Value) -> Vec<u32> {
    let mark = format!("OUTLIVE_RUN_ID={}", run["id"].as_str().unwrap());
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let carries =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|found| text(&found).contains(&mark));
    pids.filter(carries).collect()
}

/// A detached run. Whatever is left of it is killed at the end.
pub(crate) struct Detached<'a> {
    sandbox: &'a Sandbox,
    name: &'static str,
    pub(crate) owner: u32,
}

impl<'a> Detached<'a> {
    pub(crate) fn start(sandbox: &'a Sandbox, name: &'static str, flags: &[&str], script: &str) -> Self {
        let words = ["run", "-d", "--name", name].into_iter().chain(flags.iter().copied());
        sandbox.outlive(words.chain(["--", "sh", "-c", script])).succeeds();
        let owner = sandbox.show(name)["owner_pid"].as_u64().unwrap();
        Self { sandbox, name, owner: owner.try_into().unwrap() }
    }

    /// Kills its owner alone. Answers with the processes that are left.
    pub(crate) fn orphan(&self) -> Vec<u32> {
        signal_pid(self.owner, "KILL");
        let seen = self.sandbox.wait_for(self.name, |run| run["health"] == "orphaned");
        assert_eq!(seen["state"], "running");
        let pids = seen["leftover_pids"].as_array().unwrap().iter();
        pids.map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap()).collect()
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        let _ = self.sandbox.outlive(["cancel", self.name, "--grace", "0s", "--wait"]).output();
    }
}

#[test]
fn f_15_r03_cancel_leaves_nothing_whatever_it_did_to_escape() {
    let sandbox = Sandbox::impatient();
    let run = sandbox.start("far", &["sh", "-c", &format!("{ESCAPE}\nsleep 300")]);
    let escaped = escaped(&sandbox, run.pid());
    sandbox.outlive(["cancel", "far", "--wait"]).succeeds();
    assert_eq!(sandbox.show("far")["state"], "cancelled");
    assert!(!is_alive(escaped), "a process of the tree was left");
}

#[test]
fn f_15_tree_that_respawns_does_not_escape_a_cancel() {
    let sandbox = Sandbox::impatient();
    let link = "#!/bin/sh\ntrap '' TERM\necho $$ > link.$$; mv link.$$ link; sleep 0.02; setsid ./chain & exit 0\n";
    let chain = sandbox.work().join("chain");
    std::fs::write(&chain, link).unwrap();
    std::fs::set_permissions(&chain, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let _run = sandbox.start("chain", &["sh", "-c", "./chain & sleep 300"]);
    let first = number(&sandbox, "link");
    until("the first to have started another", || !is_alive(first));
    let run = sandbox.show("chain");
    sandbox.outlive(["cancel", "chain", "--grace", "0s", "--wait"]).succeeds();
    assert_eq!(carriers(&run), [0; 0], "a process of the tree was left");
}

#[test]
fn f_15_orphans_end_before_the_run_does_where_that_is_asked_for() {
    let sandbox = Sandbox::new();
    let words = ["run", "--name", "tidy", "--orphans", "end", "--", "sh", "-c"];
    sandbox.outlive(words.into_iter().chain([format!("{ESCAPE}\nexit 3").as_str()])).fails_with(3);
    assert!(!is_alive(number(&sandbox, "escaped")), "a process of the tree was left");
    assert_eq!(sandbox.show("tidy")["exit_code"], 3);
}

#[test]
fn f_15_wait_tree_ends_the_run_with_its_last_process() {
    let sandbox = Sandbox::impatient();
    for (name, stopped) in [("waits", false), ("stopped", true)] {
        for file in ["escaped", "command", "go"] {
            let _ = std::fs::remove_file(sandbox.work().join(file));
        }
        let script = format!("{ESCAPE}\necho $$ > command.tmp; mv command.tmp command; exit 3");
        let words = ["run", "--name", name, "--wait-tree", "--", "sh", "-c", &script];
        let mut wrapper = sandbox.outlive(words).stderr(Stdio::null()).spawn().unwrap();
        let escaped = escaped(&sandbox, wrapper.id());
        let command = number(&sandbox, "command");
        until("the command to end", || !is_alive(command));
        assert_eq!(sandbox.show(name)["state"], "running");
        if stopped {
            sandbox.outlive(["cancel", name, "--wait"]).succeeds();
            assert!(!is_alive(escaped), "a process of the tree was left");
        } else {
            std::fs::write(sandbox.work().join("go"), "").unwrap();
        }
        assert_eq!(wrapper.wait().unwrap().code(), Some(3), "the exit status is not the command's");
        assert_eq!(sandbox.show(name)["state"], if stopped { "cancelled" } else { "failed" });
    }
}

#[test]
fn f_15_by_default_orphans_live_on_and_are_named() {
    let sandbox = Sandbox::new();
    let script = "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! > left";
    sandbox.outlive(["run", "--name", "loose", "--", "sh", "-c", script]).succeeds();
    let left = number(&sandbox, "left");
    assert!(is_alive(left));
    let run = sandbox.show("loose");
    assert_eq!((&run["state"], &run["leftover_pids"]), (&"succeeded".into(), &serde_json::json!([left])));
    let shown = sandbox.outlive(["show", "loose"]).succeeds();
    assert!(shown.contains(&format!("alive      pid {left} (")), "{shown}");
    signal_pid(left, "KILL");
    sandbox.wait_for("loose", |run| run["leftover_pids"] == serde_json::json!([]));
}

#[test]
fn f_16_no_command_is_tied_to_the_life_of_a_thread() {
    let sandbox = Sandbox::new();
    let trace = sandbox.path().join("trace");
    let words =
        ["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=prctl,execve", "outlive", "run", "--", "true"];
    sandbox.command("strace", words).succeeds();
    let trace = std::fs::read_to_string(trace).unwrap();
    assert!(trace.contains("PR_SET_CHILD_SUBREAPER"), "nothing was traced: {trace}");
    assert!(!trace.contains("PDEATHSIG"), "{trace}");
}

/// A control group with little memory, removed at the end.
struct Cramped(PathBuf);

impl Cramped {
    fn new() -> Option<Self> {
        let root = PathBuf::from("/sys/fs/cgroup/memory");
        if !root.join("memory.limit_in_bytes").exists() {
            eprintln!("skipped: there is no memory controller of the first version");
            return None;
        }
        let group = root.join(format!("outlive-test-{}", std::process::id()));
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("memory.limit_in_bytes"), "52428800").unwrap();
        // Where there is swap, it is counted too.
        let _ = std::fs::write(group.join("memory.memsw.limit_in_bytes"), "52428800");
        Some(Self(group))
    }
}

impl Drop for Cramped {
    fn drop(&mut self) {
        until("the group to be empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn f_23_a_command_that_memory_ran_out_for_says_so() {
    if !is_root() {
        return;
    }
    let Some(group) = Cramped::new() else { return };
    let sandbox = Sandbox::new();
    let run = |name: &str, command: &str| {
        let script =
            format!("echo $$ > {}/cgroup.procs; exec outlive run --name {name} -- {command}", group.0.display());
        let ended = sandbox.shell(&script).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.signal(), Some(9), "{ended}");
        sandbox.show(name)
    };
    // Without a line's end to cut at, it keeps all it has read.
    let hungry = run("hungry", "tail /dev/zero");
    assert_eq!((&hungry["error_type"], &hungry["signal"]), (&"oom".into(), &9.into()), "{hungry}");
    let killed = run("killed", "sh -c 'kill -9 $$'");
    assert_eq!((&killed["error_type"], &killed["signal"]), (&"signal".into(), &9.into()), "{killed}");
}

#[test]
fn f_23_owner_lowers_its_own_oom_score_alone() {
    let sandbox = Sandbox::new();
    let may = sandbox.shell("echo -900 > /proc/self/oom_score_adj").stderr(Stdio::null()).status().unwrap().success();
    let ordinary = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    let script =
        "cat /proc/self/oom_score_adj > command.tmp; mv command.tmp command; until [ -e go ]; do sleep 0.02; done";
    let note = "cat /proc/self/oom_score_adj > note.tmp; mv note.tmp note";
    let words = ["run", "--name", "spared", "--notify", note, "--", "sh", "-c", script];
    let mut wrapper = sandbox.outlive(words).spawn().unwrap();
    let score = || std::fs::read_to_string(format!("/proc/{}/oom_score_adj", wrapper.id())).unwrap();
    let found = |name: &str| std::fs::read_to_string(sandbox.work().join(name));
    until("the command to look", || found("command").is_ok());
    match may {
        true => until("the owner to ask", || score() == "-900\n"),
        false => assert_eq!(score(), ordinary, "it may not, and nothing else changes"),
    }
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(wrapper.wait().unwrap().success());
    until("the note", || found("note").is_ok());
    assert_eq!((found("command").unwrap(), found("note").unwrap()), (ordinary.clone(), ordinary));
}

#[test]
fn f_24_killed_with_its_whole_group_it_is_dead_at_the_next_read() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.outlive(["run", "--name", "group", "--", "sleep", "300"]);
    let mut wrapper = command.process_group(0).spawn().unwrap();
    sandbox.wait_for_state("group", "running");
    let child = child_of(wrapper.id());
    sandbox.command("kill", ["-s", "KILL", "--", &format!("-{}", wrapper.id())]).succeeds();
    wrapper.wait().unwrap();
    until("the child to be gone", || !is_alive(child));
    let seen = sandbox.show("group");
    assert_eq!(
        (&seen["state"], &seen["reason"]),
        (&"dead".into(), &"its owner is gone: the lock it held is free".into())
    );
    // What nobody was there to see does not count: not before its death is on record, and not after.
    let moment = |of: &str| seen[of].as_str().unwrap().parse::<outlive::time::Timestamp>().unwrap();
    let heard_for = moment("last_beat_at").since(moment("started_at")).as_millis();
    // A run that was killed before its first heartbeat has no known duration.
    let took = |seen: &serde_json::Value| seen["duration_ms"].as_u64().map_or(0, u128::from);
    assert_eq!(took(&seen), heard_for);
    sandbox.outlive(["reap"]).succeeds();
    assert_eq!(took(&sandbox.show("group")), heard_for);
}

#[test]
fn f_27_stuck_keeper_is_seen_not_reaped_and_its_command_runs_on() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("stuck", &["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 4"]);
    let is_keeper =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "outlive-keeper");
    let mut keeper = None;
    super::sandbox::until("the thread that beats", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap().flatten();
        keeper = threads.map(|task| task.path()).find(is_keeper);
        keeper.is_some()
    });
    let keeper = keeper.unwrap();
    let tid = keeper.file_name().unwrap().to_str().unwrap();
    // Every write of that thread takes ten seconds.
    let words = ["-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=10s", "-p", tid];
    let mut strace = sandbox.command("strace", words).spawn().unwrap();
    let seen = sandbox.wait_for("stuck", |run| run["health"] == "unresponsive");
    assert_eq!(seen["state"], "running");
    let reaped = sandbox.outlive(["reap", "--json"]).json();
    assert_eq!((&reaped["reaped"], reaped["unresponsive"].as_array().unwrap().len()), (&serde_json::json!([]), 1));
    signal_pid(strace.id(), "INT");
    strace.wait().unwrap();
    sandbox.wait_for("stuck", |run| run["health"] == "healthy");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(4));
}

/// Processes that do nothing but burn, ended at the end.
struct Fire(Vec<Child>);

impl Drop for Fire {
    fn drop(&mut self) {
        for burner in &mut self.0 {
            let _ = burner.kill();
            let _ = burner.wait();
        }
    }
}

#[test]
fn f_28_starved_machine_reaps_no_run() {
    let sandbox = Sandbox::impatient();
    sandbox.write_config("beat = \"300ms\"\nlease = \"1s\"\n");
    let run = sandbox.start("starved", &["sleep", "300"]);
    let burn = || sandbox.command("sh", ["-c", "while :; do :; done"]).spawn().unwrap();
    let fire = Fire((0..30).map(|_| burn()).collect());
    for passes in 0..10 {
        let found = sandbox.outlive(["reap", "--json"]).json();
        assert_eq!(found["reaped"], serde_json::json!([]), "after {passes} passes: {found}");
    }
    drop(fire);
    sandbox.wait_for("starved", |run| run["health"] == "healthy");
    run.signal("TERM");
}

/// What a detached command does until there is a file `go`, and then.
const LONG_WORK: &str = "echo begun; until [ -e go ]; do sleep 0.05; done; echo gone on; \
                         outlive fence check && outlive progress 3 && exit 7; exit 9";

#[test]
fn r02_adopt_takes_over_a_live_tree_and_has_its_exit_status() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "work", &[], LONG_WORK);
    let refused = sandbox.outlive(["adopt", "work"]).fails_with(103);
    assert!(refused.contains("its owner lives"), "{refused}");
    let left = run.orphan();
    assert!(!left.is_empty());
    let shown = sandbox.outlive(["show", "work"]).succeeds();
    assert!(shown.contains("`outlive adopt "), "{shown}");
    let id = sandbox.outlive(["adopt", "-d", "work"]).succeeds();
    let seen = sandbox.wait_for("work", |run| run["health"] == "healthy");
    assert_eq!((&seen["id"], &seen["attempt"], &seen["epoch"]), (&id.trim().into(), &1.into(), &2.into()));
    assert!(seen["owner_pid"] != run.owner && left.iter().any(|pid| is_alive(*pid)), "{seen}");
    sandbox.outlive(["adopt", "work"]).fails_with(103);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(sandbox.outlive(["wait", "work"]).status().unwrap().code(), Some(7));
    let seen = sandbox.show("work");
    assert_eq!(
        (&seen["state"], &seen["exit_code"], &seen["error_type"]),
        (&"failed".into(), &7.into(), &"exit".into())
    );
    assert_eq!(seen["progress_done"], 3, "what it reported after the adoption is not on record");
    assert_eq!(sandbox.outlive(["logs", "work"]).succeeds(), "begun\ngone on\n");
    assert!(sandbox.outlive(["why", "work"]).succeeds().contains("taken over from worker "));
}

#[test]
fn r02_r03_cancel_after_an_adoption_leaves_nothing() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "work", &[], "trap '' TERM; setsid sleep 301 & while :; do sleep 0.1; done");
    let left = run.orphan();
    sandbox.outlive(["adopt", "-d", "work"]).succeeds();
    sandbox.outlive(["cancel", "work", "--grace", "100ms", "--wait"]).succeeds();
    assert_eq!(sandbox.show("work")["state"], "cancelled");
    assert!(left.len() >= 2 && left.iter().all(|pid| !is_alive(*pid)), "a process of the tree was left");
}

#[test]
fn foreground_adopter_passes_signals_and_ends_as_the_command() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "work", &[], "trap 'exit 5' TERM; while :; do sleep 0.05; done");
    run.orphan();
    let mut adopter = sandbox.outlive(["adopt", "work"]).stderr(Stdio::null()).spawn().unwrap();
    sandbox.wait_for("work", |run| run["owner_pid"] == adopter.id());
    signal_pid(adopter.id(), "TERM");
    assert_eq!(adopter.wait().unwrap().code(), Some(5));
    let seen = sandbox.show("work");
    // It handled the signal, so its exit status decides.
    assert_eq!((&seen["state"], &seen["reason"]), (&"failed".into(), &"exit code 5".into()));
}

#[test]
fn an_adopted_run_is_over_when_it_would_have_been() {
    let sandbox = Sandbox::impatient();
    let script = "sh -c 'until [ -e last ]; do sleep 0.05; done' & until [ -e go ]; do sleep 0.05; done; exit 3";
    for (name, flags) in [("kept", &[][..]), ("ended", &["--orphans", "end"]), ("waited", &["--wait-tree"])] {
        for file in ["go", "last"] {
            let _ = std::fs::remove_file(sandbox.work().join(file));
        }
        let run = Detached::start(&sandbox, name, flags, script);
        let left = run.orphan();
        sandbox.outlive(["adopt", "-d", name]).succeeds();
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        if name == "waited" {
            until("the command to end", || left.iter().any(|pid| !is_alive(*pid)));
            assert_eq!(sandbox.show(name)["state"], "running");
            std::fs::write(sandbox.work().join("last"), "").unwrap();
        }
        assert_eq!(sandbox.outlive(["wait", name]).status().unwrap().code(), Some(3), "{name}");
        let left = !sandbox.show(name)["leftover_pids"].as_array().unwrap().is_empty();
        assert_eq!(left, name == "kept", "{name}");
        std::fs::write(sandbox.work().join("last"), "").unwrap();
        sandbox.wait_for(name, |run| run["leftover_pids"] == serde_json::json!([]));
    }
}

#[test]
fn adopted_run_past_its_timeout_ends_with_its_processes() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "slow", &["--timeout", "1s"], "while :; do sleep 0.1; done");
    run.orphan();
    sandbox.wait_for("slow", |run| run["duration_ms"].as_u64().unwrap() > 1_000);
    sandbox.outlive(["adopt", "-d", "slow"]).succeeds();
    let seen = sandbox.wait_for_state("slow", "failed");
    assert_eq!((&seen["error_type"], &seen["leftover_pids"]), (&"timeout".into(), &serde_json::json!([])));
}

#[test]
fn command_with_unknown_end_claims_no_outcome() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "work", &[], "until [ -e go ]; do sleep 0.05; done");
    run.orphan();
    let id = sandbox.show("work")["id"].as_str().unwrap().to_owned();
    // As if it had never been noted which of the processes is the command.
    std::fs::write(sandbox.registry().join("runs").join(id).join("attempts/0001.tree"), "").unwrap();
    sandbox.outlive(["adopt", "-d", "work"]).succeeds();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(sandbox.outlive(["wait", "work"]).status().unwrap().code(), Some(1));
    let seen = sandbox.show("work");
    assert_eq!((&seen["state"], &seen["error_type"]), (&"failed".into(), &"exit_unknown".into()));
    assert_eq!((&seen["exit_code"], &seen["signal"]), (&Value::Null, &Value::Null));
    assert!(seen["reason"].as_str().unwrap().contains("because its owner had died"), "{seen}");
}

#[test]
fn there_is_nothing_to_adopt_of_a_run_that_is_dead() {
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "gone", &[], "exec sleep 300");
    for pid in run.orphan() {
        signal_pid(pid, "KILL");
    }
    sandbox.wait_for_state("gone", "dead");
    let refused = sandbox.outlive(["adopt", "gone"]).fails_with(103);
    assert!(refused.contains("nothing of it is left") && refused.contains("`outlive reap`"), "{refused}");
}

#[test]
fn s_03_stranger_with_the_environment_of_a_run_is_left_alone() {
    for owner_lives in [true, false] {
        let sandbox = Sandbox::impatient();
        let mut run = sandbox.start("copied", &["sh", "-c", "env > variables; mv variables env; sleep 300"]);
        until("the environment to be written", || sandbox.work().join("env").exists());
        let written = std::fs::read_to_string(sandbox.work().join("env")).unwrap();
        let variables =
            written.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| name.contains("OUTLIVE"));
        let mut stranger = Command::new("sleep").arg("300").envs(variables).spawn().unwrap();
        let id = sandbox.show("copied");
        until("the stranger to carry the run", || carriers(&id).contains(&stranger.id()));
        if !owner_lives {
            run.kill();
            let seen = sandbox.show("copied");
            assert_eq!(seen["state"], "running", "its own processes are alive: {seen}");
            let left = seen["leftover_pids"].as_array().unwrap();
            assert!(!left.is_empty() && !left.contains(&stranger.id().into()), "{seen}");
        }
        sandbox.outlive(["cancel", "copied", "--wait"]).succeeds();
        assert_eq!(carriers(&id), [stranger.id()], "owner lives: {owner_lives}");
        assert!(is_alive(stranger.id()), "a stranger was killed");
        assert_eq!(sandbox.show("copied")["state"], "cancelled", "owner lives: {owner_lives}");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}

#[test]
fn s_03_reader_of_run_files_is_none_of_its_processes() {
    for owner_lives in [true, false] {
        let sandbox = Sandbox::impatient();
        let run = Detached::start(&sandbox, "read", &[], "echo $$ > command; sleep 300");
        let command = number(&sandbox, "command");
        let id = sandbox.show("read")["id"].as_str().unwrap().to_owned();
        // As `outlive ps` does for an instant, to ask for the lock, and whoever copies files for longer.
        let tree = sandbox.registry().join(format!("runs/{id}/attempts/0001.tree"));
        let tree = std::fs::OpenOptions::new().read(true).write(!owner_lives).open(tree).unwrap();
        let script = "sleep 300 & echo $! > below; wait";
        let mut reader = Command::new("sh");
        let mut reader = reader.args(["-c", script]).stdin(tree).current_dir(sandbox.work()).spawn().unwrap();
        let below = number(&sandbox, "below");
        if !owner_lives {
            let left = run.orphan();
            assert!(left.contains(&command) && !left.contains(&reader.id()), "{left:?}");
        }
        sandbox.outlive(["cancel", "read", "--grace", "0s", "--wait"]).succeeds();
        assert!(!is_alive(command), "owner lives: {owner_lives}");
        assert!(is_alive(reader.id()) && is_alive(below), "who only read was killed");
        signal_pid(below, "KILL");
        reader.wait().unwrap();
    }
}
