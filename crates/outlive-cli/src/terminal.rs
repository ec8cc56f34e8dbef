//! Text for terminals: stored words made harmless, columns, and whether colour is wanted.

use std::io::IsTerminal;

/// A word from a record, with everything made visible that would move the cursor, change colours, or hide.
pub fn plain(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\u{1b}' => shown.push_str("\\e"),
            c if hidden(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// The text cut to `width` characters, with a mark where something is missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        text.into()
    } else {
        text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Rows under headings, each column as wide as it must be, the last one cut to what is left of `width`.
pub fn table(headings: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(widest).collect();
    let before_last: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    let line = |cells: Vec<&str>| {
        let mut line = String::new();
        for (index, cell) in cells.iter().enumerate() {
            if index + 1 == cells.len() {
                line.push_str(&cut(cell, width.saturating_sub(before_last).max(20)));
            } else {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', widths[index] + 2 - cell.chars().count()));
            }
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(headings.to_vec())];
    lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// The width of the terminal, or enough for everything where there is none.
pub fn width() -> usize {
    let unlimited = 1_000;
    if !std::io::stdout().is_terminal() {
        return unlimited;
    }
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(unlimited, |size| usize::from(size.ws_col).max(40))
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
    }

    #[test]
    fn columns_line_up_and_the_last_is_cut() {
        let rows = vec![vec!["1".into(), "short".into(), "x".repeat(50)], vec!["22".into(), "s".into(), "y".into()]];
        insta::assert_snapshot!(table(&["ID", "NAME", "REASON"], &rows, 40), @r"
        ID  NAME   REASON
        1   short  xxxxxxxxxxxxxxxxxxxxxxxxxxxx…
        22  s      y
        ");
    }
}
