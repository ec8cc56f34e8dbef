//! `cargo xtask lint`: what can be said of the code without running it.

mod book;
mod dependencies;
mod packaging;
mod public_crate;
mod public_pages;
mod test_ids;
mod verb_map;
mod words;

use crate::features;
use crate::layers::{self, CRATES};
use crate::names;
use crate::steps::{Failed, cargo, root, step, succeeds};
use crate::tidy;

/// Checks everything, and fails with all that failed.
pub fn run(_: &[String]) -> Result<(), Failed> {
    let mut checks = vec![
        step(&cargo(), &["fmt", "--all", "--check"]),
        step(&cargo(), &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        house_rules(),
        book::build(),
    ];
    let clippy = |of: &[&str], features: &[&str]| {
        step(&cargo(), &[&["clippy", "--package"], of, features, &["--", "-D", "warnings"]].concat())
    };
    checks.extend(features::LIBRARY.iter().map(|features| clippy(&["outlive", "--lib"], features)));
    checks.extend(features::COMMAND.iter().map(|features| clippy(&["outlive-cli", "--lib", "--bins"], features)));
    checks.extend(public_crate::check());
    checks.extend(packaging::check());
    checks.push(dependencies::check());
    if succeeds(&cargo(), &["deny", "--version"]) {
        checks.push(step(&cargo(), &["deny", "check"]));
    } else {
        println!("xtask lint: cargo-deny is not installed; advisories are not checked");
    }
    let failed: Vec<String> = checks.into_iter().filter_map(|check| check.err().map(|Failed(what)| what)).collect();
    if failed.is_empty() {
        println!("xtask lint: clean");
        return Ok(());
    }
    Err(Failed(failed.join("; ")))
}

fn house_rules() -> Result<(), Failed> {
    println!("$ tidy");
    let unreadable = |error| Failed(format!("the sources cannot be read: {error}"));
    let mut found = tidy::check(&root()).map_err(unreadable)?;
    for layers in CRATES {
        found.extend(layers::check(&root(), &layers).map_err(unreadable)?);
    }
    found.extend(names::check(&root()).map_err(unreadable)?);
    found.extend(test_ids::check(&root()).map_err(unreadable)?);
    found.extend(words::check(&root()).map_err(unreadable)?);
    found.extend(verb_map::check(&root()).map_err(unreadable)?);
    found.extend(book::check(&root()).map_err(unreadable)?);
    for violation in &found {
        println!("{violation}");
    }
    match found.len() {
        0 => Ok(()),
        count => Err(Failed(format!("{count} violations of the house rules"))),
    }
}
