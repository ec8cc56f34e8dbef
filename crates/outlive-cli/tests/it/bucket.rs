//! Writers and the sweeper as users of the command meet them: B01 to B04, B07 and B09.

use std::process::{Child, Command};

use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{BUCKET, Bucket, KEY, READ_KEY, url_at};
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, signal_pid, text, until};
use super::sweeping::NO_GRACE;

fn on(sandbox: &Sandbox, url: &str, words: &[&str]) -> Command {
    let mut command = sandbox.outlive(words);
    command.env("OUTLIVE_REGISTRY", url);
    command
}

fn json(mut command: Command) -> Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn b02_b03_b04_writers_publish_fail_and_die_and_are_swept() {
    let (sandbox, url) = (Sandbox::new(), Bucket::shared().fresh_url());
    let place = sandbox.path().join("data");
    std::fs::create_dir(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let write = "d=$0/shards/run_id=$OUTLIVE_RUN_ID/db=00000; mkdir -p $d/attempt=00 $d/attempt=01; \
                 echo a > $d/attempt=00/x; echo b > $d/attempt=01/x";
    let publish = format!(
        "{write}; mkdir -p $0/manifests; m=manifests/$OUTLIVE_RUN_ID.json; \
         echo \"{{\\\"db_url\\\": \\\"$d/attempt=01\\\"}}\" > $0/$m; outlive artifact manifest $m"
    );
    on(&sandbox, &url, &["run", "--name", "good", "--artifacts", artifacts, "--", "sh", "-ec", &publish, artifacts])
        .succeeds();
    let failed = on(
        &sandbox,
        &url,
        &["run", "--name", "bad", "--artifacts", artifacts, "--", "sh", "-c", &format!("{write}; exit 3"), artifacts],
    )
    .status()
    .unwrap();
    assert_eq!(failed.code(), Some(3));
    let shown = json(on(&sandbox, &url, &["show", "good", "--json"]));
    assert_eq!(shown["state"], "succeeded");
    assert!(shown["manifest_ref"].as_str().unwrap().starts_with("manifests/"));

    let dry = json(on(&sandbox, &url, &["sweep", "--json"]));
    assert_eq!((&dry["dry_run"], &dry["objects"]), (&true.into(), &0.into()), "they ended less than an hour ago");
    sandbox.write_home_config(NO_GRACE);
    let dry = json(on(&sandbox, &url, &["sweep", "--json"]));
    assert_eq!(dry["objects"], 3);
    let done = json(on(&sandbox, &url, &["sweep", "--yes", "--json"]));
    assert_eq!((&done["objects"], &done["bytes"]), (&dry["objects"], &dry["bytes"]));
    let good = shown["id"].as_str().unwrap();
    assert!(place.join(format!("shards/run_id={good}/db=00000/attempt=01/x")).exists());
    assert!(!place.join(format!("shards/run_id={good}/db=00000/attempt=00/x")).exists());
    let why = on(&sandbox, &url, &["why", "bad"]).output().unwrap();
    assert!(text(&why.stdout).contains("2 objects of 4 bytes deleted"), "{}", text(&why.stdout));
    assert_eq!(json(on(&sandbox, &url, &["sweep", "--yes", "--json"]))["objects"], 0);
}

#[test]
fn b09_writer_without_its_registry_runs_and_is_found_later() {
    let sandbox = Sandbox::new();
    let url = "s3://K:S@nowhere/p?endpoint=http://127.0.0.1:1&region=us-east-1";
    let output = on(&sandbox, url, &["run", "--name", "alone", "--", "echo", "worked"]).output().unwrap();
    assert_eq!((text(&output.stdout).trim(), output.status.code()), ("worked", Some(0)), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("instead"), "{}", text(&output.stderr));
    let home = format!("sqlite:{}", sandbox.home().join("registry").display());
    let shown = json(on(&sandbox, &home, &["show", "alone", "--json"]));
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(shown["labels"]["registry"].as_str().unwrap().split('?').next(), Some("s3://K:[redacted]@nowhere/p"));
}

#[test]
fn t6_10_bucket_that_refuses_keeps_the_command_from_running() {
    let sandbox = Sandbox::new();
    let url = url_at(Bucket::shared().port(), READ_KEY, &fresh_prefix());
    let output = on(&sandbox, &url, &["run", "--", "echo", "worked"]).output().unwrap();
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("", Some(109)), "{}", text(&output.stderr));
}

/// A prefix that no other test uses.
fn fresh_prefix() -> String {
    let url = Bucket::shared().fresh_url();
    url.split_once('@').unwrap().1.split('?').next().unwrap().split_once('/').unwrap().1.to_owned()
}

#[test]
fn t6_07_ps_show_why_and_a_dry_sweep_need_read_permission_alone() {
    let (sandbox, prefix, port) = (Sandbox::new(), fresh_prefix(), Bucket::shared().port());
    let reading = url_at(port, READ_KEY, &prefix);
    let list = || json(on(&sandbox, &reading, &["ps", "--all", "--json"]));
    assert_eq!(list()["runs"].as_array().unwrap().len(), 0, "{}", list());
    assert_eq!(json(on(&sandbox, &reading, &["sweep", "--json"]))["objects"], 0);
    on(&sandbox, &url_at(port, KEY, &prefix), &["run", "--name", "seen", "--", "true"]).succeeds();
    assert_eq!(list()["runs"].as_array().unwrap().len(), 1, "{}", list());
    for words in [&["show", "seen"][..], &["why", "seen"], &["wait", "seen"], &["workers"], &["sweep"]] {
        on(&sandbox, &reading, words).succeeds();
    }
    // Who may only read is told so where something is to be written.
    let refused = on(&sandbox, &reading, &["archive", "seen"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(109), "{}", text(&refused.stderr));
}

#[test]
fn t6_06_credentials_are_those_of_the_shared_files() {
    let (sandbox, prefix) = (Sandbox::new(), fresh_prefix());
    let files = sandbox.path().join("aws");
    std::fs::create_dir(&files).unwrap();
    let (config, credentials) = (files.join("config"), files.join("credentials"));
    let endpoint = format!("http://127.0.0.1:{}", Bucket::shared().port());
    let place = format!("region = us-east-1\nendpoint_url = {endpoint}\n");
    let printed = format!(r#"{{"Version": 1, "AccessKeyId": "{}", "SecretAccessKey": "{}"}}"#, KEY.0, KEY.1);
    std::fs::write(
        &config,
        format!("[profile keys]\n{place}[profile helper]\n{place}credential_process = echo '{printed}'\n[profile bare]\n{place}"),
    )
    .unwrap();
    let keys = format!("[keys]\naws_access_key_id = {}\naws_secret_access_key = {}\n", KEY.0, KEY.1);
    std::fs::write(&credentials, keys).unwrap();
    let call = |profile: &str, words: &[&str]| {
        let mut command = on(&sandbox, &format!("s3://{BUCKET}/{prefix}"), words);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        command.env("AWS_CONFIG_FILE", &config).env("AWS_SHARED_CREDENTIALS_FILE", &credentials);
        command.env("AWS_PROFILE", profile).env("AWS_EC2_METADATA_DISABLED", "true");
        command
    };
    call("keys", &["run", "--name", "one", "--", "true"]).succeeds();
    call("helper", &["show", "one"]).succeeds();
    let refused = |profile: &str| {
        let output = call(profile, &["ps"]).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let none = refused("bare");
    assert!(none.contains("no AWS credentials were found") && none.contains("AWS_PROFILE"), "{none}");
    assert!(refused("absent").contains("AWS_PROFILE is `absent`"), "{}", refused("absent"));
}

/// A run that sleeps, in a registry whose leases are short; what owns it, and what it has started.
fn sleeps(sandbox: &Sandbox, url: &str, name: &str) -> (Child, u32) {
    let place = url.split_once('@').unwrap().1.split('?').next().unwrap();
    sandbox.write_home_config(&format!("[registries.\"s3://{place}\"]\nbeat = \"1s\"\nlease = \"3s\"\n"));
    let wrapper = on(sandbox, url, &["run", "--name", name, "--", "sleep", "600"]).spawn().unwrap();
    let shown = || on(sandbox, url, &["show", name, "--json"]).output().unwrap();
    until("the run to be on record", || shown().status.success());
    let child = super::running::child_of(wrapper.id());
    (wrapper, child)
}

#[test]
fn b03_killed_writer_is_shown_dead_after_its_lease() {
    let (sandbox, url) = (Sandbox::new(), Bucket::shared().fresh_url());
    let (mut wrapper, child) = sleeps(&sandbox, &url, "killed");
    signal_pid(wrapper.id(), "KILL");
    signal_pid(child, "KILL");
    wrapper.wait().unwrap();
    let state = || json(on(&sandbox, &url, &["show", "killed", "--json"]))["state"].as_str().unwrap().to_owned();
    until("its lease to end", || state() == "dead");
    // Nobody has put that on record: a reader of the contract sees a lease that has ended.
    let store = pollster::block_on(ObjectStore::read(&url.parse().unwrap(), None)).unwrap();
    let id = json(on(&sandbox, &url, &["show", "killed", "--json"]))["id"].as_str().unwrap().parse().unwrap();
    let record = pollster::block_on(store.raw_get(&store.place_of_record(id))).unwrap().unwrap();
    assert!(text(&record).contains("status: \"running\""), "{}", text(&record));
    until("its death to be on record", || {
        on(&sandbox, &url, &["reap"]).succeeds();
        let record = pollster::block_on(store.raw_get(&store.place_of_record(id))).unwrap().unwrap();
        text(&record).contains("status: \"failed\"") && text(&record).contains("error_type: \"dead\"")
    });
}

#[test]
fn a_writer_that_is_cancelled_hears_of_it_with_its_next_beat() {
    let (sandbox, url) = (Sandbox::new(), Bucket::shared().fresh_url());
    let (mut wrapper, _) = sleeps(&sandbox, &url, "long");
    on(&sandbox, &url, &["cancel", "long", "--reason", "enough"]).succeeds();
    until("the run to be cancelled", || json(on(&sandbox, &url, &["show", "long", "--json"]))["state"] == "cancelled");
    wrapper.wait().unwrap();
}

#[test]
fn registry_check_tells_what_the_server_does() {
    let (sandbox, url) = (Sandbox::new(), Bucket::shared().fresh_url());
    let found = json(on(&sandbox, &url, &["registry", "check", "--json"]));
    assert!(
        found["checks"].as_array().unwrap().len() == 6
            && found["checks"].as_array().unwrap().iter().all(|check| check["wrong"].is_null()),
        "{found}"
    );
    assert!(found["server"].as_str().unwrap().contains("SeaweedFS"));
    let local = sandbox.outlive(["registry", "check"]).output().unwrap();
    assert!(text(&local.stderr).contains("outlive doctor"), "{}", text(&local.stderr));
}
