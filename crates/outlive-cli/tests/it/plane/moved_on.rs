//! What the index does not know is said to be unknown, and what is gone is said to be gone, with what helps.

use super::*;

/// How many sources a page says have changed since they were indexed, and its text.
fn changed(sandbox: &Sandbox, words: &[&str]) -> (u64, String) {
    let page = sandbox.outlive(words.iter().chain(&["--json"])).current_dir("/").json();
    (page["changed_sources"].as_u64().unwrap(), sandbox.outlive(words).current_dir("/").succeeds())
}

#[test]
fn page_says_that_sources_changed_since_the_index() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let root = tree(&sandbox, "tree", &[("a", "completed")]);
    refresh(&sandbox);
    for words in [&["list"][..], &["search", "a"], &["history"]] {
        let (count, said) = changed(&sandbox, words);
        assert!(count == 0 && !said.contains("changed since"), "{said}");
    }
    // A run that was made, of either sort, is listed as it is, and that the index does not have it is said.
    sandbox.outlive(["run", "--name", "made", "--", "true"]).succeeds();
    let (count, said) = changed(&sandbox, &["search", "made"]);
    assert!(
        count == 1 && said.contains("1 source has changed since it was indexed") && said.contains(" new"),
        "{said}"
    );
    put(&root, "b", "failed");
    let (count, said) = changed(&sandbox, &["list", "--status", "failed"]);
    assert!(count == 2 && said.contains("2 sources have changed since they were indexed"), "{said}");
    assert_eq!(changed(&sandbox, &["list", "--repo", "tree"]).0, 1, "those of other repositories were counted");
    refresh(&sandbox);
    assert_eq!(changed(&sandbox, &["list"]).0, 0);
    // So are marks, and a repository that is not indexed at all.
    sandbox.outlive(["archive", "job"]).succeeds();
    assert_eq!(changed(&sandbox, &["list", "--status", "archived"]).0, 1);
    tree(&sandbox, "another", &[("c", "completed")]);
    assert_eq!(changed(&sandbox, &["list"]).0, 2);
    std::fs::create_dir_all(root.join(".cw/registry")).unwrap();
    std::fs::write(root.join(".cw/registry/archive.json"), json!({"archived": {"b": {}}}).to_string()).unwrap();
    assert_eq!(changed(&sandbox, &["list"]).0, 3);
}

#[test]
fn heartbeats_are_no_change_and_new_runs_are() {
    let sandbox = Sandbox::impatient();
    let goes_on = sandbox.start("goes on", &["sleep", "300"]);
    // What it uses is written once at its beginning, and again only when that has changed.
    sandbox.wait_for("goes on", |run| run["cpu_ms"].is_number());
    refresh(&sandbox);
    let beat = |run: &Value| run["last_beat_at"].as_str().unwrap_or_default().to_owned();
    let before = beat(&sandbox.show("goes on"));
    sandbox.wait_for("goes on", |run| beat(run) > before);
    let (count, said) = changed(&sandbox, &["list"]);
    assert_eq!(count, 0, "{said}");
    sandbox.outlive(["run", "--name", "made", "--", "true"]).succeeds();
    assert_eq!(changed(&sandbox, &["list"]).0, 1);
    goes_on.signal("TERM");
}

#[test]
fn what_is_said_of_a_repository_that_is_gone_leads_out() {
    let sandbox = Sandbox::new();
    let root = tree(&sandbox, "gone", &[("a", "completed"), ("b", "failed")]);
    refresh(&sandbox);
    std::fs::remove_dir_all(&root).unwrap();
    refresh(&sandbox);
    let remove = format!("`outlive registry remove {}`", root.display());
    let page = sandbox.outlive(["list"]).succeeds();
    assert!(page.contains("2 missing") && page.contains(&remove), "{page}");
    assert!(!page.contains("`outlive registry refresh`"), "{page}");
    let shown = sandbox.outlive(["show", "gone:a"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&remove) && !shown.contains("outlive gc"), "{shown}");
    let report = sandbox.outlive(["registry", "show"]).output().unwrap();
    assert_eq!(report.status.code(), Some(113));
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains(&remove) && report.contains(":a (") && report.contains(":b ("), "{report}");
    let refused = sandbox.outlive(["resume", "gone:a"]).fails_with(101);
    assert!(refused.contains("is gone: "), "{refused}");
    sandbox.outlive(["registry", "remove", root.to_str().unwrap()]).succeeds();
    refresh(&sandbox);
    let page = sandbox.outlive(["list", "--json"]).json();
    assert_eq!((&page["missing"], &page["unavailable"]), (&json!([]), &json!([])));
}

#[test]
fn a_health_is_no_status_and_what_lists_it_is_said() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    refresh(&sandbox);
    let refused = sandbox.outlive(["list", "--status", "orphaned"]).fails_with(2);
    assert!(refused.contains("`outlive ps --global --status orphaned`"), "{refused}");
    sandbox.outlive(["ps", "--global", "--status", "orphaned"]).succeeds();
    assert!(sandbox.outlive(["registry", "show"]).succeeds().contains("1 succeeded; as indexed"));
}

#[test]
fn an_index_that_is_damaged_is_mended_by_what_is_said() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    refresh(&sandbox);
    let index = sandbox.home().join("index");
    let file = index.join(std::fs::read_link(index.join("current")).unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[16..].fill(0xa5);
    std::fs::write(&file, bytes).unwrap();
    let said = sandbox.outlive(["list"]).fails_with(111);
    assert!(said.contains("`outlive registry refresh --rebuild`") && !said.contains("doctor"), "{said}");
    sandbox.outlive(["registry", "refresh", "--rebuild"]).succeeds();
    assert!(sandbox.outlive(["list"]).succeeds().contains("1 run: 1 succeeded"));
}

#[test]
fn c03_c04_sources_list_agrees_with_report_and_names_bad_files() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "job", "--", "true"]).succeeds();
    let listed = tree(&sandbox, "listed", &[("a", "completed")]);
    sandbox.outlive(["registry", "remove", listed.to_str().unwrap()]).succeeds();
    let repos = sandbox.path().join("cool-workflow/registry/repos.json");
    std::fs::create_dir_all(repos.parent().unwrap()).unwrap();
    std::fs::write(&repos, json!({"repos": [{"root": listed}]}).to_string()).unwrap();
    let pipe = sandbox.path().join("pipe");
    std::fs::create_dir_all(pipe.join(".outlive/runs")).unwrap();
    sandbox.shell(&format!("mkfifo {}/.outlive/registry.db", pipe.display())).succeeds();
    sandbox.outlive(["registry", "add", pipe.to_str().unwrap()]).succeeds();
    refresh(&sandbox);
    let states = |words: &[&str]| -> Vec<Value> {
        let output = sandbox.outlive(words.iter().chain(&["--json"])).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sources = answer["sources"].as_array().unwrap().iter();
        sources.map(|source| json!([source["repo"], source["state"]])).collect()
    };
    let told = states(&["registry", "list"]);
    assert_eq!(told, states(&["registry", "show"]));
    assert!(told.contains(&json!([pipe, "unavailable"])) && told.contains(&json!([listed, "available"])), "{told:?}");
    assert_eq!(changed(&sandbox, &["list"]).0, 0);
    // What names repositories and cannot be read is said to be, and makes none of them forgotten.
    std::fs::remove_file(&repos).unwrap();
    sandbox.shell(&format!("mkfifo {}", repos.display())).succeeds();
    let own = std::fs::read_dir(sandbox.home().join("sources")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(own.with_file_name("0.json"), "{").unwrap();
    assert_eq!(refresh(&sandbox)["problems"], 2);
    assert_eq!(states(&["registry", "list"]), told);
    let (count, said) = changed(&sandbox, &["list"]);
    assert!(count == 0 && said.contains("Title of a"), "{said}");
    for words in [["registry", "list"], ["registry", "show"]] {
        let said = String::from_utf8_lossy(&sandbox.outlive(words).output().unwrap().stdout).into_owned();
        assert!(said.contains("repos.json: not a regular file"), "{said}");
        assert!(said.contains("sources/0.json: not understood"), "{said}");
    }
}
