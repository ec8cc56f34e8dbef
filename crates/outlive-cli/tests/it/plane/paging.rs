//! Lists of sources, kinds and entries: their pages follow each other without a gap or an overlap.

use serde_json::{Value, json};

use super::{put, refresh, tree};
use crate::sandbox::{Ends, Sandbox};

/// Everything that the pages of a call have in `field`, and how many pages there were.
fn pages(sandbox: &Sandbox, words: &[&str], limit: &str, fields: &[&str]) -> (Vec<Value>, usize) {
    let (mut all, mut pages, mut after) = (Vec::new(), 0, None::<String>);
    loop {
        let mut call = sandbox.outlive(words);
        call.args(["--json", "--limit", limit]);
        after.iter().for_each(|after| _ = call.args(["--cursor", after]));
        let page = call.json();
        all.extend(fields.iter().flat_map(|field| page[*field].as_array().unwrap().clone()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return (all, pages),
        }
    }
}

#[test]
fn c13_sources_are_listed_in_pages() {
    let sandbox = Sandbox::new();
    for number in 0..7 {
        tree(&sandbox, &format!("tree-{number}"), &[]);
    }
    sandbox.outlive(["run", "--", "true"]).succeeds();
    let (whole, one) = pages(&sandbox, &["registry", "list"], "100", &["sources"]);
    let (paged, several) = pages(&sandbox, &["registry", "list"], "3", &["sources"]);
    assert_eq!((whole.len(), one, several), (8, 1, 3));
    assert_eq!(paged, whole);
    let panel = sandbox.outlive(["registry", "list", "--limit", "3"]).succeeds();
    assert!(panel.contains("more: outlive registry list --limit=3 --cursor="), "{panel}");
    sandbox.outlive(["registry", "list", "--limit", "0"]).fails_with(2);
    sandbox.outlive(["registry", "list", "--cursor", "x"]).fails_with(2);
}

#[test]
fn c13_kinds_are_listed_in_pages() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "tree", &[]);
    for number in 0..5 {
        let id = format!("run-{number}");
        put(&root, &id, "completed");
        let path = root.join(".cw/runs").join(&id).join("state.json");
        let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        state["workflow"]["app"]["id"] = json!(format!("app-{number}"));
        std::fs::write(&path, state.to_string()).unwrap();
    }
    refresh(&sandbox);
    let of = |limit| {
        let (kinds, pages) = pages(&sandbox, &["stats", "--until", "2027-01-01"], limit, &["kinds"]);
        (kinds, pages)
    };
    let (whole, paged) = (of("100"), of("2"));
    assert_eq!((whole.0.len(), whole.1, paged.1), (5, 1, 3));
    assert_eq!(paged.0, whole.0);
    let panel = sandbox.outlive(["stats", "--limit", "2"]).succeeds();
    assert!(panel.contains("more: outlive stats --limit=2 --cursor="), "{panel}");
    sandbox.outlive(["stats", "--cursor", "x"]).fails_with(2);
}

#[test]
fn c13_what_is_queued_is_listed_in_pages_in_its_order() {
    let sandbox = Sandbox::new();
    for number in 0..5 {
        let priority = (number * 3 % 5).to_string();
        sandbox.outlive(["queue", "add", "--priority", &priority, "--", "true"]).succeeds();
        sandbox.outlive(["queue", "add", "--priority", &priority, "--app", "audit"]).succeeds();
    }
    sandbox.outlive(["queue", "drain", "--limit", "2"]).succeeds();
    let fields = ["running", "waiting", "entries"];
    let (whole, one) = pages(&sandbox, &["queue", "list"], "100", &fields);
    let (paged, several) = pages(&sandbox, &["queue", "list"], "3", &fields);
    assert_eq!((whole.len(), one, several), (10, 1, 4));
    let ids = |all: &[Value]| all.iter().map(|run| run["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&paged), ids(&whole));
    let priorities: Vec<i64> = whole[..5].iter().map(|run| run["priority"].as_i64().unwrap()).collect();
    assert_eq!(priorities, [0, 1, 2, 3, 4]);
    let panel = sandbox.outlive(["queue", "list", "--limit", "3"]).succeeds();
    assert!(panel.contains("more: outlive queue list --limit=3 --cursor="), "{panel}");
    for wrong in [["--limit", "0"], ["--cursor", "somewhere"], ["--cursor", "r.1"]] {
        sandbox.outlive(["queue", "list"].iter().chain(&wrong)).fails_with(2);
    }
}

#[test]
fn c05_a_repository_that_was_moved_is_known_where_it_is() {
    let sandbox = Sandbox::new();
    let (before, after) = (sandbox.path().join("before"), sandbox.path().join("after"));
    std::fs::create_dir(&before).unwrap();
    sandbox.outlive(["init"]).current_dir(&before).succeeds();
    sandbox.outlive(["run", "--name", "first", "--", "true"]).current_dir(&before).succeeds();
    refresh(&sandbox);
    std::fs::rename(&before, &after).unwrap();
    let repos = || -> Vec<(String, String)> {
        let listed = sandbox.outlive(["registry", "list", "--json"]).json();
        let last = |repo: &Value| repo.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        let sources = listed["sources"].as_array().unwrap().iter();
        sources.map(|source| (last(&source["repo"]), source["state"].as_str().unwrap().into())).collect()
    };
    assert_eq!(repos(), [("before".into(), "unavailable".into())], "nobody has seen it elsewhere");
    sandbox.outlive(["run", "--name", "second", "--", "true"]).current_dir(&after).succeeds();
    assert_eq!(repos(), [("after".into(), "available".into())]);
    refresh(&sandbox);
    let found = sandbox.outlive(["search", "--json"]).json();
    assert_eq!((found["runs"].as_array().unwrap().len(), &found["missing"]), (2, &json!([])));
    // A copy is another registry, and both are known.
    sandbox.shell("cp -a ../after ../copy").succeeds();
    sandbox.outlive(["run", "--name", "third", "--", "true"]).current_dir(sandbox.path().join("copy")).succeeds();
    assert_eq!(repos().len(), 2);
}
