//! Leashes: runs that end with a process, a terminal or a session, and runs that do not.

use std::process::{Child, Stdio};
use std::time::Duration;

use outlive::time::{Clock, SystemClock};
use serde_json::json;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};
use super::served::Agent;
use super::starting::{EXECUTE, bearers};

/// Within what time all of a run is gone whose session has ended.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// A process that runs are tied to.
struct Tied(Child);

impl Tied {
    fn start() -> Self {
        Self(std::process::Command::new("sleep").arg("300").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the owner of a run, and it alone.
fn kill_owner(sandbox: &Sandbox, name: &str) {
    signal_pid(u32::try_from(sandbox.show(name)["owner_pid"].as_u64().unwrap()).unwrap(), "KILL");
}

#[test]
fn leash_that_ends_during_backoff_ends_the_run() {
    let sandbox = Sandbox::new();
    let mut other = Tied::start();
    let flags = ["--leash", &other.pid(), "--retry", "3", "--backoff", "1h"];
    let words = ["run", "-d", "--name", "tied"].into_iter().chain(flags);
    sandbox.outlive(words.chain(["--", "sh", "-c", "echo x >> attempts; exit 1"])).succeeds();
    let waiting = sandbox.wait_for("tied", |run| run["state"] == "pending" && run["attempt"] == 2);
    assert!(waiting["owner_pid"].is_null(), "{waiting}");
    other.kill();
    let ended = sandbox.wait_for_state("tied", "cancelled");
    assert!(ended["reason"].as_str().is_some_and(|reason| reason.contains("its leash ended")), "{ended}");
    assert_eq!(std::fs::read_to_string(sandbox.work().join("attempts")).unwrap(), "x\n");
}

#[test]
fn orphan_is_ended_once_its_leash_is_proven_gone() {
    let sandbox = Sandbox::impatient();
    for (place, observer) in ["reap", "mcp", "supervise"].into_iter().enumerate() {
        let mut other = Tied::start();
        let (name, mark) = (format!("tied-{observer}"), format!("7777.7{place}"));
        let script = format!("trap '' TERM; setsid sleep {mark} & sleep {mark} & wait; wait; sleep {mark}");
        sandbox.outlive(["run", "-d", "--name", &name, "--leash", &other.pid(), "--", "sh", "-c", &script]).succeeds();
        let shown = sandbox.wait_for(&name, |run| run["leash"]["pid"] == other.0.id());
        assert!(shown["leash"]["boot_id"].is_string() && shown["leash"]["start_ticks"].is_u64(), "{shown}");
        let person = sandbox.outlive(["show", &name]).succeeds();
        assert!(person.contains(&format!("leash      pid {}", other.pid())), "{person}");
        until("its processes to live", || bearers(&mark).len() >= 2);
        kill_owner(&sandbox, &name);
        sandbox.wait_for(&name, |run| run["health"] == "orphaned");
        sandbox.outlive(["reap"]).succeeds();
        assert_eq!(sandbox.show(&name)["health"], "orphaned", "its leash lives");
        assert!(bearers(&mark).len() >= 2);
        other.kill();
        match observer {
            "reap" => assert!(sandbox.outlive(["reap"]).succeeds().contains("cancelled: ")),
            "mcp" => drop(Agent::start(&sandbox, &[])),
            _ => drop(sandbox.outlive(["supervise", "--once"]).succeeds()),
        }
        let ended = sandbox.wait_for_state(&name, "cancelled");
        assert!(ended["reason"].as_str().is_some_and(|reason| reason.contains("its leash ended")), "{ended}");
        assert!(bearers(&mark).is_empty(), "{observer} left processes of the run");
    }
}

#[test]
fn adopted_run_ends_with_its_leash() {
    let sandbox = Sandbox::impatient();
    let mut other = Tied::start();
    for (name, flags) in [("tied", &["--leash", &other.pid()][..]), ("free", &[])] {
        let words = [&["run", "-d", "--name", name], flags, &["--", "sleep", "300"]].concat();
        sandbox.outlive(words).succeeds();
        sandbox.wait_for(name, |run| run["leash"].is_null() == flags.is_empty());
        kill_owner(&sandbox, name);
        sandbox.wait_for(name, |run| run["health"] == "orphaned");
        sandbox.outlive(["adopt", "-d", name]).succeeds();
    }
    other.kill();
    let ended = sandbox.wait_for_state("tied", "interrupted");
    assert!(ended["reason"].as_str().unwrap().contains("its leash ended"), "{ended}");
    assert_eq!(sandbox.show("free")["state"], "running");
    sandbox.outlive(["cancel", "free", "--wait"]).succeeds();
}

/// How a session ends.
#[derive(Debug, Clone, Copy)]
enum Way {
    Exit,
    Term,
    Kill,
    ClosedPipe,
}

#[test]
fn leashed_run_ends_with_its_session_and_others_do_not() {
    let sandbox = Sandbox::new();
    let asked = std::env::var("OUTLIVE_LEASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds = asked.unwrap_or(1);
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        for way in [Way::Exit, Way::Term, Way::Kill, Way::ClosedPipe] {
            let mut agent = Agent::start(&sandbox, EXECUTE);
            let (mark, free) = (format!("7777.5{round}"), format!("7777.6{round}"));
            let script = format!(
                "trap '' TERM; setsid sleep {mark} & (sleep {mark} & ) ; \
                 setsid sh -c \"trap '' TERM; sleep {mark} & sleep {mark}\" & echo up; sleep {mark}; sleep {mark}"
            );
            let leashed =
                json!({ "argv": ["bash", "-c", script], "leash": "session", "ready_output": "up", "watch": "20s" });
            let begun = agent.call("run", &leashed);
            assert_eq!(begun["run"]["ready"], true, "{begun}");
            agent.call("run", &json!({ "argv": ["sleep", free], "name": "free", "leash": "none" }));
            until("all of its processes to live", || bearers(&mark).len() >= 5);
            let session = agent.pid();
            match way {
                Way::Exit => agent.close(),
                Way::Term => signal_pid(agent.pid(), "TERM"),
                Way::Kill => signal_pid(agent.pid(), "KILL"),
                Way::ClosedPipe => agent.abandon(),
            }
            until("the session to end", || !is_alive(session));
            let began = SystemClock.awake();
            until("its processes to be gone", || bearers(&mark).is_empty());
            longest = longest.max(SystemClock.awake().saturating_sub(began));
            let ended = sandbox.wait_for_state(begun["id"].as_str().unwrap(), "interrupted");
            assert!(ended["reason"].as_str().unwrap().contains("its leash ended"), "{way:?}: {ended}");
            // The command and its owner.
            assert_eq!(bearers(&free).len(), 2, "{way:?} ended a run that has no leash");
            assert_eq!(sandbox.show("free")["state"], "running");
            sandbox.outlive(["cancel", "free", "--wait"]).succeeds();
        }
    }
    println!("the slowest took {longest:?}");
    assert!(asked.is_none() || longest <= GONE_WITHIN, "the slowest of {rounds} rounds took {longest:?}");
}

#[test]
fn run_on_the_command_line_ends_with_the_process_it_is_tied_to() {
    let sandbox = Sandbox::new();
    let mut other = std::process::Command::new("sleep").arg("300").spawn().unwrap();
    let pid = other.id().to_string();
    sandbox.outlive(["run", "-d", "--name", "tied", "--leash", &pid, "--", "sleep", "300"]).succeeds();
    let shell =
        sandbox.shell("outlive run -d --name of-session --leash session -- sleep 300; sleep 0.2; exec sleep 0.3");
    let mut session = std::process::Command::new("setsid");
    session.arg("--wait").arg(shell.get_program()).args(shell.get_args());
    session.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(sandbox.work());
    assert!(session.status().unwrap().success());
    assert_eq!(sandbox.show("tied")["state"], "running");
    let ended = sandbox.wait_for_state("of-session", "interrupted");
    assert!(ended["reason"].as_str().unwrap().contains("its leash ended"), "{ended}");
    other.kill().unwrap();
    other.wait().unwrap();
    sandbox.wait_for_state("tied", "interrupted");
}
