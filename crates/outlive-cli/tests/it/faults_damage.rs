//! Files of a registry that somebody cuts, damages or takes away; the ids are those of `docs/faults.md`.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;

use super::sandbox::{Ends, Sandbox, text, until};

const WAIT: &str = "while [ ! -e go ]; do sleep 0.05; done";

/// Cuts a file of the registry to this length, as `truncate -s` does.
fn cut(sandbox: &Sandbox, name: &str, length: u64) {
    File::options().write(true).open(sandbox.registry().join(name)).unwrap().set_len(length).unwrap();
}

fn length(sandbox: &Sandbox, name: &str) -> u64 {
    std::fs::metadata(sandbox.registry().join(name)).unwrap().len()
}

#[test]
fn f_50_shared_memory_cut_under_a_live_run_loses_no_result() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("cut", &["sh", "-c", &format!("{WAIT}; exit 7")]);
    for left in [0, 100, 4096, 20_000, 0] {
        let whole = length(&sandbox, "registry.db-shm");
        cut(&sandbox, "registry.db-shm", left);
        // Nobody but the owner is there to notice.
        until("the owner to beat with what is left", || {
            let ended = run.wrapper.try_wait().unwrap();
            assert_eq!(ended, None, "the owner died of a map cut to {left}");
            length(&sandbox, "registry.db-shm") == whole
        });
    }
    assert_eq!(sandbox.show("cut")["health"], "healthy");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    cut(&sandbox, "registry.db-shm", 0);
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(7));
    assert_eq!(sandbox.show("cut")["exit_code"], 7);
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn f_50_a_bus_error_that_is_sent_is_the_commands_own() {
    let sandbox = Sandbox::impatient();
    let script =
        "trap 'echo x >> heard' BUS; touch ready; while [ \"$(wc -l < heard)\" -lt 20 ]; do sleep 0.01; done; exit 9";
    std::fs::write(sandbox.work().join("heard"), "").unwrap();
    let mut run = sandbox.start("sent", &["sh", "-c", script]);
    // Before it listens it dies of the signal, as it would without us.
    until("the command to listen", || sandbox.work().join("ready").exists());
    let heard = || std::fs::read_to_string(sandbox.work().join("heard")).unwrap().lines().count();
    until("all that was sent to be heard", || {
        let before = heard();
        if run.wrapper.try_wait().unwrap().is_some() {
            return true;
        }
        run.signal("BUS");
        until("a signal to be passed on", || heard() > before || run.wrapper.try_wait().unwrap().is_some());
        false
    });
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(9));
    // Whoever has no command of its own dies of it, as any program does.
    let waits = sandbox.start("waits", &["sh", "-c", WAIT]);
    let mut wait = sandbox.outlive(["wait", "waits"]).spawn().unwrap();
    until("`wait` to see to faults of its own", || {
        let status = text(&std::fs::read(format!("/proc/{}/status", wait.id())).unwrap());
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (7 - 1) != 0
    });
    super::sandbox::signal_pid(wait.id(), "BUS");
    assert_eq!(wait.wait().unwrap().signal(), Some(7));
    drop(waits);
}

#[test]
fn f_50_a_log_that_was_cut_or_taken_away_hides_no_run() {
    for left in [None, Some(0), Some(4096), Some(20_000)] {
        let sandbox = Sandbox::new();
        for name in ["one", "two", "three"] {
            sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
        }
        match left {
            None => std::fs::remove_file(sandbox.registry().join("registry.db-wal")).unwrap(),
            Some(left) => cut(&sandbox, "registry.db-wal", left),
        }
        let shown = sandbox.outlive(["ps", "--all"]).output().unwrap();
        let said = text(&shown.stderr);
        assert!(said.contains("the log of the database was cut") && said.contains("doctor --fix"), "{left:?}: {said}");
        assert_eq!(sandbox.runs().len(), 3, "{left:?}");
        assert_eq!(sandbox.show("one")["state"], "succeeded", "{left:?}");
        // Whoever writes first reads it back for all.
        sandbox.outlive(["run", "--name", "four", "--", "true"]).succeeds();
        let shown = sandbox.outlive(["ps", "--all"]).output().unwrap();
        assert_eq!(text(&shown.stderr), "", "{left:?}");
        assert_eq!(sandbox.runs().len(), 4, "{left:?}");
        sandbox.outlive(["doctor"]).succeeds();
    }
}

#[test]
fn f_50_log_cut_under_a_live_run_hides_no_run_and_no_result() {
    for left in [0, 4096, 20_000] {
        let sandbox = Sandbox::impatient();
        sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
        let mut run = sandbox.start("cut", &["sh", "-c", &format!("{WAIT}; exit 7")]);
        cut(&sandbox, "registry.db-wal", left);
        let names = || -> Vec<_> { sandbox.runs().iter().map(|run| run["name"].clone()).collect() };
        assert_eq!(names(), ["cut", "before"], "cut to {left}");
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(7));
        assert_eq!(names(), ["cut", "before"], "cut to {left}, with nobody left");
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        let seen = sandbox.show("cut");
        assert_eq!((&seen["state"], &seen["exit_code"]), (&"failed".into(), &7.into()), "cut to {left}: {seen}");
        sandbox.outlive(["doctor"]).succeeds();
    }
}

#[test]
fn f_50_lost_or_damaged_registry_id_is_reported_and_repaired() {
    for damage in ["gone", "empty", "junk"] {
        let sandbox = Sandbox::impatient();
        sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
        let mut run = sandbox.start("live", &["sh", "-c", &format!("{WAIT}; exit 7")]);
        let file = sandbox.registry().join("registry.id");
        let name =
            || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&file).unwrap()).unwrap()["uuid"].clone();
        let before = name();
        match damage {
            "gone" => std::fs::remove_file(&file).unwrap(),
            "empty" => cut(&sandbox, "registry.id", 0),
            _ => std::fs::write(&file, "x").unwrap(),
        }
        for words in [&["ps"][..], &["run", "--", "true"]] {
            let said = sandbox.outlive(words).fails_with(111);
            assert!(said.contains("registry.id` ") && said.contains("doctor --fix"), "{damage}: {said}");
        }
        assert!(!sandbox.outlive(["doctor"]).output().unwrap().status.success(), "{damage}");
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        assert_eq!(name(), before, "{damage}: it is called otherwise");
        let seen = sandbox.show("live");
        assert_eq!((&seen["state"], &seen["copied"]), (&"running".into(), &false.into()), "{damage}: {seen}");
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(7));
        assert_eq!(sandbox.show("live")["exit_code"], 7, "{damage}");
        sandbox.outlive(["doctor"]).succeeds();
    }
}

#[test]
fn f_49_a_copy_whose_name_is_lost_is_still_a_copy() {
    let sandbox = Sandbox::impatient();
    let _run = sandbox.start("live", &["sh", "-c", WAIT]);
    sandbox.shell("mkdir copy; cp -r .outlive copy/; rm copy/.outlive/registry.id").succeeds();
    let copy = ["--registry", "sqlite:copy/.outlive"];
    sandbox.outlive(["doctor", "--fix"].into_iter().chain(copy)).succeeds();
    let seen = sandbox.outlive(["show", "live", "--json"].into_iter().chain(copy)).json();
    assert_eq!(seen["copied"], true, "{seen}");
    sandbox.outlive(["reap"].into_iter().chain(copy)).succeeds();
    assert_eq!(sandbox.outlive(["show", "live", "--json"].into_iter().chain(copy)).json()["state"], "running");
}

#[test]
fn f_49_a_name_that_an_editor_saved_makes_no_copy() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("live", &["sh", "-c", &format!("{WAIT}; exit 7")]);
    sandbox.shell("cp -a .outlive/registry.id saved; mv saved .outlive/registry.id").succeeds();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    assert_eq!(sandbox.show("live")["copied"], false);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(7));
    assert_eq!(sandbox.show("live")["exit_code"], 7);
}
