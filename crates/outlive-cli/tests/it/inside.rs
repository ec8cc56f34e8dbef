//! What a run's own processes say of it, and who waits for it.

use serde_json::json;

use super::sandbox::{Ends, Sandbox, text};

#[test]
fn r11_progress_and_checkpoints_are_visible_to_every_reader() {
    let sandbox = Sandbox::new();
    let script = "outlive progress 40/100 'epoch 4'; outlive checkpoint set '{\"epoch\": 4}'; outlive artifact add a.bin; \
                  while [ ! -e go ]; do sleep 0.05; done; outlive checkpoint get; exit 5";
    let mut run = sandbox.outlive(["run", "--name", "teller", "--", "sh", "-ec", script]);
    let run = run.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let seen = sandbox.wait_for("teller", |run| run["progress_done"] == 40);
    assert_eq!((&seen["progress_total"], &seen["progress_message"]), (&100.into(), &"epoch 4".into()));
    assert!(sandbox.outlive(["ps"]).succeeds().contains("40/100"));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), "{\"epoch\":4}\n".into()));
    let why = sandbox.outlive(["why", "teller", "--json"]).json();
    let reports = why["events"].as_array().unwrap().iter().filter(|event| event["action"] == "report").count();
    assert_eq!(reports, 3);
}

#[test]
fn attempt_that_lost_its_run_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "over", "--", "true"]).succeeds();
    let id = sandbox.show("over")["id"].as_str().unwrap().to_owned();
    for words in [&["progress", "1"][..], &["checkpoint", "set", "1"], &["fence", "check"], &["artifact", "add", "x"]] {
        let mut command = sandbox.outlive(words);
        let said = command.env("OUTLIVE_RUN_ID", &id).env("OUTLIVE_EPOCH", "1").fails_with(104);
        assert!(said.contains("lost: it has already succeeded"), "{said}");
        let outside = sandbox.outlive(words).env_remove("OUTLIVE_EPOCH").fails_with(2);
        assert!(outside.contains("this is not inside a run"), "{outside}");
    }
    assert_eq!(sandbox.show("over")["progress_done"], json!(null));
}

#[test]
fn wait_ends_with_the_runs_own_status() {
    let sandbox = Sandbox::new();
    let mut slow = sandbox.start("slow", &["sleep", "300"]);
    let script = "for i in 3 0; do outlive run --name exits-$i -- sh -c \"sleep 0.2; exit $i\" & done; \
                  until outlive show exits-3 && outlive show exits-0; do :; done >/dev/null 2>&1";
    sandbox.shell(script).stdout(std::process::Stdio::null()).succeeds();
    sandbox.outlive(["wait", "exits-0"]).succeeds();
    sandbox.outlive(["wait", "exits-0", "exits-3"]).fails_with(3);
    sandbox.outlive(["wait", "--any", "slow", "exits-0"]).succeeds();
    sandbox.outlive(["wait", "nobody"]).fails_with(101);
    let waiter = sandbox.outlive(["wait", "slow"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let child = super::running::child_of(slow.pid());
    slow.kill();
    super::sandbox::signal_pid(child, "KILL");
    let ended = waiter.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "a death that nobody wrote down did not end the wait");
}
