//! Many at once: first openers, killed owners, reapers, runs.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::running::child_of;
use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, text, until};

/// Runs that many of the same command at once, and answers with how each ended.
fn at_once(count: usize, command: impl Fn(usize) -> Command) -> Vec<std::process::Output> {
    let children: Vec<Child> =
        (0..count).map(|index| command(index).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

#[test]
fn l21_thirty_first_runs_at_once_all_succeed() {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
    let outputs = at_once(30, |_| sandbox.outlive(["run", "--", "true"]));
    for output in outputs {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let runs = sandbox.runs();
    assert_eq!(runs.len(), 30);
    assert!(runs.iter().all(|run| run["state"] == "succeeded"));
}

#[test]
fn l04_f_35_thousand_killed_owners_are_reaped_once_by_eight() {
    const OWNERS: usize = 1_000;
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let mut owners: Vec<Child> = Vec::new();
    for batch in 0..OWNERS / 50 {
        let starts = (0..50).map(|index| {
            let name = format!("owner-{}", batch * 50 + index);
            sandbox.outlive(["run", "--name", &name, "--", "sleep", "900"]).stdout(Stdio::null()).spawn().unwrap()
        });
        owners.extend(starts);
        // How many may start at once is another test's matter.
        until("all owners to be on record", || sandbox.runs().len() == owners.len());
    }
    let children: Vec<u32> = owners.iter().map(|owner| child_of(owner.id())).collect();
    for owner in &mut owners {
        owner.kill().unwrap();
        owner.wait().unwrap();
    }
    for child in &children {
        signal_pid(*child, "KILL");
    }
    until("all commands to be gone", || children.iter().all(|child| !is_alive(*child)));
    let dead = sandbox.outlive(["ps", "--status", "dead", "--limit", "1000", "--json"]).json();
    assert_eq!(dead["runs"].as_array().unwrap().len(), OWNERS, "the next read did not see all deaths");

    let outputs = at_once(8, |_| sandbox.outlive(["reap", "--json"]));
    let mut told: Vec<String> = Vec::new();
    for output in outputs {
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        told.extend(found["reaped"].as_array().unwrap().iter().map(|line| line["id"].as_str().unwrap().to_owned()));
        println!("one reaper was told of {}", found["reaped"].as_array().unwrap().len());
    }
    assert_eq!(told.len(), OWNERS);
    told.sort();
    told.dedup();
    assert_eq!(told.len(), OWNERS, "two reapers were told of the same run");
    assert!(sandbox.runs().iter().all(|run| run["state"] == "dead" && run["reaps"] == 1));
}

#[test]
fn f_54_a_thousand_runs_through_sixty_four_at_a_time_lose_none() {
    let count = std::env::var("OUTLIVE_STORM_RUNS").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000);
    let sandbox = Sandbox::new();
    let script = format!("seq {count} | xargs -P 64 -I{{}} outlive run --name storm-{{}} -- true");
    sandbox.shell(&script).succeeds();
    let runs = sandbox.runs();
    assert_eq!(runs.len(), count);
    assert!(runs.iter().all(|run| run["state"] == "succeeded"));
}

#[test]
fn l23_deleting_the_database_loses_no_running_or_ended_run() {
    let sandbox = Sandbox::impatient();
    for index in 0..5 {
        sandbox
            .outlive(["run", "--name", &format!("ended-{index}"), "--", "sh", "-c", &format!("exit {index}")])
            .status()
            .unwrap();
    }
    let wait = "while [ ! -e go ]; do sleep 0.05; done";
    let mut running: Vec<_> =
        (0..5).map(|index| sandbox.start(&format!("running-{index}"), &["sh", "-c", wait])).collect();
    let event_logs = |name: &str| sandbox.outlive(["why", name, "--json"]).json()["events"].clone();
    let before: Vec<Value> = (0..5).map(|index| event_logs(&format!("ended-{index}"))).collect();
    std::fs::remove_file(sandbox.database()).unwrap();
    assert_eq!(sandbox.runs().len(), 10);
    for (index, events) in before.iter().enumerate() {
        let ended = sandbox.show(&format!("ended-{index}"));
        assert_eq!((&ended["exit_code"], &ended["attempt"]), (&index.into(), &1.into()));
        assert_eq!(event_logs(&format!("ended-{index}")), *events, "an event log was lost");
        assert_eq!(sandbox.show(&format!("running-{index}"))["state"], "running");
    }
    assert_eq!(sandbox.outlive(["reap", "--json"]).json()["reaped"], serde_json::json!([]));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    for run in &mut running {
        assert!(run.wrapper.wait().unwrap().success());
    }
    let succeeded = |run: &&Value| run["name"].as_str().unwrap().starts_with("running") && run["state"] == "succeeded";
    assert_eq!(sandbox.runs().iter().filter(succeeded).count(), 5);
}

#[test]
fn f_49_many_first_runs_in_a_copied_registry_lose_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
    for round in 0..3 {
        let copy = sandbox.path().join(format!("copy-{round}"));
        sandbox.command("cp", ["-r", sandbox.work().to_str().unwrap(), copy.to_str().unwrap()]).succeeds();
        let run = |words: &[&str]| {
            let mut command = sandbox.outlive(words);
            command.current_dir(&copy);
            command
        };
        for output in at_once(16, |_| run(&["run", "--name", "own", "--", "true"])) {
            assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        }
        let seen = run(&["ps", "--all", "--json"]).json();
        let own = seen["runs"].as_array().unwrap().iter().filter(|run| run["name"] == "own");
        let states: Vec<_> =
            own.map(|run| (run["state"].as_str().unwrap(), run["copied"].as_bool().unwrap())).collect();
        assert_eq!(states, vec![("succeeded", false); 16], "round {round}");
    }
}
