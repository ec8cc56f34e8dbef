//! Rules about the source that no compiler checks.

use std::path::{Path, PathBuf};

fn sources(below: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(below);
    let mut found = Vec::new();
    let mut dirs = vec![root];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

/// Closing any descriptor of the database drops every lock this process has on it.
#[test]
fn f_34_database_is_opened_by_sqlite_alone() {
    let mut sources = sources("outlive/src");
    // Another database, of which nothing is on this disk.
    sources.retain(|(path, _)| !path.components().any(|part| part.as_os_str() == "postgres"));
    assert!(sources.len() > 20);
    let mut mentions = Vec::new();
    for (path, source) in &sources {
        let code = source.split("#[cfg(test)]").next().unwrap();
        // In the form of a URL it is a word for people.
        if code.contains("registry.db\"") || code.replace("/DATABASE", "").contains("DATABASE") {
            mentions.push(path.file_name().unwrap().to_str().unwrap());
        }
    }
    mentions.sort_unstable();
    // `schema.rs` hands the name to SQLite and makes the empty file; `doctor.rs` only renames, and `discovery.rs` asks whether
    // it is there.
    assert_eq!(mentions, ["discovery.rs", "doctor.rs", "schema.rs"]);
    let discovery = &sources.iter().find(|(path, _)| path.ends_with("discovery.rs")).unwrap().1;
    assert!(discovery.lines().filter(|line| line.contains("registry.db\"")).all(|line| line.contains("is_absent")));
    let schema = &sources.iter().find(|(path, _)| path.ends_with("schema.rs")).unwrap().1;
    for line in schema.lines().filter(|line| line.contains("DATABASE")) {
        assert!(!line.contains("File::open") && !line.contains("fs::read(") && !line.contains("fs::copy"), "{line}");
    }
}

/// User-visible words for a state come from one place.
#[test]
fn no_rule_about_states_is_written_in_sql() {
    for (path, source) in sources("outlive/src/store") {
        assert!(!source.to_lowercase().contains("case when"), "{} decides something in SQL", path.display());
    }
}
