//! The ids of scenarios and faults: every id in a test's name is listed in `docs/`, and every listed id has a test or says why not.
//!
//! `l06_…` covers the scenario L06, `f_04_…` the fault F-04; a name may begin with several ids (`f_01_r02_…`). A row may
//! instead name a test in full, in backticks, or say "no test" with the reason. No two ids differ by the dash alone.
//!
//! Filters that choose tests by a part of their names are checked too: one that matches no test would skip nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::tidy::{Violation, test_names, test_sources};

/// The pages that list ids, one table row for each id or for several with commas between them.
const PAGES: [&str; 2] = ["docs/scenarios.md", "docs/faults.md"];
/// Files with filters of nextest.
const FILTERS: [&str; 2] = [".config/nextest.toml", "xtask/src/postgres.rs"];
/// What a row says that has no test.
const REASON: &str = "no test";

/// Checks the repository at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut tests = BTreeMap::new();
    for (path, text) in test_sources(root)? {
        tests.extend(test_names(&text).map(|(line, name)| (name.to_owned(), (path.clone(), line))));
    }
    let used: BTreeSet<String> = tests.keys().flat_map(|name| ids(name)).collect();
    let mut violations = Vec::new();
    let mut listed = BTreeSet::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page))?;
        for (line, row) in (1..).zip(text.lines()) {
            for id in row_ids(row) {
                if !used.contains(&id) && !explains(row, |name| tests.contains_key(name)) {
                    let rule = format!("{id} has no test: name one in full, or say \"{REASON}\" and why");
                    violations.push(Violation::new(Path::new(page), line, rule));
                }
                let other = id.replace('-', "");
                if !listed.insert(id.clone()) {
                    violations.push(Violation::new(Path::new(page), line, format!("{id} has two rows")));
                } else if other != id && listed.contains(&other) {
                    let rule = format!("{id} and {other} differ by a dash alone");
                    violations.push(Violation::new(Path::new(page), line, rule));
                }
            }
        }
    }
    for (name, (path, line)) in &tests {
        for id in ids(name).filter(|id| !listed.contains(id)) {
            violations.push(Violation::new(
                path,
                *line,
                format!("{id} of `{name}` has no row in {}", PAGES.join(" or ")),
            ));
        }
    }
    violations.extend(empty_filters(root, |part| tests.keys().any(|name| name.contains(part)))?);
    Ok(violations)
}

/// The parts of names in filters that no test has.
fn empty_filters(root: &Path, is_part: impl Fn(&str) -> bool) -> io::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for path in FILTERS.iter().filter(|path| root.join(path).is_file()) {
        let text = std::fs::read_to_string(root.join(path))?;
        for (number, line) in (1..).zip(text.lines()) {
            let parts = line.split("test(").skip(1).filter_map(|rest| rest.split(')').next());
            for part in parts.filter(|part| !part.starts_with('/') && !is_part(part)) {
                violations.push(Violation::new(Path::new(path), number, format!("no test has `{part}` in its name")));
            }
        }
    }
    Ok(violations)
}

/// The ids that a test's name begins with: `f_01_r02_a_tree` has F-01 and R02.
fn ids(name: &str) -> impl Iterator<Item = String> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let letter = rest.chars().next().filter(|letter| "lrwbcufs".contains(*letter))?;
        let dash = rest[1..].starts_with('_');
        let digits = rest.get(1 + usize::from(dash)..3 + usize::from(dash))?;
        let behind = rest.get(3 + usize::from(dash)..)?.strip_prefix('_')?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then_some(())?;
        rest = behind;
        Some(format!("{}{}{digits}", letter.to_ascii_uppercase(), if dash { "-" } else { "" }))
    })
}

/// The ids that a line of a page lists: those of the first cell of a table's row.
fn row_ids(line: &str) -> impl Iterator<Item = String> {
    let cell = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()).unwrap_or_default();
    let is_id = |word: &&str| {
        let mut chars = word.chars();
        let letter = chars.next().is_some_and(|letter| "LRWBCUFS".contains(letter));
        let number = chars.as_str().strip_prefix('-').unwrap_or(chars.as_str());
        letter && number.len() == 2 && number.bytes().all(|digit| digit.is_ascii_digit())
    };
    cell.split(", ").filter(is_id).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// Whether a row without a test of its own names a test that exists, or says why there is none.
fn explains(row: &str, exists: impl Fn(&str) -> bool) -> bool {
    row.contains(REASON) || row.split('`').skip(1).step_by(2).any(exists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_repository_are_listed_and_tested() {
        let found = check(&crate::steps::root()).unwrap();
        assert_eq!(found, [], "{}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    #[test]
    fn test_name_begins_with_its_ids() {
        let of = |name: &str| ids(name).collect::<Vec<_>>();
        assert_eq!(of("f_01_r02_a_tree_that_lives_on"), ["F-01", "R02"]);
        assert_eq!(of("l06_a_killed_owner"), ["L06"]);
        assert_eq!(of("visit_f64"), [""; 0]);
        assert_eq!(of("f_1_short"), [""; 0]);
        assert_eq!(of("s05"), [""; 0]);
    }

    #[test]
    fn row_lists_ids_and_headings_do_not() {
        let of = |line: &str| row_ids(line).collect::<Vec<_>>();
        assert_eq!(of("| F-36, F-37 | NFS | refused |"), ["F-36", "F-37"]);
        assert_eq!(of("| L06 | dead at the next read |"), ["L06"]);
        assert_eq!(of("| id | scenario |"), [""; 0]);
        assert_eq!(of("W01 is no row"), [""; 0]);
    }

    #[test]
    fn missing_row_and_missing_test_are_refused() {
        let root = std::env::temp_dir().join(format!("xtask-test-ids-{}", std::process::id()));
        for dir in ["docs", "crates", ".config"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let scenarios = "| L01 | a |\n| L02 | b |\n| L03 | no test: cannot be made here |\n| L04 | `named_in_full` |\n";
        std::fs::write(root.join("docs/scenarios.md"), scenarios).unwrap();
        std::fs::write(root.join("docs/faults.md"), "| L01 | again |\n| L-02 | x, no test |\n").unwrap();
        std::fs::write(root.join(FILTERS[0]), "filter = \"test(named_in) | test(/^a::/) | test(gone)\"\n").unwrap();
        let source =
            "#[test]\nfn l01_a() {}\n#[test]\nfn f_09_b() {}\n#[test]\nfn named_in_full() {}\nfn l77_helper() {}\n";
        std::fs::write(root.join("crates/a.rs"), source).unwrap();
        let found: Vec<String> = check(&root).unwrap().iter().map(ToString::to_string).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            [
                "docs/scenarios.md:2: L02 has no test: name one in full, or say \"no test\" and why",
                "docs/faults.md:1: L01 has two rows",
                "docs/faults.md:2: L-02 and L02 differ by a dash alone",
                "crates/a.rs:4: F-09 of `f_09_b` has no row in docs/scenarios.md or docs/faults.md",
                ".config/nextest.toml:1: no test has `gone` in its name",
            ]
        );
    }
}
