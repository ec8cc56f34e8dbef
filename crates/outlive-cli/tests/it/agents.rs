//! Agents at a server: what they may, how long they wait, and what is listed to them.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox};
use super::served::{Agent, Served};
use super::serving::token_of;

#[test]
fn s_24_s_25_agents_only_look_until_they_are_allowed_more() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let mut looking = Agent::start(&sandbox, &[]);
    let tools = looking.tools();
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{tools:?}");
    let refused = looking.call("cancel", &json!({ "runs": ["busy"] }));
    assert_eq!(refused["error"]["code"], "forbidden");
    assert_eq!(sandbox.show("busy")["cancel_requested_at"], Value::Null);
    let all = Agent::start(&sandbox, &["--allow", "destroy"]).tools();
    let hints = |name: &str| {
        let tool = all.iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("no tool {name}"));
        (tool["annotations"]["readOnlyHint"].clone(), tool["annotations"]["destructiveHint"].clone())
    };
    assert_eq!(hints("ps"), (true.into(), false.into()));
    assert_eq!(hints("archive"), (false.into(), false.into()));
    assert_eq!(hints("cancel"), (false.into(), true.into()));
    assert!(Agent::start(&sandbox, &["--allow", "stop"]).tools().iter().all(|tool| tool["name"] != "queue_add"));
    // What a tool says of itself is what is in the program, word for word.
    let told: Vec<String> = all.iter().map(|tool| format!("{}: {}", tool["name"], tool["description"])).collect();
    insta::assert_snapshot!("tools", told.join("\n"));
}

/// What a token may have done and what the server lets agents do: the lesser of the two holds.
#[test]
fn s_24_over_http_an_agent_may_no_more_than_its_token_and_no_more_than_the_server_allows() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    for (words, role) in [(&[][..], "admin"), (&["--allow", "destroy"], "read")] {
        let mut served = Served::start(&sandbox, words);
        served.token = token_of(&sandbox, role, role);
        let session = served.begin_mcp();
        let call = |method: &str, params: Value| served.mcp(method, &params, Some(&session));
        let refused = call("tools/call", json!({ "name": "cancel", "arguments": { "runs": ["busy"] } }));
        assert!(refused.body.contains("forbidden"), "{role}: {}", refused.body);
        let listed = call("tools/list", json!({})).body;
        assert!(listed.contains("\"ps\"") && !listed.contains("\"name\":\"cancel\""), "{role}: {listed}");
    }
    assert_eq!(sandbox.show("busy")["cancel_requested_at"], Value::Null);
}

/// Asks for something with a token, and answers with the answer and what was said before it came.
fn told(agent: &mut Agent, tool: &str, input: &Value) -> (Value, Vec<Value>) {
    let id = agent.begin("tools/call", &asked(tool, input, "t"));
    let mut heard = Vec::new();
    loop {
        let message = agent.hear();
        if message["id"] == id {
            return (message["result"]["structuredContent"].clone(), heard);
        }
        heard.push(message);
    }
}

fn asked(tool: &str, input: &Value, token: &str) -> Value {
    json!({ "name": tool, "arguments": input, "_meta": { "progressToken": token } })
}

fn is_of(message: &Value, token: &str) -> bool {
    message["params"]["progressToken"] == token
}

/// Clients give up on tools that are silent for long, whatever they were asked to wait for.
#[test]
fn s03_a_long_wait_is_told_of_and_comes_back_with_what_is_left_of_it() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let mut agent = Agent::start(&sandbox, &["--patience", "3s"]);
    for input in [json!({ "runs": ["busy"] }), json!({ "runs": ["busy"], "timeout": "1h" })] {
        let (answer, heard) = told(&mut agent, "wait", &input);
        assert_eq!(answer["waiting"].as_array().unwrap().len(), 1, "{answer}");
        let progress: Vec<f64> = heard.iter().filter_map(|message| message["params"]["progress"].as_f64()).collect();
        assert!(!progress.is_empty() && progress.is_sorted_by(|one, next| one < next), "{heard:?}");
        let message = &heard[0]["params"]["message"];
        assert!(message.as_str().unwrap().starts_with("0 of 1 done, "), "{heard:?}");
    }
    let help = sandbox.outlive(["mcp", "--help"]).succeeds();
    assert!(help.contains("[default: 25s]"), "{help}");
    let (answer, _) = told(&mut agent, "wait", &json!({ "runs": ["busy"], "timeout": "0s" }));
    assert_eq!(answer["waiting"].as_array().unwrap().len(), 1, "{answer}");
}

/// Whatever a call does that takes long, it is told that it goes on.
#[test]
fn s03_a_call_that_takes_long_is_told_of_and_pings_are_answered_meanwhile() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let lock = std::fs::File::open(sandbox.home().join("index/lock")).unwrap();
    lock.lock().unwrap();
    let mut agent = Agent::start(&sandbox, &["--allow", "write"]);
    let id = agent.begin("tools/call", &asked("registry_refresh", &json!({}), "t"));
    while !is_of(&agent.hear(), "t") {}
    assert!(agent.ask("ping", json!({}))["result"].is_object());
    lock.unlock().unwrap();
    let answer = loop {
        let message = agent.hear();
        if message["id"] == id {
            break message;
        }
    };
    assert!(answer["result"]["structuredContent"]["sources"].is_u64(), "{answer}");
}

#[test]
fn s03_a_call_that_is_given_up_is_over_and_calls_meanwhile_are_answered() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sh", "-c", "trap '' TERM; until [ -e over ]; do sleep 0.1; done"]);
    let mut agent = Agent::start(&sandbox, &["--allow", "stop"]);
    let stubborn = json!({ "runs": ["busy"], "wait": true, "grace": "1h" });
    for (tool, input) in [("wait", json!({ "runs": ["busy"] })), ("cancel", stubborn)] {
        let id = agent.begin("tools/call", &asked(tool, &input, tool));
        while !is_of(&agent.hear(), tool) {}
        agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
        assert_eq!(agent.call("ps", &json!({}))["runs"].as_array().unwrap().len(), 1);
        // Another that waits on is told of three times; of the first there may be one more word that was under way.
        let (_, heard) = told(&mut agent, "wait", &json!({ "runs": ["busy"], "timeout": "4s" }));
        let late = heard.iter().filter(|message| is_of(message, tool)).count();
        assert!(late <= 1, "it went on: {late} more words of {tool}");
        assert!(heard.iter().filter(|message| is_of(message, "t")).count() > late, "{heard:?}");
    }
    assert!(!sandbox.show("busy")["cancel_requested_at"].is_null(), "what was asked for before it was given up stands");
    std::fs::write(sandbox.work().join("over"), "").unwrap();
    sandbox.outlive(["wait", "busy"]).status().unwrap();
}

#[test]
fn s03_tools_are_listed_in_pages_each_once() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy"]);
    let first = agent.ask("tools/list", json!({}))["result"].clone();
    let all = agent.tools();
    assert!(first["tools"].as_array().unwrap().len() < all.len() && first["nextCursor"].is_string(), "{first}");
    let names: std::collections::BTreeSet<&str> = all.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), all.len());
    let refused = agent.ask("tools/list", json!({ "cursor": "nowhere" }));
    assert!(refused["error"]["message"].as_str().unwrap().contains("nowhere"), "{refused}");
}
