//! Holds dependencies to `deny.toml`: their licences, second versions of one package, and where they come from. None may
//! need a later Rust than `rust-version` promises; of the standard library clippy's `incompatible_msrv` checks the same.
//!
//! `cargo deny` checks the same rules and more, but compiling it takes longer than all other lints, and no build of it that
//! reads today's `cargo metadata` can be installed (ADR 0028). Advisories are checked where it is installed.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::steps::{Failed, cargo, output, root};

/// The registry that all packages come from, as the lock file writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package of another author.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// Checks the dependencies of the whole workspace on every target of `deny.toml`.
pub fn check() -> Result<(), Failed> {
    println!("$ dependencies");
    let rules = read("deny.toml")?;
    let mut packages = BTreeSet::new();
    for target in texts(&rules["graph"]["targets"]) {
        packages.extend(parse_tree(&tree(&target)?));
    }
    let mut found = check_licences(&packages, &texts(&rules["licenses"]["allow"]));
    found.extend(check_versions(&packages, &skipped(&rules)));
    found.extend(check_sources(&read("Cargo.lock")?));
    let metadata = output(&cargo(), &["metadata", "--locked", "--format-version", "1"])?;
    let metadata = serde_json::from_str(&metadata).map_err(|error| Failed(format!("`cargo metadata`: {error}")))?;
    let promised = read("Cargo.toml")?["workspace"]["package"]["rust-version"].as_str().map(str::to_owned);
    found.extend(check_rust(&packages, &metadata, &promised.unwrap_or_default()));
    for violation in &found {
        println!("{violation}");
    }
    match found.len() {
        0 => Ok(()),
        count => Err(Failed(format!("{count} violations of `deny.toml`"))),
    }
}

/// A file of the repository that is written in TOML.
fn read(path: &str) -> Result<Value, Failed> {
    let text = std::fs::read_to_string(root().join(path)).map_err(|error| Failed(format!("`{path}`: {error}")))?;
    toml::from_str(&text).map_err(|error| Failed(format!("`{path}`: {error}")))
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The packages, as `name@version`, of which a second version is accepted.
fn skipped(rules: &Value) -> Vec<String> {
    let entries = rules["bans"]["skip"].as_array().into_iter().flatten();
    entries.filter_map(|entry| entry["crate"].as_str()).map(str::to_owned).collect()
}

/// The packages that are compiled for a target. `cargo metadata` also lists those that no feature enables.
fn tree(target: &str) -> Result<String, Failed> {
    let which = ["tree", "--locked", "--workspace", "--all-features", "--target", target];
    let shown = ["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}|{l}"];
    output(&cargo(), &[which.as_slice(), shown.as_slice()].concat())
}

/// The packages of other authors in what `cargo tree` prints: `name v1.0.0 (proc-macro)|MIT (*)`.
fn parse_tree(tree: &str) -> BTreeSet<Package> {
    let foreign = tree.lines().filter_map(|line| line.split_once('|')).filter(|(package, _)| !package.contains("(/"));
    let packages = foreign.filter_map(|(package, licence)| {
        let mut words = package.split(' ');
        Some(Package {
            name: words.next()?.to_owned(),
            version: words.next()?.trim_start_matches('v').to_owned(),
            licence: licence.trim_end_matches(" (*)").to_owned(),
        })
    });
    packages.collect()
}

fn check_licences(packages: &BTreeSet<Package>, allowed: &[String]) -> Vec<String> {
    let unknown = allowed.iter().filter(|name| Licensee::parse(name).is_err());
    let mut found: Vec<String> = unknown.map(|name| format!("deny.toml: `{name}` is no licence of SPDX")).collect();
    let allowed: Vec<Licensee> = allowed.iter().filter_map(|name| Licensee::parse(name).ok()).collect();
    for Package { name, version, licence } in packages {
        let is_allowed = Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|expression| {
            expression.evaluate(|required| allowed.iter().any(|licence| licence.satisfies(required)))
        });
        if !is_allowed {
            found.push(format!("{name} {version}: the licence `{licence}` is not allowed by deny.toml"));
        }
    }
    found
}

fn check_versions(packages: &BTreeSet<Package>, skipped: &[String]) -> Vec<String> {
    let known: BTreeSet<String> =
        packages.iter().map(|package| format!("{}@{}", package.name, package.version)).collect();
    let unused = skipped.iter().filter(|skip| !known.contains(*skip));
    let mut found: Vec<String> =
        unused.map(|skip| format!("deny.toml: nothing needs `{skip}`; remove it from `skip`")).collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, .. } in packages {
        if !skipped.contains(&format!("{name}@{version}")) {
            versions.entry(name).or_default().push(version);
        }
    }
    let many = versions.iter().filter(|(_, versions)| versions.len() > 1);
    found.extend(many.map(|(name, versions)| format!("{name}: compiled in versions {}", versions.join(" and "))));
    found
}

fn check_sources(lock: &Value) -> Vec<String> {
    let packages = lock["package"].as_array().into_iter().flatten();
    let foreign = packages.filter(|package| package["source"].as_str().is_some_and(|source| source != REGISTRY));
    foreign.map(|package| format!("{}: comes from {}", package["name"], package["source"])).collect()
}

/// The packages that need a later Rust than is promised.
fn check_rust(packages: &BTreeSet<Package>, metadata: &Value, promised: &str) -> Vec<String> {
    let number = |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
    let compiled: BTreeSet<(&str, &str)> =
        packages.iter().map(|package| (package.name.as_str(), package.version.as_str())).collect();
    let needs = |package: &Value| {
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let needed = package["rust_version"].as_str()?;
        let (mut needs, mut has) = (number(needed), number(promised));
        needs.resize(3, 0);
        has.resize(3, 0);
        (compiled.contains(&(name, version)) && needs > has)
            .then(|| format!("{name} {version}: needs Rust {needed}, and `rust-version` promises {promised}"))
    };
    metadata["packages"].as_array().into_iter().flatten().filter_map(needs).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TREE: &str = "outlive v0.1.0 (/home/me/outlive)|MIT OR Apache-2.0\n\
        serde v1.0.0|MIT/Apache-2.0 (*)\nsyn v2.0.0|MIT\nsyn v3.0.0|MIT\nthief v1.0.0|GPL-3.0-only\nmute v1.0.0|\n";

    #[test]
    fn packages_of_others_are_read_from_the_tree() {
        let names: Vec<String> = parse_tree(TREE).into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["mute", "serde", "syn", "syn", "thief"]);
    }

    #[test]
    fn licences_that_are_not_allowed_or_missing_are_refused() {
        let found = check_licences(&parse_tree(TREE), &["MIT".to_owned(), "Nonsense".to_owned()]);
        assert_eq!(
            found,
            [
                "deny.toml: `Nonsense` is no licence of SPDX",
                "mute 1.0.0: the licence `` is not allowed by deny.toml",
                "thief 1.0.0: the licence `GPL-3.0-only` is not allowed by deny.toml",
            ]
        );
    }

    #[test]
    fn second_versions_and_unused_exceptions_are_refused() {
        let packages = parse_tree(TREE);
        assert_eq!(check_versions(&packages, &[]), ["syn: compiled in versions 2.0.0 and 3.0.0"]);
        assert!(check_versions(&packages, &["syn@2.0.0".to_owned()]).is_empty());
        let unused = check_versions(&packages, &["syn@2.0.0".to_owned(), "syn@1.0.0".to_owned()]);
        assert_eq!(unused, ["deny.toml: nothing needs `syn@1.0.0`; remove it from `skip`"]);
    }

    #[test]
    fn sources_other_than_the_registry_are_refused() {
        let lock = json!({ "package": [
            { "name": "own" },
            { "name": "good", "source": REGISTRY },
            { "name": "bad", "source": "git+https://example.org/bad" },
        ] });
        assert_eq!(check_sources(&lock), [r#""bad": comes from "git+https://example.org/bad""#]);
    }

    #[test]
    fn packages_that_need_a_later_rust_are_refused() {
        let package = |name, version, rust| json!({ "name": name, "version": version, "rust_version": rust });
        let metadata = json!({ "packages": [
            package("serde", "1.0.0", json!("1.90.1")),
            package("syn", "2.0.0", json!("1.90")),
            package("syn", "3.0.0", json!(null)),
            package("not-compiled", "1.0.0", json!("2.0")),
        ] });
        let found = check_rust(&parse_tree(TREE), &metadata, "1.90");
        assert_eq!(found, ["serde 1.0.0: needs Rust 1.90.1, and `rust-version` promises 1.90"]);
    }
}
