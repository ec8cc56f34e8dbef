//! What a server tells those who watch over it: numbers and traces.

use std::io::Write;

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, signal_pid, until};
use super::served::Served;
use super::serving::token_of;

#[test]
fn numbers_for_prometheus_say_what_the_registry_holds() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--kind", "a\"b", "--", "true"]).succeeds();
    let mut killed = sandbox.start("killed", &["sleep", "300"]);
    let child = super::running::child_of(killed.pid());
    killed.kill();
    signal_pid(child, "KILL");
    sandbox.wait_for_state("killed", "dead");
    sandbox.outlive(["reap"]).succeeds();
    let _busy = sandbox.start("busy", &["sleep", "300"]);
    // Nobody has claimed either of these.
    for name in ["later", "never"] {
        sandbox.outlive(["queue", "add", "--name", name, "--", "true"]).succeeds();
    }
    sandbox.outlive(["queue", "cancel", "never"]).succeeds();
    let id = sandbox.show("busy")["id"].clone();
    let served = Served::start(&sandbox, &[]);
    assert_eq!(served.post("/v1/progress", &json!({ "done": "1", "run": id, "epoch": 99 })).status, 412);
    let told = served.get("/metrics").body;
    for line in [
        "outlive_runs{state=\"succeeded\",kind=\"a\\\"b\"} 1",
        "outlive_runs{state=\"running\",kind=\"command\"} 1",
        "outlive_runs{state=\"dead\",kind=\"command\"} 1",
        "outlive_reaps{evidence=\"lock_free\"} 1",
        "outlive_runs{state=\"pending\",kind=\"command\"} 1",
        "outlive_runs{state=\"cancelled\",kind=\"command\"} 1",
        "outlive_claims 3",
        "outlive_stale_writes_refused_total 1",
        "outlive_calls_total{operation=\"progress\",code=\"lost\"} 1",
    ] {
        assert!(told.lines().any(|found| found == line), "no {line} in\n{told}");
    }
    let age = told.lines().find_map(|line| line.strip_prefix("outlive_queue_oldest_seconds{kind=\"command\"} "));
    assert!(age.is_some_and(|age| age.parse::<f64>().unwrap() > 0.0), "no age of the oldest run in\n{told}");
    assert!(told.lines().any(|line| line.starts_with("outlive_slots ")), "{told}");
    // The same numbers for people and programs.
    let live = sandbox.outlive(["stats", "--live", "--json"]).json()["live"].clone();
    let kind = live["kinds"].as_array().unwrap().iter().find(|kind| kind["kind"] == "command").unwrap();
    let counts = ["pending", "running", "dead", "others"].map(|field| kind[field].as_u64().unwrap());
    assert_eq!((counts, kind["oldest_ms"].is_u64()), ([1, 1, 1, 1], true), "{live}");
    let shown = sandbox.outlive(["stats", "--live"]).succeeds();
    assert!(shown.starts_with("KIND") && shown.contains("workers with"), "{shown}");
}

#[test]
fn t5_b5_events_are_logged_to_stderr_if_outlive_log_asks() {
    let sandbox = Sandbox::new();
    let mut killed = sandbox.start("killed", &["sleep", "300"]);
    let child = super::running::child_of(killed.pid());
    killed.kill();
    signal_pid(child, "KILL");
    sandbox.wait_for_state("killed", "dead");
    let said = |words: &[&str], level: &str| {
        let output = sandbox.outlive(words).env("OUTLIVE_LOG", level).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["ps"], "loud").contains("`OUTLIVE_LOG=loud` is ignored"));
    let log = said(&["reap"], "info");
    assert!(log.contains("run reaped") && log.contains("evidence"), "{log}");
    assert!(!said(&["ps"], "").contains("outlive:"));
}

/// The number of this name.
fn number(served: &Served, name: &str) -> f64 {
    let told = served.get("/metrics").body;
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{told}")).parse().unwrap()
}

#[test]
fn writes_of_attempts_that_lost_their_run_are_counted() {
    let sandbox = Sandbox::new();
    let _busy = sandbox.start("busy", &["sleep", "300"]);
    let id = sandbox.show("busy")["id"].clone();
    let served = Served::start(&sandbox, &["--allow", "write"]);
    let refused = || number(&served, "outlive_stale_writes_refused_total");
    let stale = json!({ "done": "1", "run": id, "epoch": 99 });
    assert_eq!(served.post("/v1/progress", &stale).status, 412);
    assert_eq!(refused(), 1.0);
    let session = served.begin_mcp();
    let told = served.mcp("tools/call", &json!({ "name": "progress", "arguments": stale }), Some(&session)).body;
    assert!(told.contains("lost"), "{told}");
    assert_eq!(refused(), 2.0);
    // As an owner elsewhere writes who does not know yet that the run has gone on without it.
    let got = served.post("/v1/store/get", &json!([id])).json();
    let record = &got["done"][0];
    let commit = |claim: &dyn Fn(u64) -> u64| {
        let mut run = record["run"]["run"].clone();
        run["epoch"] = claim(run["epoch"].as_u64().unwrap()).into();
        let write = json!({
            "expect": { "revision": 0 }, "run": run, "events": [], "ended": null,
            "stamp": "01890000-0000-4000-8000-000000000000",
        });
        served.post("/v1/store/commit", &json!({ "writes": [write] })).body
    };
    let told = commit(&|claim| claim - 1);
    assert!(told.contains("conflict"), "{told}");
    assert_eq!(refused(), 3.0);
    // Whoever only did not know the latest version is no such attempt.
    let told = commit(&|claim| claim);
    assert!(told.contains("conflict"), "{told}");
    assert_eq!(refused(), 3.0);
}

#[test]
fn metrics_have_the_duration_of_remote_heartbeats() {
    let sandbox = Sandbox::impatient();
    let served = Served::start(&sandbox, &[]);
    assert_eq!(number(&served, "outlive_beat_seconds_count"), 0.0);
    let elsewhere = Sandbox::new();
    let mut command = elsewhere.outlive(["run", "--name", "far", "--", "sleep", "300"]);
    command.env("OUTLIVE_REGISTRY", format!("http://{}", served.address)).env("OUTLIVE_TOKEN", &served.token);
    let mut run = command.spawn().unwrap();
    until("it to beat", || number(&served, "outlive_beat_seconds_count") >= 2.0);
    assert!(number(&served, "outlive_beat_seconds_bucket{le=\"+Inf\"}") >= 2.0);
    assert!(number(&served, "outlive_beat_seconds_sum") > 0.0);
    signal_pid(run.id(), "TERM");
    run.wait().unwrap();
}

/// Somebody who collects traces: what was sent, as it came.
fn collector() -> (String, std::sync::mpsc::Receiver<(String, Value)>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let Some(request) = outlive::testing::proxy::Request::read(&client) else { continue };
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
            let _ = tell.send((request.head, serde_json::from_slice(&request.body).unwrap_or_default()));
        }
    });
    (address, told)
}

#[test]
fn collector_gets_every_request_without_its_content() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    let (address, told) = collector();
    let mut command = sandbox.outlive(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}"));
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=search").env("OTEL_SERVICE_NAME", "runs");
    let mut served = Served::begin(&mut command, &sandbox);
    served.token = token_of(&sandbox, "ada", "read");
    let bearer = format!("Bearer {}", served.token);
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let parent = |flags: &str| format!("00-{trace}-{span}-{flags}");
    served.request("GET /v1/ps?name=hush-hush", &[("Authorization", &bearer), ("traceparent", &parent("01"))], "");
    served.request("GET /v1/show?run=good", &[("Authorization", &bearer), ("traceparent", &parent("00"))], "");
    assert_eq!(served.get("/v1/hush-hush/../../etc").status, 404);
    signal_pid(served.child.id(), "TERM");
    assert!(served.child.wait().unwrap().success());
    let (mut spans, mut all) = (Vec::new(), String::new());
    while let Ok((head, body)) = told.recv_timeout(std::time::Duration::from_secs(5)) {
        assert!(head.starts_with("POST /v1/traces ") && head.to_lowercase().contains("x-team: search"), "{head}");
        let of = &body["resourceSpans"][0];
        assert_eq!(of["resource"]["attributes"][0]["value"]["stringValue"], "runs", "{body}");
        spans.extend(of["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
        all.push_str(&body.to_string());
        if spans.len() >= 2 {
            break;
        }
    }
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["GET /v1/ps", "GET other"], "one was not to be told of, and none is made up");
    assert_eq!((&spans[0]["traceId"], &spans[0]["parentSpanId"]), (&trace.into(), &span.into()));
    assert!(spans[1]["traceId"].as_str().unwrap().len() == 32 && spans[1]["traceId"] != trace, "{all}");
    let attributes = spans[0]["attributes"].to_string();
    assert!(attributes.contains("\"ada\"") && attributes.contains("\"200\""), "{attributes}");
    let times =
        ["startTimeUnixNano", "endTimeUnixNano"].map(|name| spans[0][name].as_str().unwrap().parse::<u64>().unwrap());
    assert!(times[0] <= times[1] && times[0] > 1_700_000_000_000_000_000, "{times:?}");
    assert!(!all.contains("hush") && !all.contains(&served.token), "{all}");
}

#[test]
fn invalid_collector_is_refused_and_an_absent_one_is_no_delay() {
    let sandbox = Sandbox::new();
    for endpoint in ["https://collector.example", "nonsense", "http://"] {
        let mut command = sandbox.outlive(["serve", "--listen", "127.0.0.1:0"]);
        let said = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).fails_with(2);
        assert!(said.contains("names no collector"), "{endpoint}: {said}");
    }
    let mut command = sandbox.outlive(["serve", "--json", "--listen", "127.0.0.1:0"]);
    let mut served = Served::begin(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), &sandbox);
    for _ in 0..20 {
        assert_eq!(served.get("/v1/ps").status, 200);
    }
    signal_pid(served.child.id(), "TERM");
    assert!(served.child.wait().unwrap().success());
}
