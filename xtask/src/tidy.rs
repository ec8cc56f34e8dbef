//! The house rules that a program can check: how long files and tests' names are, where clocks are read, what SQL may decide.
//!
//! A rule looks at one source file as text. It knows comments and test modules well enough for code that rustfmt has
//! formatted, which all of ours is.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Past this many lines of code a file is two things.
const FILE_LIMIT: usize = 500;
/// A `main.rs` says where to look, and nothing else.
const MAIN_LIMIT: usize = 20;
/// A test's name is `subject_condition_result`; a longer one is a paragraph.
const NAME_LIMIT: usize = 60;
/// Where tests are.
const TEST_SOURCES: [&str; 3] = ["crates", "xtask/src", "bench/src"];

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    path: PathBuf,
    line: usize,
    rule: String,
}

impl Violation {
    /// A line of a file, and the rule that it breaks.
    pub fn new(path: &Path, line: usize, rule: String) -> Self {
        Self { path: path.into(), line, rule }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.rule)
    }
}

/// Checks the sources of the crates and the benchmarks below `root`.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut sources = vec![root.join("bench/src")];
    for entry in std::fs::read_dir(root.join("crates"))? {
        sources.push(entry?.path().join("src"));
    }
    let mut files = Vec::new();
    for source in sources {
        gather(&source, &mut files)?;
    }
    files.sort();
    let mut violations = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path)?;
        violations.extend(look(path.strip_prefix(root).unwrap_or(&path), &text));
    }
    for (path, text) in test_sources(root)? {
        violations.extend(long_names(&path, &text));
    }
    Ok(violations)
}

/// The paths below `root` and the texts of all files that may have tests.
pub fn test_sources(root: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for source in TEST_SOURCES.map(|source| root.join(source)).iter().filter(|source| source.is_dir()) {
        gather(source, &mut files)?;
    }
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path)?;
        Ok((path.strip_prefix(root).unwrap_or(&path).to_owned(), text))
    };
    files.into_iter().map(read).collect()
}

/// The functions of a source file that are tests, or checks that every store is held to, with their lines.
pub fn test_names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_test = false;
    (1..).zip(text.lines().map(str::trim)).filter_map(move |(number, line)| {
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test") || line.contains("(ground: &dyn Ground)");
        let line = line.strip_prefix("pub(super) ").unwrap_or(line);
        let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?.split('(').next()?;
        std::mem::take(&mut is_test).then_some((number, name))
    })
}

/// The tests of a source file whose names are too long.
fn long_names(path: &Path, text: &str) -> Vec<Violation> {
    let long = test_names(text).filter(|(_, name)| name.len() > NAME_LIMIT);
    let rule = |name: &str| {
        format!(
            "`{name}` has {} characters; a test's name has at most {NAME_LIMIT}: subject_condition_result",
            name.len()
        )
    };
    long.map(|(line, name)| Violation::new(path, line, rule(name))).collect()
}

/// Adds the source files below a directory.
pub fn gather(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// What breaks a rule in one file.
fn look(path: &Path, text: &str) -> Vec<Violation> {
    let code: Vec<(usize, &str)> = code(text);
    let mut violations = Vec::new();
    let mut found = |line: usize, rule: &str| violations.push(Violation { path: path.into(), line, rule: rule.into() });
    if code.len() > FILE_LIMIT {
        found(code[FILE_LIMIT].0, &format!("{} lines of code; a file has at most {FILE_LIMIT}", code.len()));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let lines = text.lines().count();
    if name == "main.rs" && lines > MAIN_LIMIT {
        found(MAIN_LIMIT + 1, &format!("{lines} lines; a main.rs has at most {MAIN_LIMIT}"));
    }
    for (line, text) in &code {
        if name != "time.rs" && reads_clock(text) {
            found(*line, "only time.rs reads a clock");
        }
        if ["todo!", "unimplemented!"].iter().any(|unfinished| text.contains(unfinished)) {
            found(*line, "unfinished code");
        }
    }
    for line in cases_on_state(&code) {
        found(line, "SQL decides on a state; the rules live in lifecycle.rs");
    }
    violations
}

/// The lines that are code, by number: no blank lines, no comments, no test modules.
pub fn code(text: &str) -> Vec<(usize, &str)> {
    let mut code = Vec::new();
    let mut lines = text.lines().zip(1..).peekable();
    while let Some((line, number)) = lines.next() {
        let begins_tests = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().map(|(next, _)| next).is_some_and(begins_tests) {
            for (line, _) in lines.by_ref() {
                if line == "}" {
                    break;
                }
            }
            continue;
        }
        let trimmed = line.trim();
        if !trimmed.is_empty() && !trimmed.starts_with("//") {
            code.push((number, line));
        }
    }
    code
}

fn reads_clock(line: &str) -> bool {
    ["SystemTime::now", "Instant::now", "clock_gettime", "jiff::Timestamp::now"].iter().any(|read| line.contains(read))
}

/// Where a `CASE … WHEN … END` of SQL begins that names a state.
fn cases_on_state(code: &[(usize, &str)]) -> Vec<usize> {
    let words = |line: &str| -> Vec<String> {
        line.split(|c: char| !(c.is_alphanumeric() || c == '_')).map(str::to_ascii_lowercase).collect()
    };
    let mut places = Vec::new();
    // The line of a `CASE` that is open, whether a `WHEN` has followed, and whether it names a state.
    let mut open: Option<(usize, bool, bool)> = None;
    for (number, line) in code {
        let keywords = line.split(|c: char| !c.is_ascii_uppercase()).any(|word| word == "CASE");
        for word in words(line) {
            match (word.as_str(), &mut open) {
                ("case", None) if keywords => open = Some((*number, false, false)),
                ("when", Some((_, when, _))) => *when = true,
                ("state", Some((_, _, state))) => *state = true,
                ("end", Some((line, when, state))) => {
                    if *when && *state {
                        places.push(*line);
                    }
                    open = None;
                }
                _ => {}
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, text: &str) -> Vec<(usize, String)> {
        look(Path::new(name), text).into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    fn one(name: &str, text: &str) -> (usize, String) {
        let mut found = rules(name, text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_file_has_a_longest_length_in_code_alone() {
        let code = "let a = 1;\n".repeat(FILE_LIMIT);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    assert!(true);\n".repeat(100));
        assert_eq!(rules("long.rs", &format!("//! Docs.\n\n{code}    // Why.\n{tests}")), []);
        let (line, rule) = one("long.rs", &format!("//! Docs.\n{tests}{code}let b = 2;\n"));
        assert_eq!(line, 1 + 103 + FILE_LIMIT + 1);
        assert!(rule.contains("501 lines of code"), "{rule}");
    }

    #[test]
    fn a_main_is_short_comments_included() {
        let (short, long) = ("// x\n".repeat(MAIN_LIMIT), "// x\n".repeat(MAIN_LIMIT + 1));
        assert_eq!(rules("src/main.rs", &short), []);
        assert_eq!(rules("src/other.rs", &long), []);
        assert_eq!(one("src/main.rs", &long).0, MAIN_LIMIT + 1);
    }

    #[test]
    fn clocks_are_read_in_one_place() {
        for read in ["Instant::now()", "std::time::SystemTime::now()", "rustix::time::clock_gettime(id)"] {
            let text = format!("fn f() {{\n    let now = {read};\n}}\n");
            assert_eq!(one("src/run.rs", &text), (2, "only time.rs reads a clock".into()));
            assert_eq!(rules("src/time.rs", &text), []);
            assert_eq!(rules("src/run.rs", &format!("// Never {read}.\n")), []);
        }
    }

    #[test]
    fn sql_decides_on_no_state() {
        let rule = "SQL decides on a state; the rules live in lifecycle.rs";
        assert_eq!(
            one("a.rs", "let x;\nlet sql = \"SELECT CASE WHEN state = 'dead' THEN 1 END\";\n"),
            (2, rule.into())
        );
        assert_eq!(one("a.rs", "\"UPDATE runs SET x = CASE state\n    WHEN 'dead' THEN 1 END\"\n"), (1, rule.into()));
        assert_eq!(rules("a.rs", "\"SELECT CASE WHEN name IS NULL THEN 1 END FROM runs WHERE state = ?\"\n"), []);
        assert_eq!(
            rules("a.rs", "// In no case, when the state is at its end.\nfn case(when: u8, state: u8, end: u8) {}\n"),
            []
        );
    }

    #[test]
    fn test_name_has_a_longest_length_and_helpers_have_none() {
        let (short, long) = ("a".repeat(NAME_LIMIT), "b".repeat(NAME_LIMIT + 1));
        let text =
            format!("#[test]\nfn {short}() {{}}\n#[test]\n#[cfg(unix)]\nfn {long}() {{}}\nfn {long}_helper() {{}}\n");
        let found: Vec<String> = long_names(Path::new("a.rs"), &text).iter().map(ToString::to_string).collect();
        let rule = "has 61 characters; a test's name has at most 60: subject_condition_result";
        assert_eq!(found, [format!("a.rs:5: `{long}` {rule}")]);
    }

    #[test]
    fn nothing_is_left_unfinished() {
        assert_eq!(one("a.rs", "fn f() {\n    todo!()\n}\n"), (2, "unfinished code".into()));
        assert_eq!(one("a.rs", "fn f() {\n    unimplemented!(\"x\")\n}\n").0, 2);
    }

    #[test]
    fn repository_keeps_the_house_rules() {
        let found = check(&crate::steps::root()).unwrap();
        assert_eq!(found, [], "{}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    #[test]
    fn violations_are_named_by_file_and_line_below_the_root() {
        let root = std::env::temp_dir().join(format!("xtask-tidy-{}", std::process::id()));
        let planted = root.join("crates/planted/src/deep");
        std::fs::create_dir_all(&planted).unwrap();
        std::fs::create_dir_all(root.join("bench/src")).unwrap();
        std::fs::write(planted.join("bad.rs"), "fn f() {\n    todo!()\n}\n").unwrap();
        let found = check(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["crates/planted/src/deep/bad.rs:2: unfinished code"]);
    }
}
