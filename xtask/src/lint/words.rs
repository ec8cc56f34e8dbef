//! Words that leave open who acts or what happens, in what users and contributors read: pages and the snapshots of messages.
//!
//! `docs/glossary.md` has the words to use instead.

use std::io;
use std::path::{Path, PathBuf};

use super::book::BESIDE;
use crate::tidy::Violation;

/// The words.
const REFUSED: [&str; 6] = ["whoever", "nobody", "somebody", "goes on", "on record", "told"];
/// Where they are looked for, beside the pages of [`BESIDE`].
const PLACES: [&str; 2] = ["docs", "crates/outlive-cli/tests/it/snapshots"];
/// A file that may have them, because it quotes them.
const SPARED: [&str; 1] = ["0029-layers-and-words.md"];

/// Checks what users read of the repository at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut files = Vec::new();
    for place in BESIDE.into_iter().chain(PLACES) {
        gather(&root.join(place), &mut files)?;
    }
    files.sort();
    let mut violations = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(word) = REFUSED.iter().find(|word| has(line, word)) {
                let rule = format!("\"{word}\" leaves open what is meant: docs/glossary.md");
                violations.push(Violation::new(name, number, rule));
            }
        }
    }
    Ok(violations)
}

/// Adds the pages and snapshots at a path or below it.
fn gather(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            gather(&entry?.path(), files)?;
        }
    } else {
        let is_read = path.extension().is_some_and(|extension| extension == "md" || extension == "snap");
        let is_spared = SPARED.iter().any(|spared| path.ends_with(spared));
        files.extend((is_read && !is_spared).then(|| path.to_owned()));
    }
    Ok(())
}

/// Whether a line has a word, in any case, and not as a part of another.
fn has(line: &str, word: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_and_messages_have_no_refused_word() {
        let found = check(&crate::steps::root()).unwrap();
        assert_eq!(found, [], "{}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        assert!(has("Whoever waits", "whoever"));
        assert!(has("it goes on.", "goes on"));
        assert!(!has("`f_30_nobody_can_tell`", "nobody"));
        assert!(!has("a toldo", "told"));
    }
}
