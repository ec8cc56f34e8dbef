//! Patterns of file names, as shells have them: `*`, `?`, `[a-z]`, `[!a-z]`, and `**` for any directories between.
//!
//! Names are bytes, as they are to the kernel. A name that begins with a dot is matched by a pattern that does.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Whether a path has to be expanded.
pub fn is_pattern(path: &Path) -> bool {
    is_magic(path.as_os_str().as_bytes())
}

/// Whether a word has to be expanded.
pub fn is_magic(part: &[u8]) -> bool {
    part.iter().any(|byte| b"*?[".contains(byte))
}

/// The files that a pattern matches, in order.
pub fn files(pattern: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let bytes = pattern.as_os_str().as_bytes();
    let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    // Any directories below, and then any file.
    parts.extend((parts.last() == Some(&&b"**"[..])).then_some(&b"*"[..]));
    let base = PathBuf::from(if bytes.starts_with(b"/") { "/" } else { "" });
    let mut found = BTreeSet::new();
    walk(&base, &parts, &mut found)?;
    Ok(found)
}

fn walk(base: &Path, parts: &[&[u8]], found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let take = |path: PathBuf, found: &mut BTreeSet<PathBuf>| {
        if !rest.is_empty() {
            walk(&path, rest, found)
        } else {
            if path.is_file() {
                found.insert(path);
            }
            Ok(())
        }
    };
    if *part == b"**" {
        walk(base, rest, found)?;
        for name in names(base)?.iter().filter(|name| !name.starts_with(b".")) {
            let path = base.join(OsStr::from_bytes(name));
            // A link may lead in a circle.
            if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                walk(&path, parts, found)?;
            }
        }
        return Ok(());
    }
    if !is_magic(part) {
        return take(base.join(OsStr::from_bytes(part)), found);
    }
    for name in names(base)?.iter().filter(|name| name.starts_with(b".") == part.starts_with(b".")) {
        if fits(part, name) {
            take(base.join(OsStr::from_bytes(name)), found)?;
        }
    }
    Ok(())
}

/// What is in a directory; nothing where it is none.
fn names(dir: &Path) -> io::Result<Vec<Vec<u8>>> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().into_vec())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether a name fits a pattern. Where it does not, the last star takes one byte more: never more than length times
/// length.
pub fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut pos) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while pos < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, pos));
            at += 1;
        } else if let Some((length, taken)) = one(&pattern[at..], &name[pos..]) {
            at += length;
            pos += taken;
        } else if let Some((star_at, from)) = star {
            star = Some((star_at, from + 1));
            (at, pos) = (star_at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// How much of a pattern that is no star fits how much of the beginning of a name.
fn one(pattern: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    match pattern.first()? {
        // A character, not a part of one.
        b'?' => Some((1, 1 + name[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count())),
        b'[' => match class(&pattern[1..], name[0]) {
            Some((length, true)) => Some((1 + length, 1)),
            Some((_, false)) => None,
            // What does not end is what it looks like.
            None => (name[0] == b'[').then_some((1, 1)),
        },
        byte => (*byte == name[0]).then_some((1, 1)),
    }
}

/// How long a class is, with the bracket that ends it, and whether a byte is of it.
fn class(class: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(class.first(), Some(b'!' | b'^'));
    let from = usize::from(negated);
    // A bracket that comes first is one of the class.
    let end = from + 1 + class.get(from + 1..)?.iter().position(|byte| *byte == b']')?;
    let (mut members, mut found) = (&class[from..end], false);
    while let Some((first, rest)) = members.split_first() {
        match rest {
            [b'-', last, rest @ ..] => {
                found |= (*first..=*last).contains(&byte);
                members = rest;
            }
            rest => {
                found |= *first == byte;
                members = rest;
            }
        }
    }
    Some((end + 1, found != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, name) in [
            ("*", "a.c"),
            ("*.c", "a.c"),
            ("a*c", "abbc"),
            ("*a*b", "xxaxxb"),
            ("?.c", "é.c"),
            ("[a-c].c", "b.c"),
            ("[!a-c].c", "d.c"),
            ("[]].c", "].c"),
            ("[a", "[a"),
            ("a**", "a"),
        ] {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("*.c", "a.h"), ("?.c", "ab.c"), ("[a-c].c", "d.c"), ("[!a-c].c", "b.c"), ("a", "ab")] {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        let slow = format!("{}b", "*a".repeat(50));
        assert!(!fits(slow.as_bytes(), "a".repeat(5_000).as_bytes()));
    }

    #[test]
    fn files_are_found_at_any_depth_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.c", "a.c", "x/y/c.c", "x/d.h", ".hidden.c", "x/.git/e.c"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::os::unix::fs::symlink("..", dir.path().join("x/up")).unwrap();
        let found = |pattern: &str| -> Vec<String> {
            let found = files(&dir.path().join(pattern)).unwrap();
            let name = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
            found.iter().map(name).collect()
        };
        assert_eq!(found("*.c"), ["a.c", "b.c"]);
        assert_eq!(found("**/*.c"), ["a.c", "b.c", "x/y/c.c"]);
        assert_eq!(found("**"), ["a.c", "b.c", "x/d.h", "x/y/c.c"]);
        assert_eq!(found(".*.c"), [".hidden.c"]);
        assert_eq!(found("x/*/c.c"), ["x/y/c.c"]);
        assert_eq!(found("nowhere/*"), [""; 0]);
    }
}
