//! The book of `docs/`: built without a warning, with every page in its summary and every link leading somewhere.
//!
//! mdBook does not look at links. A page of the book links to pages of the book or to the web: what is elsewhere in the
//! repository is not published with it. Every decision has a status, a date and a row in the list of decisions.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::steps::{Failed, root};
use crate::tidy::Violation;

/// Where `cargo xtask setup` installs it.
const MDBOOK: &str = "target/python/bin/mdbook";
/// The pages of the book.
const DOCS: &str = "docs";
/// The decisions, and the page that lists them.
const DECISIONS: &str = "docs/adr";
const DECISION_LIST: &str = "docs/adr/README.md";
/// Pages beside the book whose links are checked too.
pub const BESIDE: [&str; 7] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "RELEASING.md",
    "SECURITY.md",
    "bench/README.md",
];

/// Builds the book.
pub fn build() -> Result<(), Failed> {
    println!("$ mdbook build");
    let output = Command::new(root().join(MDBOOK)).arg("build").current_dir(root()).output();
    let output =
        output.map_err(|error| Failed(format!("`{MDBOOK}` cannot be called: {error}; `cargo xtask setup`")))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && !said.contains("WARN") && !said.contains("ERROR") {
        return Ok(());
    }
    println!("{said}");
    Err(Failed(format!("`mdbook build` ended with {} or warned", output.status)))
}

/// Checks the links of all pages, and that the summary has each page of the book.
pub fn check(root: &Path) -> io::Result<Vec<Violation>> {
    let mut book = Vec::new();
    pages(&root.join(DOCS), &mut book)?;
    let beside = BESIDE.iter().map(|page| root.join(page)).filter(|page| page.is_file());
    let mut violations = Vec::new();
    for path in book.iter().cloned().chain(beside) {
        let text = std::fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path);
        for (line, link) in links(&text) {
            if let Some(rule) = wrong(root, &path, link) {
                violations.push(Violation::new(name, line, rule));
            }
        }
    }
    let summary = root.join(DOCS).join("SUMMARY.md");
    let text = std::fs::read_to_string(&summary)?;
    let listed: BTreeSet<PathBuf> = links(&text).map(|(_, link)| root.join(DOCS).join(link)).collect();
    for page in book.iter().filter(|page| **page != summary && !listed.contains(*page)) {
        let name = page.strip_prefix(root).unwrap_or(page);
        violations.push(Violation::new(name, 1, format!("{DOCS}/SUMMARY.md does not list this page")));
    }
    violations.extend(decisions(root)?);
    Ok(violations)
}

/// Checks that every decision has a number, a status and a date, and a row with that date in the list; and that the list
/// names the numbers that no decision has.
fn decisions(root: &Path) -> io::Result<Vec<Violation>> {
    let list = root.join(DECISION_LIST);
    if !list.is_file() {
        return Ok(Vec::new());
    }
    let list = std::fs::read_to_string(list)?;
    let (mut files, mut violations, mut numbers) = (Vec::new(), Vec::new(), BTreeSet::new());
    pages(&root.join(DECISIONS), &mut files)?;
    for path in files.iter().filter(|path| !path.ends_with("README.md")) {
        let mut wrong = |line, rule: String| {
            violations.push(Violation::new(path.strip_prefix(root).unwrap_or(path), line, rule));
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = name.get(..4).filter(|number| number.bytes().all(|digit| digit.is_ascii_digit())) else {
            wrong(1, "the name of a decision begins with its number of four digits".into());
            continue;
        };
        numbers.extend(number.parse::<usize>());
        let text = std::fs::read_to_string(path)?;
        if !text.starts_with(&format!("# {number}. ")) {
            wrong(1, format!("the heading of a decision is `# {number}. Title`"));
        }
        let Some(date) = decided(text.lines().nth(2).unwrap_or_default()) else {
            wrong(3, "the third line of a decision is `Status: …. Date: YYYY-MM-DD.`".into());
            continue;
        };
        let has_row = |line: &str| line.starts_with(&format!("| [{number}]({name}) | ")) && line.contains(date);
        if !list.lines().any(has_row) {
            wrong(1, format!("{DECISION_LIST} has no row `| [{number}]({name}) | … | {date} |`"));
        }
    }
    let unused = (1..numbers.last().copied().unwrap_or(0)).filter(|number| !numbers.contains(number));
    for number in unused.filter(|number| !prose(&list).any(|(_, line)| line.contains(&format!("{number:04}")))) {
        violations.push(Violation::new(Path::new(DECISION_LIST), 1, format!("{number:04} has no page and no mention")));
    }
    Ok(violations)
}

/// The date of a decision's status line.
fn decided(line: &str) -> Option<&str> {
    let (status, date) = line.strip_prefix("Status: ")?.split_once(". Date: ")?;
    let date = date.strip_suffix('.')?;
    let is_date = date.len() == 10 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (!status.is_empty() && is_date).then_some(date)
}

/// Adds the pages below a directory.
fn pages(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            pages(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// The lines of a page that are not inside a fenced block, by number.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Where the links and images of a page lead, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.map(move |target| (number, target))
    })
}

/// What is wrong with a link of a page, if anything.
fn wrong(root: &Path, page: &Path, link: &str) -> Option<String> {
    if link.starts_with("https://") || link.starts_with("http://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { plain(&page.parent()?.join(file)) };
    let docs = root.join(DOCS);
    if page.starts_with(&docs) && !target.starts_with(&docs) {
        return Some(format!("`{link}` leads out of the book"));
    }
    if !target.exists() {
        return Some(format!("`{link}` leads nowhere"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string(&target).unwrap_or_default();
    let found = prose(&text).any(|(_, line)| line.starts_with('#') && slug(line) == anchor);
    (!found).then(|| format!("`{link}`: no such heading"))
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The anchor of a heading, as mdBook and forges make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_repository_lead_somewhere() {
        let found = check(&root()).unwrap();
        assert_eq!(found, [], "{}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    #[test]
    fn wrong_links_and_unlisted_pages_are_refused() {
        let root = std::env::temp_dir().join(format!("xtask-book-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs/deep")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        write("README.md", "[docs](docs/a.md#what-it-is), [gone](docs/gone.md)\n");
        write("docs/SUMMARY.md", "- [A](a.md)\n");
        write(
            "docs/a.md",
            "# What `it` is\n[b](deep/b.md) [web](https://example.org) [here](#nothing)\n```\n[c](c.md)\n```\n",
        );
        write("docs/deep/b.md", "[up](../a.md#what-it-is) [out](../../README.md)\n");
        let found: Vec<String> = check(&root).unwrap().iter().map(ToString::to_string).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            [
                "docs/a.md:2: `#nothing`: no such heading",
                "docs/deep/b.md:1: `../../README.md` leads out of the book",
                "README.md:1: `docs/gone.md` leads nowhere",
                "docs/deep/b.md:1: docs/SUMMARY.md does not list this page",
            ]
        );
    }
    #[test]
    fn decision_without_row_status_or_number_is_refused() {
        let root = std::env::temp_dir().join(format!("xtask-decisions-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs/adr")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join("docs/adr").join(name), text).unwrap();
        write("README.md", "0003 was never used.\n\n| [0001](0001-a.md) | A | 2026-11-16 |\n");
        write("0001-a.md", "# 0001. A\n\nStatus: accepted. Date: 2026-11-16.\n");
        write("0002-b.md", "# 2. B\n\nStatus: accepted. Date: 2026-11-17.\n");
        write("0005-c.md", "# 0005. C\n\nAccepted.\n");
        write("d.md", "# D\n");
        let found: Vec<String> = decisions(&root).unwrap().iter().map(ToString::to_string).collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            found,
            [
                "docs/adr/0002-b.md:1: the heading of a decision is `# 0002. Title`",
                "docs/adr/0002-b.md:1: docs/adr/README.md has no row `| [0002](0002-b.md) | … | 2026-11-17 |`",
                "docs/adr/0005-c.md:3: the third line of a decision is `Status: …. Date: YYYY-MM-DD.`",
                "docs/adr/d.md:1: the name of a decision begins with its number of four digits",
                "docs/adr/README.md:1: 0004 has no page and no mention",
            ]
        );
    }
}
