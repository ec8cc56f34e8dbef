//! The supervisor as a service of the machine.

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

#[test]
fn r12_the_lines_of_a_crontab_are_added_once_and_others_are_left_alone() {
    let sandbox = Sandbox::new();
    let bin = sandbox.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let table = sandbox.path().join("table");
    std::fs::write(&table, "0 4 * * * /usr/bin/true\n").unwrap();
    // The program that keeps crontabs, for a table of this sandbox.
    let program = format!("#!/bin/sh\ncase $1 in -l) cat {0};; -) cat > {0};; esac\n", table.display());
    std::fs::write(bin.join("crontab"), program).unwrap();
    std::process::Command::new("chmod").arg("+x").arg(bin.join("crontab")).status().unwrap();
    let service = |words: &[&str]| {
        let mut command = sandbox.outlive(["service"].iter().chain(words));
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path);
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
