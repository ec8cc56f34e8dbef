//! Names of types: no two public ones share a name, and a name is given to at most two private ones, so that a reader
//! who meets a name knows what it is.
//!
//! Only definitions are read. A re-export under another name is seen by a reader where it is made.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::tidy::{Violation, code, gather};

/// The directory whose `pub` types are public. Nothing outside the other crates can name their types.
const LIBRARY: &str = "crates/outlive/src";
/// The directories whose private types share their names at most in pairs.
const SOURCES: [&str; 3] = [LIBRARY, "crates/outlive-cli/src", "crates/outlive-py/src"];
/// How many private types may have one name.
const PRIVATE_LIMIT: usize = 2;
/// Names that several modules may give to a type, each with the reason.
const SHARED: [(&str, &str); 1] = [(
    "Error",
    "a module's own error is named by its module: `store::Error` is what a store answers, `Error` what a caller gets",
)];

/// The definition of a type.
#[derive(Debug, PartialEq, Eq)]
struct Definition {
    line: usize,
    name: String,
    is_pub: bool,
    /// It has the arguments of a verb, which it is named after: the module says of which noun.
    is_verb: bool,
}

/// The types whose names are taken.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut public: BTreeMap<String, Vec<(PathBuf, usize)>> = BTreeMap::new();
    let mut private = public.clone();
    for source in SOURCES {
        let mut files = Vec::new();
        if root.join(source).exists() {
            gather(&root.join(source), &mut files)?;
        }
        files.sort();
        for path in files {
            let text = std::fs::read_to_string(&path)?;
            let shown = path.strip_prefix(root).unwrap_or(&path);
            for found in definitions(&text) {
                let is_exempt = found.is_verb || SHARED.iter().any(|(shared, _)| *shared == found.name);
                let types = if source == LIBRARY && found.is_pub { &mut public } else { &mut private };
                if !is_exempt {
                    types.entry(found.name).or_default().push((shown.to_owned(), found.line));
                }
            }
        }
    }
    let mut violations = beyond(1, "public", &public);
    violations.extend(beyond(PRIVATE_LIMIT, "private", &private));
    Ok(violations)
}

/// The definitions that come after the first `limit` ones of their name.
fn beyond(limit: usize, kind: &str, types: &BTreeMap<String, Vec<(PathBuf, usize)>>) -> Vec<Violation> {
    let of_name = |(name, places): (&String, &Vec<(PathBuf, usize)>)| -> Vec<Violation> {
        let (path, line) = &places[0];
        let rule = format!("`{name}` is also a {kind} type at {}:{line}", path.display());
        places.iter().skip(limit).map(|(path, line)| Violation::new(path, *line, rule.clone())).collect()
    };
    types.iter().flat_map(of_name).collect()
}

/// The types that a file defines.
fn definitions(text: &str) -> Vec<Definition> {
    let mut definitions = Vec::new();
    let mut derives_args = false;
    for (line, code) in code(text) {
        let code_at = code.trim_start();
        if code_at.starts_with("#[") {
            derives_args |= code_at.starts_with("#[derive(") && code_at.contains("Args");
            continue;
        }
        let is_verb = std::mem::take(&mut derives_args);
        let mut words = code_at.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
        let keyword = words.next().unwrap_or_default();
        // An indented `type` belongs to an `impl` or a trait.
        let is_type = ["struct", "enum", "trait", "union"].contains(&keyword) || (keyword == "type" && code == code_at);
        if let (true, Some(word)) = (is_type, words.next()) {
            let name: String = word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            definitions.push(Definition { line, name, is_pub: code.starts_with("pub "), is_verb });
        }
    }
    definitions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::root;

    fn names(text: &str) -> Vec<(usize, String, bool, bool)> {
        definitions(text).into_iter().map(|found| (found.line, found.name, found.is_pub, found.is_verb)).collect()
    }

    /// What is found in these files.
    fn found(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("xtask-names-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = check(&root).unwrap().iter().map(ToString::to_string).collect();
        std::fs::remove_dir_all(&root).unwrap();
        found
    }

    #[test]
    fn types_of_the_crates_have_names_of_their_own() {
        let found: Vec<String> = check(&root()).unwrap().iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn definitions_are_read_and_nothing_else() {
        let text = "pub struct Run {\n    pub state: State,\n}\npub(crate) enum Hidden {}\n// pub struct Said;\n\
                    pub type Rule<'a> = u8;\npub use other::Name;\npub unsafe trait Raw {}\nimpl Raw for Run {\n    \
                    type Item = u8;\n}\n#[derive(Debug, Args)]\n#[command(long_about)]\npub struct List;\n";
        let expected = [
            (1, "Run".into(), true, false),
            (4, "Hidden".into(), false, false),
            (6, "Rule".into(), true, false),
            (8, "Raw".into(), true, false),
            (14, "List".into(), true, true),
        ];
        assert_eq!(names(text), expected);
    }

    #[test]
    fn second_public_type_of_a_name_is_refused() {
        let (first, second) = ("crates/outlive/src/a.rs", "crates/outlive/src/b.rs");
        let found = found(
            "public",
            &[(first, "pub struct Page;\npub enum Error {}\n"), (second, "\npub trait Page {}\npub struct Error;\n")],
        );
        assert_eq!(found, ["crates/outlive/src/b.rs:2: `Page` is also a public type at crates/outlive/src/a.rs:1"]);
    }

    #[test]
    fn third_private_type_of_a_name_is_refused() {
        let library = ("crates/outlive/src/a.rs", "pub struct State;\nmod inner {\n    struct State;\n}\n");
        let command = ("crates/outlive-cli/src/b.rs", "pub enum State {}\n#[derive(Args)]\npub struct State;\n");
        assert!(found("pair", &[library, command]).is_empty(), "two private ones, a public one and a verb");
        let third = ("crates/outlive-cli/src/c.rs", "type State = u8;\n");
        let found = found("third", &[library, command, third]);
        assert_eq!(
            found,
            ["crates/outlive-cli/src/c.rs:1: `State` is also a private type at crates/outlive/src/a.rs:3"]
        );
    }
}
