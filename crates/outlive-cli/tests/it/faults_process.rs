//! Faults of processes, pids and signals; the ids are those of `docs/faults.md`.

use std::process::Stdio;

use serde_json::Value;

use super::running::child_of;
use super::sandbox::{Ends, Sandbox, Started, is_alive, is_root, signal_pid, text, until};

/// The system calls by which a run reaches the disk.
const WRITES: &str = "pwrite64,write,fdatasync,fsync,linkat,mkdirat,unlinkat,ftruncate,fallocate";

/// Kills the wrapper and its child, as the kernel would, and waits until both are gone.
fn kill_all(run: &mut Started) {
    let child = child_of(run.pid());
    run.kill();
    if is_alive(child) {
        signal_pid(child, "KILL");
    }
    until("the child to be gone", || !is_alive(child));
}

fn remove_worker_locks(sandbox: &Sandbox) {
    for lock in std::fs::read_dir(sandbox.registry().join("workers")).unwrap() {
        std::fs::remove_file(lock.unwrap().path()).unwrap();
    }
}

#[test]
fn f_03_f_44_killed_at_every_write_it_leaves_one_end_or_none() {
    let mut points = 0;
    let mut registered = 0;
    for point in 1.. {
        let sandbox = Sandbox::new();
        sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
        let inject = format!("inject={WRITES}:signal=SIGKILL:when={point}");
        let trace = format!("trace={WRITES}");
        let strace = [
            "-qq",
            "-f",
            "-o",
            "/dev/null",
            "-e",
            &trace,
            "-e",
            &inject,
            "outlive",
            "run",
            "--name",
            "struck",
            "--lock",
            "db",
            "--",
            "true",
        ];
        let status = sandbox.command("strace", strace).stderr(Stdio::null()).status().expect("strace is installed");
        points = point;
        // A run that was killed while it was put on record may be known to its files alone.
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        sandbox.outlive(["reap"]).succeeds();
        sandbox.outlive(["doctor"]).succeeds();
        let runs = sandbox.runs();
        let struck: Vec<&Value> = runs.iter().filter(|run| run["name"] == "struck").collect();
        assert!(struck.len() <= 1, "point {point}: {struck:?}");
        assert_eq!(sandbox.show("before")["state"], "succeeded", "point {point}");
        for run in &struck {
            registered += 1;
            let ended = run["state"].as_str().unwrap().to_owned();
            assert!(["dead", "succeeded"].contains(&&*ended), "point {point}: {run}");
            let dir = sandbox.registry().join("runs").join(run["id"].as_str().unwrap()).join("attempts");
            let file: Value = serde_json::from_slice(&std::fs::read(dir.join("0001.json")).unwrap()).unwrap();
            let how = &file["run"]["ended"]["how"];
            assert!(
                how == &*ended || how.get(&ended).is_some(),
                "point {point}: file and database disagree: {how} and {ended}"
            );
        }
        sandbox.outlive(["run", "--lock", "db", "--", "true"]).succeeds();
        if status.success() {
            assert_eq!(struck[0]["state"], "succeeded");
            break;
        }
    }
    println!("{points} kill points, {registered} of them left a run");
    assert!(points > 10 && registered > 5, "the kill points missed the run: {points} points, {registered} runs");
}

#[test]
fn f_04_reused_pid_is_dead_and_its_new_process_not_signalled() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    // Inside, a canary gets the very pid of a killed wrapper; its lock is removed, so that only the pid can tell.
    let script = r#"
        outlive run --name reused -- sleep 300 & wrapper=$!
        until outlive show reused >/dev/null 2>&1; do :; done
        until grep -q . /proc/$wrapper/task/$wrapper/children; do :; done
        child=$(cat /proc/$wrapper/task/$wrapper/children)
        kill -9 $wrapper $child; wait $wrapper || true
        while grep -q . /proc/$child/cmdline 2>/dev/null; do :; done
        rm -f .outlive/workers/*.lock
        echo $((wrapper - 1)) > /proc/sys/kernel/ns_last_pid
        sleep 301 & canary=$!
        [ $canary = $wrapper ] || { echo "pid $wrapper was not reused but $canary"; exit 1; }
        outlive show reused --json
        for i in $(seq 100); do outlive reap --dry-run; outlive cancel reused || true; outlive reap; done >/dev/null 2>&1
        kill -0 $canary && echo alive
    "#;
    let out = sandbox.command("unshare", ["-p", "-f", "--mount-proc", "sh", "-ec", script]).succeeds();
    let mut lines = out.lines();
    let seen: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(seen["state"], "dead", "{seen}");
    assert!(seen["reason"].as_str().unwrap().starts_with("another process has its owner's pid"), "{seen}");
    assert_eq!(lines.next(), Some("alive"), "the new bearer of the pid was harmed");
}

#[test]
fn leashed_run_detaches_where_session_leader_is_out_of_pidns() {
    let sandbox = Sandbox::new();
    // As in a container: `getsid` answers 0 for every process of the namespace that did not start a session of its own.
    let script = r#"
        outlive run -d --name inside -- true >/dev/null
        outlive wait inside >/dev/null
        outlive show inside --json
        outlive run -d --leash session -- sleep 300 2>&1 || echo refused
    "#;
    let out = sandbox.command("unshare", ["-p", "-f", "--mount-proc", "sh", "-ec", script]).succeeds();
    let mut lines = out.lines();
    let seen: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(seen["state"], "succeeded", "{seen}");
    assert!(out.contains("`--leash PID` names a process") && out.ends_with("refused\n"), "{out}");
}

#[test]
fn f_06_a_zombie_owner_is_dead() {
    let sandbox = Sandbox::new();
    let run = sandbox.start("zombie", &["sleep", "300"]);
    let child = child_of(run.pid());
    // Killed and not collected: it stays a zombie until the end of this test.
    run.signal("KILL");
    signal_pid(child, "KILL");
    until("the wrapper to be a zombie", || !is_alive(run.pid()));
    assert!(std::fs::read_to_string(format!("/proc/{}/stat", run.pid())).is_ok(), "it was collected");
    remove_worker_locks(&sandbox);
    let seen = sandbox.wait_for_state("zombie", "dead");
    assert!(seen["reason"].as_str().unwrap().ends_with("has exited"), "{seen}");
}

/// Runs a command in namespaces of its own, and shows that nobody outside takes it for dead, neither while its lock can
/// be seen nor when only its lease can.
fn is_left_alone_from_outside(namespaces: &[&str], is_inside: impl Fn(&Value) -> bool) {
    let sandbox = Sandbox::new();
    let run = ["-f", "--kill-child", "outlive", "run", "--name", "inside", "--", "sleep", "30"];
    let mut command = sandbox.command("unshare", namespaces.iter().chain(&run));
    let mut inside = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let seen = sandbox.wait_for_state("inside", "running");
    assert!(is_inside(&seen), "not in namespaces of its own: {seen}");
    for lock in ["held", "removed"] {
        if lock == "removed" {
            remove_worker_locks(&sandbox);
        }
        let reaped = sandbox.outlive(["reap", "--json"]).json();
        assert_eq!((&reaped["reaped"], &reaped["live"]), (&serde_json::json!([]), &1.into()), "with its lock {lock}");
    }
    inside.kill().unwrap();
    inside.wait().unwrap();
}

#[test]
fn f_08_l07_run_of_another_pidns_is_judged_by_lock_or_lease() {
    if !is_root() {
        return;
    }
    is_left_alone_from_outside(&["-p", "--mount-proc"], |seen| seen["owner_pid"].as_u64().unwrap() < 10);
}

#[test]
fn f_09_a_run_of_another_time_namespace_is_not_taken_for_dead() {
    if !is_root() {
        return;
    }
    is_left_alone_from_outside(&["-T", "--boottime", "86400", "--monotonic", "86400"], |_| true);
}

#[test]
fn f_10_what_may_not_be_looked_into_is_not_dead() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let registry = sandbox.path().join("shared");
    let url = format!("sqlite:{}", registry.display());
    sandbox.outlive(["--registry", &url, "init", "--shared"]).succeeds();
    let mut run =
        sandbox.outlive(["--registry", &url, "run", "--name", "hidden", "--", "sleep", "300"]).spawn().unwrap();
    let shown = || sandbox.outlive(["--registry", &url, "show", "hidden", "--json"]).output().unwrap();
    until("the run to be on record", || shown().status.success());
    // Another user of the group, who may not see our processes.
    let others_home = sandbox.path().join("others");
    let script = format!(
        "mount -o remount,hidepid=2 /proc; chmod 711 {0}; mkdir -m 700 {1}; chown 65534 {1}; \
         exec setpriv --reuid=65534 --regid=65534 --groups=0 env OUTLIVE_HOME={1} outlive --registry {url} show hidden --json",
        sandbox.path().display(),
        others_home.display(),
    );
    let seen = sandbox.command("unshare", ["-m", "sh", "-ec", &script]).json();
    assert_eq!((&seen["state"], &seen["trusted"]), (&"running".into(), &false.into()), "{seen}");
    assert!(seen["created_by"].as_str().unwrap().starts_with("root@"), "{seen}");
    signal_pid(run.id(), "TERM");
    run.wait().unwrap();
}

#[test]
fn f_11_runs_of_the_old_boot_are_dead_after_a_reboot() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("old", &["sleep", "300"]);
    kill_all(&mut run);
    remove_worker_locks(&sandbox);
    let boot_id = sandbox.path().join("boot_id");
    std::fs::write(&boot_id, "00000000-1111-2222-3333-444444444444\n").unwrap();
    let script = format!("mount --bind {} /proc/sys/kernel/random/boot_id; outlive show old --json", boot_id.display());
    let seen = sandbox.command("unshare", ["-m", "sh", "-ec", &script]).json();
    assert_eq!((&seen["state"], &seen["reason"]), (&"dead".into(), &"the machine has rebooted since".into()));
}

#[test]
fn f_13_l08_stopped_owner_is_unresponsive_and_not_reaped_here() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("stopped", &["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]);
    run.signal("STOP");
    let seen = sandbox.wait_for("stopped", |run| run["health"] == "unresponsive");
    assert_eq!(seen["state"], "running");
    for _ in 0..3 {
        let reaped = sandbox.outlive(["reap", "--json"]).json();
        assert_eq!((&reaped["reaped"], reaped["unresponsive"].as_array().unwrap().len()), (&serde_json::json!([]), 1));
    }
    run.signal("CONT");
    sandbox.wait_for("stopped", |run| run["health"] == "healthy");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(run.wrapper.wait().unwrap().success());
    assert_eq!(sandbox.show("stopped")["state"], "succeeded");
}

#[test]
fn f_14_a_frozen_owner_is_as_a_stopped_one() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::impatient();
    let cgroup = sandbox.path().join("cgroup");
    let (group, name) = (cgroup.join(format!("outlive-test-{}", std::process::id())), "frozen");
    std::fs::create_dir(&cgroup).unwrap();
    sandbox.command("mount", ["-t", "cgroup2", "none", cgroup.to_str().unwrap()]).succeeds();
    let mut run = sandbox.start(name, &["sleep", "300"]);
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("cgroup.procs"), run.pid().to_string()).unwrap();
    std::fs::write(group.join("cgroup.freeze"), "1").unwrap();
    sandbox.wait_for(name, |run| run["health"] == "unresponsive");
    let reaped = sandbox.outlive(["reap", "--json"]).json();
    assert_eq!(reaped["reaped"], serde_json::json!([]));
    std::fs::write(group.join("cgroup.freeze"), "0").unwrap();
    sandbox.wait_for(name, |run| run["health"] == "healthy");
    run.signal("TERM");
    run.wrapper.wait().unwrap();
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).unwrap_or_default();
    until("the group to be empty", || std::fs::remove_dir(&group).is_ok());
    sandbox.command("umount", [cgroup.to_str().unwrap()]).succeeds();
}

#[test]
fn l08_a_hung_owner_is_ended_with_its_tree_by_its_policy() {
    let sandbox = Sandbox::impatient();
    let words = ["run", "--name", "hung", "--hung-after", "600ms", "--", "sleep", "300"];
    let mut wrapper = sandbox.outlive(words).spawn().unwrap();
    sandbox.wait_for_state("hung", "running");
    let child = child_of(wrapper.id());
    signal_pid(wrapper.id(), "STOP");
    until("the hung run to be ended", || {
        let reaped = sandbox.outlive(["reap"]).output().unwrap();
        text(&reaped.stdout).contains("hung for")
    });
    wrapper.wait().unwrap();
    until("its child to be gone", || !is_alive(child));
    let seen = sandbox.show("hung");
    assert_eq!(seen["state"], "dead");
    assert!(seen["reason"].as_str().unwrap().ends_with("and was ended"), "{seen}");
}
