//! What people see: text made harmless, quoted, measured and cut; tables; the view of a run; printing.
//!
//! stdout is data, stderr is talk.

pub mod invisible;
pub mod progress;
pub mod run_view;
pub mod table;
pub mod typed;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{IsTerminal, Write};

use unicode_width::UnicodeWidthChar;

use self::invisible::{is_invisible, selects_variant};

/// How many characters may combine with one letter: no language needs more, and a heap of them hides other lines.
const COMBINED: usize = 4;
/// In fewer columns than this nothing lines up.
const NARROWEST: usize = 40;

/// Prints a message for people, to standard error.
pub fn talk(text: &str) {
    // A failure to report a failure is ignored.
    progress::suspend(|| _ = std::io::stderr().write_all(text.as_bytes()));
}

/// Prints a line of data, to standard output.
pub fn say_line(line: &str) {
    // A reader that has seen enough has closed the pipe; that is no failure of ours.
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// Whether a character would move the cursor, change colours, or hide.
fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Whether a character of a command cannot be seen: hidden, one that selects a variant, or a space that
/// no shell takes for one.
fn is_deceptive(c: char) -> bool {
    is_hidden(c)
        || selects_variant(c)
        || matches!(c, '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}')
}

/// A word from a record, with everything made visible that would move the cursor, change colours, or hide.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut combined = 0;
    for c in text.chars() {
        let combines = !c.is_ascii() && c.width() == Some(0);
        combined = if combines { combined + 1 } else { 0 };
        match c {
            c if combined > COMBINED => shown.extend(c.escape_unicode()),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\u{1b}' => shown.push_str("\\e"),
            c if is_hidden(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// A word as a shell must be given it: pasted, it is the same word again. Harmless on a terminal, whatever it holds.
pub fn quote(word: &[u8]) -> Cow<'_, str> {
    let is_bare = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    match std::str::from_utf8(word) {
        Ok(text) if text.chars().any(is_deceptive) => escape(word).into(),
        Ok(text) if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_bare) => text.into(),
        Ok(text) => format!("'{}'", text.replace('\'', r"'\''")).into(),
        Err(_) => escape(word).into(),
    }
}

/// So many of something: `1 run`, `2 runs`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    format!("{count} {what}{}", if count == N::from(1) { "" } else { "s" })
}

/// The words of a command as a shell must be given them.
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> String {
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// A word with everything in octal that is not plain ASCII.
fn escape(word: &[u8]) -> String {
    let mut quoted = String::from("$'");
    for byte in word {
        match byte {
            b'\'' | b'\\' => quoted.extend(['\\', char::from(*byte)]),
            b'\n' => quoted.push_str("\\n"),
            b'\t' => quoted.push_str("\\t"),
            b' '..=b'~' => quoted.push(char::from(*byte)),
            byte => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted + "'"
}

/// How many columns a text takes: two for a wide character, none for one that combines with the last.
pub fn columns(text: &str) -> usize {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.len();
    }
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The text cut to so many columns, with a mark where something is missing.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return text.into();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let takes = c.width().unwrap_or(0);
        let fits = takes <= left;
        left = left.saturating_sub(takes);
        fits
    };
    text.chars().take_while(fits).chain((width > 0).then_some('…')).collect()
}

/// How an answer may look where it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// A person reads it as it is, not a program or a file.
    pub on_terminal: bool,
    /// In how many columns.
    pub width: usize,
    /// In colour.
    pub colour: bool,
}

impl Look {
    /// The look of standard output.
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        let on_terminal = stdout.is_terminal();
        let size = rustix::termios::tcgetwinsize(&stdout).ok().filter(|size| on_terminal && size.ws_col > 0);
        Self {
            on_terminal,
            width: size.map_or(usize::MAX, |size| usize::from(size.ws_col).max(NARROWEST)),
            colour: wants_colour(on_terminal, |name| std::env::var(name).ok()),
        }
    }
}

/// Whether to use colour: on a terminal that can, unless `NO_COLOR` or `CLICOLOR=0` says no; elsewhere only if
/// `CLICOLOR_FORCE` says so.
fn wants_colour(on_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let forced = variable("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0");
    let dumb = variable("TERM").is_none_or(|term| term == "dumb");
    let refused = variable("CLICOLOR").is_some_and(|value| value == "0");
    !set("NO_COLOR") && (forced || on_terminal && !dumb && !refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_11_nothing_that_a_terminal_acts_on_survives() {
        let hostile = "a\x1b[2Jb\x1b]0;title\x07\rc\u{9b}31m\0\u{202e}evil\u{200b}\u{e0041}\n\td";
        let shown = plain(hostile);
        insta::assert_snapshot!(shown, @r"a\e[2Jb\e]0;title\u{7}\u{d}c\u{9b}31m\u{0}\u{202e}evil\u{200b}\u{e0041}\n\td");
        assert!(shown.chars().all(|c| !c.is_control()));
        assert!(quote(hostile.as_bytes()).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }

    #[test]
    fn s_12_a_line_is_as_wide_as_it_seems_and_in_the_order_it_seems() {
        let corpus = [
            "ok\u{2066}\u{202e}dedeeccus\u{2069}".to_owned(),
            "\u{200f}\u{61c}x\u{2067}y".into(),
            format!("z{}", "\u{335}\u{489}".repeat(500)),
            "漢字かな交じり文の長い名前".into(),
            "ｆｕｌｌｗｉｄｔｈ".into(),
            "👩‍👩‍👧‍👦 family".into(),
            "e\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}".into(),
            "a\u{3164}\u{115f}b".into(),
            "\u{1f1e6}\u{1f1e7}".repeat(9),
        ];
        for text in corpus {
            let shown = plain(&text);
            let orders = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            assert!(!shown.chars().any(orders), "{shown:?} is shown in another order than it is stored");
            let cell = cut(&shown, 20);
            assert!(columns(&cell) <= 20, "{cell:?} is wider than its cell");
            let mut heap = 0;
            for c in shown.chars() {
                heap = if c.width() == Some(0) { heap + 1 } else { 0 };
                assert!(heap <= COMBINED, "{shown:?} grows over other lines");
            }
        }
    }

    #[test]
    fn t8_09_a_quoted_word_hides_nothing() {
        let invisible = [
            '\u{34f}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{180b}',
            '\u{200b}',
            '\u{200d}',
            '\u{2060}',
            '\u{2800}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{1d173}',
            '\u{e0100}',
            '\u{a0}',
        ];
        for c in invisible {
            let word = format!("rm{c}x");
            let quoted = quote(word.as_bytes()).into_owned();
            assert!(quoted.starts_with("$'") && !quoted.contains(c), "U+{:04X}: {quoted}", u32::from(c));
        }
        assert_eq!(quote("größe".as_bytes()), "größe");
        assert_eq!(quote("e\u{301}".as_bytes()), "'e\u{301}'");
    }

    #[test]
    fn a_quoted_word_pasted_into_a_shell_is_the_same_word() {
        let words: [&[u8]; 12] = [
            b"plain",
            b"",
            b"two words",
            b"it's",
            b"$HOME `id` \"x\" !! * ~",
            b"=ls",
            b"-n",
            "größe 漢字".as_bytes(),
            b"line\nbreak\ttab",
            b"\x1b]0;title\x07'\\",
            b"\xff\xfe1",
            "\u{202e}evil".as_bytes(),
        ];
        let script = format!("printf '%s\\0' {}", command_line(words));
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let back: Vec<&[u8]> = output.stdout.strip_suffix(b"\0").unwrap().split(|byte| *byte == 0).collect();
        assert_eq!(back, words, "{script}");
        assert_eq!(quote(b"--label=team:a/b"), "--label=team:a/b");
    }

    #[test]
    fn texts_are_cut_by_the_columns_they_take() {
        assert_eq!(columns("abc漢字e\u{301}"), 8);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6].map(|width| cut("漢字漢", width)),
            ["", "…", "…", "漢…", "漢…", "漢字…", "漢字漢"]
        );
        // What combines with a letter stays with it.
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        let wants = |on_terminal, variables: &[(&str, &str)]| {
            let variable = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).into());
            wants_colour(on_terminal, variable)
        };
        let xterm = ("TERM", "xterm");
        assert!(wants(true, &[xterm]) && wants(true, &[xterm, ("NO_COLOR", "")]));
        assert!(!wants(false, &[xterm]) && !wants(true, &[]) && !wants(true, &[("TERM", "dumb")]));
        assert!(wants(false, &[("CLICOLOR_FORCE", "1")]) && !wants(false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!wants(true, &[xterm, ("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]));
        assert!(!wants(true, &[xterm, ("CLICOLOR", "0")]) && wants(true, &[xterm, ("CLICOLOR", "1")]));
        assert!(wants(true, &[xterm, ("CLICOLOR", "0"), ("CLICOLOR_FORCE", "1")]));
    }
}
