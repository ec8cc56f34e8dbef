//! Agents at a server: what they may, how long they wait, and what is listed to them.

use serde_json::{Value, json};

use super::sandbox::Sandbox;
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
        assert!(listed.contains("\"ps\"") && !listed.contains("\"cancel\""), "{role}: {listed}");
    }
    assert_eq!(sandbox.show("busy")["cancel_requested_at"], Value::Null);
}

#[test]
fn a_long_wait_is_told_of_and_comes_back_with_what_is_left_of_it() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let mut agent = Agent::start(&sandbox, &[]);
    let params = json!({ "name": "wait", "arguments": { "runs": ["busy"], "timeout": "3s" }, "_meta": { "progressToken": "t" } });
    let mut heard = Vec::new();
    let answer = {
        let id = agent.begin("tools/call", &params);
        loop {
            let message = agent.hear();
            if message["id"] == id {
                break message;
            }
            heard.push(message);
        }
    };
    assert_eq!(answer["result"]["structuredContent"]["waiting"].as_array().unwrap().len(), 1, "{answer}");
    assert!(heard.iter().any(|message| message["method"] == "notifications/progress"), "{heard:?}");
}

#[test]
fn s03_a_wait_that_is_given_up_is_over_and_calls_meanwhile_are_answered() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let mut agent = Agent::start(&sandbox, &[]);
    let waiting = |token: &str, timeout: &str| json!({ "name": "wait", "arguments": { "runs": ["busy"], "timeout": timeout }, "_meta": { "progressToken": token } });
    let id = agent.begin("tools/call", &waiting("given up", "20s"));
    let is_of = |message: &Value, token: &str| message["params"]["progressToken"] == token;
    while !is_of(&agent.hear(), "given up") {}
    agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }));
    assert_eq!(agent.call("ps", &json!({}))["runs"].as_array().unwrap().len(), 1);
    // Another that waits on is told of three times; of the first there may be one more word that was under way.
    let other = agent.begin("tools/call", &waiting("other", "4s"));
    let mut late = 0;
    loop {
        let message = agent.hear();
        late += usize::from(is_of(&message, "given up"));
        if message["id"] == other {
            break;
        }
    }
    assert!(late <= 1, "it went on waiting: {late} more words of it");
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
