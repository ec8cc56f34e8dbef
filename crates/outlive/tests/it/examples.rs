//! The examples of the crate, as their users run them.

use std::process::Command;

use outlive::testing::server::Server;

/// Runs an example, which was built with the tests, and answers with what it printed.
fn example(name: &str, words: &[&str]) -> String {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(path).args(words).env("OUTLIVE_HOME", home.path()).output().unwrap();
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
