//! `outlive import`: rows of a legacy table become runs, and running ones are decided on their owner.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use outlive::testing::server::Server;
use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text};

const ROWS: &str = r#"
    CREATE TABLE replica_heartbeat (replica_id TEXT PRIMARY KEY, last_heartbeat TIMESTAMPTZ NOT NULL);
    INSERT INTO replica_heartbeat VALUES ('alive', now()), ('silent', now() - INTERVAL '2 minutes');
    CREATE TABLE task_run (
        id serial PRIMARY KEY, task_id int NOT NULL, attempt int NOT NULL DEFAULT 1, status text NOT NULL,
        result jsonb NOT NULL DEFAULT '{}', replica_id text,
        created_at timestamptz NOT NULL DEFAULT '2026-01-01T00:00:00Z', started_at timestamptz,
        updated_at timestamptz NOT NULL DEFAULT '2026-01-01T00:01:00Z'
    );
    INSERT INTO task_run (task_id, status, result, replica_id, started_at) VALUES
        (11, 'DONE', '{"detail": "3 rows"}', NULL, '2026-01-01T00:00:30Z'),
        (12, 'FAILED', '{"detail": "no such table"}', NULL, '2026-01-01T00:00:30Z'),
        (13, 'CANCELED', '{}', NULL, NULL),
        (14, 'PENDING', '{}', NULL, NULL),
        (15, 'RUNNING', '{}', NULL, now()),
        (16, 'RUNNING', '{}', 'silent', now()),
        (17, 'RUNNING', '{}', 'unknown', now()),
        (18, 'RUNNING', '{}', 'alive', now()),
        (19, 'ODD', '{}', NULL, NULL);
"#;

/// A database with the tables of the legacy system, in a schema of its own. Answers with its URL and the two tables.
fn legacy() -> (String, String, String) {
    let url = Server::shared().fresh_url();
    let (plain, query) = url.split_once('?').unwrap();
    let schema = query.split('&').find_map(|pair| pair.strip_prefix("schema=")).unwrap().to_owned();
    Server::shared().psql(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {ROWS}"));
    (format!("{plain}?sslmode=disable"), format!("{schema}.task_run"), format!("{schema}.replica_heartbeat"))
}

/// The imported runs by the row that they come from.
fn runs(sandbox: &Sandbox) -> BTreeMap<u64, Value> {
    let listed = sandbox.outlive(["ps", "--all", "--json"]).json();
    let shown = |run: &Value| sandbox.outlive(["show", run["id"].as_str().unwrap(), "--json"]).json();
    let row = |run: &Value| (run["labels"]["row"].as_str().unwrap().parse().unwrap(), shown(run));
    listed["runs"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn rows_become_runs_and_running_ones_are_decided_on_their_owner() {
    let sandbox = Sandbox::new();
    let (url, table, replicas) = legacy();
    let words = ["import", "--from-sql", &url, "--table", &table, "--replicas", &replicas, "--json"];
    let counted = sandbox.outlive(words).json();
    let states = json!({"succeeded": 1, "failed": 4, "cancelled": 1, "pending": 1});
    let expected = json!([true, 9, 7, 0, 3, 2, states]);
    let told = |said: &Value| {
        json!([
            said["dry_run"],
            said["rows"],
            said["made"],
            said["there"],
            said["abandoned"],
            said["left_count"],
            said["states"]
        ])
    };
    assert_eq!(told(&counted), expected);
    assert!(!sandbox.registry().exists(), "a count made a registry");

    let output = sandbox.outlive(words.iter().chain(&["--yes"])).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "rows are left: {}", text(&output.stderr));
    let imported: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&imported["dry_run"], &imported["made"]), (&json!(false), &json!(7)));
    let left: Vec<(&str, &str)> = imported["left"].as_array().unwrap().iter().map(named).collect();
    let alive = "it is running, and its replica `alive` is alive";
    assert_eq!(left, [("8", alive), ("9", "its status `ODD` is unknown")]);

    let runs = runs(&sandbox);
    let error = |row: u64| (runs[&row]["state"].as_str().unwrap(), runs[&row]["error_message"].as_str());
    assert_eq!(error(2), ("failed", Some("no such table")));
    assert_eq!(error(3), ("cancelled", None));
    assert_eq!(error(4), ("pending", None));
    assert_eq!(error(5), ("failed", Some("Marked as failed during heartbeat migration")));
    for row in [6, 7] {
        assert_eq!(error(row), ("failed", Some("Task run abandoned: owning replica stopped responding")));
    }
    let done = &runs[&1];
    assert_eq!((&done["state"], &done["result"]), (&json!("succeeded"), &json!({"detail": "3 rows"})));
    assert_eq!(done["created_at"], "2026-01-01T00:00:00.000000Z");
    assert_eq!((&done["duration_ms"], &done["kind"]), (&json!(30_000), &json!("task_run")));
    assert_eq!((&done["labels"]["task"], &done["input"]["task_id"]), (&json!("11"), &json!(11)));
    assert_eq!(done["owner_pid"], Value::Null);

    let again = sandbox.outlive(words.iter().chain(&["--yes"])).printed();
    assert_eq!((&again["made"], &again["there"]), (&json!(0), &json!(7)), "{again}");
}

fn named(left: &Value) -> (&str, &str) {
    (left["row"].as_str().unwrap(), left["reason"].as_str().unwrap())
}

#[test]
fn rows_are_imported_and_an_unknown_owner_is_left_alone() {
    let sandbox = Sandbox::new();
    let rows = [
        json!({"id": "a", "status": "DONE", "created_ts": 1_767_225_600, "result": "{\"rows\": 3}"}),
        json!({"id": "b", "status": "RUNNING"}),
        json!({"id": "c", "status": "RUNNING", "replica_id": "r1"}),
        json!({"status": "DONE"}),
        json!([1]),
    ];
    let lines: String = rows.iter().map(|row| format!("{row}\n")).chain(["{\n".into()]).collect();
    let import = |flags: &[&str]| {
        let mut child = sandbox
            .outlive([&["import", "--from-sql", "-", "--kind", "migrate"], flags].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), text(&output.stdout))
    };
    let (status, said) = import(&["--yes"]);
    assert_eq!(status, Some(1));
    insta::assert_snapshot!(said, @r"
    2 of 6 rows imported: 1 failed, 1 succeeded
    1 of them were running without an owner that is alive, and have failed
    row c is left: it is running, and only the database knows whether its replica `r1` is alive
    row number 4 is left: it has no `id`
    row number 5 is left: it is not a JSON object
    row number 6 is left: it is not JSON: EOF while parsing an object at line 1 column 1
    ");
    let listed = sandbox.outlive(["ps", "--all", "--kind", "migrate", "--json"]).json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "{listed}");
    let (status, said) = import(&[]);
    assert_eq!(status, Some(0));
    assert!(said.starts_with("0 of 6 rows would be imported\n2 were imported before\n"), "{said}");
}

#[test]
fn source_that_cannot_be_read_is_refused_without_its_password() {
    let sandbox = Sandbox::new();
    let (url, table, _) = legacy();
    let missing = sandbox.outlive(["import", "--from-sql", "no-such-file"]).fails_with(2);
    assert!(missing.contains("`no-such-file` cannot be read"), "{missing}");
    let other = sandbox.outlive(["import", "--from-sql", "mysql://ada:canary@db/app"]).fails_with(2);
    assert!(other.contains("takes postgres://") && !other.contains("canary"), "{other}");
    for name in ["absent", "a.b.c", "x\"; DROP TABLE y; --"] {
        let output = sandbox.outlive(["import", "--from-sql", &url, "--table", name, "--yes"]).output().unwrap();
        assert!(!output.status.success(), "{name}");
    }
    sandbox.outlive(["import", "--from-sql", &url, "--table", &table, "--replicas", "absent"]).succeeds();
}
