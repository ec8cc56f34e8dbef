//! What a record that this user did not make may cause: another home, a forged record, a copied registry, a token.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use outlive::filter::Filter;
use outlive::id::{Stamp, SystemEntropy};
use outlive::lifecycle::enqueued;
use outlive::run::Run;
use outlive::store::object::{BucketAddress, ObjectStore};
use outlive::store::postgres::{DatabaseAddress, PostgresStore};
use outlive::store::{Expect, Page, Record, Store, Write, WriteOutcome};
use outlive::testing::bucket::Bucket;
use outlive::testing::server::Server;
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, text, until};
use super::served::Served;

fn on(sandbox: &Sandbox, url: &str, words: &[&str]) -> Command {
    let mut command = sandbox.outlive(words);
    command.env("OUTLIVE_REGISTRY", url);
    command
}

fn all(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn t7_05_two_homes_on_one_database_trust_by_one_command() {
    let (maker, worker, url) = (Sandbox::new(), Sandbox::new(), Server::shared().fresh_url());
    let add = |name: &str, words: &[&str]| {
        let words = [&["queue", "add", "--name", name, "--"], words].concat();
        on(&maker, &url, &words).succeeds();
    };
    let mark = |name: &str| worker.work().join(name);
    let touch = |name: &str| mark(name).display().to_string();
    add("early", &["touch", &touch("early")]);
    let (status, said) = all(&mut on(&worker, &url, &["work", "--drain"]));
    assert_eq!(status, Some(106), "{said}");
    assert!(said.contains("untrusted: made by ") && said.contains("outlive trust --fleet"), "{said}");
    assert!(said.contains("0 executed") && said.contains("1 left"), "{said}");
    assert!(!mark("early").exists(), "a stranger's command was executed");
    for words in [["queue", "list"].as_slice(), &["why", "early"], &["show", "early"]] {
        let told = on(&worker, &url, words).succeeds();
        assert!(told.contains("untrusted: made by "), "{words:?}: {told}");
    }

    let none = on(&worker, &url, &["trust", "--fleet", "export"]).fails_with(2);
    assert!(none.contains("has no fleet key") && none.contains("outlive trust --fleet"), "{none}");
    on(&maker, &url, &["trust", "--fleet"]).succeeds();
    let key = on(&maker, &url, &["trust", "--fleet", "export"]).succeeds();
    let import = |url: &str, key: &str| {
        let mut import = on(&worker, url, &["trust", "--fleet", "import"]);
        let import = import.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut import = import.spawn().unwrap();
        import.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
        let output = import.wait_with_output().unwrap();
        (output.status.code(), text(&output.stderr).to_string())
    };
    let (status, said) = import(&Server::shared().fresh_url(), &key);
    assert!(status == Some(2) && said.contains("for another registry"), "{said}");
    assert_eq!(import(&url, "nonsense").0, Some(2));
    let (status, said) = import(&url, &key);
    assert_eq!(status, Some(0), "{said}");

    add("late", &["touch", &touch("late")]);
    add("secretive", &["deploy", "--password", "canary-of-the-maker"]);
    let (status, said) = all(&mut on(&worker, &url, &["work", "--drain"]));
    assert!(mark("late").exists() && !mark("early").exists(), "{said}");
    assert_eq!(status, Some(106), "{said}");
    assert!(said.contains("has secrets, which stay in the home of "), "{said}");
    on(&worker, &url, &["trust", "early", "--yes"]).succeeds();
    on(&maker, &url, &["cancel", "secretive"]).succeeds();
    on(&worker, &url, &["work", "--drain"]).succeeds();
    assert!(mark("early").exists());
}

/// The only run of a store.
fn only(store: &dyn Store) -> Record {
    let mut listed = pollster::block_on(store.list(&Filter::default(), &Page::default())).unwrap().records;
    assert_eq!(listed.len(), 1);
    listed.pop().unwrap()
}

/// Writes a run as it was made, whatever became of it since.
fn forge(store: &dyn Store, run: &Run, expect: Expect) {
    let run = Run::new(run.id, run.spec.clone(), run.signature.clone(), run.created_at);
    let events = vec![enqueued(&run, &run.spec.created_by)];
    let write = Write { expect, run, events, ended: None, stamp: Stamp::draw(&SystemEntropy) };
    let written = pollster::block_on(store.commit(vec![write])).unwrap();
    assert!(matches!(written.as_slice(), [WriteOutcome::Done(_)]), "{written:?}");
}

/// Finishes a run, then has it put back to `pending` where it was made and in another registry: neither executes it.
fn replays_are_refused(urls: [&str; 2], stores: [Arc<dyn Store>; 2]) {
    let sandbox = Sandbox::new();
    let script = "echo once >> executed";
    on(&sandbox, urls[0], &["queue", "add", "--name", "deploy", "--", "sh", "-c", script]).succeeds();
    on(&sandbox, urls[0], &["work", "--drain"]).succeeds();
    let executed = || std::fs::read_to_string(sandbox.work().join("executed")).unwrap();
    assert_eq!(executed(), "once\n");
    let done = only(&*stores[0]);
    assert!(done.run.signature.is_some() && done.run.ending().is_some());
    forge(&*stores[0], &done.run, Expect::Revision(done.revision));
    forge(&*stores[1], &done.run, Expect::Absent);
    for (url, why) in urls.into_iter().zip(["it ended for good before", "untrusted: made by "]) {
        let (status, said) = all(&mut on(&sandbox, url, &["work", "--drain"]));
        assert_eq!(status, Some(106), "{said}");
        assert!(said.contains(why), "{said}");
        on(&sandbox, url, &["supervise", "--once"]).output().unwrap();
        on(&sandbox, url, &["resume", "deploy"]).fails_with(106);
    }
    assert_eq!(executed(), "once\n", "a finished command was executed again");
    // A person who wants it again says so, with a run of its own.
    on(&sandbox, urls[0], &["cancel", "deploy"]).succeeds();
    on(&sandbox, urls[0], &["rerun", "deploy"]).succeeds();
}

#[test]
fn t8_05_row_put_back_to_pending_in_postgres_is_not_executed() {
    let urls = [Server::shared().fresh_url(), Server::shared().fresh_url()];
    let open = |url: &String| {
        let address: DatabaseAddress = url.parse().unwrap();
        Arc::new(pollster::block_on(PostgresStore::open(&address)).unwrap()) as Arc<dyn Store>
    };
    replays_are_refused(urls.each_ref().map(String::as_str), urls.each_ref().map(open));
}

#[test]
fn t8_05_object_set_back_to_pending_by_a_writer_is_not_executed() {
    let urls = [Bucket::shared().fresh_url(), Bucket::shared().fresh_url()];
    let open = |url: &String| {
        let address: BucketAddress = url.parse().unwrap();
        Arc::new(pollster::block_on(ObjectStore::open(&address)).unwrap()) as Arc<dyn Store>
    };
    replays_are_refused(urls.each_ref().map(String::as_str), urls.each_ref().map(open));
}

#[test]
fn t8_05_ended_run_of_a_copied_registry_is_not_resumed() {
    let sandbox = Sandbox::new();
    let script = "echo once >> executed; exit 1";
    assert_eq!(
        sandbox.outlive(["run", "--name", "deploy", "--", "sh", "-c", script]).status().unwrap().code(),
        Some(1)
    );
    let registry = sandbox.registry();
    let copy = sandbox.path().join("copy");
    assert!(Command::new("cp").arg("-r").args([&registry, &copy]).status().unwrap().success());
    let url = format!("sqlite:{}", copy.display());
    // The first write makes the copy a registry of its own.
    on(&sandbox, &url, &["run", "--name", "own", "--", "true"]).succeeds();
    assert_eq!(on(&sandbox, &url, &["show", "own", "--json"]).json()["trusted"], true);
    let refused = on(&sandbox, &url, &["resume", "--failed", "deploy"]).fails_with(106);
    assert!(refused.contains("untrusted: made by "), "{refused}");
    on(&sandbox, &url, &["rerun", "deploy"]).fails_with(106);
    assert_eq!(std::fs::read_to_string(sandbox.work().join("executed")).unwrap(), "once\n");
    // In the original it is this user's as before.
    sandbox.outlive(["resume", "--failed", "deploy"]).succeeds();
    let executed = || std::fs::read_to_string(sandbox.work().join("executed")).unwrap();
    until("it to go on", || executed() == "once\nonce\n");
}

#[test]
fn t8_05_t8_06_tokens_of_each_role_get_what_their_role_may() {
    let server = Sandbox::new();
    server.outlive(["run", "--name", "deploy", "--", "true"]).succeeds();
    let served = Served::start(&server, &[]);
    let url = format!("http://{}", served.address);
    let show = |role: &str| {
        let token = server.outlive(["token", "create", role, "--role", role, "--json"]).json();
        let elsewhere = Sandbox::new();
        let mut show = on(&elsewhere, &url, &["show", "deploy", "--json"]);
        show.env("OUTLIVE_TOKEN", token["token"].as_str().unwrap()).json()["trusted"].clone()
    };
    assert_eq!(["read", "operate", "admin"].map(show), [Value::Null, false.into(), false.into()]);
    // What a token makes bears its name, and is executed by no home that did not make it.
    let made = server.outlive(["token", "create", "ci", "--role", "operate", "--json"]).json();
    let ci = Sandbox::new();
    let mut add = on(&ci, &url, &["queue", "add", "--name", "far", "--", "touch", "executed"]);
    add.env("OUTLIVE_TOKEN", made["token"].as_str().unwrap()).succeeds();
    let told = server.outlive(["trust", "far"]).succeeds();
    assert!(told.contains("made by ci@"), "{told}");
    let (status, said) = all(&mut server.outlive(["work", "--drain"]));
    assert!(status == Some(106) && said.contains("untrusted: made by ci@"), "{said}");
    assert!(!ci.work().join("executed").exists() && !server.work().join("executed").exists());
}
