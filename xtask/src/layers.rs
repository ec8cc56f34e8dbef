//! The direction of dependencies: the top-level modules of a crate in one order, and no path that points up.
//!
//! A module may name only modules that stand before it in [`CRATES`], so a cycle is impossible. Only paths are read. An
//! `impl` of a type in a higher module is not seen here.

use std::io;
use std::path::Path;

use crate::tidy::{Violation, code, gather};

/// The order of one crate's modules.
pub struct Layers {
    /// The directory of the sources.
    source: &'static str,
    /// The top-level modules, the lowest first.
    order: &'static [&'static str],
}

/// The crates whose order is checked.
pub const CRATES: [Layers; 2] = [
    Layers {
        source: "crates/outlive/src",
        order: &[
            "redact",
            "model",
            "lifecycle",
            "util",
            "secrets",
            "record",
            "host",
            "logs",
            "store",
            "error",
            "discovery",
            "ownership",
            "registry",
            "engine",
            "index",
            "settings",
            "testing",
            "conformance",
            "simulation",
        ],
    },
    Layers {
        source: "crates/outlive-cli/src",
        order: &["ui", "call", "lookup", "logs", "exec", "workers", "operations", "mcp", "server", "cli"],
    },
];

/// The edges of one crate that point up, and modules that have no place.
pub fn check(root: &Path, layers: &Layers) -> io::Result<Vec<Violation>> {
    let source = root.join(layers.source);
    let mut files = Vec::new();
    gather(&source, &mut files)?;
    files.sort();
    let place = |module: &str| layers.order.iter().position(|known| *known == module);
    let mut violations = Vec::new();
    for path in files {
        let inside: Vec<String> = path.strip_prefix(&source).unwrap_or(&path).iter().map(lossy).collect();
        let module = inside[0].trim_end_matches(".rs");
        if ["lib", "main"].contains(&module) || inside.last().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path);
        let Some(own) = place(module) else {
            violations.push(Violation::new(shown, 1, format!("module `{module}` has no place in xtask/src/layers.rs")));
            continue;
        };
        let text = std::fs::read_to_string(&path)?;
        for (line, named) in named_modules(&text, inside.len()) {
            match place(&named) {
                _ if named == module => {}
                None => {
                    violations.push(Violation::new(shown, line, format!("`crate::{named}` is no module with a place")))
                }
                Some(other) if other > own => {
                    violations.push(Violation::new(shown, line, format!("`{module}` is below `{named}` and names it")));
                }
                Some(_) => {}
            }
        }
    }
    Ok(violations)
}

fn lossy(part: &std::ffi::OsStr) -> String {
    part.to_string_lossy().into_owned()
}

/// The top-level modules that the code of a file names, by line. The file lies `depth` modules below the root.
fn named_modules(text: &str, depth: usize) -> Vec<(usize, String)> {
    let lines = code(text);
    let mut named = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        for (at, _) in line.match_indices("crate::") {
            if line[..at].ends_with(is_word) {
                continue;
            }
            let rest = &line[at + "crate::".len()..];
            if rest.starts_with('{') {
                named.extend(group(rest, &lines[index + 1..]).into_iter().map(|name| (*number, name)));
            } else {
                named.push((*number, word(rest)));
            }
        }
        // As many steps up as the file is deep lead to the root, except from a module inside the file.
        let up = "super::".repeat(depth);
        for (at, _) in line.match_indices(&up).filter(|_| !line.starts_with(' ')) {
            named.push((*number, word(&line[at + up.len()..])));
        }
    }
    named.retain(|(_, name)| !name.is_empty());
    named
}

/// The first words of a `{…}` of paths, which may go on over the lines that follow.
fn group(first: &str, following: &[(usize, &str)]) -> Vec<String> {
    let (mut depth, mut paths) = (0, vec![String::new()]);
    for line in std::iter::once(first).chain(following.iter().map(|(_, line)| *line)) {
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => paths.push(String::new()),
                c if depth == 1 => paths.last_mut().into_iter().for_each(|path| path.push(c)),
                _ => {}
            }
            if depth == 0 {
                return paths.iter().map(|path| word(path.trim())).filter(|name| !name.is_empty()).collect();
            }
        }
    }
    Vec::new()
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::root;

    fn names(text: &str, depth: usize) -> Vec<String> {
        named_modules(text, depth).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn sources_keep_the_order_of_layers() {
        for layers in CRATES {
            let found: Vec<String> = check(&root(), &layers).unwrap().iter().map(ToString::to_string).collect();
            assert!(found.is_empty(), "{}", found.join("\n"));
        }
    }

    #[test]
    fn paths_are_read_in_groups_and_over_lines() {
        assert_eq!(names("use crate::run::Run;\n", 1), ["run"]);
        assert_eq!(names("use crate::{\n    id::{RunId, Epoch},\n    time,\n};\nfn f() {}\n", 1), ["id", "time"]);
        assert_eq!(names("let a = crate::hex::hex(crate::id::X);\n", 1), ["hex", "id"]);
        assert_eq!(names("use super::super::store::Page;\n", 2), ["store"]);
        assert!(names("use super::store::Page;\n// crate::run\nuse xcrate::run;\n", 2).is_empty());
    }

    #[test]
    fn tests_are_not_read() {
        assert!(names("#[cfg(test)]\nmod tests {\n    use crate::testing::Clock;\n}\n", 1).is_empty());
    }

    #[test]
    fn edge_up_and_homeless_module_are_refused() {
        let root = tempfile("layers");
        let source = root.join("a/src/high");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(root.join("a/src/lib.rs"), "use crate::high;\n").unwrap();
        std::fs::write(root.join("a/src/low.rs"), "\nuse crate::high::deep::X;\n").unwrap();
        std::fs::write(source.join("deep.rs"), "use crate::low::Y;\n").unwrap();
        std::fs::write(root.join("a/src/other.rs"), "").unwrap();
        let order = &["low", "high"];
        let homeless = "a/src/other.rs:1: module `other` has no place in xtask/src/layers.rs";
        let up = "a/src/low.rs:2: `low` is below `high` and names it";
        let found = check(&root, &Layers { source: "a/src", order }).unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [up, homeless]);
        std::fs::remove_dir_all(&root).unwrap();
    }

    fn tempfile(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()))
    }
}
