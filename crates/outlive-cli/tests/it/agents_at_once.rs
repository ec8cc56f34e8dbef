//! Ten agents at once on one repository: no output is lost, and nothing that is unique starts twice.

use std::collections::BTreeSet;
use std::sync::Barrier;

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox};
use super::served::Agent;

const AGENTS: usize = 10;
const LINES: usize = 2_000;

/// What one agent does: it starts the shared server and a job of its own, waits, and reads all that its job wrote.
fn work(sandbox: &Sandbox, agent: usize, together: &Barrier) -> (Value, String) {
    let mut session = Agent::start(sandbox, &["--allow", "execute"]);
    together.wait();
    let server = session.call("run", &json!({ "argv": ["sleep", "300"], "unique": ["dev"], "port": ["web"] }));
    let script =
        format!("i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo agent {agent} line $i; done; exit {agent}");
    let job = session.call("run", &json!({ "argv": ["bash", "-c", script], "name": format!("job-{agent}") }));
    let id = job["id"].as_str().unwrap_or_else(|| panic!("{job}")).to_owned();
    let mut ended = Value::Null;
    while ended["runs"][0].is_null() {
        ended = session.call("wait", &json!({ "runs": [id] }));
    }
    assert_eq!(ended["runs"][0]["exit_code"], agent, "{ended}");
    let (mut read, mut after) = (String::new(), json!("0.0"));
    loop {
        let page = session.call("output", &json!({ "run": id, "cursor": after, "max_bytes": 40_000 }));
        if page["text"] == "" {
            break;
        }
        after = page["next"].clone();
        read.push_str(page["text"].as_str().unwrap());
    }
    let all: String = (1..=LINES).map(|line| format!("agent {agent} line {line}\n")).collect();
    assert!(read == all, "agent {agent} lost output: {} of {} bytes", read.len(), all.len());
    (server, id)
}

#[test]
fn ten_agents_at_once_lose_no_output_and_start_nothing_twice() {
    let sandbox = Sandbox::new();
    let together = Barrier::new(AGENTS);
    let done: Vec<(Value, String)> = std::thread::scope(|scope| {
        let (sandbox, together) = (&sandbox, &together);
        let agents: Vec<_> = (0..AGENTS).map(|agent| scope.spawn(move || work(sandbox, agent, together))).collect();
        agents.into_iter().map(|agent| agent.join().unwrap()).collect()
    });
    let servers: BTreeSet<&str> = done.iter().map(|(server, _)| server["id"].as_str().unwrap()).collect();
    let urls: BTreeSet<&str> = done.iter().map(|(server, _)| server["url"].as_str().unwrap()).collect();
    assert_eq!((servers.len(), urls.len()), (1, 1), "{done:?}");
    assert_eq!(done.iter().filter(|(server, _)| server["made"] == true).count(), 1, "{done:?}");
    let jobs: BTreeSet<&String> = done.iter().map(|(_, job)| job).collect();
    assert_eq!((jobs.len(), sandbox.runs().len()), (AGENTS, AGENTS + 1));
    sandbox.outlive(["cancel", "--all", "--yes", "--wait"]).succeeds();
}
