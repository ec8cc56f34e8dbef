//! What a control group tells of the processes of a run, and what it does not. Where none can be made, the tests check
//! what is promised there instead: what has thrown away everything is lost with its owner, and nothing else changes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::faults_tree::{Detached, ESCAPE, escaped, number};
use super::sandbox::{Ends, Sandbox, is_alive, is_root, signal_pid, text, until};

/// The control group that a process is in, and where that is; none where the second version of them is not mounted.
fn group_of(pid: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(&mount).join(group))
}

/// A group below our own, removed at the end, with whatever is in it killed.
struct OwnGroup(PathBuf);

impl OwnGroup {
    /// None where none can be made.
    fn make(name: &str) -> Option<Self> {
        let own = group_of("self").filter(|own| own.join("cgroup.procs").exists())?;
        let group = own.join(name);
        std::fs::create_dir(&group).ok().map(|()| Self(group))
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        until("the group to be empty", || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// Whether runs have groups here.
fn has_groups() -> bool {
    let can = OwnGroup::make(&format!("test-{}", std::process::id())).is_some();
    if !can {
        eprintln!("no control group can be made here: what is promised without one is checked");
    }
    can
}

/// Waits until a process is in the group of its run. Answers with where that is.
fn taken_in(pid: u32, run: &Value) -> PathBuf {
    let name = format!("outlive-{}.{}.", run["id"].as_str().unwrap(), run["attempt"]);
    let group = || group_of(&pid.to_string()).filter(|group| group.to_string_lossy().contains(&name));
    until("the process to be in its group", || group().is_some());
    group().unwrap()
}

/// A detached run that has started a process which left everything, and whose owner and other processes are gone.
fn lost<'a>(sandbox: &'a Sandbox, groups: bool) -> (Detached<'a>, u32, Option<PathBuf>) {
    let run = Detached::start(
        sandbox,
        "far",
        &["--resume-on", "never"],
        &format!("[ -e again ] || {{ {ESCAPE}\n}}; sleep 300"),
    );
    let escaped = escaped(sandbox, run.owner);
    let group = groups.then(|| taken_in(escaped, &sandbox.show("far")));
    for pid in run.orphan() {
        let is_its_own = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split_whitespace().nth(3) == Some(&escaped.to_string()))
        };
        if !is_its_own() && is_alive(pid) {
            let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).stderr(Stdio::null()).status();
        }
    }
    (run, escaped, group)
}

#[test]
fn f_15_escaped_process_is_found_after_its_owner_was_killed() {
    let (sandbox, groups) = (Sandbox::impatient(), has_groups());
    let (_run, escaped, group) = lost(&sandbox, groups);
    if !groups {
        sandbox.wait_for_state("far", "dead");
        assert!(is_alive(escaped), "whoever cannot be found cannot have been ended");
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        return;
    }
    let seen = sandbox.wait_for("far", |run| run["leftover_pids"][0] == escaped);
    assert_eq!((&seen["state"], &seen["health"]), (&"running".into(), &"orphaned".into()));
    let refused = sandbox.outlive(["resume", "far"]).fails_with(103);
    assert!(refused.contains("still alive") && refused.contains(&escaped.to_string()), "{refused}");
    assert_eq!(sandbox.outlive(["reap", "--json"]).json()["reaped"], json!([]));
    std::fs::write(sandbox.work().join("again"), "").unwrap();
    sandbox.outlive(["resume", "far", "--end-leftovers"]).succeeds();
    assert!(!is_alive(escaped), "a process of the old attempt lives beside the new one");
    assert_eq!(sandbox.wait_for_state("far", "running")["attempt"], 2);
    assert!(!group.unwrap().exists(), "the group of the old attempt was left");
}

#[test]
fn f_15_cancel_ends_escaped_processes_after_the_owner_died() {
    let (sandbox, groups) = (Sandbox::impatient(), has_groups());
    let (_run, escaped, group) = lost(&sandbox, groups);
    sandbox.outlive(["cancel", "far", "--wait"]).succeeds();
    assert_eq!(is_alive(escaped), !groups, "groups: {groups}");
    assert_eq!(sandbox.show("far")["state"], "cancelled");
    assert!(group.is_none_or(|group| !group.exists()), "the group was left");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
}

#[test]
fn f_15_escaped_processes_can_be_adopted_and_end_their_run() {
    let (sandbox, groups) = (Sandbox::impatient(), has_groups());
    let (_run, escaped, group) = lost(&sandbox, groups);
    if groups {
        sandbox.outlive(["adopt", "-d", "far"]).succeeds();
        // Its command is gone with its owner, so nobody can tell how that ended.
        let seen = sandbox.wait_for_state("far", "failed");
        assert_eq!(seen["leftover_pids"][0], escaped);
        let removed = group.unwrap();
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        until("it to end", || !is_alive(escaped));
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        assert!(!removed.exists(), "the doctor left the group");
    } else {
        sandbox.wait_for_state("far", "dead");
        sandbox.outlive(["adopt", "far"]).fails_with(103);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
    }
}

#[test]
fn f_15_process_left_by_a_short_command_is_named() {
    let (sandbox, groups) = (Sandbox::new(), has_groups());
    sandbox.outlive(["run", "--name", "short", "--", "sh", "-c", ESCAPE]).succeeds();
    let escaped = number(&sandbox, "escaped");
    let run = sandbox.show("short");
    let named = run["leftover_pids"].as_array().unwrap().contains(&escaped.into());
    assert_eq!((&run["state"], named), (&"succeeded".into(), groups), "{run}");
    let group = groups.then(|| taken_in(escaped, &run));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    until("it to end", || !is_alive(escaped));
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    assert!(group.is_none_or(|group| !group.exists()), "the doctor left the group");
}

#[test]
fn a_run_leaves_no_group_whether_it_ends_or_dies() {
    let sandbox = Sandbox::impatient();
    let groups = has_groups();
    let mut run =
        sandbox.start("ends", &["sh", "-c", "echo $$ > command; until [ -e go ]; do sleep 0.05; done; exit 3"]);
    let ends = groups.then(|| taken_in(number(&sandbox, "command"), &sandbox.show("ends")));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(3));
    assert!(ends.is_none_or(|group| !group.exists()), "a run that ended left its group");
    let mut run = sandbox.start("dies", &["sh", "-c", "echo $$ > other; exec sleep 300"]);
    let command = number(&sandbox, "other");
    let dies = groups.then(|| taken_in(command, &sandbox.show("dies")));
    let doctor = sandbox.outlive(["doctor"]).succeeds();
    assert_eq!(doctor.contains("a run has a control group of its own"), groups, "{doctor}");
    run.kill();
    signal_pid(command, "KILL");
    sandbox.wait_for_state("dies", "dead");
    sandbox.outlive(["reap"]).succeeds();
    assert!(dies.is_none_or(|group| !group.exists()), "a reap left the group");
}

#[test]
fn a_command_that_has_groups_of_its_own_keeps_them() {
    if !has_groups() {
        return a_run_leaves_no_group_whether_it_ends_or_dies();
    }
    let sandbox = Sandbox::impatient();
    let elsewhere = OwnGroup::make(&format!("test-else-{}", std::process::id())).unwrap();
    let procs = elsewhere.0.join("cgroup.procs");
    let script = format!(
        "sh -c 'echo $$ > {}; echo $$ > moved; exec sleep 300' & echo $$ > command; \
         until [ -e go ]; do sleep 0.05; done; mkdir $(cat mine)/below; echo $$ > $(cat mine)/below/cgroup.procs; \
         cat /proc/self/cgroup > seen; kill $!; wait; exit 4",
        procs.display()
    );
    let mut run = sandbox.start("groups", &["sh", "-c", &script]);
    let (command, moved) = (number(&sandbox, "command"), number(&sandbox, "moved"));
    let group = taken_in(command, &sandbox.show("groups"));
    assert_eq!(group_of(&moved.to_string()), Some(elsewhere.0.clone()), "it was taken from where it was put");
    std::fs::write(sandbox.work().join("mine"), group.to_str().unwrap()).unwrap();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(4));
    let seen = std::fs::read_to_string(sandbox.work().join("seen")).unwrap();
    assert!(seen.lines().any(|line| line.starts_with("0::") && line.ends_with("/below")), "{seen}");
    assert!(!group.exists(), "the group was left, with what the command made in it");
}

#[test]
fn runs_inside_runs_end_with_them_unless_they_were_detached() {
    let (sandbox, groups) = (Sandbox::impatient(), has_groups());
    let inner = |name: &str, flag: &str| {
        format!("outlive run {flag} --name {name} -- sh -c 'echo $$ > {name}.pid; exec sleep 300'")
    };
    let (with, apart) = (inner("with", ""), inner("apart", "-d"));
    let script = format!("echo $$ > outer.pid; until [ -e go ]; do sleep 0.05; done; {apart}; {with}");
    let outer = sandbox.start("outer", &["sh", "-c", &script]);
    let command = number(&sandbox, "outer.pid");
    let group = groups.then(|| taken_in(command, &sandbox.show("outer")));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    let (with, apart) = (number(&sandbox, "with.pid"), number(&sandbox, "apart.pid"));
    if let Some(group) = group {
        let (below, beside) = (taken_in(with, &sandbox.show("with")), taken_in(apart, &sandbox.show("apart")));
        assert!(below.starts_with(&group) && !beside.starts_with(&group), "{below:?} {beside:?}");
    }
    sandbox.outlive(["cancel", "outer", "--grace", "0s", "--wait"]).succeeds();
    assert!(!is_alive(with) && is_alive(apart), "with: {}, apart: {}", is_alive(with), is_alive(apart));
    drop(outer);
    sandbox.outlive(["cancel", "apart", "--wait"]).succeeds();
    assert!(!is_alive(apart));
}

#[test]
fn run_without_a_control_group_is_unchanged_and_silent() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::impatient();
    let script = "echo $$ > command; until [ -e go ]; do sleep 0.05; done; outlive doctor > doctor; cat /proc/self/cgroup; exit 6";
    let mount = "mount --make-rprivate /; \
                 for at in $(sed -n 's/.* \\([^ ]*\\) rw[^ ]* - cgroup2 .*/\\1/p; s/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .* - cgroup2 .*/\\1/p' /proc/self/mountinfo); \
                 do mount -o remount,ro,bind $at; done";
    let whole = format!("{mount}; exec outlive run --name plain -- sh -c '{script}'");
    let wrapper = sandbox.command("unshare", ["-m", "sh", "-c", &whole]);
    let mut wrapper = wrapper;
    let wrapper: Child = wrapper.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    number(&sandbox, "command");
    // Long after it would have been made.
    sandbox.wait_for("plain", |run| run["duration_ms"].as_u64().unwrap() > 400);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    let ended = wrapper.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(6), String::new()));
    assert!(!text(&ended.stdout).contains("outlive-"), "{}", text(&ended.stdout));
    let doctor = std::fs::read_to_string(sandbox.work().join("doctor")).unwrap();
    assert!(doctor.contains("no control group can be made"), "{doctor}");
}

#[test]
fn s_03_record_with_the_group_of_strangers_ends_none_of_them() {
    if !has_groups() {
        return a_run_leaves_no_group_whether_it_ends_or_dies();
    }
    let sandbox = Sandbox::impatient();
    let run = Detached::start(&sandbox, "forged", &[], "exec sleep 300");
    let shown = sandbox.show("forged");
    let (id, command) = (shown["id"].as_str().unwrap().to_owned(), super::running::child_of(run.owner));
    let real = taken_in(command, &shown);
    run.orphan();
    let lock = sandbox.registry().join("runs").join(&id).join("attempts/0001.tree");
    let noted: Value = serde_json::from_slice(&std::fs::read(&lock).unwrap()).unwrap();
    let mut victim = Command::new("sleep").arg("300").spawn().unwrap();
    let own = |name: &str| OwnGroup::make(name).unwrap();
    let service = own(&format!("test-service-{}", std::process::id()));
    // As a copy of the registry on another file system would say.
    let copied = own(&format!("outlive-{id}.1.1-1"));
    let path = |group: &Path| group.strip_prefix(mount_of(group)).unwrap().to_str().unwrap().to_owned();
    let real_name = real.file_name().unwrap().to_str().unwrap().to_owned();
    let inside = path(&service.0);
    for (group, forged) in [
        (&service, inside.clone()),
        (&copied, path(&copied.0)),
        (&service, String::new()),
        (&service, "/".into()),
        (&service, format!("{inside}/../{inside}")),
        (&service, format!("{real_name}/../{inside}")),
        (&service, mount_of(&service.0).join(&inside).to_str().unwrap().to_owned()),
    ] {
        group.take(victim.id());
        let record = json!({ "group": forged }).as_object().unwrap().clone();
        let mut forgery = noted.as_object().unwrap().clone();
        forgery.extend(record);
        std::fs::write(&lock, Value::from(forgery).to_string()).unwrap();
        let seen = sandbox.show("forged");
        assert_eq!(seen["leftover_pids"], json!([command]), "{forged}");
    }
    sandbox.outlive(["cancel", "forged", "--grace", "0s", "--wait"]).succeeds();
    assert!(!is_alive(command) && is_alive(victim.id()), "a stranger was killed, or its own was not");
    victim.kill().unwrap();
    victim.wait().unwrap();
    std::fs::remove_dir(real).unwrap();
}

fn mount_of(group: &Path) -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap().split(' ').nth(4).unwrap().to_owned();
    assert!(group.starts_with(&place));
    place.into()
}
