//! The examples of the crate, as their users run them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use outlive::conformance::CHECKS;
use outlive::testing::bucket::Bucket;
use outlive::testing::server::Server;
use outlive::time::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// An example, which was built with the tests, in a home of its own.
fn command(name: &str, words: &[&str], home: &std::path::Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let mut command = Command::new(path);
    command.args(words).env("OUTLIVE_HOME", home);
    command
}

/// Runs an example and answers with what it printed.
fn example(name: &str, words: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = command(name, words, home.path()).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn embed_continues_from_the_checkpoint_of_its_first_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert_eq!(example("embed", &[path]), "attempt 1 begins at file 0\n");
    assert_eq!(example("embed", &[path]), "attempt 2 begins at file 5\n");
}

#[test]
fn worker_prints_what_its_handlers_returned_in_every_store() {
    let directory = tempfile::tempdir().unwrap();
    let local = format!("sqlite:{}/.outlive", directory.path().display());
    for url in ["memory:".to_owned(), local, Server::shared().fresh_url()] {
        let expected = "succeeded {\"rows\":7}\nsucceeded {\"rows\":3}\nsucceeded {\"rows\":5}\n";
        assert_eq!(example("worker", &[&url]), expected, "{url}");
    }
}

#[test]
fn transaction_charges_for_the_committed_orders_alone() {
    let url = Server::shared().fresh_url();
    let (plain, _) = url.split_once('?').unwrap();
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap();
    assert_eq!(example("transaction", &[plain, schema]), "charged for order 2\ncharged for order 3\n2 charged\n");
}

#[test]
fn bucket_keeps_what_the_manifest_names_and_sweeps_the_rest() {
    let printed = example("bucket", &[&Bucket::shared().fresh_url()]);
    assert_eq!(printed, "2 objects could be deleted\n2 objects deleted\nthe winner is kept\n");
}

#[test]
fn own_store_passes_every_check_of_the_suite() {
    let expected = format!("{} checks passed\n3 writes for a run with a checkpoint\n", CHECKS.len());
    assert_eq!(example("own_store", &[]), expected);
}

/// The body that the service answers with.
fn ask(address: &str, request: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{request}: {answer}"))
}

#[test]
fn service_enqueues_and_renders_until_it_is_interrupted() {
    let home = tempfile::tempdir().unwrap();
    let mut service =
        command("service", &[&Server::shared().fresh_url()], home.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.next().unwrap().strip_prefix("listening on ").unwrap().to_owned();
    let enqueued = ask(&address, "POST /reports/acme");
    assert_eq!(enqueued["made"], true);
    let shown = || ask(&address, &format!("GET /runs/{}", enqueued["run"].as_str().unwrap()));
    let until = SystemClock.awake() + std::time::Duration::from_secs(120);
    while shown()["state"] != "succeeded" {
        assert!(SystemClock.awake() < until, "{}", shown());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(shown()["result"], json!({"tenant": "acme", "pages": 4}));
    kill_process(Pid::from_child(&service), Signal::INT).unwrap();
    assert_eq!(lines.next().unwrap(), "1 reports rendered");
    assert!(service.wait().unwrap().success());
}
