//! The supervisor as a service of the machine.

use std::path::{Path, PathBuf};

use super::sandbox::{Ends, Sandbox, settled, text};

#[test]
fn r12_the_unit_is_shown_first_and_systemd_understands_it() {
    let sandbox = Sandbox::new();
    let config = sandbox.path().join("config");
    let service = |words: &[&str]| {
        let mut command = sandbox.outlive(["service"].iter().chain(words));
        command.env("XDG_CONFIG_HOME", &config);
        command
    };
    let shown = service(&["install", "--slots", "2"]).succeeds();
    let binary = super::sandbox::binary().display().to_string();
    let name = shown.lines().next().unwrap().rsplit('/').next().unwrap().trim_end_matches(':').to_owned();
    insta::assert_snapshot!(settled(&sandbox, &shown).replace(&binary, "[OUTLIVE]").replace(&name, "[UNIT]"));
    assert!(!config.exists(), "it was written before anybody had agreed");
    service(&["install", "--slots", "2", "--yes"]).succeeds();
    let unit = config.join("systemd/user").join(&name);
    // A user's manager keeps things where the session has a place for it, which tests need not have.
    let mut verify = sandbox.command("systemd-analyze", ["--user", "verify"]);
    let verified = verify.arg(&unit).env("XDG_RUNTIME_DIR", sandbox.path()).output();
    match verified {
        Ok(verified) => assert!(verified.status.success(), "{}", text(&verified.stderr)),
        Err(error) => panic!("systemd-analyze cannot be executed: {error}"),
    }
    let found = service(&["status", "--json"]).output().unwrap();
    assert_eq!(found.status.code(), Some(1), "no supervisor works");
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["systemd"], unit.display().to_string());
    service(&["remove"]).succeeds();
    assert!(unit.exists(), "it was removed before anybody had agreed");
    service(&["remove", "--yes"]).succeeds();
    assert!(!unit.exists());
}

/// Puts a program `crontab` into the sandbox that keeps the table of a file. Answers with its directory.
fn fake_crontab(sandbox: &Sandbox, table: &Path) -> PathBuf {
    let bin = sandbox.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = format!("#!/bin/sh\ncase $1 in -l) cat {0};; -) cat > {0};; esac\n", table.display());
    std::fs::write(bin.join("crontab"), program).unwrap();
    std::process::Command::new("chmod").arg("+x").arg(bin.join("crontab")).status().unwrap();
    bin
}

fn path_with(bin: &Path) -> String {
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

#[test]
fn r12_crontab_lines_are_added_once_and_others_left_alone() {
    let sandbox = Sandbox::new();
    let table = sandbox.path().join("table");
    std::fs::write(&table, "0 4 * * * /usr/bin/true\n").unwrap();
    let bin = fake_crontab(&sandbox, &table);
    let service = |words: &[&str]| {
        let mut command = sandbox.outlive(["service"].iter().chain(words));
        command.env("PATH", path_with(&bin));
        command
    };
    service(&["install", "--cron"]).succeeds();
    assert_eq!(std::fs::read_to_string(&table).unwrap().lines().count(), 1);
    for _ in 0..2 {
        service(&["install", "--cron", "--yes"]).succeeds();
    }
    let lines = std::fs::read_to_string(&table).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    // What the table says is what a shell can execute.
    let line = lines.lines().find_map(|line| line.strip_prefix("*/5 * * * * ")).unwrap();
    sandbox.command("sh", ["-ec", line]).succeeds();
    service(&["remove", "--cron", "--yes"]).succeeds();
    assert_eq!(std::fs::read_to_string(&table).unwrap(), "0 4 * * * /usr/bin/true\n");
}

/// Sets the home in each of the three ways, and answers with the variables and the home that they name.
fn homes(sandbox: &Sandbox) -> [(&'static str, PathBuf, PathBuf); 3] {
    let below = |name: &str| sandbox.path().join(name);
    [
        ("OUTLIVE_HOME", below("a 100% home"), below("a 100% home")),
        ("XDG_STATE_HOME", below("state"), below("state/outlive")),
        ("HOME", below("user"), below("user/.local/state/outlive")),
    ]
}

#[test]
fn t1_05_cron_resumes_dead_runs_whatever_names_the_home() {
    for index in 0..3 {
        let sandbox = Sandbox::new();
        let table = sandbox.path().join("table");
        std::fs::write(&table, "").unwrap();
        let bin = fake_crontab(&sandbox, &table);
        let (variable, value, home) = homes(&sandbox)[index].clone();
        let bare = |words: &[&str]| {
            let mut command = sandbox.outlive(words);
            command.env_remove("OUTLIVE_HOME").env_remove("XDG_STATE_HOME").env(variable, &value);
            command.env("PATH", path_with(&bin));
            command
        };
        // The owner of its first attempt is killed, so that only a supervisor with the maker's key resumes it.
        let kill_first = "if [ -e again ]; then echo resumed > done; else touch again; kill -9 $PPID; fi";
        let words = ["run", "--resume-on", "crash", "--name", "n", "--", "sh", "-c", kill_first];
        let ended = bare(&words).output().unwrap().status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "its owner was not killed");
        bare(&["service", "install", "--cron", "--yes"]).succeeds();
        let lines = std::fs::read_to_string(&table).unwrap();
        assert!(!lines.contains("2>"), "cron cannot mail what goes wrong: {lines}");
        let line = lines.lines().find_map(|line| line.strip_prefix("*/5 * * * * ")).unwrap().replace("\\%", "%");
        // As cron does it: without the environment of whoever installed it.
        let mut cron = std::process::Command::new("/bin/sh");
        cron.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", sandbox.path().join("elsewhere"));
        cron.args(["-c", &line]).current_dir("/").succeeds();
        crate::sandbox::until("the run to be resumed", || sandbox.work().join("done").exists());
        assert!(home.exists(), "{variable} did not name the home");
    }
}

#[test]
fn t1_05_a_unit_names_the_resolved_home() {
    let sandbox = Sandbox::new();
    for (variable, value, home) in homes(&sandbox) {
        let mut command = sandbox.outlive(["service", "install"]);
        command.env_remove("OUTLIVE_HOME").env_remove("XDG_STATE_HOME").env(variable, value);
        let shown = command.env("XDG_CONFIG_HOME", sandbox.path()).succeeds();
        let line = format!("Environment=\"OUTLIVE_HOME={}\"", home.display()).replace('%', "%%");
        assert!(shown.contains(&line), "{variable}: {shown}");
    }
}
