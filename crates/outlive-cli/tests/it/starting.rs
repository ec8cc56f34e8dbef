//! Commands that agents start: what is answered, what is refused, and what is left when something dies.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, signal_pid, until};
use super::served::{Agent, Served};
use super::serving::token_of;

pub(crate) const EXECUTE: &[&str] = &["--allow", "execute"];

/// A server that is ready once it listens at the port that it was leased.
const SERVER: &str = "import http.server, os
http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), http.server.SimpleHTTPRequestHandler).serve_forever()";

/// The processes whose command line has a word.
pub(crate) fn bearers(mark: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = pid.filter(|_| words.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())) {
            found.push(pid);
        }
    }
    found
}

#[test]
fn t3_01_an_agent_starts_a_command_that_outlives_its_server() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.work().join("below")).unwrap();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let script = "echo \"$WHO in $PWD\"; until [ -e ../over ]; do sleep 0.05; done; echo done; exit 7";
    let input =
        json!({ "argv": ["sh", "-c", script], "cwd": "below", "env": ["WHO=agent"], "name": "job", "labels": ["a=b"] });
    let begun = agent.call("run", &input);
    let id = begun["id"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned();
    assert_eq!((&begun["made"], &begun["name"]), (&json!(true), &json!("job")), "{begun}");
    assert!(std::path::Path::new(begun["log"].as_str().unwrap()).is_file(), "{begun}");
    agent.kill();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let shown = agent.call("show", &json!({ "run": id, "fields": ["state", "labels", "cwd"] }));
    assert_eq!((&shown["state"], &shown["labels"]), (&json!("running"), &json!({ "a": "b" })), "{shown}");
    std::fs::write(sandbox.work().join("over"), "").unwrap();
    let ended = agent.call("wait", &json!({ "runs": [id] }));
    assert_eq!((&ended["runs"][0]["state"], &ended["runs"][0]["exit_code"]), (&json!("failed"), &json!(7)), "{ended}");
    let output = agent.call("output", &json!({ "run": id }))["text"].as_str().unwrap().to_owned();
    assert_eq!(output, format!("agent in {}/below\ndone\n", sandbox.work().canonicalize().unwrap().display()));
}

#[test]
fn t3_01_nothing_starts_until_allowed_also_over_http() {
    let sandbox = Sandbox::new();
    let input = json!({ "argv": ["touch", "made"] });
    for words in [&[][..], &["--allow", "stop"]] {
        let mut agent = Agent::start(&sandbox, words);
        assert!(agent.tools().iter().all(|tool| tool["name"] != "run"));
        assert_eq!(agent.call("run", &input)["error"]["code"], "forbidden");
        assert_eq!(agent.call("more", &json!({ "tool": "run", "input": input }))["error"]["code"], "forbidden");
    }
    let served = Served::start(&sandbox, &[]);
    let refused = served.post("/v1/run", &input);
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (403, Some("forbidden")),
        "{}",
        refused.body
    );
    let mut served = Served::start(&sandbox, EXECUTE);
    served.token = token_of(&sandbox, "operator", "operate");
    assert_eq!(served.post("/v1/run", &input).status, 403);
    assert!(!sandbox.work().join("made").exists() && sandbox.runs().is_empty());
    served.token = token_of(&sandbox, "ada", "admin");
    let begun = served.post("/v1/run", &json!({ "argv": ["true"], "name": "made", "labels": ["requested_by=bob"] }));
    assert_eq!(begun.status, 200, "{}", begun.body);
    assert_eq!(sandbox.wait_for_state("made", "succeeded")["labels"]["requested_by"], "ada");
    let forged = served.post("/v1/run", &json!({ "argv": ["true"], "requested_by": "bob" }));
    assert_eq!(forged.status, 400, "{}", forged.body);
    let read = served.post("/v1/run", &json!({ "argv": ["true"], "env": ["PATH"] }));
    assert_eq!(read.status, 403, "a variable of the server was read: {}", read.body);
}

#[test]
fn t3_01_bad_input_is_refused_and_leaves_no_run_and_no_process() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let mark = "7777.125";
    for (input, why) in [
        (json!({}), "argv"),
        (json!({ "argv": [] }), "argv"),
        (json!({ "argv": "sleep 9" }), "list"),
        (json!({ "argv": [""] }), "not found"),
        (json!({ "argv": ["no-such-program"] }), "`no-such-program` is not found"),
        (json!({ "argv": ["./no-such-file"] }), "not found"),
        (json!({ "argv": ["/etc/passwd"] }), "cannot be executed"),
        (json!({ "argv": ["sleep", mark], "cwd": "no/such" }), "is no directory"),
        (json!({ "argv": ["sleep", format!("{mark}\0")] }), "NUL"),
        (json!({ "argv": ["sleep", mark], "name": "a\0b" }), "--name contains a NUL byte"),
        (json!({ "argv": ["sleep", mark], "env": ["A\0=b"] }), "--env contains a NUL byte"),
        (json!({ "argv": ["sleep", mark], "unique": ["a\0"] }), "--unique contains a NUL byte"),
        (json!({ "argv": ["sleep", mark], "ready_http": "http://[::1/" }), "`]` is missing"),
        (json!({ "argv": ["sleep", "x".repeat(1 << 20)] }), "has 1048576 bytes"),
        (json!({ "argv": ["sleep", mark], "ready_output": "a{1000}{1000}{1000}" }), "regular expression"),
        (json!({ "argv": ["sleep", mark], "ready_http": "https://localhost/" }), "only http://"),
        (json!({ "argv": ["sleep", mark], "ready_tcp": "$PORT" }), "--port"),
        (json!({ "argv": ["sleep", mark], "port": ["a b"] }), "letters, digits"),
        (json!({ "argv": ["sleep", mark], "port": ["8080"] }), "that is a number, and a port is leased by a name"),
        (json!({ "argv": ["sleep", mark], "leash": "4194305" }), "there is none"),
        (json!({ "argv": ["sleep", mark], "leash": "me" }), "`session` or `none`"),
        (json!({ "argv": ["sleep", mark], "labels": ["novalue"] }), "label"),
        (json!({ "argv": ["sleep", mark], "env": ["OUTLIVE_PORT_WEB=80"] }), "names no variable"),
    ] {
        let refused = agent.call("run", &input);
        let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
        assert!(message.to_lowercase().contains(&why.to_lowercase()), "{why}: {message}");
    }
    assert!(sandbox.runs().is_empty(), "{:?}", sandbox.runs());
    assert!(bearers(mark).is_empty());
    assert_eq!(agent.call("ps", &json!({ "fields": ["state"] })), json!({ "runs": [] }));
    // A port of another process says nothing of this one.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = agent.call("run", &json!({ "argv": ["sleep", mark], "name": "taken", "ready_tcp": port }));
    let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
    assert!(message.contains(&format!("another process serves port {port} already")), "{message}");
    assert_eq!(sandbox.show("taken")["error_type"], "spawn");
    let never = json!({ "argv": ["sleep", mark], "ready_output": "up", "ready_within": "200ms", "watch": "20s" });
    let failed = agent.call("run", &never);
    assert_eq!(failed["run"]["error_type"], "not_ready", "{failed}");
    assert!(bearers(mark).is_empty());
}

#[test]
fn t3_01_queued_command_gets_a_worker_on_request() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let input = json!({ "argv": ["echo", "x"], "name": "queued", "ensure_worker": true });
    assert_eq!(agent.call("queue_add", &input)["runs"][0]["made"], true);
    agent.kill();
    sandbox.wait_for_state("queued", "succeeded");
}

#[test]
fn run_answers_with_its_id_whatever_fields_and_bytes_are_wanted() {
    let sandbox = Sandbox::new();
    let wanted = [json!({ "fields": ["state"] }), json!({ "max_bytes": 40 })];
    for (place, said) in wanted.iter().enumerate() {
        let mut input = json!({ "argv": ["sleep", "300"], "name": "job" });
        input.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        let begun = Agent::start(&sandbox, EXECUTE).call("run", &input);
        sandbox.outlive(["cancel", begun["id"].as_str().unwrap_or_else(|| panic!("{begun}")), "--wait"]).succeeds();
        let mut knows_tasks = Agent::with_tasks(&sandbox, EXECUTE);
        let begun = knows_tasks.ask("tools/call", json!({ "name": "run", "arguments": input }));
        let id = begun["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{begun}"));
        sandbox.outlive(["cancel", id, "--wait"]).succeeds();
        assert_eq!(sandbox.runs().len(), 2 * (place + 1));
    }
}

#[test]
fn unique_run_in_the_foreground_is_refused_with_url_and_log() {
    let sandbox = Sandbox::new();
    let words = ["run", "-d", "--json", "--unique", "dev", "--port", "web", "--", "sleep", "300"];
    let begun = sandbox.outlive(words).json();
    let refused = sandbox.outlive(["run", "--unique", "dev", "--", "true"]).fails_with(105);
    for said in [&begun["url"], &begun["log"], &begun["id"]] {
        assert!(refused.contains(said.as_str().unwrap()), "{said}: {refused}");
    }
    let refused = sandbox.outlive(["run", "--port", "8080", "--", "true"]).fails_with(2);
    assert!(refused.contains("`--port web`") && refused.contains("$PORT"), "{refused}");
    sandbox.outlive(["cancel", "--all", "--wait"]).succeeds();
}

#[test]
fn resumed_run_gets_a_port_that_no_other_run_has() {
    let sandbox = Sandbox::new();
    let start = |name: &str| {
        let ready = "http://127.0.0.1:$PORT/";
        let words =
            ["run", "-d", "--name", name, "--port", "web", "--ready-http", ready, "--", "python3", "-c", SERVER];
        sandbox.outlive(words).succeeds();
        sandbox.outlive(["wait", "--ready", name]).succeeds();
        sandbox.show(name)["url"].as_str().unwrap().to_owned()
    };
    let is_served =
        |url: &str| std::net::TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).is_ok();
    let was = start("first");
    let interrupt = |name: &str| {
        signal_pid(u32::try_from(sandbox.show(name)["owner_pid"].as_u64().unwrap()).unwrap(), "TERM");
        sandbox.wait_for_state(name, "interrupted");
    };
    interrupt("first");
    assert_eq!(start("second"), was, "the same name in the same directory");
    sandbox.outlive(["resume", "first"]).succeeds();
    sandbox.outlive(["wait", "--ready", "first"]).succeeds();
    let (first, second) = (sandbox.show("first"), sandbox.show("second"));
    let (is, theirs) = (first["url"].as_str().unwrap(), second["url"].as_str().unwrap());
    assert_ne!(is, theirs);
    assert!(is_served(is) && is_served(theirs), "{is} {theirs}");
    assert!(is.contains(&first["ports"]["web"].to_string()), "{first}");
    interrupt("first");
    sandbox.outlive(["cancel", "second", "--wait"]).succeeds();
    sandbox.outlive(["resume", "first"]).succeeds();
    sandbox.outlive(["wait", "--ready", "first"]).succeeds();
    assert_eq!(sandbox.show("first")["url"], *was, "its own port is free again");
    sandbox.outlive(["cancel", "first", "--wait"]).succeeds();
}

#[test]
fn adopted_run_becomes_ready_or_fails_in_time() {
    let sandbox = Sandbox::impatient();
    let start = |name: &str, within: &str, check: &str| {
        let flags = ["run", "-d", "--name", name, "--ready-within", within, "--ready-command", check];
        sandbox.outlive(flags.iter().chain(&["--", "sleep", "300"])).succeeds();
        signal_pid(u32::try_from(sandbox.show(name)["owner_pid"].as_u64().unwrap()).unwrap(), "KILL");
        sandbox.wait_for(name, |run| run["health"] == "orphaned");
        sandbox.outlive(["adopt", "-d", name]).succeeds();
    };
    start("late", "5m", "test -e made");
    assert_eq!(sandbox.show("late")["ready"], false);
    std::fs::write(sandbox.work().join("made"), "").unwrap();
    sandbox.outlive(["wait", "--ready", "late"]).succeeds();
    assert_eq!(sandbox.show("late")["ready"], true);
    sandbox.outlive(["cancel", "late", "--wait"]).succeeds();
    start("never", "5s", "false");
    let failed = sandbox.wait_for_state("never", "failed");
    assert_eq!((&failed["error_type"], &failed["leftover_pids"]), (&json!("not_ready"), &json!([])), "{failed}");
}

#[test]
fn watched_run_answers_with_its_end_and_first_output() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let done = agent.call("run", &json!({ "argv": ["echo hello; exit 3"], "shell": true, "watch": "20s" }));
    assert_eq!((&done["run"]["state"], &done["run"]["exit_code"]), (&json!("failed"), &json!(3)), "{done}");
    assert_eq!(done["output"], "hello\n");
    let busy = agent.call("run", &json!({ "argv": ["sh", "-c", "echo up; sleep 300"], "name": "busy", "watch": "1s" }));
    assert_eq!((&busy["run"]["state"], &busy["output"]), (&json!("running"), &json!("up\n")), "{busy}");
    let waited = agent.call("wait", &json!({ "runs": ["busy"], "line": "^u.$" }));
    assert_eq!(waited["runs"][0]["name"], "busy", "{waited}");
    sandbox.outlive(["cancel", "busy", "--wait"]).succeeds();
}

#[test]
fn twenty_unique_starts_make_one_server_and_return_its_url() {
    let sandbox = Sandbox::new();
    let ready = "http://127.0.0.1:$PORT/";
    let words = [
        "run",
        "-d",
        "--json",
        "--unique",
        "dev",
        "--port",
        "web",
        "--ready-http",
        ready,
        "--",
        "python3",
        "-c",
        SERVER,
    ];
    let starting: Vec<_> = (0..20)
        .map(|_| {
            let mut command = sandbox.outlive(words);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut said = Vec::new();
    for child in starting {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        said.push(serde_json::from_slice::<Value>(&output.stdout).unwrap());
    }
    let url = said[0]["url"].as_str().unwrap();
    assert!(said.iter().all(|begun| begun["url"] == url && begun["id"] == said[0]["id"]), "{said:?}");
    assert_eq!(said.iter().filter(|begun| begun["made"] == true).count(), 1);
    assert_eq!(sandbox.runs().len(), 1);
    let id = said[0]["id"].as_str().unwrap();
    sandbox.outlive(["wait", "--ready", id]).succeeds();
    let shown = sandbox.show(id);
    assert_eq!((&shown["ready"], &shown["url"]), (&json!(true), &json!(url)), "{shown}");
    assert_eq!(shown["ports"]["web"].as_u64(), url.rsplit(':').next().unwrap().trim_end_matches('/').parse().ok());
    let person = sandbox.outlive(["show", id]).succeeds();
    assert!(person.contains(&format!("url        {url}")), "{person}");
    let port = url.trim_start_matches("http://").trim_end_matches('/');
    assert!(std::net::TcpStream::connect(port).is_ok(), "nobody serves at {url}");
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let again = agent.call("run", &json!({ "argv": ["false"], "unique": ["dev"] }));
    assert_eq!((&again["made"], &again["url"]), (&json!(false), &json!(url)), "{again}");
    sandbox.outlive(["cancel", id, "--wait"]).succeeds();
    // Alone it has the port that this name has in this directory, and each time the same.
    let alone = sandbox.outlive(words).json();
    sandbox.outlive(["cancel", alone["id"].as_str().unwrap(), "--wait"]).succeeds();
    let next = sandbox.outlive(words).json();
    assert_eq!((&next["made"], &next["url"]), (&json!(true), &alone["url"]), "the port is not free again");
    sandbox.outlive(["cancel", next["id"].as_str().unwrap(), "--wait"]).succeeds();
}

#[test]
fn run_is_ready_by_output_command_or_port_or_fails() {
    let sandbox = Sandbox::new();
    let start = |name: &str, flags: &[&str], script: &str| {
        let words = ["run", "-d", "--name", name].into_iter().chain(flags.iter().copied());
        sandbox.outlive(words.chain(["--", "sh", "-c", script])).succeeds();
    };
    start("says", &["--ready-output", "^listening on [0-9]+$"], "sleep 0.3; echo listening on 80; sleep 300");
    start("makes", &["--ready-command", "test -e made && test -n \"$PORT\"", "--port", "web"], "sleep 300");
    assert_eq!(sandbox.show("makes")["ready"], false);
    assert!(sandbox.outlive(["show", "makes"]).succeeds().contains("starting"));
    sandbox.outlive(["wait", "--ready", "makes", "--timeout", "200ms"]).fails_with(1);
    std::fs::write(sandbox.work().join("made"), "").unwrap();
    for name in ["says", "makes"] {
        sandbox.outlive(["wait", "--ready", name]).succeeds();
        assert_eq!(sandbox.show(name)["ready"], true);
        sandbox.outlive(["cancel", name, "--wait"]).succeeds();
    }
    let mark = "7777.25";
    let never = format!("sleep {mark} & setsid sleep {mark} & sleep {mark}");
    start("never", &["--ready-tcp", "1", "--ready-within", "300ms"], &never);
    let failed = sandbox.wait_for_state("never", "failed");
    assert_eq!(failed["error_type"], "not_ready", "{failed}");
    assert!(failed["error_message"].as_str().unwrap().contains("port 1 accepts connections"), "{failed}");
    assert!(bearers(mark).is_empty());
    assert!(sandbox.outlive(["wait", "--ready", "never"]).output().unwrap().status.code() != Some(0));
}

#[test]
fn t9_08_hanging_readiness_command_ends_with_deadline_or_run() {
    let sandbox = Sandbox::new();
    let start = |name: &str, within: &str, mark: &str, command: &str| {
        let look = format!("sleep {mark}");
        let words = ["run", "-d", "--name", name, "--ready-command", &look, "--ready-within", within, "--", "sh", "-c"];
        sandbox.outlive(words.iter().chain(&[command])).succeeds();
    };
    start("late", "300ms", "7777.31", "exec sleep 300");
    let failed = sandbox.wait_for_state("late", "failed");
    assert_eq!(failed["error_type"], "not_ready", "{failed}");
    until("the check to be gone", || bearers("7777.31").is_empty());
    // A command that ends during a look takes the look with it.
    start("brief", "5m", "7777.32", "until [ -e over ]; do sleep 0.05; done");
    until("a check to be made", || !bearers("7777.32").is_empty());
    std::fs::write(sandbox.work().join("over"), "").unwrap();
    sandbox.wait_for_state("brief", "succeeded");
    until("the check to be gone", || bearers("7777.32").is_empty());
    // An owner that is killed during a look leaves it to be found with the run.
    start("killed", "5m", "7777.33", "exec sleep 300");
    until("a check to be made", || !bearers("7777.33").is_empty());
    signal_pid(u32::try_from(sandbox.show("killed")["owner_pid"].as_u64().unwrap()).unwrap(), "KILL");
    sandbox.wait_for("killed", |run| run["health"] == "orphaned");
    sandbox.outlive(["cancel", "killed", "--grace", "0s", "--wait"]).succeeds();
    assert!(bearers("7777.33").is_empty(), "the check outlives a run that is cancelled");
}

#[test]
fn clients_are_configured_once_and_keep_their_other_settings() {
    let sandbox = Sandbox::new();
    let home = sandbox.path().join("user");
    std::fs::create_dir(&home).unwrap();
    let install = |words: &[&str]| {
        let mut command = sandbox.outlive(["mcp", "install"].iter().chain(words));
        command.env("HOME", &home);
        command
    };
    let shown = install(&["claude-code"]).succeeds();
    assert!(shown.contains("--yes would add to") && shown.contains("\"mcpServers\""), "{shown}");
    assert!(!home.join(".claude.json").exists());
    let found =
        r#"{"projects": {"/x": [12345678901234567890123, 1.0E2]}, "mcpServers": {"other": {"command": "\u006f"}}}"#;
    let file = home.join(".claude.json");
    std::fs::write(&file, found).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    install(&["claude-code", "--yes"]).succeeds();
    let text = std::fs::read_to_string(&file).unwrap();
    let kept = found.trim_end_matches("}}");
    assert!(text.starts_with(kept) && text.ends_with("}}"), "{text}");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["mcpServers"]["other"]["command"], "o");
    assert_eq!(read["mcpServers"]["outlive"], json!({ "command": "outlive", "args": ["mcp", "--allow", "execute"] }));
    assert!(install(&["claude-code", "--yes"]).succeeds().contains("already in"));
    assert!(install(&["claude-code", "--allow", "read", "--yes"]).fails_with(2).contains("says something else"));
    install(&["codex", "--yes"]).succeeds();
    assert!(std::fs::read_to_string(home.join(".codex/config.toml")).unwrap().contains("[mcp_servers.outlive]"));
    assert_eq!(home.join(".codex/config.toml").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // A client may have another PATH than this shell, and another program there.
    let program = super::sandbox::binary().canonicalize().unwrap();
    let alone = install(&["cursor"]).env("PATH", "/usr/bin:/bin").succeeds();
    assert!(alone.contains(&format!("\"command\": \"{}\"", program.display())), "{alone}");
    install(&["vscode", "--yes"]).succeeds();
    install(&["cursor", "--project", "--yes"]).succeeds();
    assert!(sandbox.work().join(".vscode/mcp.json").exists() && sandbox.work().join(".cursor/mcp.json").exists());
    let all = Agent::start(&sandbox, &["--allow", "destroy", "--tools", "all"]).tools();
    assert!(all.iter().all(|tool| tool["name"] != "mcp_install"), "an agent could configure itself");
}
