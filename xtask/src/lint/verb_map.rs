//! The map of CONTRIBUTING.md from verbs to files and tests: every file that it names exists.

use std::io;
use std::path::Path;

use crate::tidy::Violation;

/// The page with the map, and the first cells of its heading.
const PAGE: &str = "CONTRIBUTING.md";
const HEADING: &str = "| verbs | files | tests |";
/// What stands before a file of the library.
const LIBRARY: &str = "library ";
/// Where files and tests are: of the command, and of the library.
const FILES: [&str; 2] = ["crates/outlive-cli/src", "crates/outlive/src"];
const TESTS: [&str; 2] = ["crates/outlive-cli/tests/it", "crates/outlive/tests/it"];

/// Checks the map of the repository at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let text = std::fs::read_to_string(root.join(PAGE))?;
    let rows = (1..).zip(text.lines()).skip_while(|(_, line)| !line.starts_with(HEADING)).skip(2);
    let mut violations = Vec::new();
    let mut found = 0;
    for (number, row) in rows.take_while(|(_, line)| line.starts_with('|')) {
        for (cell, roots) in row.split(" | ").skip(1).zip([FILES, TESTS]) {
            for (below, name) in named(cell, roots) {
                found += 1;
                if !root.join(below).join(name).exists() {
                    violations.push(Violation::new(
                        Path::new(PAGE),
                        number,
                        format!("there is no `{name}` in {below}"),
                    ));
                }
            }
        }
    }
    if found == 0 {
        violations.push(Violation::new(Path::new(PAGE), 1, "the map from verbs to files is gone".into()));
    }
    Ok(violations)
}

/// The files in a cell, each with the directory that it is below.
fn named<'a>(cell: &'a str, [command, library]: [&'static str; 2]) -> impl Iterator<Item = (&'static str, &'a str)> {
    let mut pieces = cell.split('`');
    std::iter::from_fn(move || {
        let (before, name) = (pieces.next()?, pieces.next()?);
        Some((if before.ends_with(LIBRARY) { library } else { command }, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_of_the_repository_names_files_that_exist() {
        let found = check(&crate::steps::root()).unwrap();
        assert_eq!(found, [], "{}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    #[test]
    fn missing_file_and_missing_map_are_refused() {
        let root = std::env::temp_dir().join(format!("xtask-verb-map-{}", std::process::id()));
        std::fs::create_dir_all(root.join(FILES[1])).unwrap();
        let write = |text: &str| std::fs::write(root.join(PAGE), text).unwrap();
        let of = || check(&root).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        write("nothing\n");
        assert_eq!(of(), ["CONTRIBUTING.md:1: the map from verbs to files is gone"]);
        std::fs::write(root.join(FILES[1]).join("a.rs"), "").unwrap();
        write(
            "| verbs | files | tests |\n| --- | --- | --- |\n| `x` | library `a.rs`, `a.rs` | `b.rs` |\n\n| `y` | `c` |\n",
        );
        let found = of();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            [
                "CONTRIBUTING.md:3: there is no `a.rs` in crates/outlive-cli/src",
                "CONTRIBUTING.md:3: there is no `b.rs` in crates/outlive-cli/tests/it",
            ]
        );
    }
}
