//! Agents at a server: what they may, how long they wait, and what is listed to them.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox};
use super::served::{Agent, Served, answered};
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
    let all = Agent::start(&sandbox, &["--allow", "destroy", "--tools", "all"]).tools();
    let hints = |name: &str| {
        let tool = all.iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("no tool {name}"));
        (tool["annotations"]["readOnlyHint"].clone(), tool["annotations"]["destructiveHint"].clone())
    };
    assert_eq!(hints("ps"), (true.into(), Value::Null));
    assert_eq!(hints("archive"), (Value::Null, false.into()));
    assert_eq!(hints("cancel"), (Value::Null, true.into()));
    assert!(
        Agent::start(&sandbox, &["--allow", "stop", "--tools", "all"])
            .tools()
            .iter()
            .all(|tool| tool["name"] != "queue_add")
    );
    // What a tool says of itself is what is in the program, word for word.
    let tools: Vec<String> = all.iter().map(|tool| format!("{}: {}", tool["name"], tool["description"])).collect();
    insta::assert_snapshot!("tools", tools.join("\n"));
}

/// What a token may have done and what the server lets agents do: the lesser of the two holds.
#[test]
fn s_24_agent_over_http_is_limited_by_its_token_and_the_server() {
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
            return (answered(&message), heard);
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
fn u03_long_wait_reports_progress_and_answers_what_is_left() {
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
fn u03_long_call_reports_progress_and_pings_are_answered() {
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
    assert!(answered(&answer)["sources"].is_u64(), "{answer}");
}

#[test]
fn u03_abandoned_call_is_over_and_other_calls_are_answered() {
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

/// How many bytes a tool list takes as it is sent.
fn bytes_of_list(sandbox: &Sandbox, words: &[&str]) -> (usize, Vec<String>) {
    let mut agent = Agent::start(sandbox, words);
    let listed = agent.ask("tools/list", json!({}))["result"].clone();
    assert!(listed["nextCursor"].is_null(), "a client that reads one page misses tools");
    let names = listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned());
    (listed["tools"].to_string().len(), names.collect())
}

#[test]
fn t3_02_the_tool_list_costs_6_kb_by_default_and_30_kb_in_all() {
    let sandbox = Sandbox::new();
    for (words, most) in
        [(&[][..], 6 << 10), (&["--allow", "destroy"], 6 << 10), (&["--allow", "destroy", "--tools", "all"], 30 << 10)]
    {
        let (bytes, names) = bytes_of_list(&sandbox, words);
        assert!(bytes <= most, "{words:?}: {bytes} bytes for {names:?}");
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
    let (_, core) = bytes_of_list(&sandbox, &["--allow", "destroy"]);
    assert_eq!(core, ["run", "ps", "show", "output", "wait", "cancel", "search", "more"]);
    let (_, queue) = bytes_of_list(&sandbox, &["--allow", "execute", "--tools", "queue"]);
    assert!(queue.contains(&"queue_add".into()) && !queue.contains(&"archive".into()), "{queue:?}");
    let refused = Agent::start(&sandbox, &[]).ask("tools/list", json!({ "cursor": "nowhere" }));
    assert!(refused["error"]["message"].as_str().unwrap().contains("nowhere"), "{refused}");
}

#[test]
fn t3_02_answers_have_4_kb_by_default_and_pages_miss_nothing() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(3_000);
    for _ in 0..30 {
        sandbox.outlive(["run", "--name", "many", "--", "true", &long]).succeeds();
    }
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let mut agent = Agent::start(&sandbox, &[]);
    for (tool, mut input) in [("ps", json!({ "all": true })), ("search", json!({ "query": ["many"] }))] {
        let mut found = std::collections::BTreeSet::new();
        loop {
            let answer = agent.ask("tools/call", json!({ "name": tool, "arguments": input }));
            let text = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert!(text.len() <= 4096, "{tool}: {} bytes", text.len());
            let page = answered(&answer);
            let id = |run: &Value| run["id"].as_str().or(run["run_id"].as_str()).map(str::to_owned);
            found.extend(page["runs"].as_array().unwrap().iter().filter_map(id));
            match page["next"].as_str() {
                Some(next) => input["cursor"] = next.into(),
                None => break,
            }
        }
        assert_eq!(found.len(), 30, "{tool}");
    }
    let named = agent.call("ps", &json!({ "all": true, "limit": 1, "fields": ["name"] }));
    assert_eq!(named["runs"][0].as_object().unwrap().keys().collect::<Vec<_>>(), ["id", "name"]);
    let more = agent.call("ps", &json!({ "all": true, "limit": 30, "max_bytes": 200_000 }));
    assert_eq!(more["runs"].as_array().unwrap().len(), 30);
}

#[test]
fn more_describes_every_tool_and_calls_it_if_allowed() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    let mut agent = Agent::start(&sandbox, &[]);
    let names = agent.call("more", &json!({}));
    assert!(names["why"].is_string() && names["queue_add"].is_null(), "{names}");
    let told = agent.call("more", &json!({ "tool": "queue_add" }));
    assert!(told["input"]["properties"]["needs_any"]["description"].is_string(), "{told}");
    let why = agent.call("more", &json!({ "tool": "why", "input": { "run": "good" } }));
    assert_eq!(why, agent.call("why", &json!({ "run": "good" })));
    let refused = agent.call("more", &json!({ "tool": "archive", "input": { "runs": ["good"] } }));
    assert_eq!(refused["error"]["code"], "forbidden");
    assert_eq!(agent.call("more", &json!({ "tool": "nothing" }))["error"]["code"], "not_found");
}

/// How many bytes the text of an answer or an error has.
fn bytes_of(agent: &mut Agent, tool: &str, input: &Value) -> usize {
    let answer = agent.ask("tools/call", json!({ "name": tool, "arguments": input }));
    let said = answer["result"]["content"][0]["text"].as_str().or(answer["error"]["message"].as_str());
    said.unwrap_or_else(|| panic!("{answer}")).len()
}

#[test]
fn t3_02_no_tool_is_told_of_and_no_error_said_in_more_than_4_kb() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy", "--tools", "all"]);
    assert!(bytes_of(&mut agent, "more", &json!({})) <= 4096);
    let names = agent.call("more", &json!({}));
    assert!(names.as_object().unwrap().len() > 50, "{names}");
    let long = "x".repeat(100_000);
    for tool in names.as_object().unwrap().keys() {
        let told = agent.call("more", &json!({ "tool": tool }));
        let bytes = bytes_of(&mut agent, "more", &json!({ "tool": tool }));
        assert!(bytes <= 4096 && told["input"]["properties"].is_object(), "{tool}: {bytes} bytes: {told}");
        for wrong in [json!({ "no_such_field": long }), json!({ &*long: 1 }), json!({ "run": long, "runs": [long] })] {
            let bytes = bytes_of(&mut agent, tool, &wrong);
            assert!(bytes <= 4096, "{tool}: an error of {bytes} bytes");
        }
    }
    assert!(bytes_of(&mut agent, &long, &json!({})) <= 4096);
    let whole = agent.call("more", &json!({ "tool": "queue_add", "max_bytes": 20_000 }));
    let cut = agent.call("more", &json!({ "tool": "queue_add" }));
    assert!(cut["cut"].is_string() && whole["cut"].is_null());
    let fields = |told: &Value| told["input"]["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&whole), fields(&cut), "a field is not named");
}

#[test]
fn output_tool_answers_the_end_as_plain_text_and_searches() {
    let sandbox = Sandbox::new();
    let script =
        r"i=0; while [ $i -lt 900 ]; do i=$((i+1)); echo line $i; done; printf '\033[31mred\033[0m\n10%%\r100%%\n' >&2";
    sandbox.outlive(["run", "--name", "talks", "--", "bash", "-c", script]).succeeds();
    let mut agent = Agent::start(&sandbox, &[]);
    let text = |answer: Value| answer["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let end = agent.call("output", &json!({ "run": "talks" }));
    assert_eq!(end["ended"], true);
    let end = text(end);
    assert!(end.contains("line 900\n") && !end.contains("line 700\n"), "{end}");
    // Two streams are read side by side, and which of them ends later is not said: of the other only its own end is sure.
    let plain = text(agent.call("output", &json!({ "run": "talks", "stderr": true })));
    assert_eq!(plain, "red\n100%\n");
    let nothing = agent.call("output", &json!({ "run": "talks", "cursor": agent_next(&sandbox) }));
    assert_eq!(text(nothing), "");
    let found = agent.call("output", &json!({ "run": "talks", "grep": "^line 88[0-9]$", "lines": 3 }));
    assert_eq!(text(found), "line 887\nline 888\nline 889\n");
    let errors = agent.call("output", &json!({ "run": "talks", "stderr": true, "ansi": true, "text": true }));
    // The escape character itself never reaches an agent.
    assert!(text(errors).contains("[31mred"), "colours are kept where they are asked for");
    let (mut read, mut after) = (String::new(), json!("0.0"));
    loop {
        let page = agent.call("output", &json!({ "run": "talks", "stdout": true, "cursor": after }));
        if page["text"] == "" {
            break;
        }
        after = page["next"].clone();
        read.push_str(&text(page));
    }
    let all: String = (1..=900).map(|line| format!("line {line}\n")).collect();
    assert_eq!(read, all);
    let refused = agent.call("output", &json!({ "run": "talks", "grep": "a{1000}{1000}{1000}" }));
    assert_eq!(refused["error"]["code"], "invalid");
}

/// Where the output of the run `talks` ends.
fn agent_next(sandbox: &Sandbox) -> Value {
    let said = sandbox.outlive(["output", "talks", "--lines", "1", "--json"]).succeeds();
    serde_json::from_str::<Value>(&said).unwrap()["next"].clone()
}

/// The work of an agent at a program: start its server, run its tests, read why they fail, mend that, run them again, stop.
#[test]
fn a_session_of_work_costs_less_than_the_tool_list() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, &["--allow", "execute"]);
    let tests = "import sys\nfor i in range(200): print(f'test {i} ok')\nassert open('answer').read() == '42', 'answer is wrong'";
    std::fs::write(sandbox.work().join("tests.py"), tests).unwrap();
    std::fs::write(sandbox.work().join("answer"), "41").unwrap();
    let serve = json!({ "argv": ["python3 -m http.server -b 127.0.0.1 $PORT"], "shell": true, "unique": ["dev"], "port": ["web"], "ready_http": "http://127.0.0.1:$PORT/", "watch": "30s" });
    let test = json!({ "argv": ["python3", "tests.py"], "name": "tests", "watch": "30s" });
    let why = json!({ "run": "tests", "grep": "Error", "lines": 5 });
    let (mut bytes, mut answers) = (0, Vec::<Value>::new());
    for (tool, input) in [("run", &serve), ("run", &test), ("output", &why), ("run", &test), ("cancel", &json!({}))] {
        let input = if tool == "cancel" { json!({ "runs": [answers[0]["id"]], "wait": true }) } else { input.clone() };
        let call = json!({ "name": tool, "arguments": input });
        let answer = agent.ask("tools/call", call.clone());
        bytes += call.to_string().len() + answer["result"].to_string().len();
        answers.push(answered(&answer));
        // What the tests need is mended once it is known why they fail.
        std::fs::write(sandbox.work().join("answer"), if answers.len() == 3 { "42" } else { "41" }).unwrap();
    }
    assert_eq!(answers[0]["run"]["ready"], true, "{answers:?}");
    assert_eq!(answers[1]["run"]["exit_code"], 1, "{answers:?}");
    assert!(answers[2]["text"].as_str().unwrap().contains("answer is wrong"), "{answers:?}");
    assert_eq!(answers[3]["run"]["state"], "succeeded", "{answers:?}");
    let (list, _) = bytes_of_list(&sandbox, &["--allow", "execute"]);
    println!("the tool list costs {list} bytes, the session {bytes}");
    assert!(bytes < list, "the session costs {bytes} bytes");
}
