//! Reads of a registry that another process is creating: each finds nothing or the run, and none fails.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::sandbox::{Ends, Sandbox, text};

/// A sandbox outside any repository, so that its runs are recorded in the home.
fn homely() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
    sandbox
}

/// Every file below a directory with what a write would change. SQLite keeps the last two files for its readers.
fn listed(dir: &Path) -> Vec<(PathBuf, u64, i64, u64)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        for entry in std::fs::read_dir(&path).into_iter().flatten().map(Result::unwrap) {
            let name = entry.file_name();
            if name == "registry.db-shm" || name == "registry.db-wal" {
                continue;
            }
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                left.push(entry.path());
                found.push((entry.path(), 0, 0, metadata.ino()));
            } else {
                let changed = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
                found.push((entry.path(), metadata.len(), changed, metadata.ino()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn t1_02_every_state_of_a_registry_being_created_can_be_read() {
    // What lies in the directory at each step of its creation, in the order of creation.
    let states: [(&str, &[&str]); 8] = [
        ("no directory", &[]),
        ("an empty directory", &["."]),
        ("runs", &["runs"]),
        ("runs and workers", &["runs", "workers"]),
        ("all but its identity", &["runs", "workers", ".gitignore"]),
        ("no database", &["runs", "workers", ".gitignore", "registry.id"]),
        (
            "a database of no name yet",
            &["runs", "workers", ".gitignore", "registry.id", "registry.db.next", "open.lock"],
        ),
        ("a database without its log", &["runs", "workers", ".gitignore", "registry.id", "registry.db"]),
    ];
    for (state, kept) in states {
        let sandbox = homely();
        let registry = sandbox.home().join("registry");
        if kept.is_empty() {
            assert!(!registry.exists());
        } else {
            // A whole one, of which all that comes later is taken away: an identity holds only in its own directory.
            let named = format!("sqlite:{}", registry.display());
            std::fs::create_dir(sandbox.home()).unwrap();
            sandbox.outlive(["--registry", &named, "init"]).succeeds();
            for entry in std::fs::read_dir(&registry).unwrap().map(Result::unwrap) {
                let name = entry.file_name().into_string().unwrap();
                match entry.path().is_dir() {
                    _ if kept.contains(&name.as_str()) => {}
                    true => std::fs::remove_dir_all(entry.path()).unwrap(),
                    false => std::fs::remove_file(entry.path()).unwrap(),
                }
            }
            for name in kept.iter().filter(|name| name.ends_with(".next") || name.ends_with(".lock")) {
                std::fs::write(registry.join(name), "").unwrap();
            }
        }
        let before = listed(&sandbox.home());
        for words in [&["ps"][..], &["ps", "--all"], &["queue", "list"], &["ps", "--json"]] {
            let output = sandbox.outlive(words).output().unwrap();
            assert!(output.status.success(), "{state}, {words:?}: {}", text(&output.stderr));
            assert_eq!(text(&output.stderr), "", "{state}, {words:?}");
        }
        assert_eq!(listed(&sandbox.home()), before, "{state}: a read wrote");
        // Whoever comes next completes it.
        sandbox.outlive(["run", "--name", "first", "--", "true"]).succeeds();
        assert_eq!(sandbox.show("first")["state"], "succeeded", "{state}");
    }
}

#[test]
fn t1_02_a_read_beside_the_first_run_finds_nothing_or_the_run() {
    let rounds = std::env::var("OUTLIVE_FIRST_READS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(40);
    let mut early = 0;
    for round in 0..rounds {
        let sandbox = homely();
        let mut run = sandbox.outlive(["run", "--name", "first", "--", "true"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        loop {
            let ended = run.try_wait().unwrap();
            let output = sandbox.outlive(["ps", "--all", "--json"]).output().unwrap();
            let said = text(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "round {round}: {}: {said}", output.status);
            let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            match runs["runs"].as_array().unwrap().as_slice() {
                [] => early += 1,
                [run] => assert_eq!(run["name"], "first", "round {round}"),
                runs => panic!("round {round}: {runs:?}"),
            }
            if let Some(ended) = ended {
                assert!(ended.success(), "round {round}: the run failed: {ended}");
                break;
            }
        }
    }
    assert!(early > 0, "no read came before the run was on record in {rounds} rounds: nothing was raced");
}
