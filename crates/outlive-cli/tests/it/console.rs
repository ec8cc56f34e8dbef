//! Sessions of the README and the docs: every `console` block is executed, and its output compared with what is printed here.
//!
//! The blocks of a page are one session of bash in a sandbox of its own, in their order. Ids, times, durations, pids, users
//! and paths are masked on both sides. A line `…` stands for any lines. `UPDATE_DOCS=1` writes the output of what differs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use crate::sandbox::{Sandbox, text};

/// What stands before a block of commands that are not executed, with the reason behind it.
const NOT_EXECUTED: &str = "<!-- not executed: ";
/// How long the sessions of one page may take, in seconds.
const PAGE_LIMIT: &str = "120";
/// Ends the output of a command.
const END: char = '\u{1e}';
/// What the sandbox's directories are called in the docs.
const PROJECT: &str = "/home/ada/project";

/// One command of a session, and where its output is in the page.
struct Step {
    command: String,
    expected: Vec<String>,
    /// The lines of the output in the page, from the first to the one behind the last.
    lines: std::ops::Range<usize>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and every page below `docs/`, but for decisions, which are not instructions.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut dirs = vec![root().join("docs")];
    while let Some(dir) = dirs.pop() {
        for path in std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() && !path.ends_with("adr") {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The commands of a page's `console` blocks: `$ ` begins one, `> ` continues it, the rest is output.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside {
            let continued = steps.last().is_some_and(|step| step.lines.is_empty() && step.lines.start == number);
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.into(), expected: Vec::new(), lines: number + 1..number + 1 });
            } else if let Some(more) = line.strip_prefix('>').filter(|_| continued) {
                let step = steps.last_mut().unwrap();
                step.command.push('\n');
                step.command.push_str(more.strip_prefix(' ').unwrap_or(more));
                step.lines = number + 1..number + 1;
            } else {
                let step = steps.last_mut().expect("a console block begins with a command");
                step.expected.push(line.into());
                step.lines.end = number + 1;
            }
        }
    }
    steps
}

/// Executes the commands in one shell, and answers what each wrote.
fn execute(steps: &[Step]) -> Vec<Vec<String>> {
    let sandbox = Sandbox::new();
    let copied = sandbox.command("cp", ["-r"]).arg(root().join("examples")).arg(sandbox.work()).status().unwrap();
    assert!(copied.success());
    let mut script = "exec 2>&1\n".to_owned();
    for step in steps {
        script.push_str(&step.command);
        // The next command may ask for the status of this one.
        script.push_str("\nstatus=$?; printf '\\036'; (exit $status)\n");
    }
    let path = sandbox.path().join("session");
    std::fs::write(&path, script).unwrap();
    let mut bash = sandbox.command("timeout", [PAGE_LIMIT, "bash"]);
    bash.arg(&path)
        .env("HOME", sandbox.path().join("user"))
        .env("NO_COLOR", "1")
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC");
    let output = bash.stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stdout)
        .replace(&sandbox.work().display().to_string(), PROJECT)
        .replace(&sandbox.home().display().to_string(), "/home/ada/.local/state/outlive")
        .replace(&sandbox.path().display().to_string(), "/home/ada");
    let mut outputs: Vec<Vec<String>> =
        said.split(END).map(|one| one.lines().map(|line| line.trim_end().to_owned()).collect()).collect();
    outputs.resize(steps.len(), vec!["(not executed: the session ended or took too long)".into()]);
    outputs
}

/// What differs between two machines or two moments, and what stands for it.
const MASKS: [(&str, &str); 11] = [
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "FULL-ID"),
    // As short as they are unique, which differs between two moments.
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{1,12}){0,3}\b", "ID"),
    (r"\b01[0-9a-f]{6}\b", "ID"),
    (r"\b\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?\b", "TIME"),
    (r"\b\d{2}:\d{2}(:\d{2})?\b", "TIME"),
    (r"[+]?\b\d+(\.\d+)?(ms|s|m|h|d)\b( \d+(ms|s|m|h)\b)*", "DURATION"),
    (r"\bpids? \d+(, \d+)*", "pid PID"),
    (r"\b[a-z_][a-z0-9_-]*@[a-zA-Z0-9.-]+", "USER@HOST"),
    (r"\bby [a-z_][a-z0-9_-]*(:|$)", "by USER$1"),
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    // Columns are as wide as what was in them.
    (r"  +", "  "),
];

/// A line under its masks.
fn masked(line: &str) -> String {
    static COMPILED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
        MASKS.iter().map(|(pattern, _)| RegexBuilder::new(pattern).unicode(false).build().unwrap()).collect()
    });
    let mut line = line.to_owned();
    for (pattern, (_, mask)) in COMPILED.iter().zip(MASKS) {
        line = pattern.replace_all(&line, mask).into_owned();
    }
    line.trim_end().into()
}

/// Whether the lines are equal under their masks, where `…` stands for any lines.
fn fits(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((line, rest)) if line == "…" => (0..=actual.len()).any(|skipped| fits(rest, &actual[skipped..])),
        Some((line, rest)) => {
            actual.split_first().is_some_and(|(found, others)| masked(line) == masked(found) && fits(rest, others))
        }
    }
}

/// What differs, as lines with `-` (in the page) and `+` (printed).
fn difference(step: &Step, actual: &[String]) -> String {
    let (old, new): (Vec<String>, Vec<String>) =
        (step.expected.iter().map(|l| masked(l)).collect(), actual.iter().map(|l| masked(l)).collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let lines =
        |sign: char, of: &[String]| of[same..].iter().map(|line| format!("  {sign}{line}\n")).collect::<String>();
    format!("  $ {}\n{}{}", step.command, lines('-', &old), lines('+', &new))
}

/// Checks one page, and answers what is wrong with it. With `UPDATE_DOCS` its output is written instead.
fn check(path: &Path) -> Vec<String> {
    let page = std::fs::read_to_string(path).unwrap();
    let steps = steps(&page);
    if steps.is_empty() {
        return Vec::new();
    }
    let outputs = execute(&steps);
    let wrong: Vec<(&Step, &Vec<String>)> =
        steps.iter().zip(&outputs).filter(|(step, actual)| !fits(&step.expected, actual)).collect();
    if std::env::var_os("UPDATE_DOCS").is_none() {
        return wrong.iter().map(|(step, actual)| difference(step, actual)).collect();
    }
    let mut lines: Vec<&str> = page.lines().collect();
    for (step, actual) in wrong.iter().rev() {
        lines.splice(step.lines.clone(), actual.iter().map(String::as_str));
    }
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
    Vec::new()
}

#[test]
fn console_sessions_of_the_docs_print_what_they_say() {
    let pages = pages();
    let found: Vec<(String, Vec<String>)> = std::thread::scope(|scope| {
        let checks: Vec<_> = pages.iter().map(|path| (path, scope.spawn(|| check(path)))).collect();
        let name = |path: &Path| path.strip_prefix(root()).unwrap_or(path).display().to_string();
        checks.into_iter().map(|(path, check)| (name(path), check.join().unwrap())).collect()
    });
    let wrong: String =
        found.iter().flat_map(|(page, wrong)| wrong.iter().map(move |one| format!("{page}\n{one}"))).collect();
    assert!(wrong.is_empty(), "sessions differ; UPDATE_DOCS=1 writes what was printed:\n{wrong}");
    let with_sessions = pages.iter().filter(|path| !steps(&std::fs::read_to_string(path).unwrap()).is_empty()).count();
    assert!(with_sessions >= 5, "only {with_sessions} pages have sessions");
}

#[test]
fn shell_blocks_of_the_docs_say_why_they_are_not_executed() {
    for path in pages() {
        let page = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = page.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| ["```sh", "```text"].contains(line)) {
            let before = number.checked_sub(1).map_or("", |before| lines[before]);
            assert!(before.starts_with(NOT_EXECUTED), "{}:{}: `{line}` without a reason", path.display(), number + 1);
        }
    }
}

#[test]
fn console_blocks_are_parsed_and_compared_under_masks() {
    let page =
        "```console\n$ cat <<E\n> a\n> E\na\n$ outlive ps\nID             RUN\n01a1ecb0-1abf  x  5s\n```\n$ not this\n";
    let steps = steps(page);
    assert_eq!(steps.iter().map(|step| step.command.as_str()).collect::<Vec<_>>(), ["cat <<E\na\nE", "outlive ps"]);
    assert_eq!((steps[0].lines.clone(), steps[1].lines.clone()), (4..5, 6..8));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits(&steps[1].expected, &lines("ID  RUN\n01a1ffff-0000  x  1.2s")));
    assert!(!fits(&steps[1].expected, &lines("ID  RUN\n01a1ffff-0000  y  1.2s")));
    let full = "ID  RUN\n01a1ecb0-1abf-77a3-b881-6e4b9b35f983  x  5s";
    assert!(fits(&lines(full), &lines(full)));
    assert!(!fits(&steps[1].expected, &lines(full)), "a full id is not a short one");
    assert!(fits(&lines("a\n…\nd"), &lines("a\nb\nc\nd")));
    assert!(!fits(&lines("a\n…\nd"), &lines("a\nb")));
    assert!(difference(&steps[1], &lines("ID  RUN\nother")).contains("  -ID  x  DURATION\n  +other\n"));
}
