//! A registry in PostgreSQL, as users of the command meet it when something is wrong with it.

use std::io::Write;
use std::process::{Command, Stdio};

use outlive::id::{Entropy, SystemEntropy};
use outlive::testing::server::Server;
use outlive::testing::set_clock_off;
use outlive::time::{Clock, SystemClock, Timestamp};

use super::sandbox::{Ends, Sandbox, settled, signal_pid, text, until};
use super::served::Served;
use super::serving::read_until;

/// Part of every password here: it may be seen nowhere.
const PASSWORD: &str = "hunter2hunter2";

/// The URL of a registry, with a password that the server does not ask for.
fn with_password(url: &str) -> String {
    url.replace("tester@", &format!("tester:{PASSWORD}@"))
}

fn on(sandbox: &Sandbox, url: &str, words: &[&str]) -> Command {
    let mut command = sandbox.outlive(words);
    command.env("OUTLIVE_REGISTRY", url).env_remove("PGPASSWORD");
    command
}

/// What is said, with what differs between two servers made equal.
fn said(sandbox: &Sandbox, server: &Server, url: &str, words: &[&str]) -> String {
    let output = on(sandbox, url, words).output().unwrap();
    let said = format!("exit {}\n{}{}", output.status.code().unwrap(), text(&output.stdout), text(&output.stderr));
    assert!(!said.contains(PASSWORD), "{said}");
    let schema = url.split_once("schema=").map_or("none", |(_, rest)| rest.split('&').next().unwrap());
    let said = settled(sandbox, &said).replace(&server.port().to_string(), "[PORT]").replace(schema, "[SCHEMA]");
    // How long the last try took is part of how long all did.
    let said: Vec<String> = said.lines().map(|line| line.split("; tried for").next().unwrap().to_owned()).collect();
    said.join("\n")
}

#[test]
fn what_is_wrong_with_a_database_is_said_in_a_line_with_a_hint() {
    let sandbox = Sandbox::new();
    let server = Server::alone(&["fsync=off"]);
    let url = with_password(&server.fresh_url());
    let somebody = format!("u{:x}", SystemEntropy.draw());
    server.psql(&format!("CREATE ROLE {somebody} LOGIN; CREATE ROLE locked LOGIN PASSWORD 'another'"));
    server.psql("CREATE DATABASE readonly");
    server.psql("ALTER DATABASE readonly SET default_transaction_read_only = on");
    let hba = server.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("host all locked all scram-sha-256\n{before}")).unwrap();
    server.psql("SELECT pg_reload_conf()");
    let newer = with_password(&server.fresh_url());
    on(&sandbox, &newer, &["run", "--", "true"]).succeeds();
    let schema = newer.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned();
    server.psql(&format!("UPDATE {schema}.meta SET value = '99' WHERE name = 'format'"));
    let port = server.port().to_string();
    let cases: [(&str, String); 12] = [
        ("a port that is none", url.replace(&port, "port")),
        ("a mode that is none", url.replace("sslmode=disable", "sslmode=perhaps")),
        ("a setting that is none", format!("{url}&colour=blue")),
        ("a schema that cannot be", url.replace("schema=t", "schema=T-")),
        ("an unknown host", url.replace("127.0.0.1", "nowhere.invalid")),
        ("no server there", url.replace(&port, "1")),
        ("a wrong password", url.replace("tester:", "locked:")),
        ("a database that is not there", url.replace("/postgres?", "/missing?")),
        ("no right to make tables", url.replace("tester:", &format!("{somebody}:"))),
        ("a later format", newer),
        ("a server that can only be read", url.replace("/postgres?", "/readonly?")),
        ("no privacy", url.replace("sslmode=disable", "sslmode=require")),
    ];
    let mut all = String::new();
    for (what, url) in cases {
        let said = said(&sandbox, &server, &url, &["queue", "add", "--", "true"]).replace(&somebody, "[ROLE]");
        all.push_str(&format!("# {what}\n{said}\n"));
        let json = on(&sandbox, &url, &["queue", "add", "--json", "--", "true"]).output().unwrap();
        assert!(!text(&json.stderr).contains(PASSWORD) && json.stdout.is_empty());
    }
    insta::assert_snapshot!("database_refusals", all);
}

#[test]
fn s_31_a_password_of_the_registry_is_said_nowhere() {
    let sandbox = Sandbox::new();
    let url = with_password(&Server::shared().fresh_url());
    on(&sandbox, &url, &["run", "--name", "a", "--", "true"]).succeeds();
    for words in [
        &["ps"][..],
        &["ps", "--json"],
        &["ps", "--all", "--json", "--limit", "1"],
        &["show", "a"],
        &["show", "nobody"],
        &["why", "a", "--json"],
        &["logs", "a"],
        &["doctor"],
        &["doctor", "--json"],
        &["supervise", "--once"],
        &["reap", "--json"],
        &["workers"],
        &["workers", "--json"],
        &["init"],
    ] {
        let named: Vec<&str> = ["--registry", &url].into_iter().chain(words.iter().copied()).collect();
        for mut command in [on(&sandbox, &url, words), sandbox.outlive(named)] {
            let output = command.output().unwrap();
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!said.contains(PASSWORD), "{words:?}: {said}");
        }
    }
}

#[test]
fn s_31_registry_password_is_in_no_argument_of_a_process() {
    let sandbox = Sandbox::new();
    let secret = format!("only{:x}", SystemEntropy.draw());
    let url = Server::shared().fresh_url().replacen("tester@", &format!("tester:{secret}@"), 1);
    let words = [
        "--registry",
        &url,
        "run",
        "--detach",
        "--name",
        "kept",
        "--",
        "sh",
        "-c",
        "until test -e go; do sleep 0.1; done",
    ];
    sandbox.outlive(words).succeeds();
    let (mut seen, mut named) = (0, Vec::new());
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let spoken = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let has = |text: &[u8]| text.windows(secret.len()).any(|window| window == secret.as_bytes());
        seen += usize::from(has(&environment));
        named.extend(has(&spoken).then(|| text(&spoken)));
    }
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(seen > 0, "whoever owns the run knows the registry");
    assert!(named.is_empty(), "{named:?}");
    on(&sandbox, &url, &["wait", "kept"]).succeeds();
}

#[test]
fn f_65_run_outlives_a_database_outage_and_its_end_is_recorded() {
    let sandbox = Sandbox::new();
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let mut run = on(
        &sandbox,
        &url,
        &["run", "--name", "long", "--", "sh", "-c", "until test -e go; do sleep 0.1; done; exit 3"],
    )
    .spawn()
    .unwrap();
    until("the run to be on record", || on(&sandbox, &url, &["show", "long"]).output().unwrap().status.success());
    server.stop("immediate");
    let said = on(&sandbox, &url, &["show", "long"]).fails_with(107);
    assert!(said.contains("cannot be reached") && said.contains("tried for"), "{said}");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3), "the command's own status, though its end is not recorded yet");
    server.start();
    // Whoever comes next delivers it.
    on(&sandbox, &url, &["run", "--", "true"]).succeeds();
    let shown = on(&sandbox, &url, &["show", "long", "--json"]).json();
    assert_eq!((&shown["state"], &shown["exit_code"]), (&"failed".into(), &3.into()), "{shown}");
}

/// What is executed in these tests: it says that it begins, waits for a file, and says that it ends.
fn marking(name: &str) -> String {
    format!("echo begun >> {name}.told; until test -e {name}.go; do sleep 0.05; done; echo ended >> {name}.told")
}

/// Stops the database while `name` is executed, lets that end, and starts the database again.
fn end_during_an_outage(sandbox: &Sandbox, server: &Server, name: &str) {
    let told = || std::fs::read_to_string(sandbox.work().join(format!("{name}.told"))).unwrap_or_default();
    until("the command to begin", || told().contains("begun"));
    server.stop("fast");
    std::fs::write(sandbox.work().join(format!("{name}.go")), "").unwrap();
    until("the command to end", || told().contains("ended"));
    let spooled = || std::fs::read_dir(sandbox.home().join("spool")).into_iter().flatten().count();
    until("its result to be kept", || spooled() > 0);
    server.start();
}

#[test]
fn f_65_workers_outlive_a_database_outage_and_execute_the_rest() {
    let sandbox = Sandbox::new();
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let add = |name: &str| on(&sandbox, &url, &["queue", "add", "--name", name, "--", "sh", "-c", &marking(name)]);
    let state = |name: &str| on(&sandbox, &url, &["show", name, "--json"]).json()["state"].clone();
    add("first").succeeds();
    add("second").succeeds();
    std::fs::write(sandbox.work().join("second.go"), "").unwrap();
    let drained =
        on(&sandbox, &url, &["work", "--drain"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    end_during_an_outage(&sandbox, &server, "first");
    let drained = drained.wait_with_output().unwrap();
    assert!(drained.status.success(), "{}", text(&drained.stderr));
    assert_eq!((state("first"), state("second")), ("succeeded".into(), "succeeded".into()));
    let staying = on(&sandbox, &url, &["work"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    add("third").succeeds();
    end_during_an_outage(&sandbox, &server, "third");
    std::fs::write(sandbox.work().join("fourth.go"), "").unwrap();
    add("fourth").succeeds();
    until("the worker to go on", || state("fourth") == "succeeded");
    assert_eq!(state("third"), "succeeded");
    signal_pid(staying.id(), "TERM");
    let staying = staying.wait_with_output().unwrap();
    assert!(staying.status.success(), "{}: {}", staying.status, text(&staying.stderr));
    let told = std::fs::read_to_string(sandbox.work().join("third.told")).unwrap();
    assert_eq!(told, "begun\nended\n", "it was executed twice");
}

#[test]
fn f_65_a_supervisor_delivers_the_spool_before_it_reaps() {
    let sandbox = Sandbox::new();
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let place = url.replace("tester@", "");
    sandbox.write_home_config(&format!("[registries.\"{place}\"]\nbeat = \"1s\"\nlease = \"3s\"\n"));
    let words = ["queue", "add", "--name", "one", "--resume-on", "crash", "--", "sh", "-c", &marking("one")];
    on(&sandbox, &url, &words).succeeds();
    let mut supervisor =
        on(&sandbox, &url, &["supervise"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    end_during_an_outage(&sandbox, &server, "one");
    let shown = || on(&sandbox, &url, &["show", "one", "--json"]).json();
    until("the supervisor to see to it", || shown()["state"] != "running");
    assert_eq!((&shown()["state"], &shown()["attempt"]), (&"succeeded".into(), &1.into()), "{}", shown());
    signal_pid(supervisor.id(), "TERM");
    supervisor.wait().unwrap();
    assert_eq!(std::fs::read_to_string(sandbox.work().join("one.told")).unwrap(), "begun\nended\n");
}

#[test]
fn f_57_a_host_with_a_wrong_clock_neither_reaps_nor_is_reaped() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    let wait = "until test -e go; do sleep 0.1; done";
    let under = |shift: &str, words: &[&str]| {
        let mut command = on(&sandbox, &url, words);
        set_clock_off(&mut command, shift);
        command
    };
    let mut runs: Vec<_> = ["-2h", "+2h"]
        .map(|shift| {
            under(shift, &["run", "--name", shift.trim_start_matches(['-', '+']), "--", "sh", "-c", wait])
                .spawn()
                .unwrap()
        })
        .into();
    until("both to be on record", || {
        on(&sandbox, &url, &["ps", "--json"]).json()["runs"].as_array().unwrap().len() == 2
    });
    for shift in ["-2h", "+2h"] {
        let reaped = under(shift, &["reap", "--json"]).json();
        assert_eq!(on(&sandbox, &url, &["ps", "--json"]).json()["runs"].as_array().unwrap().len(), 2, "{reaped}");
    }
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    for run in &mut runs {
        assert!(run.wait().unwrap().success());
    }
}

#[test]
fn a_change_through_one_server_is_announced_by_the_other() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    let (one, other) = (Served::start(&sandbox, &["--registry", &url]), Served::start(&sandbox, &["--registry", &url]));
    let mut changes = other.connect();
    let head = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", other.address, other.token);
    write!(changes, "GET /v1/changes HTTP/1.1\r\n{head}\r\n").unwrap();
    read_until(&mut changes, "event: hello");
    let added = one.post("/v1/queue/add", &serde_json::json!({ "name": "told", "argv": ["true"] }));
    assert_eq!(added.status, 200, "{}", added.body);
    read_until(&mut changes, "\"told\"");
    // And the other way round: neither leads.
    assert_eq!(other.post("/v1/cancel", &serde_json::json!({ "runs": ["told"] })).status, 200);
    read_until(&mut changes, "\"cancelled\"");
    assert_eq!(one.post("/v1/show", &serde_json::json!({ "run": "told" })).json()["state"], "cancelled");
    // What one of them holds dies with it and nothing else: the other goes on.
    drop(one);
    let added = other.post("/v1/queue/add", &serde_json::json!({ "name": "later", "argv": ["true"] }));
    assert_eq!(added.status, 200, "{}", added.body);
    read_until(&mut changes, "\"later\"");
}

#[test]
fn queued_run_names_missing_worker_and_workers_their_kinds() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    on(&sandbox, &url, &["queue", "add", "--name", "job", "--kind", "train", "--", "true"]).succeeds();
    let reason = || on(&sandbox, &url, &["show", "job", "--json"]).json()["reason"].clone();
    assert_eq!(reason(), "waits for a worker; none is there");
    let work = |kind| {
        let words = ["work", "--slots", "2", "--kind", kind, "--name", "crew"];
        on(&sandbox, &url, &words).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut other = work("report");
    until("the workers to be there", || {
        on(&sandbox, &url, &["workers", "--json"]).json()["workers"].as_array().unwrap().len() == 2
    });
    assert_eq!(reason(), "waits for a worker that takes kind `train`; none that is there does");
    let listed = on(&sandbox, &url, &["queue", "list"]).succeeds();
    assert!(listed.contains("none that is there does"), "{listed}");
    let known = on(&sandbox, &url, &["workers", "--json"]).json();
    let worker = &known["workers"][0];
    assert_eq!((&worker["slots"], &worker["kinds"]), (&1.into(), &serde_json::json!(["report"])), "{known}");
    assert_eq!((&worker["version"], &worker["name"]), (&env!("CARGO_PKG_VERSION").into(), &"crew".into()));
    let shown = on(&sandbox, &url, &["workers"]).succeeds();
    assert!(shown.contains("KINDS") && shown.contains("report") && shown.contains("NAME"), "{shown}");
    let mut right = work("train");
    on(&sandbox, &url, &["wait", "job"]).succeeds();
    for worker in [&mut other, &mut right] {
        signal_pid(worker.id(), "TERM");
        worker.wait().unwrap();
    }
}

#[test]
fn r04_log_of_a_database_run_is_read_on_its_own_host() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    on(&sandbox, &url, &["run", "--name", "here", "--", "sh", "-c", "echo out; echo err >&2"]).succeeds();
    assert_eq!(on(&sandbox, &url, &["logs", "here", "--stdout"]).succeeds(), "out\n");
    on(&sandbox, &url, &["queue", "add", "--name", "queued", "--", "sh", "-c", "echo from a worker"]).succeeds();
    on(&sandbox, &url, &["work", "--drain"]).succeeds();
    assert_eq!(on(&sandbox, &url, &["logs", "queued"]).succeeds(), "from a worker\n");
    let shown = on(&sandbox, &url, &["show", "queued", "--json"]).json();
    assert_eq!(shown["logs"][0]["bytes"], "from a worker\n".len(), "{shown}");
    on(&sandbox, &url, &["run", "--name", "silent", "--no-log", "--", "echo", "x"]).succeeds();
    let said = text(&on(&sandbox, &url, &["logs", "silent"]).output().unwrap().stderr);
    assert!(said.contains("keeps no log"), "{said}");
}

#[test]
fn f_57_retry_waits_as_long_as_it_should_despite_a_wrong_clock() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap();
    for (name, shift) in [("ahead", "+1h"), ("behind", "-1h")] {
        // The shift is one: what is made in a directory is dated by it.
        set_clock_off(&mut sandbox.outlive(["run", "--name", name, "--", "true"]), shift).succeeds();
        let dated: Timestamp = sandbox.show(name)["created_at"].as_str().unwrap().parse().unwrap();
        let off = (dated.as_micros() - SystemClock.now().as_micros()) / 60_000_000;
        assert!(off.abs() > 30, "{dated} is not {shift} off");
        on(&sandbox, &url, &["queue", "add", "--name", name, "--retry", "1", "--backoff", "200s", "--", "false"])
            .succeeds();
        let mut worker = on(&sandbox, &url, &["work"]);
        let mut worker = set_clock_off(&mut worker, shift).stdout(Stdio::null()).spawn().unwrap();
        until("the next attempt to wait", || on(&sandbox, &url, &["show", name, "--json"]).json()["attempt"] == 2);
        signal_pid(worker.id(), "TERM");
        worker.wait().unwrap();
        let waits = format!("SELECT max(due_at - {schema}.clock()) / 1000000 FROM {schema}.waiting");
        let waits: i64 = Server::shared().psql(&waits).parse().unwrap();
        // Half to all of it, less what this test has taken.
        assert!((20..=200).contains(&waits), "with a clock {shift} off it waits {waits} s");
        on(&sandbox, &url, &["queue", "cancel", name]).succeeds();
    }
}

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

#[test]
fn w08_a_run_whose_owner_is_not_on_record_is_shown_so() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    let wait = "until test -e go; do sleep 0.1; done";
    on(&sandbox, &url, &["run", "--detach", "--name", "kept", "--", "sh", "-c", wait]).succeeds();
    Server::shared().psql(&format!("DELETE FROM {0}.owner; UPDATE {0}.live SET body = NULL", schema_of(&url)));
    let listed = on(&sandbox, &url, &["ps", "--json"]).json();
    assert_eq!(listed["runs"][0]["reason"], "its owner is unknown: it has no record", "{listed}");
    let shown = on(&sandbox, &url, &["show", "kept"]).succeeds();
    assert!(shown.lines().any(|line| line.starts_with("owner") && line.ends_with("not recorded")), "{shown}");
    assert_eq!(on(&sandbox, &url, &["reap", "--json"]).json()["live"], 1);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    on(&sandbox, &url, &["wait", "kept"]).succeeds();
}

#[test]
fn t7_10_doctor_examines_a_database() {
    let sandbox = Sandbox::new();
    let url = Server::shared().fresh_url();
    on(&sandbox, &url, &["run", "--", "true"]).succeeds();
    let (schema, role) = (schema_of(&url), format!("r{}", schema_of(&url)));
    let sound = on(&sandbox, &url, &["doctor"]).succeeds();
    assert!(sound.contains("ok       PostgreSQL ") && sound.contains(", registry format "), "{sound}");
    assert!(sound.contains("role `tester` owns the registry's tables"), "{sound}");
    Server::shared().psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    ));
    let theirs = url.replace("tester@", &format!("{role}@"));
    let output = on(&sandbox, &theirs, &["doctor"]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("problem  role `{role}` may not read and write ")), "{said}");
    assert!(said.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"), "{said}");
}

#[test]
fn the_home_says_for_how_long_a_database_keeps_history() {
    let sandbox = Sandbox::new();
    let (url, other) = (Server::shared().fresh_url(), Server::shared().fresh_url());
    let kept = |url: &str| {
        let schema = schema_of(url);
        Server::shared().psql(&format!("SELECT string_agg(value, ' ') FROM {schema}.meta WHERE name = 'keep_days'"))
    };
    let says = |time: &str| {
        sandbox.write_home_config(&format!("[registries.\"{url}\".retention]\nkeep_history = \"{time}\"\n"));
    };
    says("90d");
    on(&sandbox, &url, &["work", "--drain"]).succeeds();
    on(&sandbox, &other, &["work", "--drain"]).succeeds();
    assert_eq!((kept(&url).as_str(), kept(&other).as_str()), ("90", ""));
    says("7d");
    on(&sandbox, &url, &["supervise", "--once"]).succeeds();
    assert_eq!(kept(&url), "7");
    says("1h");
    let refused = on(&sandbox, &url, &["work", "--drain"]).output().unwrap();
    assert!(!refused.status.success() && text(&refused.stderr).contains("from 1d to 36500d"), "{refused:?}");
    assert_eq!(kept(&url), "7");
    says("forever");
    on(&sandbox, &url, &["supervise", "--once"]).succeeds();
    assert_eq!(kept(&url), "");
    sandbox.write_home_config("");
    sandbox.outlive(["init"]).succeeds();
    sandbox.write_config("[retention]\nkeep_history = \"90d\"\n");
    let refused = sandbox.outlive(["work", "--drain"]).output().unwrap();
    assert!(!refused.status.success() && text(&refused.stderr).contains("for registries in PostgreSQL"), "{refused:?}");
}

#[test]
fn w10_a_worker_reads_no_more_of_a_long_queue_than_it_needs() {
    const WAITING: usize = 2_000;
    const JOBS: usize = 6;
    let sandbox = Sandbox::new();
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let maker = pollster::block_on(outlive::registry::Registry::open(&url)).unwrap();
    let later = || outlive::registry::Planned { spec: outlive::testing::spec("later"), after: Vec::new() };
    pollster::block_on(maker.enqueue_all((0..WAITING).map(|_| later()).collect())).unwrap();
    drop(maker);
    server.psql("ANALYZE");
    for number in 0..JOBS {
        // Longer than until the next look after things.
        on(&sandbox, &url, &["queue", "add", "--name", &format!("job{number}"), "--", "sleep", "1.3"]).succeeds();
    }
    let schema = schema_of(&url).to_owned();
    let is_quiet = || server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlive'") == "0";
    let read = || -> u64 {
        until("whoever reads to be gone, and to have told what it read", is_quiet);
        let counted =
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int8 FROM pg_stat_user_tables";
        server.psql(&format!("{counted} WHERE schemaname = '{schema}' AND relname LIKE 'spec%'")).parse().unwrap()
    };
    let before = read();
    let mut worker = on(&sandbox, &url, &["work", "--kind", "command"]);
    let worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let last = format!("job{}", JOBS - 1);
    let state = || server.psql(&format!("SELECT state FROM {schema}.run WHERE name = '{last}'"));
    until("all to be done", || state() == "succeeded");
    signal_pid(worker.id(), "TERM");
    assert!(worker.wait_with_output().unwrap().status.success());
    let read = read() - before;
    println!("{read} specs were read for {JOBS} jobs beside {WAITING}");
    assert!(read < (WAITING * JOBS / 2) as u64, "{read} specs were read for {JOBS} jobs beside {WAITING} that wait");
}
