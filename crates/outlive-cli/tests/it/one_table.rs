//! One declaration, every surface: what the command line, HTTP and MCP answer is the same, and so are their errors.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text};
use super::served::{Agent, Served};

/// A call of an operation, as words and as fields.
struct Call {
    operation: &'static str,
    words: Vec<String>,
    fields: Value,
}

fn call(operation: &'static str, words: &[&str], fields: Value) -> Call {
    Call { operation, words: words.iter().map(|word| (*word).to_owned()).collect(), fields }
}

/// At least one call of every operation that is on every surface, and the ways in which calls go wrong.
fn calls(run: &Value) -> Vec<Call> {
    let (id, epoch) = (run["id"].as_str().unwrap(), run["epoch"].to_string());
    let claim = |mut fields: Value| {
        (fields["run"], fields["epoch"]) = (id.into(), run["epoch"].clone());
        fields
    };
    let inside = |words: &[&str]| -> Vec<String> {
        let claim = ["--run", id, "--epoch", &epoch];
        words.iter().chain(&claim).map(|word| (*word).to_owned()).collect()
    };
    let mut calls = vec![
        call("registry list", &[], json!({})),
        call("registry show", &[], json!({})),
        call("registry refresh", &[], json!({})),
        call("registry check", &[], json!({})),
        call("search", &["good"], json!({ "query": ["good"] })),
        call("search", &["--status", "asleep"], json!({ "status": ["asleep"] })),
        call("history", &["--limit", "2"], json!({ "limit": 2 })),
        call("list", &["--scope", "home"], json!({ "scope": "home" })),
        call("list", &["--since", "when"], json!({ "since": "when" })),
        call(
            "stats",
            &["--since", "2000-01-01", "--until", "2100-01-01"],
            json!({ "since": "2000-01-01", "until": "2100-01-01" }),
        ),
        call("gc", &["--dry-run"], json!({ "dry_run": true })),
        call("rerun", &["nobody"], json!({ "run": "nobody" })),
        call("rerun", &["busy"], json!({ "run": "busy" })),
        call("sweep", &[], json!({})),
        call("queue drain", &["--limit", "1"], json!({ "limit": 1 })),
        call("queue beat", &["nobody", "--epoch", "1"], json!({ "entry": "nobody", "epoch": 1 })),
        call("queue done", &["nobody", "--epoch", "1"], json!({ "entry": "nobody", "epoch": 1 })),
        call("queue release", &["nobody"], json!({ "entry": "nobody" })),
        call("ps", &[], json!({})),
        call(
            "ps",
            &["--all", "--status", "failed", "--limit", "1"],
            json!({ "all": true, "status": ["failed"], "limit": 1 }),
        ),
        call("ps", &["--label", "team=search"], json!({ "labels": ["team=search"] })),
        call("ps", &["--limit", "0"], json!({ "limit": 0 })),
        call("ps", &["--status", "asleep"], json!({ "status": ["asleep"] })),
        call("ps", &["--cursor", "nowhere"], json!({ "cursor": "nowhere" })),
        call("show", &["bad"], json!({ "run": "bad" })),
        call("show", &["nobody"], json!({ "run": "nobody" })),
        call("show", &["../../etc/passwd"], json!({ "run": "../../etc/passwd" })),
        call("show", &["twin"], json!({ "run": "twin" })),
        call("show", &[], json!({})),
        call("why", &["killed"], json!({ "run": "killed" })),
        call("wait", &["good", "bad"], json!({ "runs": ["good", "bad"] })),
        call("wait", &["busy", "--timeout", "10ms"], json!({ "runs": ["busy"], "timeout": "10ms" })),
        call("wait", &[], json!({ "runs": [] })),
        call("wait", &["busy", "--timeout", "soon"], json!({ "runs": ["busy"], "timeout": "soon" })),
        call("result", &["migrate"], json!({ "run": "migrate" })),
        call("result", &["good"], json!({ "run": "good" })),
        call("diff", &["good", "bad"], json!({ "left": "good", "right": "bad" })),
        call("grep", &["good", "x"], json!({ "run": "good", "pattern": "x" })),
        call("keys", &[], json!({})),
        call(
            "facets",
            &["--since", "2020-01-01T00:00:00Z", "--until", "2030-01-01T00:00:00Z"],
            json!({ "since": "2020-01-01T00:00:00Z", "until": "2030-01-01T00:00:00Z" }),
        ),
        call("show", &["migrate"], json!({ "run": "migrate" })),
        call("queue add", &["--kind", "a", "--input", "[1]"], json!({ "kind": "a", "input": [1] })),
        call("queue add", &["--kind", "a", "--input", "\"@x\""], json!({ "kind": "a", "input": "@x" })),
        call("queue add", &["--input", "1"], json!({ "input": 1 })),
        call("output", &["good"], json!({ "run": "good" })),
        call("output", &["good", "--stdout", "--stderr"], json!({ "run": "good", "stdout": true, "stderr": true })),
        call("output", &["good", "--attempt", "9"], json!({ "run": "good", "attempt": 9 })),
        call("send", &["busy", "hello"], json!({ "run": "busy", "text": "hello" })),
        call("send", &["good", "--signal", "HUP"], json!({ "run": "good", "signal": "HUP" })),
        call("send", &["busy", "--signal", "MINE"], json!({ "run": "busy", "signal": "MINE" })),
        call("send", &["busy"], json!({ "run": "busy" })),
        call("send", &["busy", "--signal", "CONT"], json!({ "run": "busy", "signal": "CONT" })),
        call("adopt", &["-d", "nobody"], json!({ "run": "nobody" })),
        call("adopt", &["-d", "good"], json!({ "run": "good" })),
        call("cancel", &["busy", "--dry-run"], json!({ "runs": ["busy"], "dry_run": true })),
        call("cancel", &["good"], json!({ "runs": ["good"] })),
        call("cancel", &["--kind", "command"], json!({ "kind": "command" })),
        call("cancel", &["good", "--name", "good"], json!({ "runs": ["good"], "name": "good" })),
        call("queue cancel", &["--label", "a=b"], json!({ "labels": ["a=b"] })),
        call("resume", &["--status", "dead"], json!({ "status": ["dead"] })),
        call("rerun", &["--status", "failed", "--since", "1d"], json!({ "status": ["failed"], "since": "1d" })),
        call("archive", &["--kind", "command"], json!({ "kind": "command" })),
        call("cancel", &["--all", "busy"], json!({ "runs": ["busy"], "all": true })),
        call("resume", &["killed", "--dry-run"], json!({ "runs": ["killed"], "dry_run": true })),
        call("resume", &["bad"], json!({ "runs": ["bad"] })),
        call("unpark", &["good"], json!({ "runs": ["good"] })),
        call("pause", &["good"], json!({ "runs": ["good"] })),
        call("unpause", &["good"], json!({ "runs": ["good"] })),
        call("queue edit", &["good", "--priority", "4"], json!({ "runs": ["good"], "priority": 4 })),
        call("history export", &[], json!({})),
        call("reap", &["--dry-run"], json!({ "dry_run": true })),
        call("archive", &["good", "--dry-run"], json!({ "runs": ["good"], "dry_run": true })),
        call("archive", &["--status", "running"], json!({ "status": ["running"] })),
        call("unarchive", &["good"], json!({ "runs": ["good"] })),
        call("rm", &["good"], json!({ "runs": ["good"] })),
        call("rm", &["busy", "--yes"], json!({ "runs": ["busy"], "yes": true })),
        call("rm", &["--status", "succeeded"], json!({ "status": ["succeeded"] })),
        call(
            "queue add",
            &["--name", "later", "--priority", "7", "--", "true"],
            json!({ "name": "later", "priority": 7, "argv": ["true"] }),
        ),
        call("queue add", &["--missed", "all", "--", "true"], json!({ "missed": "all", "argv": ["true"] })),
        call("queue add", &["--on-death", "cry", "--", "true"], json!({ "on_death": "cry", "argv": ["true"] })),
        call("queue list", &[], json!({})),
        call("queue show", &["busy"], json!({ "run": "busy" })),
        call("queue cancel", &["--all", "--dry-run"], json!({ "all": true, "dry_run": true })),
        call("workers", &[], json!({})),
        call("service status", &[], json!({})),
        call("doctor", &[], json!({})),
        call("completions", &["fish"], json!({ "shell": "fish" })),
        call("completions", &["tea"], json!({ "shell": "tea" })),
        call("man", &[], json!({})),
        call("checkpoint get", &["--run", id], json!({ "run": id })),
        call("fence check", &["--run", id, "--epoch", "99"], json!({ "run": id, "epoch": 99 })),
        call("progress", &["much", "--run", id, "--epoch", &epoch], claim(json!({ "done": "much" }))),
    ];
    for (operation, words, fields) in [
        ("progress", &["4/10", "half"][..], json!({ "done": "4/10", "message": "half" })),
        ("checkpoint set", &["{\"epoch\": 4}"], json!({ "checkpoint": "{\"epoch\": 4}" })),
        ("artifact add", &["model.bin"], json!({ "artifact": "model.bin" })),
        ("artifact manifest", &["latest.json"], json!({ "manifest": "latest.json" })),
        ("fence check", &[], json!({})),
    ] {
        calls.push(Call { operation, words: inside(words), fields: claim(fields) });
    }
    // Each starts its own, which the calls before must not find.
    calls.push(call("run", &["-d", "--name", "made", "--", "true"], json!({ "name": "made", "argv": ["true"] })));
    calls.push(call("run", &["-d", "--on-death", "cry", "--", "true"], json!({ "on_death": "cry", "argv": ["true"] })));
    calls
}

/// What differs from one moment to the next, made equal.
fn settled(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(name, _)| !VOLATILE.contains(&name.as_str()))
                .map(|(name, value)| (name, settled(value)))
                .collect(),
        ),
        Value::Array(values) => values.into_iter().map(settled).collect(),
        other => other,
    }
}

/// Of what is in flight: how long it has been so, when it was last heard of or wrote, and what it uses.
const VOLATILE: [&str; 10] = [
    "duration_ms",
    "silent_ms",
    "last_beat_at",
    "updated_at",
    "cpu_ms",
    "memory_bytes",
    "peak_memory_bytes",
    "read_bytes",
    "written_bytes",
    "processes",
];

/// The same, of calls that make something: each makes its own.
fn of_call(operation: &str, value: Value) -> Value {
    let mut value = settled(value);
    if operation == "queue add" {
        value["runs"].as_array_mut().into_iter().flatten().for_each(|run| run["id"] = "its own".into());
    }
    if operation == "run" && value["id"].is_string() {
        (value["id"], value["log"]) = ("its own".into(), value["log"].is_string().into());
    }
    if operation == "artifact add" {
        // Each adds it once more, behind what those before have added.
        value["artifacts"].as_array_mut().into_iter().for_each(Vec::dedup);
    }
    value
}

fn on_command_line(sandbox: &Sandbox, call: &Call) -> (Value, Option<i32>) {
    let words = call.operation.split(' ').map(str::to_owned).chain(["--json".to_owned()]).chain(call.words.clone());
    let output = sandbox.outlive(words).output().unwrap();
    let said = if output.stdout.is_empty() { text(&output.stderr) } else { text(&output.stdout) };
    let value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{}: {said}", call.operation));
    (value, output.status.code())
}

/// What is for a shell and its reader, and not for agents.
const NO_TOOLS: [&str; 2] = ["completions", "man"];

#[test]
fn u01_u02_every_operation_answers_alike_on_every_surface() {
    let sandbox = Sandbox::new();
    super::sandbox::make_result(&sandbox, "migrate");
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "bad", "--", "sh", "-c", "exit 3"]).status().unwrap();
    for _ in 0..2 {
        sandbox.outlive(["run", "--name", "twin", "--", "true"]).succeeds();
    }
    let mut killed = sandbox.start("killed", &["sleep", "300"]);
    let child = super::running::child_of(killed.pid());
    killed.kill();
    super::sandbox::signal_pid(child, "KILL");
    sandbox.wait_for_state("killed", "dead");
    let _busy = sandbox.start("busy", &["sleep", "300"]);
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let calls = calls(&sandbox.show("busy"));
    let served = Served::start(&sandbox, &["--allow", "execute"]);
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy", "--tools", "all"]);

    let described = served.get("/v1/openapi.json").json();
    let tools = agent.tools();
    // Streams of events are no operations.
    let paths = described["paths"].as_object().unwrap().iter().filter(|(_, methods)| methods["post"].is_object());
    let paths: Vec<&String> = paths.map(|(path, _)| path).collect();
    let is_tool = |name: &str| !NO_TOOLS.contains(&name);
    // The tool `more` is no operation.
    assert_eq!(paths.len(), tools.len() - 1 + NO_TOOLS.len(), "one of them has more: {paths:?}");
    for path in paths {
        let name = path.trim_start_matches("/v1/").replace('/', " ");
        assert!(calls.iter().any(|call| call.operation == name), "nobody calls `{name}` here");
        let offered = tools.iter().any(|tool| tool["name"] == name.replace(' ', "_"));
        assert_eq!(offered, is_tool(&name), "`{name}` as a tool");
    }
    for call in &calls {
        let name = call.operation;
        let path = format!("/v1/{}", name.replace(' ', "/"));
        let (said, status) = on_command_line(&sandbox, call);
        let reply = served.post(&path, &call.fields);
        let said = of_call(name, said);
        assert_eq!(said, of_call(name, reply.json()), "HTTP says otherwise: {name} {}", call.fields);
        if is_tool(name) {
            let told = agent.call_whole(&name.replace(' ', "_"), &call.fields);
            assert_eq!(said, of_call(name, told), "MCP says otherwise: {name} {}", call.fields);
        }
        let exit = reply.header("outlive-exit-status").and_then(|exit| exit.parse().ok());
        assert_eq!(exit, status, "{name} {}: {}", call.fields, reply.head);
    }
    for (line, status) in [("GET /v1/ps", "115"), ("POST /v1/nothing", "115")] {
        let unknown = served.request(line, &[], "");
        assert_eq!((unknown.status, unknown.header("outlive-exit-status")), (401, Some(status)), "{line}");
    }
}

#[test]
fn u02_reading_operations_answer_get_and_change_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--label", "a=b&c", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    let got = served.get("/v1/ps?all=true&status=succeeded&status=failed&labels=a%3Db%26c&limit=5");
    assert_eq!((got.status, got.json()["runs"][0]["name"].as_str()), (200, Some("good")), "{}", got.body);
    let posted = served.post("/v1/ps", &json!({ "all": true, "status": ["succeeded"], "limit": 5 }));
    assert_eq!(got.json()["runs"][0]["id"], posted.json()["runs"][0]["id"]);
    for path in ["/v1/cancel?all=true", "/v1/reap", "/v1/queue/add?argv=true", "/v1/resume"] {
        let refused = served.get(path);
        assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")), "{path}: {}", refused.body);
    }
    for (path, why) in [
        ("/v1/ps?al=true", "there is no field `al`"),
        ("/v1/ps?limit=1&limit=2", "given twice"),
        ("/v1/ps?limit=many", "it is a number"),
        ("/v1/ps?all=perhaps", "true or false"),
    ] {
        let refused = served.get(path);
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && message.contains(why), "{path}: {message}");
    }
}

#[test]
fn what_changes_this_machine_is_for_its_own_shell() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    std::fs::write(sandbox.work().join("plan.jsonl"), "secret-of-the-machine").unwrap();
    let served = Served::start(&sandbox, &[]);
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy"]);
    for (name, input) in [
        ("init", json!({})),
        ("registry add", json!({ "sources": ["."] })),
        ("registry remove", json!({ "sources": ["."] })),
        ("trust", json!({ "runs": ["good"], "yes": true })),
        ("service install", json!({ "yes": true })),
        ("service remove", json!({ "yes": true })),
        ("token create", json!({ "name": "me", "role": "admin" })),
        ("token list", json!({})),
        ("token revoke", json!({ "name": "me" })),
        ("doctor", json!({ "fix": true })),
        ("man", json!({ "dir": "pages" })),
        ("checkpoint set", json!({ "checkpoint": "-" })),
        ("queue add", json!({ "file": "plan.jsonl" })),
        ("queue add", json!({ "env": ["PATH"], "argv": ["true"] })),
    ] {
        let refused = served.post(&format!("/v1/{}", name.replace(' ', "/")), &input);
        assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (403, Some("forbidden")), "{name}");
        assert!(!refused.body.contains("secret-of-the-machine"), "{}", refused.body);
        if !NO_TOOLS.contains(&name) {
            assert_eq!(agent.call(&name.replace(' ', "_"), &input), refused.json(), "{name}");
        }
    }
    assert!(!sandbox.work().join("pages").exists());
}

#[test]
fn inside_a_run_a_call_from_elsewhere_says_which_it_means() {
    let sandbox = Sandbox::new();
    let script = "outlive serve --json --listen 127.0.0.1:0 > ../said & echo $! > ../pid; wait";
    let _run = sandbox.start("server", &["sh", "-c", script]);
    super::sandbox::until("the server inside a run to begin", || {
        sandbox.path().join("said").metadata().is_ok_and(|said| said.len() > 0)
    });
    let said: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path().join("said")).unwrap()).unwrap();
    let token = std::fs::read_to_string(sandbox.home().join("token")).unwrap();
    let child = std::process::Command::new("true").spawn().unwrap();
    let address = said["url"].as_str().unwrap().split("://").nth(1).unwrap().to_owned();
    let served = Served { child, address, link: String::new(), token };
    let refused = served.post("/v1/progress", &json!({ "done": "1" }));
    assert_eq!(refused.status, 400, "it spoke for the run that the server is in: {}", refused.body);
    assert!(refused.body.contains("say which attempt is meant"), "{}", refused.body);
}
