//! `docs/trials.md`: every defect that a trial found has a test, or a sentence that says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The ids of the trials: a group, and how many lines it has.
const GROUPS: [(&str, usize); 8] =
    [("T1", 24), ("T2", 9), ("T3", 5), ("T4", 10), ("T6", 10), ("T7", 11), ("T8", 10), ("T9", 12)];
/// The lines of T5, which are not numbered through.
const INTERNALS: [&str; 8] = ["T5-B2", "T5-B3", "T5-B4", "T5-B5", "T5-B6", "T5-on-stop", "T5-run-yaml", "T5-progress"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of all functions below a directory that are tests, or checks that every store is held to.
fn tests(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            tests(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                let is_check = line.contains("(ground: &dyn Ground)");
                is_test |= is_check;
                let line = line.strip_prefix("pub(super) ").unwrap_or(line);
                let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
                match name.and_then(|rest| rest.split_once('(')) {
                    Some((name, _)) if std::mem::take(&mut is_test) => _ = found.insert(name.to_owned()),
                    // Attributes and comments stand between.
                    _ => is_test |= line == "#[test]" || line.starts_with("#[tokio::test"),
                }
            }
        }
    }
}

/// Id → decision and tests, as the page has them.
fn rows() -> BTreeMap<String, (String, Vec<String>)> {
    let page = std::fs::read_to_string(root().join("docs/trials.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| T")) {
        let cells: Vec<&str> = line.trim_matches('|').splitn(3, " | ").map(str::trim).collect();
        let [id, decision, named] = cells[..] else { panic!("not a row of three: {line}") };
        let names = named.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let before = rows.insert(id.to_owned(), (decision.to_owned(), names));
        assert!(before.is_none(), "{id} has two rows");
    }
    rows
}

#[test]
fn trials_name_tests_that_exist() {
    let numbered = GROUPS.iter().flat_map(|(group, count)| (1..=*count).map(move |line| format!("{group}-{line:02}")));
    let ids: BTreeSet<String> = numbered.chain(INTERNALS.map(str::to_owned)).collect();
    let rows = rows();
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), ids, "a trial without a row, or a row without a trial");
    let mut found = BTreeSet::new();
    for dir in ["crates", "xtask", "bench"] {
        tests(&root().join(dir), &mut found);
    }
    assert!(found.len() > 900, "only {} tests were found", found.len());
    for (id, (decision, names)) in rows {
        assert!(decision.len() > 10 && decision != "open", "{id}: no decision");
        let missing: Vec<&String> = names.iter().filter(|name| !found.contains(*name)).collect();
        assert!(missing.is_empty(), "{id} names tests that do not exist: {missing:?}");
        // A line without a test says why.
        let says_why =
            ["later", "belongs to", "no test", "cannot be tested"].iter().any(|word| decision.contains(word));
        assert!(!names.is_empty() || says_why, "{id} has neither a test nor a reason");
    }
}
