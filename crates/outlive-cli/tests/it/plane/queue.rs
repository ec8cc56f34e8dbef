//! The queue of all repositories: entries that are handed out, kept, given back and ended by their epoch.

use serde_json::{Value, json};

use crate::sandbox::{Ends, Sandbox};

fn add(sandbox: &Sandbox, words: &[&str]) -> String {
    sandbox.outlive(["queue", "add"].iter().chain(words)).succeeds().trim().to_owned()
}

fn drain(sandbox: &Sandbox, words: &[&str]) -> Vec<Value> {
    let drained = sandbox.outlive(["queue", "drain", "--json"].iter().chain(words)).current_dir("/").json();
    drained["entries"].as_array().unwrap().clone()
}

#[test]
fn c10_entries_are_handed_out_once_by_priority_time_and_id() {
    let sandbox = Sandbox::new();
    let late = add(&sandbox, &["--app", "audit", "--priority", "5", "--note", "last"]);
    let first = add(&sandbox, &["--workflow", "wf", "--priority", "-1"]);
    let second = add(&sandbox, &["--app", "audit"]);
    let third = add(&sandbox, &["--run", "some-run"]);
    let handed = drain(&sandbox, &["--limit", "3"]);
    let ids: Vec<&str> = handed.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&first, &second, &third]);
    let rest = drain(&sandbox, &["--limit", "3"]);
    assert_eq!((rest.len(), rest[0]["id"].as_str().unwrap(), rest[0]["note"].as_str().unwrap()), (1, &*late, "last"));
    assert_eq!(rest[0]["repo"], sandbox.work().canonicalize().unwrap().to_str().unwrap());
    assert!(drain(&sandbox, &[]).is_empty());
    // Nothing starts work on its own: what executes commands leaves entries alone.
    add(&sandbox, &["--app", "other"]);
    let url = format!("sqlite:{}", sandbox.home().join("registry").display());
    sandbox.outlive(["--registry", &url, "work", "--drain"]).succeeds();
    assert_eq!(drain(&sandbox, &[]).len(), 1);
}

#[test]
fn c10_twelve_at_once_add_twelve_and_take_each_once() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do outlive queue add --app a$i & done; wait";
    assert_eq!(sandbox.shell(script).succeeds().lines().count(), 12);
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do outlive queue drain --limit 2 --json & done; wait";
    let said = sandbox.shell(script).succeeds();
    let answers: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut taken: Vec<String> = answers
        .iter()
        .flat_map(|answer| answer["entries"].as_array().unwrap())
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .collect();
    let with_nothing = answers.iter().filter(|answer| answer["entries"].as_array().unwrap().is_empty()).count();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 12);
    assert!(with_nothing >= 6, "nobody came too late, so nobody raced");
}

#[test]
fn c10_only_the_epoch_of_the_claim_may_write_an_entry() {
    let sandbox = Sandbox::new();
    let id = add(&sandbox, &["--app", "audit"]);
    assert_eq!(drain(&sandbox, &[])[0]["epoch"], 1);
    sandbox.outlive(["queue", "beat", &id, "--epoch", "1"]).succeeds();
    for verb in ["beat", "done", "release"] {
        sandbox.outlive(["queue", verb, &id, "--epoch", "2"]).fails_with(104);
    }
    sandbox.outlive(["queue", "release", &id, "--epoch", "1", "--reason", "busy"]).succeeds();
    sandbox.outlive(["queue", "done", &id, "--epoch", "1"]).fails_with(104);
    let again = drain(&sandbox, &[]);
    assert_eq!((&again[0]["epoch"], &again[0]["attempt"]), (&json!(2), &json!(2)));
    sandbox.outlive(["queue", "done", &id, "--epoch", "2"]).succeeds();
    sandbox.outlive(["queue", "beat", &id, "--epoch", "2"]).fails_with(104);
}

#[test]
fn c10_entry_finished_twice_after_a_lost_reply_is_finished_once() {
    let sandbox = Sandbox::new();
    let (good, bad, again) = (
        add(&sandbox, &["--app", "good"]),
        add(&sandbox, &["--app", "bad"]),
        add(&sandbox, &["--app", "again", "--retry", "3"]),
    );
    assert_eq!(drain(&sandbox, &["--limit", "3"]).len(), 3);
    let failed = ["--failed", "no luck"];
    for (id, words, state) in
        [(&good, &[] as &[&str], "succeeded"), (&bad, &failed, "failed"), (&again, &failed, "pending")]
    {
        let done = || sandbox.outlive(["queue", "done", id, "--epoch", "1", "--json"].iter().chain(words)).json();
        let first = done();
        assert_eq!((done(), &first["entry"]["state"]), (first.clone(), &json!(state)));
        // What was said first stands.
        let other: &[&str] = if words.is_empty() { &["--failed", "no luck"] } else { &[] };
        let refused = sandbox.outlive(["queue", "done", id, "--epoch", "1"].iter().chain(other)).fails_with(104);
        assert!(refused.contains("and the caller's claim (epoch 1) is over"), "{refused}");
        sandbox.outlive(["queue", "done", id, "--epoch", "2"].iter().chain(words)).fails_with(104);
        sandbox.outlive(["queue", "release", id, "--epoch", "1"]).fails_with(104);
    }
    // It comes again, and is somebody else's then.
    crate::sandbox::until("its wait to be over", || !drain(&sandbox, &[]).is_empty());
    sandbox.outlive(["queue", "done", &again, "--epoch", "1", "--failed", "no luck"]).fails_with(104);
}

#[test]
fn c10_entry_of_a_silent_worker_is_claimed_once_more() {
    let sandbox = Sandbox::new();
    let id = add(&sandbox, &["--app", "audit"]);
    assert_eq!(drain(&sandbox, &["--lease", "300ms"]).len(), 1);
    let mut again = Vec::new();
    crate::sandbox::until("the lease to lapse", || {
        again = drain(&sandbox, &["--lease", "1h"]);
        !again.is_empty()
    });
    assert_eq!((again[0]["id"].as_str().unwrap(), &again[0]["attempt"]), (&*id, &json!(2)));
    // Whoever was thought dead comes back, and is told.
    sandbox.outlive(["queue", "done", &id, "--epoch", "1"]).fails_with(104);
    assert!(drain(&sandbox, &[]).is_empty());
}

#[test]
fn c10_lease_that_no_heartbeat_could_keep_is_refused() {
    let sandbox = Sandbox::new();
    add(&sandbox, &["--app", "audit"]);
    for lease in ["0ms", "1ms", "2ms"] {
        let refused = sandbox.outlive(["queue", "drain", "--lease", lease]).fails_with(2);
        assert!(refused.contains("3ms at least"), "{refused}");
    }
    assert_eq!(drain(&sandbox, &["--lease", "3ms"])[0]["epoch"], 1, "it was handed out before");
}

#[test]
fn c10_backoff_keys_and_times_hold_for_who_drains() {
    let sandbox = Sandbox::new();
    add(&sandbox, &["--app", "later", "--not-before", "1h"]);
    let one = add(&sandbox, &["--app", "one", "--lock", "db"]);
    add(&sandbox, &["--app", "two", "--lock", "db"]);
    let failing = add(&sandbox, &["--app", "failing", "--retry", "3"]);
    let handed = drain(&sandbox, &["--limit", "9"]);
    let apps: Vec<&str> = handed.iter().map(|entry| entry["app"].as_str().unwrap()).collect();
    assert_eq!(apps, ["one", "failing"], "a key that is held, and a time that has not come");
    // What waits says for what, in the list and by itself, to people and to programs.
    let listed = sandbox.outlive(["queue", "list", "--json"]).json();
    let entries = listed["entries"].as_array().unwrap();
    let reason = |app: &str| entries.iter().find(|entry| entry["app"] == app).unwrap()["reason"].clone();
    assert!(reason("later").as_str().unwrap().starts_with("waits until "), "{listed}");
    assert_eq!(reason("two"), format!("waits for key `db`, held by `{one}`"));
    assert_eq!(reason("one"), Value::Null);
    let told = sandbox.outlive(["queue", "list"]).succeeds();
    assert!(told.contains("waits for key `db`") && told.contains("waits until "), "{told}");
    sandbox.outlive(["queue", "done", &failing, "--epoch", "1", "--failed", "no luck"]).succeeds();
    let again = sandbox.outlive(["queue", "done", &failing, "--epoch", "1", "--failed", "no luck", "--json"]).json();
    assert!(again["entry"]["reason"].as_str().unwrap().starts_with("waits until "), "{again}");
    assert!(drain(&sandbox, &["--limit", "9"]).is_empty(), "it comes again, and not at once");
    sandbox.outlive(["queue", "done", &one, "--epoch", "1"]).succeeds();
    assert_eq!(drain(&sandbox, &["--limit", "9"])[0]["app"], "two");
}

#[test]
fn c10_the_order_of_entries_is_the_home_s_to_say() {
    let sandbox = Sandbox::new();
    let ids = [("5", "first"), ("-1", "second"), ("5", "third")]
        .map(|(priority, note)| add(&sandbox, &["--app", "audit", "--priority", priority, "--note", note]));
    let [first, second, third] = &ids;
    let listed = || -> Vec<String> {
        let queue = sandbox.outlive(["queue", "list", "--json", "--limit", "2"]).json();
        let more = sandbox.outlive(["queue", "list", "--json", "--cursor", queue["next"].as_str().unwrap()]).json();
        let entries = [&queue["entries"], &more["entries"]].map(|entries| entries.as_array().unwrap().clone());
        entries.concat().iter().map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    let orders = [("", [second, first, third]), ("oldest", [first, second, third]), ("newest", [third, second, first])];
    for (order, wanted) in orders {
        let config = if order.is_empty() { String::new() } else { format!("[queue]\norder = \"{order}\"\n") };
        sandbox.write_home_config(&config);
        assert_eq!(listed().iter().collect::<Vec<_>>(), wanted, "{order}");
        let shown = sandbox.outlive(["queue", "show", wanted[2], "--json"]).json();
        assert_eq!(shown["ahead"], 2, "{order}");
    }
    // What is claimed is claimed in the same order, and what nobody knows is refused.
    let handed = drain(&sandbox, &["--limit", "2"]);
    assert_eq!([&handed[0]["id"], &handed[1]["id"]], [third.as_str(), second.as_str()]);
    sandbox.write_home_config("[queue]\norder = \"random\"\n");
    for words in [["queue", "list"], ["queue", "drain"]] {
        let refused = sandbox.outlive(words).fails_with(2);
        assert!(refused.contains("unknown variant `random`") && refused.contains("`priority`"), "{refused}");
    }
}
