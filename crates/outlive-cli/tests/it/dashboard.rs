//! The dashboard in a real browser: everyday tasks, many tabs, long logs, restarts, and what its modules are held to.

use std::io::{Read, Write};
use std::path::Path;

use super::clients::{client, tools};
use super::sandbox::{Ends, Sandbox, binary};
use super::served::Served;

/// Has a person with tabs do what a case says.
fn tabs(sandbox: &Sandbox, served: &Served, case: &str, run: &str) {
    let (tools, outlive) = (tools().display().to_string(), binary().display().to_string());
    let words = [client("tabs.mjs"), tools, served.link.clone(), case.to_owned(), run.to_owned(), outlive];
    println!("{}", sandbox.command("node", words).succeeds());
}

/// Starts a run in the background.
fn detached(sandbox: &Sandbox, name: &str, script: &str) -> String {
    sandbox.outlive(["run", "-d", "--name", name, "--", "bash", "-c", script]).succeeds().trim().to_owned()
}

#[test]
fn modules_are_typed_linted_and_their_functions_tested() {
    let (sandbox, tools) = (Sandbox::new(), tools());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (tests, modules) = (here.join("tests/dashboard"), here.join("src/server/dashboard"));
    let text = |path: &Path| path.display().to_string();
    let bin = |name: &str| text(&tools.join("node_modules/.bin").join(name));
    sandbox.command(bin("tsc"), ["--project".to_owned(), text(&tests)]).succeeds();
    let config = text(&tests.join("eslint.config.mjs"));
    let lint = ["--max-warnings".into(), "0".into(), "--config".into(), config, ".".into()];
    sandbox.command(bin("eslint"), lint).current_dir(&modules).succeeds();
    let names = ["layers", "lines", "text"].map(|name| text(&tests.join(format!("{name}.test.mjs"))));
    let said = sandbox.command("node", ["--test".to_owned()].into_iter().chain(names)).succeeds();
    assert!(said.contains("# fail 0") && !said.contains("# pass 0"), "{said}");
}

#[test]
fn everyday_tasks_take_at_most_five_clicks_each() {
    let sandbox = Sandbox::new();
    let train = |argument: &str, exit: u32| {
        let script = format!("echo training with $0; exit {exit}");
        let words = ["run", "-d", "--name", "train", "--kind", "train", "--", "bash", "-c", &script, argument];
        let id = sandbox.outlive(words).succeeds();
        sandbox.outlive(["wait", id.trim()]).status().unwrap();
    };
    train("lr=1", 0);
    train("lr=2", 1);
    sandbox.outlive(["run", "--kind", "slow", "--", "sleep", "1.5"]).succeeds();
    let dies = "echo working on shard 17; sleep 0.5; [ $OUTLIVE_ATTEMPT = 1 ] && kill -s KILL $PPID $$; exec sleep 600";
    detached(&sandbox, "died", dies);
    sandbox.wait_for_state("died", "dead");
    for number in 0..10 {
        detached(&sandbox, &format!("batch-{number}"), "exec sleep 600");
    }
    let steps = "i=0; while sleep 0.2; do i=$((i+1)); echo step $i; outlive progress $i/2000; done";
    detached(&sandbox, "watched", steps);
    sandbox.outlive(["run", "-d", "--name", "holder", "--lock", "db", "--", "sleep", "600"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "waiter", "--lock", "db", "--", "true"]).succeeds();
    sandbox
        .outlive(["queue", "add", "--name", "daily", "--not-before", "20h", "--every", "24h", "--", "true"])
        .succeeds();
    sandbox.outlive(["queue", "add", "--name", "every-half-hour", "--cron", "*/30 * * * *", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    let words =
        [client("tasks.mjs"), tools().display().to_string(), served.link.clone(), binary().display().to_string()];
    println!("{}", sandbox.command("node", words).succeeds());
}

#[test]
fn t4_01_eight_tabs_with_running_runs_are_live() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "ticks", "while sleep 0.2; do echo tick; done");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "tabs", &run);
}

#[test]
fn t4_02_a_link_pasted_into_an_open_tab_signs_in() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "paste", "");
}

#[test]
fn t4_03_a_fast_log_keeps_the_page_small() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "floods", "seq -f 'line %.0f' 120000; exec sleep 600");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "flood", &run);
}

#[test]
fn t4_03_a_million_lines_are_searched_linked_and_scrolled() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let run = detached(&sandbox, "million", "seq -f 'line %.0f' 1000000");
    sandbox.wait_for_state("million", "succeeded");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "million", &run);
}

#[test]
fn t4_04_client_reconnects_to_a_restarted_server_without_login() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "restart", "");
}

#[test]
fn t4_04_a_cut_network_is_shown_and_recovered_from() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "cut", "");
}

#[test]
fn t4_05_a_log_looks_as_in_a_terminal() {
    let sandbox = Sandbox::new();
    let script = r"printf '10%% todo\r100%% done\n\033[31;42mred on green\033[0m, \033[7mreverse\033[0m, \033[9mstruck\033[0m\nout\n'
        sleep 0.3; printf 'error: on stderr' >&2; sleep 0.3; printf '\n' >&2
        seq -f 'plain %.0f' 200; head -c 3000 /dev/zero | tr '\0' w; echo; echo the end";
    let run = detached(&sandbox, "terminal", script);
    sandbox.wait_for_state("terminal", "succeeded");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "terminal", &run);
}

#[test]
fn t4_07_following_yields_to_scrolling_and_a_selection_stays() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "ticks", "i=0; while sleep 0.05; do i=$((i+1)); echo tick $i; done");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "follow", &run);
}

#[test]
fn t4_07_redraw_keeps_selections_and_changes_what_changed() {
    let sandbox = Sandbox::new();
    let script = "i=0; while sleep 0.3; do i=$((i+1)); outlive progress $i/100; done";
    let run = detached(&sandbox, "reports", script);
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "steady", &run);
}

#[test]
fn a_late_answer_does_not_undo_what_was_heard_since() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "slow-news", "exec sleep 600");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "late", &run);
}

#[test]
fn columns_are_sorted_by_the_server_over_all_pages() {
    let sandbox = Sandbox::new();
    // The order of names is not that of creation.
    let line = |number: usize| format!("{{\"name\":\"job-{:04}\",\"argv\":[\"true\"]}}\n", number * 269 % 700);
    std::fs::write(sandbox.work().join("plan.jsonl"), (0..700).map(line).collect::<String>()).unwrap();
    sandbox.outlive(["queue", "add", "--file", "plan.jsonl", "--json"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "sorted", "");
}

#[test]
fn a_long_queue_hides_no_run_that_is_executed_or_dead() {
    let sandbox = Sandbox::new();
    let dies = "sleep 0.5; kill -s KILL $PPID $$; exec sleep 600";
    detached(&sandbox, "died", dies);
    sandbox.wait_for_state("died", "dead");
    let run = detached(&sandbox, "busy", "exec sleep 600");
    let line = |number: usize| format!("{{\"name\":\"job-{number:04}\",\"argv\":[\"true\"]}}\n");
    std::fs::write(sandbox.work().join("plan.jsonl"), (0..1_200).map(line).collect::<String>()).unwrap();
    sandbox.outlive(["queue", "add", "--file", "plan.jsonl", "--json"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "behind", &run);
}

#[test]
fn what_a_run_reports_is_asked_for_rarely() {
    let sandbox = Sandbox::new();
    detached(&sandbox, "reports", "echo before");
    sandbox.wait_for_state("reports", "succeeded");
    let script = "i=0; while sleep 0.2; do i=$((i+1)); outlive progress $i/400; done";
    let run = detached(&sandbox, "reports", script);
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "reports", &run);
}

#[test]
fn a_page_without_the_shared_worker_has_a_stream_of_its_own() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "alone", "exec sleep 600");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "alone", &run);
}

#[test]
fn a_refused_rerun_and_what_pages_show_of_times() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    }
    let run = sandbox.show("job")["id"].as_str().unwrap().to_owned();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "shown", &run);
}

#[test]
fn a_used_link_is_opened_again_by_a_browser_that_is_signed_in() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "again", "");
}

#[test]
fn tabs_whose_session_ended_continue_when_one_signs_in() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "revived", "");
}

#[test]
fn streams_of_a_revoked_token_are_closed() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "talks", "while sleep 0.2; do echo tick; done");
    let served = Served::start(&sandbox, &[]);
    let created = sandbox.outlive(["token", "create", "ada", "--role", "read", "--json"]).succeeds();
    let created: serde_json::Value = serde_json::from_str(&created).unwrap();
    let listen = |path: &str| {
        let mut stream = served.connect();
        let bearer = created["token"].as_str().unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {bearer}\r\n\r\n", served.address)
            .unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200", "{path}");
        stream
    };
    let streams = [listen("/v1/changes"), listen(&format!("/v1/follow?run={run}"))];
    sandbox.outlive(["token", "revoke", "ada"]).succeeds();
    for mut stream in streams {
        // It ends, though runs go on changing and writing.
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn t4_07_nothing_is_asked_for_while_nothing_changes() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "quiet", "echo once; exec sleep 600");
    sandbox.outlive(["queue", "add", "--name", "later", "--cron", "0 3 * * *", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "idle", &run);
}

#[test]
fn t4_10_a_token_signs_in_with_its_role_until_it_is_revoked() {
    let sandbox = Sandbox::new();
    let run = detached(&sandbox, "busy", "exec sleep 600");
    let served = Served::start(&sandbox, &[]);
    tabs(&sandbox, &served, "token", &run);
}

#[test]
fn t4_10_cookies_are_secure_and_links_named_behind_a_tls_proxy() {
    let sandbox = Sandbox::new();
    let sign_in = |served: &Served, proto: &str| {
        let key = served.link.split("#key=").nth(1).unwrap();
        let headers = [("Content-Type", "application/json"), ("X-Forwarded-Proto", proto)];
        let reply = served.request("POST /session", &headers, &serde_json::json!({ "key": key }).to_string());
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.header("set-cookie").unwrap().ends_with("; Secure")
    };
    let served = Served::start(&sandbox, &["--tls-proxy", "--host", "runs.example.org"]);
    assert!(served.link.starts_with("https://runs.example.org/#key="), "{}", served.link);
    assert!(sign_in(&served, "https"));
    // A server that was not told of a proxy believes no header.
    let served = Served::start(&sandbox, &["--host", "runs.example.org"]);
    assert!(served.link.starts_with("http://runs.example.org:"), "{}", served.link);
    assert!(!sign_in(&served, "https"));
}
