//! `cargo xtask test`: all tests, by the one command that the README names.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::features;
use crate::python;
use crate::setup;
use crate::steps::{Failed, cargo, root, step};
use crate::tidy::gather;

/// Where the tests are that may need root.
const TESTS: [&str; 2] = ["crates/outlive/tests/it", "crates/outlive-cli/tests/it"];
/// What a PostgreSQL server logs when it breaks a transaction off because two wait for each other.
const DEADLOCK: &str = "deadlock detected";

/// Sets up, then runs all tests. What is said beyond the chore's name is said to nextest.
pub fn run(words: &[String]) -> Result<(), Failed> {
    setup::run(&[])?;
    let logs = root().join("target/postgres-logs");
    let before = sizes(&logs);
    let mut nextest = vec!["nextest", "run", "--workspace"];
    nextest.extend(words.iter().map(String::as_str));
    let skipped = if setup::is_root() { Vec::new() } else { root_only(&root())? };
    if !skipped.is_empty() {
        println!("xtask test: {} tests need root and are skipped", skipped.len());
        nextest.extend((!words.iter().any(|word| word == "--")).then_some("--"));
        nextest.extend(skipped.iter().flat_map(|name| ["--skip", name.as_str()]));
    }
    let tested = step(&cargo(), &nextest);
    // A part of the tests may well do without a server; all of them cannot.
    let counted = count_deadlocks(&logs, &before, words.is_empty());
    tested?;
    println!("xtask test: no deadlock in {} bytes of PostgreSQL's logs", counted?);
    // A part of the tests is a part of the workspace's; all of them are those of every feature set.
    for features in features::LIBRARY.iter().filter(|_| words.is_empty()) {
        step(&cargo(), &[&["nextest", "run", "--package", "outlive", "--lib"], *features].concat())?;
    }
    if words.is_empty() {
        step(&cargo(), &["nextest", "run", "--package", "outlive-cli", "--lib", "--no-default-features", "left_out"])?;
    }
    step(&cargo(), &["test", "--workspace", "--doc"])?;
    if words.is_empty() {
        python::test(&[])?;
    }
    println!("xtask test: all tests passed");
    Ok(())
}

/// The names of the tests that need root: they return at once where they do not have it, and would count as passed.
fn root_only(root: &Path) -> Result<Vec<String>, Failed> {
    let unreadable = |error: io::Error| Failed(format!("the tests cannot be read: {error}"));
    let mut files = Vec::new();
    for tests in TESTS {
        gather(&root.join(tests), &mut files).map_err(unreadable)?;
    }
    let mut names = Vec::new();
    for path in files {
        names.extend(asking_for_root(&std::fs::read_to_string(path).map_err(unreadable)?));
    }
    Ok(names)
}

/// The tests of a source file whose first statement returns unless they have root.
fn asking_for_root(source: &str) -> Vec<String> {
    let tests = source.split("#[test]\n").skip(1);
    let asking = tests.filter_map(|test| {
        let mut lines = test.lines().map(str::trim).skip_while(|line| line.starts_with("#["));
        let name = lines.next()?.strip_prefix("fn ")?.split('(').next()?;
        let first = lines.find(|line| !line.starts_with("//"))?;
        (first.starts_with("if !") && first.contains("is_root()")).then(|| name.to_owned())
    });
    asking.collect()
}

/// How long each log is. A server that several runs of the tests share goes on with its log.
fn sizes(logs: &Path) -> BTreeMap<PathBuf, usize> {
    let paths = std::fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.map(|path| (path.clone(), std::fs::metadata(&path).map_or(0, |of| of.len() as usize))).collect()
}

/// How many bytes the servers have logged since the logs were as long as `before`. Fails where they tell of a deadlock, or
/// where nothing was logged though something must have been.
fn count_deadlocks(logs: &Path, before: &BTreeMap<PathBuf, usize>, must_log: bool) -> Result<usize, Failed> {
    let mut logged = 0;
    for path in sizes(logs).into_keys() {
        let unreadable = |error| Failed(format!("`{}` cannot be read: {error}", path.display()));
        let log = std::fs::read(&path).map_err(unreadable)?;
        let log =
            String::from_utf8_lossy(log.get(before.get(&path).copied().unwrap_or(0)..).unwrap_or(&log)).into_owned();
        let deadlocks = log.matches(DEADLOCK).count();
        if deadlocks > 0 {
            return Err(Failed(format!("{deadlocks} times `{DEADLOCK}` in `{}`", path.display())));
        }
        logged += log.len();
    }
    if must_log && logged == 0 {
        return Err(Failed(format!("no server has logged anything in `{}`", logs.display())));
    }
    Ok(logged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_return_without_root_are_named_to_be_skipped() {
        let source = "#[test]\nfn plain() {\n    if is_root() {\n    }\n}\n\n\
                      #[test]\n#[cfg(unix)]\nfn mounts() {\n    // Why.\n    if !super::is_root() {\n        return;\n    }\n}\n";
        assert_eq!(asking_for_root(source), ["mounts"]);
        let named = root_only(&root()).unwrap();
        assert!(named.len() > 15 && named.iter().any(|name| name.starts_with("f_43_")), "{named:?}");
    }

    #[test]
    fn root_is_asked_for_in_the_first_statement_of_a_test() {
        for tests in TESTS {
            let mut files = Vec::new();
            gather(&root().join(tests), &mut files).unwrap();
            for path in files {
                let source = std::fs::read_to_string(&path).unwrap();
                let gates = source.lines().filter(|line| line.contains("if !") && line.contains("is_root()")).count();
                let seen = asking_for_root(&source).len();
                assert_eq!(gates, seen, "{}: a gate elsewhere counts as passed without root", path.display());
            }
        }
    }

    #[test]
    fn deadlocks_in_logs_are_counted_from_where_they_ended_before() {
        let logs = std::env::temp_dir().join(format!("outlive-xtask-logs-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let write = |text: &str| std::fs::write(logs.join("a.log"), text).unwrap();
        assert!(count_deadlocks(&logs, &BTreeMap::new(), true).is_err(), "nothing was logged");
        assert_eq!(count_deadlocks(&logs, &BTreeMap::new(), false).unwrap(), 0);
        write("ERROR:  deadlock detected\n");
        assert!(count_deadlocks(&logs, &BTreeMap::new(), false).unwrap_err().0.starts_with("1 times"));
        let before = sizes(&logs);
        write("ERROR:  deadlock detected\nLOG:  ready\n");
        assert_eq!(count_deadlocks(&logs, &before, true).unwrap(), 12);
        std::fs::remove_dir_all(&logs).unwrap();
    }
}
