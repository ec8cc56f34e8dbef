//! `cargo xtask test`: all tests, by the one command that the README names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::features;
use crate::python;
use crate::setup;
use crate::steps::{Failed, cargo, root, step};

/// What a PostgreSQL server logs when it breaks a transaction off because two wait for each other.
const DEADLOCK: &str = "deadlock detected";

/// Sets up, then runs all tests. What is said beyond the chore's name is said to nextest.
pub fn run(words: &[String]) -> Result<(), Failed> {
    setup::run(&[])?;
    let logs = root().join("target/postgres-logs");
    let before = sizes(&logs);
    let mut nextest = vec!["nextest", "run", "--workspace"];
    nextest.extend(words.iter().map(String::as_str));
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
