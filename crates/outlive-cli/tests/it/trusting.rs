//! What records of others have deleted, read and connected to by the command and the server: nothing (ADR 0018).

use std::path::{Path, PathBuf};

use outlive::testing::server::Server;
use serde_json::json;

use super::sandbox::{Ends, Sandbox, text};
use super::served::Served;
use super::serving::token_of;
use super::sweeping::NO_GRACE;

/// What a writer does that leaves something behind and fails.
const WRITE: &str = "d=$0/shards/run_id=$OUTLIVE_RUN_ID/db=00000/attempt=00; mkdir -p $d; echo a > $d/x; exit 1";

/// Has another user record a run in a registry whose artifacts are below `place`; answers with its object.
fn recorded_by_another(sandbox: &Sandbox, registry: Option<&str>, place: &Path, name: &str) -> PathBuf {
    std::fs::create_dir_all(place).unwrap();
    let artifacts = place.to_str().unwrap();
    let theirs = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.env("OUTLIVE_HOME", sandbox.path().join("their home"));
        registry.map(|url| command.env("OUTLIVE_REGISTRY", url));
        command
    };
    let words = ["run", "--name", name, "--artifacts", artifacts, "--", "sh", "-c", WRITE, artifacts];
    assert_eq!(theirs(&words).status().unwrap().code(), Some(1));
    let id = theirs(&["show", name, "--json"]).json()["id"].as_str().unwrap().to_owned();
    place.join(format!("shards/run_id={id}/db=00000/attempt=00/x"))
}

#[test]
fn t8_01_sweep_of_a_cloned_registry_deletes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_home_config(&format!("{NO_GRACE}every = \"1s\"\n"));
    let file = recorded_by_another(&sandbox, None, &sandbox.path().join("data"), "theirs");
    let report = sandbox.outlive(["sweep", "--yes", "--json"]).printed();
    assert_eq!((&report["objects"], file.exists()), (&0.into(), true), "{report}");
    assert!(report["kept"][0]["reason"].as_str().unwrap().contains("not signed by this user"), "{report}");
    sandbox.outlive(["supervise", "--once"]).succeeds();
    assert!(file.exists(), "a supervisor obeyed a record of another user");
}

#[test]
fn t8_01_postgres_row_of_another_user_deletes_no_other_place() {
    let (sandbox, url) = (Sandbox::new(), Server::shared().fresh_url());
    let place = sandbox.path().join("data");
    let file = recorded_by_another(&sandbox, Some(&url), &place, "theirs");
    let sweep = |config: &str| {
        sandbox.write_home_config(&format!("{NO_GRACE}{config}"));
        sandbox.outlive(["sweep", "--yes", "--json"]).env("OUTLIVE_REGISTRY", &url).printed()
    };
    let report = sweep("");
    assert_eq!((&report["objects"], file.exists()), (&0.into(), true), "{report}");
    let other = Server::shared().fresh_url();
    let report = sweep(&format!("[sweep.artifacts]\n\"{other}\" = [\"{}\"]\n", place.display()));
    assert_eq!((&report["objects"], file.exists()), (&0.into(), true), "named for another registry: {report}");
    let report = sweep(&format!("[sweep.artifacts]\n\"{url}\" = [\"{}\"]\n", place.display()));
    assert_eq!((&report["objects"], file.exists()), (&1.into(), false), "{report}");
}

#[test]
fn t8_02_token_of_each_role_reads_nothing_by_anothers_record() {
    let sandbox = Sandbox::new();
    sandbox.write_home_config(NO_GRACE);
    let place = sandbox.path().join("data");
    let file = recorded_by_another(&sandbox, None, &place, "theirs");
    std::fs::write(place.join("secret"), "attempt=hunter2 [").unwrap();
    let artifacts = place.to_str().unwrap();
    let words = ["run", "--name", "names", "--artifacts", artifacts, "--", "outlive", "artifact", "manifest", "secret"];
    sandbox.outlive(words).env("OUTLIVE_HOME", sandbox.path().join("their home")).succeeds();
    let mut served = Served::start(&sandbox, &[]);
    for role in ["read", "operate", "admin"] {
        served.token = token_of(&sandbox, role, role);
        for input in [json!({}), json!({ "yes": true })] {
            let reply = served.post("/v1/sweep", &input);
            assert!(!reply.body.contains("hunter2"), "{role}: {}", reply.body);
            assert!(file.exists(), "{role}: {}", reply.body);
        }
    }
}

#[test]
fn t8_02_run_refuses_artifacts_with_an_endpoint_or_credentials() {
    let sandbox = Sandbox::new();
    for artifacts in ["s3://bucket/p?endpoint=http://127.0.0.1:1", "s3://AK:hunter2@bucket/p"] {
        let refused = sandbox.outlive(["run", "--artifacts", artifacts, "--", "true"]).fails_with(2);
        assert!(refused.contains("[sweep.artifacts]") && !refused.contains("hunter2"), "{refused}");
    }
}

#[test]
fn t6_10_sweep_with_problems_exits_with_1() {
    let sandbox = Sandbox::new();
    sandbox.write_home_config(NO_GRACE);
    let place = sandbox.path().join("data");
    std::fs::create_dir_all(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let succeeds = WRITE.replace("exit 1", "exit 0");
    sandbox.outlive(["run", "--artifacts", artifacts, "--", "sh", "-c", &succeeds, artifacts]).succeeds();
    for words in [&["sweep"][..], &["sweep", "--yes"]] {
        let output = sandbox.outlive(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        assert!(text(&output.stdout).contains("it succeeded and names no manifest"), "{}", text(&output.stdout));
    }
}

#[test]
fn t6_04_show_has_the_location_and_the_end_of_the_lease() {
    let sandbox = Sandbox::new();
    let place = sandbox.path().join("data");
    std::fs::create_dir_all(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let words = ["run", "-d", "--name", "long", "--artifacts", artifacts, "--", "sleep", "300"];
    sandbox.outlive(words).succeeds();
    let shown = sandbox.wait_for("long", |run| run["state"] == "running");
    assert!(shown["artifacts_below"].as_str().unwrap().starts_with(&format!("{artifacts}/shards/run_id=")), "{shown}");
    assert!(shown["lease_until"].is_string(), "{shown}");
    let told = sandbox.outlive(["show", "long"]).succeeds();
    assert!(told.contains("lease end") && told.contains("below"), "{told}");
}
