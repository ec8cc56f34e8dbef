//! What a page of runs is filtered by: counts, keys, output that is searched.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text};

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap()).collect()
}

#[test]
fn keys_name_the_holder_and_those_that_wait_in_order() {
    let sandbox = Sandbox::new();
    let words = ["run", "-d", "--name", "holder", "--lock", "db", "--", "sleep", "300"];
    sandbox.outlive(words).succeeds();
    for (name, priority) in [("second", "5"), ("first", "1")] {
        sandbox
            .outlive(["queue", "add", "--name", name, "--priority", priority, "--lock", "db", "--", "true"])
            .succeeds();
    }
    sandbox.outlive(["queue", "add", "--name", "limited", "--max-concurrent", "gpu=2", "--", "true"]).succeeds();
    let keys = sandbox.outlive(["keys", "--json"]).json();
    let [db, gpu] = &keys["keys"].as_array().unwrap()[..] else { panic!("{keys}") };
    assert_eq!((&db["name"], &db["kind"], &db["free"]), (&json!("db"), &json!("lock"), &json!(false)));
    assert_eq!((names(&db["holders"]), names(&db["waiters"])), (vec!["holder"], vec!["first", "second"]));
    assert_eq!((&gpu["kind"], &gpu["limit"], &gpu["free"]), (&json!("limit"), &json!(2), &json!(true)));
    let only = sandbox.outlive(["keys", "gpu", "--json"]).json();
    assert_eq!(only["keys"].as_array().unwrap().len(), 1);
    let table = sandbox.outlive(["keys"]).succeeds();
    let lines: Vec<String> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, ["KEY SORT HELD BY WAITING", "db lock holder first, second", "gpu limit 2 limited"]);
    let waiting = sandbox.show("first");
    let wait = &waiting["waits"][0];
    assert_eq!((&wait["code"], &wait["key"], names(&wait["holders"])), (&json!("key"), &json!("db"), vec!["holder"]));
    assert_eq!(names(&waiting["key_use"][0]["waiters"]), ["first", "second"], "{waiting}");
    sandbox
        .outlive(["queue", "add", "--name", "after", "--needs", "first", "--not-before", "1h", "--", "true"])
        .succeeds();
    let codes = sandbox.show("after");
    let codes: Vec<&Value> = codes["waits"].as_array().unwrap().iter().map(|wait| &wait["code"]).collect();
    assert_eq!(codes, ["run", "time"]);
    sandbox.outlive(["cancel", "holder"]).succeeds();
}

#[test]
fn facets_count_every_run_by_state_kind_host_user_and_time() {
    let sandbox = Sandbox::new();
    for (kind, status) in [("etl", "0"), ("etl", "3"), ("train", "0")] {
        let script = format!("exit {status}");
        sandbox.outlive(["run", "--kind", kind, "--label", "team=a", "--", "sh", "-c", &script]).output().unwrap();
    }
    let facets = sandbox.outlive(["facets", "--since", "1h", "--parts", "4", "--json"]).json();
    let counts = |field: &str| -> Vec<(String, u64)> {
        let all = facets[field].as_array().unwrap().iter();
        all.map(|facet| (facet["value"].as_str().unwrap().into(), facet["runs"].as_u64().unwrap())).collect()
    };
    assert_eq!(counts("states"), [("succeeded".into(), 2), ("failed".into(), 1)]);
    assert_eq!(counts("kinds"), [("etl".into(), 2), ("train".into(), 1)]);
    let [(user, 3)] = &counts("users")[..] else { panic!("{facets}") };
    let [(host, 3)] = &counts("hosts")[..] else { panic!("{facets}") };
    for series in facets["over_time"].as_array().unwrap() {
        let runs: Vec<u64> = series["runs"].as_array().unwrap().iter().map(|runs| runs.as_u64().unwrap()).collect();
        assert_eq!(runs[..3], [0, 0, 0], "{facets}");
        assert_eq!(runs[3], if series["state"] == "failed" { 1 } else { 2 }, "{facets}");
    }
    let listed = |words: &[&str]| {
        let page = sandbox.outlive([&["ps", "--all", "--json"][..], words].concat()).json();
        page["runs"].as_array().unwrap().len()
    };
    assert_eq!((listed(&["--host", host]), listed(&["--user", user])), (3, 3));
    assert_eq!((listed(&["--host", user, "--user", host]), listed(&["--host", host, "--kind", "etl"])), (0, 2));
    let lines = sandbox.outlive(["ps", "--all", "--user", user]).succeeds();
    assert_eq!(lines.lines().filter(|line| line.contains("sh -c")).count(), 3, "{lines}");
    let shown = sandbox.outlive(["facets", "--since", "1h", "--parts", "4"]).succeeds();
    assert!(shown.starts_with("states     succeeded 2, failed 1\nkinds      etl 2, train 1\n"), "{shown}");
    let refused = sandbox.outlive(["facets", "--since", "1h", "--until", "2h"]).output().unwrap();
    assert!(text(&refused.stderr).contains("no time passes"), "{}", text(&refused.stderr));
}

#[test]
fn grep_numbers_and_counts_lines_of_both_streams() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3 4 5; do echo line $i; done; sleep 0.2; echo oops >&2; sleep 0.2; \
                  printf '10%%\\r100%% done\\n\\033[31mError\\033[0m: red\\nlast'";
    sandbox.outlive(["run", "-d", "--name", "talk", "--", "sh", "-c", script]).succeeds();
    sandbox.outlive(["wait", "talk"]).succeeds();
    let found = |words: &[&str]| {
        let all = [&["grep", "talk"], words, &["--json"]].concat();
        serde_json::from_slice::<Value>(&sandbox.outlive(all).output().unwrap().stdout).unwrap()
    };
    let lines = |found: &Value| -> Vec<(u64, String)> {
        let all = found["found"].as_array().unwrap().iter();
        all.map(|found| (found["line"].as_u64().unwrap(), found["text"].as_str().unwrap().into())).collect()
    };
    let some = found(&["line", "-n", "2"]);
    assert_eq!((&some["matches"], &some["lines"]), (&json!(5), &json!(9)), "{some}");
    assert_eq!(lines(&some), [(1, "line 1".into()), (2, "line 2".into())]);
    assert_eq!(lines(&found(&["line", "-n", "1", "--last"])), [(5, "line 5".into())]);
    assert_eq!(lines(&found(&["line", "--after", "4"])), [(5, "line 5".into())]);
    assert_eq!(lines(&found(&["^error: red$", "-i"])), [(8, "Error: red".into())]);
    assert_eq!(lines(&found(&["^100%"])), [(7, "100% done".into())]);
    let oops = found(&["oops|last"]);
    assert_eq!((&oops["found"][0]["stream"], &oops["found"][1]["line"]), (&json!("err"), &json!(9)), "{oops}");
    assert_eq!(found(&["oops", "--stdout"])["matches"], 0);
    assert_eq!(sandbox.outlive(["grep", "talk", "oops"]).succeeds(), "6:err: oops\nmatches: 1, in 9 lines\n");
}

#[test]
fn the_output_of_a_run_is_saved_whole_from_a_server() {
    let sandbox = Sandbox::new();
    // More than one page of the server.
    let script = "seq 1 300000; printf 'no end'";
    sandbox.outlive(["run", "-d", "--name", "long", "--", "sh", "-c", script]).succeeds();
    sandbox.outlive(["wait", "long"]).succeeds();
    let served = super::served::Served::start(&sandbox, &[]);
    let reply = served.get("/v1/raw?run=long");
    assert_eq!(reply.status, 200, "{}", reply.head);
    let head = reply.head.to_lowercase();
    assert!(head.contains("content-disposition: attachment") && head.contains("text/plain"), "{head}");
    let kept = |line: &str| line.parse::<u32>().is_ok() || line == "no end";
    let lines: Vec<&str> = reply.body.lines().filter(|line| kept(line)).collect();
    assert!(lines.len() >= 300_000 && lines.contains(&"150000"), "{} lines", lines.len());
    assert!(reply.body.contains("no end"));
    assert_eq!(served.get("/v1/raw?run=nothing").status, 404);
    assert_eq!(served.get("/v1/raw?run=long&colour=red").status, 400);
}
