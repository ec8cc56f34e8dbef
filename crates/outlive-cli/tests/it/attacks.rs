//! Attacks on the built command: files, times and requests of somebody who means harm.

use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;

use super::sandbox::{Ends, Sandbox, is_root, text};
use super::served::Served;

fn plant(sandbox: &Sandbox, sql: &str) {
    Connection::open(sandbox.database()).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn t8_07_a_planted_trigger_hides_no_run_and_doctor_names_it() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "first", "--", "true"]).succeeds();
    plant(&sandbox, "CREATE TRIGGER empties AFTER UPDATE ON workers BEGIN DELETE FROM runs; END");
    let shown = sandbox.outlive(["ps", "--all"]).output().unwrap();
    assert!(text(&shown.stdout).contains("first"), "{}", text(&shown.stdout));
    let doctor = sandbox.outlive(["doctor"]).output().unwrap();
    let said = text(&doctor.stdout) + &text(&doctor.stderr);
    assert!(!doctor.status.success() && said.contains("the trigger `empties`"), "{said}");
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    sandbox.outlive(["run", "--name", "second", "--", "true"]).succeeds();
    assert_eq!(sandbox.runs().len(), 2);
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn t8_07_a_view_in_place_of_a_table_hangs_no_command() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "first", "--", "true"]).succeeds();
    plant(
        &sandbox,
        "DROP TABLE events; CREATE VIEW events AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) \
         SELECT x AS run, x AS seq, x AS body FROM n",
    );
    let why = sandbox.outlive(["why", "first"]).output().unwrap();
    assert!(text(&why.stdout).contains("succeeded"), "{}{}", text(&why.stdout), text(&why.stderr));
}

#[test]
fn t8_08_times_at_the_end_of_the_calendar_abort_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["queue", "add", "--name", "far", "--not-before", "9999-12-30T00:00:00Z", "--", "true"]).succeeds();
    for late in ["9999-12-31T23:59:59Z", "9999-12-30T23:59:59.999999Z", "69900000h", "99999999h"] {
        let said = sandbox.outlive(["queue", "add", "--not-before", late, "--", "true"]).output().unwrap();
        assert!(said.status.code().is_some_and(|code| code < 128), "{late}: {}", text(&said.stderr));
    }
    // A row of somebody else's making, with times that no calendar has.
    for micros in [i64::MAX, i64::MIN, 253_402_300_799_999_999, 253_402_207_200_999_999] {
        plant(&sandbox, &format!("UPDATE runs SET created_at = {micros}"));
        for words in [&["ps", "--json"][..], &["ps"], &["show", "far"], &["why", "far"], &["queue", "list"], &["stats"]]
        {
            let done = sandbox.outlive(words).output().unwrap();
            assert!(done.status.code().is_some_and(|code| code < 128), "{micros} {words:?}: {}", text(&done.stderr));
        }
    }
    for word in ["9999-12-31T23:59:59.000000Z", "+275760-09-13T00:00:00.000000Z", "9999-12-30T22:00:01.000000Z"] {
        plant(
            &sandbox,
            &format!(
                "UPDATE runs SET created_at = 0, body = json_replace(body, '$.created_at', '{word}', '$.updated_at', '{word}')"
            ),
        );
        for words in [&["ps", "--json"][..], &["ps"], &["show", "far"], &["why", "far"], &["queue", "list"]] {
            let done = sandbox.outlive(words).output().unwrap();
            assert!(done.status.code().is_some_and(|code| code < 128), "{word} {words:?}: {}", text(&done.stderr));
        }
    }
}

#[test]
fn t8_08_registry_planted_above_by_another_user_is_ignored() {
    if !is_root() {
        return println!("skipped: only root can give a directory away");
    }
    let sandbox = Sandbox::new();
    let shared = sandbox.path().join("shared");
    let below = shared.join("mine/project");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::create_dir(shared.join(".outlive")).unwrap();
    std::os::unix::fs::chown(shared.join(".outlive"), Some(65_534), Some(65_534)).unwrap();
    for mode in [0o700, 0o755, 0o777] {
        std::fs::set_permissions(shared.join(".outlive"), std::fs::Permissions::from_mode(mode)).unwrap();
        sandbox.outlive(["run", "--", "true"]).current_dir(&below).succeeds();
        sandbox.outlive(["ps"]).current_dir(&below).succeeds();
    }
    assert_eq!(std::fs::read_dir(shared.join(".outlive")).unwrap().count(), 0);
}

#[test]
fn t8_09_a_run_whose_directory_is_a_link_is_not_followed() {
    let sandbox = Sandbox::new();
    let id = sandbox.outlive(["queue", "add", "--name", "waits", "--json", "--", "true"]).succeeds();
    let id: serde_json::Value = serde_json::from_str(&id).unwrap();
    let id = id["runs"][0]["id"].as_str().unwrap().to_owned();
    let outside = sandbox.path().join("outside");
    std::fs::rename(sandbox.registry().join("runs").join(&id), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, sandbox.registry().join("runs").join(&id)).unwrap();
    let before = std::fs::read_dir(&outside).unwrap().count();
    let worked = sandbox.outlive(["work", "--drain"]).output().unwrap();
    assert!(worked.status.code().is_some_and(|code| code < 128), "{}", text(&worked.stderr));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), before, "something was written through the link");
    assert!(!outside.join("attempts").exists());
}

#[test]
fn t8_09_doctor_writes_a_damaged_spec_of_a_waiting_run_again() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["queue", "add", "--name", "waits", "--", "true"]).succeeds();
    let id = sandbox.show("waits")["id"].as_str().unwrap().to_owned();
    let spec = sandbox.registry().join("runs").join(&id).join("spec.json");
    std::fs::write(&spec, "{").unwrap();
    let said = sandbox.outlive(["doctor"]).output().unwrap();
    assert!(!said.status.success() && text(&said.stdout).contains("spec.json"), "{}", text(&said.stdout));
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    sandbox.outlive(["doctor"]).succeeds();
    // What the file says is enough to have the run again.
    for name in ["registry.db", "registry.db-wal", "registry.db-shm"] {
        let _ = std::fs::remove_file(sandbox.registry().join(name));
    }
    assert_eq!(sandbox.show("waits")["state"], "pending");
}

#[test]
fn t8_09_a_request_with_two_hosts_is_refused() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let hosts = [("Host", served.address.as_str()), ("Host", "evil.example")];
    assert_eq!(served.request("GET /healthz", &hosts, "").status, 400);
    assert_eq!(served.request("GET /healthz", &hosts[..1], "").status, 200);
}

#[test]
fn t3_04_an_ended_session_is_answered_with_no_content() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let session = served.begin_mcp();
    let bearer = format!("Bearer {}", served.token);
    let ended = served.request("DELETE /mcp", &[("Authorization", &bearer), ("Mcp-Session-Id", &session)], "");
    assert_eq!(ended.status, 204, "{} {}", ended.head, ended.body);
}

#[test]
fn t8_09_reading_a_schema_without_a_registry_creates_nothing() {
    let sandbox = Sandbox::new();
    let server = outlive::testing::server::Server::shared();
    let url = server.fresh_url();
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned();
    for words in [&["ps"][..], &["ps", "--all", "--json"], &["queue", "list"]] {
        sandbox.outlive(["--registry", &url].iter().chain(words)).succeeds();
    }
    let made = server.psql(&format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'"));
    assert_eq!(made, "0", "reading made the schema");
    sandbox.outlive(["--registry", &url, "run", "--name", "first", "--", "true"]).succeeds();
    assert!(sandbox.outlive(["--registry", &url, "ps", "--all"]).succeeds().contains("first"));
}
