//! Faults of `outlive run` and of the command it runs; the ids are those of `docs/faults.md`.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::as_if_bare;
use super::running::child_of;
use super::sandbox::{Ends, Sandbox, binary, is_alive, is_root, signal_pid, text, until};

/// The pid that a command wrote to a file of the working directory.
fn pid_in(sandbox: &Sandbox, name: &str) -> u32 {
    let pid = || std::fs::read_to_string(sandbox.work().join(name)).ok()?.trim().parse().ok();
    until(&format!("a pid in `{name}`"), || pid().is_some());
    pid().unwrap()
}

/// Waits for the end of a process, and fails where it does not come.
fn end_of(mut child: Child) -> std::process::ExitStatus {
    until("the wrapper to end", || child.try_wait().unwrap().is_some());
    child.wait().unwrap()
}

/// How an attempt ended, by its file: the one word that is there.
fn recorded(sandbox: &Sandbox, run: &Value) -> Vec<String> {
    let dir = sandbox.registry().join("runs").join(run["id"].as_str().unwrap()).join("attempts");
    let mut ends = Vec::new();
    for file in std::fs::read_dir(dir).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        // Beside the ends lie the wishes of others.
        if name.strip_suffix(".json").is_some_and(|name| name.bytes().all(|c| c.is_ascii_digit())) {
            let attempt: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
            let how = &attempt["run"]["ended"]["how"];
            let word = how.as_object().and_then(|how| how.keys().next().cloned());
            ends.push(word.or(how.as_str().map(Into::into)).unwrap());
        }
    }
    ends
}

#[test]
fn f_18_grandchild_that_keeps_streams_open_delays_nothing() {
    let sandbox = Sandbox::new();
    for (name, streams) in [("pipe", Stdio::piped as fn() -> Stdio), ("null", Stdio::null)] {
        let script = format!("sleep 300 & echo $! > {name}; echo hi; exit 3");
        let mut command = sandbox.outlive(["run", "--name", name, "--", "sh", "-c", &script]);
        let mut wrapper = command.stdout(streams()).stderr(streams()).spawn().unwrap();
        let mut stdout = wrapper.stdout.take();
        let grandchild = pid_in(&sandbox, name);
        assert_eq!(end_of(wrapper).code(), Some(3));
        assert!(is_alive(grandchild), "the wrapper waited for the grandchild");
        if let Some(stdout) = &mut stdout {
            let mut said = [0; 3];
            std::io::Read::read_exact(stdout, &mut said).unwrap();
            assert_eq!(&said, b"hi\n");
        }
        assert_eq!(sandbox.show(name)["exit_code"], 3);
        signal_pid(grandchild, "KILL");
    }
}

#[test]
fn f_20_an_interrupt_from_the_terminal_is_heard_once() {
    as_if_bare::same_at_a_terminal(&["one interrupt is one interrupt", "an interrupt ends it", "quit"]);
}

/// How often a run ends in a storm.
const ROUNDS: usize = 8;

#[test]
fn f_21_a_storm_of_signals_does_not_disturb_the_end() {
    let sandbox = Sandbox::new();
    let mut sent = 0;
    for round in 0..ROUNDS {
        let name = format!("storm{round}");
        let script = format!("trap '' TERM; echo $$ > {name}; until [ -e go{round} ]; do sleep 0.01; done; exit 3");
        let words = ["run", "--name", &name, "--", "sh", "-c", &script];
        let mut wrapper = sandbox.outlive(words).stderr(Stdio::null()).spawn().unwrap();
        let command = pid_in(&sandbox, &name);
        let pid = rustix::process::Pid::from_raw(wrapper.id().cast_signed()).unwrap();
        std::fs::write(sandbox.work().join(format!("go{round}")), "").unwrap();
        // Until it is gone; as long as it is not collected, nobody else has its pid.
        until("the wrapper to end", || {
            for _ in 0..50 {
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
                sent += 1;
            }
            !is_alive(wrapper.id())
        });
        let status = wrapper.wait().unwrap();
        assert!(!is_alive(command), "the wrapper left its command behind");
        let run = sandbox.show(&name);
        let state = run["state"].as_str().unwrap();
        assert!(["interrupted", "failed"].contains(&state), "round {round}, {status}: {run}");
        assert_eq!(recorded(&sandbox, &run), [state], "round {round}");
        assert_eq!(run["exit_code"], 3, "round {round}: {run}");
    }
    println!("{sent} signals in {ROUNDS} rounds");
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn f_22_unexecutable_command_is_126_or_127_and_recorded() {
    let sandbox = Sandbox::new();
    let executable = |name: &str, bytes: &[u8], mode| {
        let path = sandbox.work().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    executable("plain", b"", 0o644);
    executable("orphan", b"#!/nonexistent/interpreter\n", 0o755);
    let busy = executable("busy", &std::fs::read("/bin/true").unwrap(), 0o755);
    let _writer = std::fs::File::options().append(true).open(busy).unwrap();
    let cases = [
        ("absent", "/nonexistent", 127, "No such file"),
        ("unknown", "no-such-program-at-all", 127, "No such file"),
        ("orphan", "./orphan", 127, "No such file"),
        ("plain", "./plain", 126, "Permission denied"),
        ("directory", "/tmp", 126, "Permission denied"),
        ("busy", "./busy", 126, "Text file busy"),
    ];
    for (name, program, status, why) in cases {
        let said = sandbox.outlive(["run", "--name", name, "--", program]).fails_with(status);
        assert!(said.contains(program) && said.contains(why), "{name}: {said}");
        not_started(&sandbox, name, why);
    }
}

fn not_started(sandbox: &Sandbox, name: &str, why: &str) {
    let run = sandbox.show(name);
    assert_eq!((&run["state"], &run["error_type"]), (&"failed".into(), &"spawn".into()), "{run}");
    assert!(run.to_string().contains(why), "{run}");
    assert_eq!(recorded(sandbox, &run), ["failed"]);
}

#[test]
fn f_22_arguments_too_long_for_the_command_are_126_and_recorded() {
    let sandbox = Sandbox::new();
    // The command's environment names its registry: a long name takes the room that the wrapper's own words give back.
    let dir = sandbox.work().join("long".repeat(60));
    std::fs::create_dir_all(dir.join(".git")).unwrap();
    let start = |size: usize| {
        let mut command = sandbox.outlive(["run", "--name", "long", "--", "true"]);
        command.args((0..size / 100_000).map(|_| "x".repeat(99_991))).arg("x".repeat(size % 100_000));
        command.current_dir(&dir).stderr(Stdio::piped()).stdout(Stdio::null()).spawn()
    };
    // The longest that the kernel lets the wrapper have.
    let (mut fits, mut does_not) = (0, 7 << 20);
    while does_not - fits > 16 {
        let size = (fits + does_not) / 2;
        match start(size) {
            Ok(mut child) => {
                let _ = child.kill();
                child.wait().unwrap();
                fits = size;
            }
            Err(_) => does_not = size,
        }
    }
    let output = start(fits).unwrap().wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(126), "{fits} bytes: {said}");
    assert!(said.contains("Argument list too long"), "{said}");
    let run = sandbox.outlive(["show", "@last", "--json"]).current_dir(&dir).json();
    assert_eq!((&run["state"], &run["error_type"]), (&"failed".into(), &"spawn".into()));
}

#[test]
fn f_25_without_processes_to_spare_it_runs_or_says_why_not() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let user = (60_000 + std::process::id() % 5_000).to_string();
    // Others may not look into where it was built.
    let program = sandbox.path().join("outlive");
    std::fs::copy(binary(), &program).unwrap();
    std::fs::set_permissions(sandbox.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    sandbox.command("chown", ["-R", &user, sandbox.path().to_str().unwrap()]).succeeds();
    let as_user = |limit: &str, words: &[&str]| {
        let limited =
            [limit, "setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", program.to_str().unwrap()];
        sandbox.command("prlimit", limited.iter().chain(words)).output().unwrap()
    };
    let (mut ran, mut refused) = (0, 0);
    for limit in 1..=8 {
        let name = format!("limit{limit}");
        let script = format!(": > {name}; exit 4");
        let ended = as_user(&format!("--nproc={limit}"), &["run", "--name", &name, "--", "sh", "-c", &script]);
        let shown = as_user("--nproc=100", &["show", &name, "--json"]);
        let state = serde_json::from_slice::<Value>(&shown.stdout).map_or(Value::Null, |run| run["state"].clone());
        if sandbox.work().join(&name).exists() {
            ran += 1;
            assert_eq!((ended.status.code(), state), (Some(4), "failed".into()), "limit {limit}");
        } else {
            refused += 1;
            assert!(matches!(ended.status.code(), Some(107 | 126)), "limit {limit}: {}", ended.status);
            assert!(text(&ended.stderr).contains("Resource temporarily unavailable"), "{}", text(&ended.stderr));
            assert!(state.is_null() || state == "failed", "limit {limit}: {state}");
        }
    }
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
}

#[test]
fn f_26_without_descriptors_to_spare_it_runs_or_says_why_not() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let (mut ran, mut refused) = (0, 0);
    for limit in (6..=32).step_by(3) {
        let name = format!("limit{limit}");
        let script = format!(": > {name}; exit 4");
        let words = [&format!("--nofile={limit}"), "outlive", "run", "--name", &name, "--", "sh", "-c", &script];
        let ended = sandbox.command("prlimit", words).output().unwrap();
        let on_record = sandbox.runs().iter().find(|run| run["name"] == *name).map(|run| run["state"].clone());
        if sandbox.work().join(&name).exists() {
            ran += 1;
            assert_eq!((ended.status.code(), on_record), (Some(4), Some("failed".into())), "limit {limit}");
        } else {
            refused += 1;
            assert!(!ended.status.success() && !ended.stderr.is_empty(), "limit {limit}: {}", ended.status);
            let state = on_record.unwrap_or("failed".into());
            assert_eq!(state, "failed", "limit {limit}");
        }
    }
    println!("{ran} ran, {refused} were refused");
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
    let doctor = sandbox.outlive(["doctor"]).output().unwrap();
    assert!(doctor.status.success(), "{}", text(&doctor.stdout));
}

#[test]
fn f_26_a_beat_needs_no_further_descriptor() {
    let sandbox = Sandbox::impatient();
    let run = sandbox.start("full", &["sh", "-c", "until [ -e go ]; do sleep 0.02; done; exit 4"]);
    let another_beat = || {
        let before = sandbox.show("full")["last_beat_at"].clone();
        assert!(before.is_string(), "{before}");
        until("another beat", || sandbox.show("full")["last_beat_at"] != before);
    };
    another_beat();
    let pid = run.pid().to_string();
    sandbox.command("prlimit", ["--nofile=1:", "--pid", &pid]).succeeds();
    for _ in 0..5 {
        another_beat();
    }
    sandbox.command("prlimit", ["--nofile=512:", "--pid", &pid]).succeeds();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(sandbox.wait_for_state("full", "failed")["exit_code"], 4);
}

#[test]
fn f_30_recorded_exit_is_what_the_caller_saw() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 2, 126, 127, 128, 130, 200, 255] {
        let script = format!("exit {code}");
        let status = sandbox.outlive(["run", "--name", &script, "--", "sh", "-c", &script]).status().unwrap();
        assert_eq!((status.code(), &sandbox.show(&script)["exit_code"]), (Some(code), &code.into()));
    }
    for signal in [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15, 24, 25, 31] {
        let script = format!("kill -{signal} $$");
        let status = sandbox.outlive(["run", "--name", &script, "--", "sh", "-c", &script]).status().unwrap();
        assert_eq!((status.signal(), &sandbox.show(&script)["signal"]), (Some(signal), &signal.into()));
    }
}

#[test]
fn f_31_cancel_ends_a_command_that_ignores_being_asked() {
    let sandbox = Sandbox::impatient();
    let script = "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo $! > grandchild; while :; do sleep 0.05; done";
    let mut run = sandbox.start("stubborn", &["sh", "-c", script]);
    let (command, grandchild) = (child_of(run.pid()), pid_in(&sandbox, "grandchild"));
    let briefly = sandbox.outlive(["cancel", "stubborn", "--grace", "200ms"]).output().unwrap();
    if !briefly.status.success() {
        sandbox.outlive(["cancel", "stubborn"]).succeeds();
    }
    run.wrapper.wait().unwrap();
    let shown = sandbox.show("stubborn");
    assert_eq!(shown["state"], "cancelled", "{shown}");
    assert_eq!(recorded(&sandbox, &shown), ["cancelled"]);
    assert!(!is_alive(command) && !is_alive(grandchild), "something of its tree is left");
}

/// How often a cancel races with the end of its run.
const RACES: usize = 300;

#[test]
fn f_32_a_cancel_and_an_end_at_once_are_one_end() {
    let sandbox = Sandbox::impatient();
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(race) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|race| *race < RACES) {
                    let (name, length) = (format!("race{race}"), format!("0.{:03}", race % 8 * 30));
                    let script = format!(": > {name}; exec sleep {length}");
                    let wrapper = quietly(&mut sandbox.outlive(["run", "--name", &name, "--", "sh", "-c", &script]));
                    until("the command to run", || sandbox.work().join(&name).exists());
                    let cancel = sandbox.outlive(["cancel", &name, "--json"]).output().unwrap();
                    match cancel.status.code() {
                        Some(0) => {
                            let said: Value = serde_json::from_slice(&cancel.stdout).unwrap();
                            // The answer says so only of a run that has stopped.
                            if said["runs"][0]["outcome"] == "cancelled" {
                                assert_eq!(sandbox.show(&name)["state"], "cancelled");
                            }
                        }
                        // It had ended: final is final.
                        Some(103) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(
                                sandbox.show(&name)["state"],
                                "succeeded",
                                "refused, and cancelled all the same"
                            );
                        }
                        other => panic!("cancel ended with {other:?}: {}", text(&cancel.stderr)),
                    }
                    end_of(wrapper);
                }
            });
        }
    });
    let runs = sandbox.runs();
    assert_eq!(runs.len(), RACES);
    let (mut cancelled, mut succeeded) = (0, 0);
    for run in &runs {
        match run["state"].as_str().unwrap() {
            "cancelled" => cancelled += 1,
            "succeeded" => succeeded += 1,
            other => panic!("{other}: {run}"),
        }
        assert_eq!(recorded(&sandbox, run), [run["state"].as_str().unwrap()], "{run}");
    }
    let refused = refused.into_inner();
    println!("{cancelled} cancelled, {succeeded} succeeded, of which {refused} before the cancel");
    assert!(cancelled > 0 && succeeded > refused, "no race: {cancelled} cancelled, {succeeded} succeeded");
    sandbox.outlive(["doctor"]).succeeds();
}

fn quietly(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
