//! Names of public types: no two of the library share one, so that a reader who meets a name knows what it is.
//!
//! Only definitions are read. A re-export under another name is seen by a reader where it is made.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::tidy::{Violation, code, gather};

/// The directory whose types are public.
const SOURCE: &str = "crates/outlive/src";
/// Names that several modules may give to a type, each with the reason.
const SHARED: [(&str, &str); 1] = [(
    "Error",
    "a module's own error is named by its module: `store::Error` is what a store answers, `Error` what a caller gets",
)];

/// The public types of the library that share a name.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut files = Vec::new();
    gather(&root.join(SOURCE), &mut files)?;
    files.sort();
    let mut first: BTreeMap<String, (PathBuf, usize)> = BTreeMap::new();
    let mut violations = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path)?;
        let shown = path.strip_prefix(root).unwrap_or(&path);
        for (line, name) in public_types(&text) {
            match first.get(&name) {
                _ if SHARED.iter().any(|(shared, _)| *shared == name) => {}
                None => drop(first.insert(name, (shown.to_owned(), line))),
                Some((other, at)) => {
                    let rule = format!("`{name}` is also a public type at {}:{at}", other.display());
                    violations.push(Violation::new(shown, line, rule));
                }
            }
        }
    }
    Ok(violations)
}

/// The types that a file declares `pub`, by line.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let name = |line: &str| {
        let mut words = line.strip_prefix("pub ")?.split_whitespace();
        let kind = words.find(|word| *word != "unsafe")?;
        let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        ["struct", "enum", "trait", "type", "union"].contains(&kind).then_some(name)
    };
    code(text).into_iter().filter_map(|(number, line)| Some((number, name(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::root;

    #[test]
    fn public_types_of_the_library_have_names_of_their_own() {
        let found: Vec<String> = check(&root()).unwrap().iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn definitions_are_read_and_nothing_else() {
        let text = "pub struct Run {\n    pub state: State,\n}\npub(crate) enum Hidden {}\n// pub struct Said;\n\
                    pub type Rule<'a> = u8;\npub use other::Name;\npub unsafe trait Raw {}\n";
        assert_eq!(public_types(text), [(1, "Run".into()), (6, "Rule".into()), (8, "Raw".into())]);
    }

    #[test]
    fn second_definition_of_a_name_is_refused() {
        let root = std::env::temp_dir().join(format!("xtask-names-{}", std::process::id()));
        let source = root.join(SOURCE);
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("a.rs"), "pub struct Page;\npub enum Error {}\n").unwrap();
        std::fs::write(source.join("b.rs"), "\npub trait Page {}\npub struct Error;\n").unwrap();
        let found: Vec<String> = check(&root).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(found, ["crates/outlive/src/b.rs:2: `Page` is also a public type at crates/outlive/src/a.rs:1"]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
