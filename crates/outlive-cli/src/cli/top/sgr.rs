//! Output as a terminal shows it, made harmless: colours and weights are kept, all other escape sequences are dropped.
//!
//! A line that draws over itself is shown as it was drawn last. Text that is concealed is shown.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::ui::plain;

/// The eight colours of a terminal.
const COLOURS: [Color; 8] =
    [Color::Black, Color::Red, Color::Green, Color::Yellow, Color::Blue, Color::Magenta, Color::Cyan, Color::Gray];
/// Their bright forms.
const BRIGHT: [Color; 8] = [
    Color::DarkGray,
    Color::LightRed,
    Color::LightGreen,
    Color::LightYellow,
    Color::LightBlue,
    Color::LightMagenta,
    Color::LightCyan,
    Color::White,
];

/// A line of output. What `search` matches in its text is marked.
pub fn line(text: &str, search: &str) -> Line<'static> {
    let mut spans: Vec<(String, Style)> = Vec::new();
    let (mut style, mut run) = (Style::new(), String::new());
    let mut rest = text.trim_end_matches('\r').chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                flush(&mut spans, &mut run, style);
                if let Some(parameters) = sequence(&mut rest) {
                    style = changed(style, &parameters);
                }
            }
            '\r' => {
                spans.clear();
                run.clear();
            }
            c => run.push(c),
        }
    }
    flush(&mut spans, &mut run, style);
    let whole: String = spans.iter().map(|(text, _)| text.as_str()).collect();
    let is_found = !search.is_empty() && whole.to_lowercase().contains(&search.to_lowercase());
    let marked = if is_found { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    Line::from(spans.into_iter().map(|(text, style)| Span::styled(text, style.patch(marked))).collect::<Vec<_>>())
}

fn flush(spans: &mut Vec<(String, Style)>, run: &mut String, style: Style) {
    if !run.is_empty() {
        spans.push((plain(&run.replace('\t', "    ")), style));
        run.clear();
    }
}

/// Reads a sequence to its end. Answers with its parameters where it changes how text looks.
fn sequence(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    match rest.next() {
        Some('[') => {
            let mut parameters = String::new();
            for c in rest.by_ref() {
                match c {
                    '0'..='9' | ';' | ':' => parameters.push(c),
                    'm' => return Some(parameters),
                    '@'..='~' => return None,
                    _ => {}
                }
            }
            None
        }
        Some(']' | 'P' | '_' | '^' | 'X') => {
            while let Some(c) = rest.next() {
                if c == '\u{7}' || c == '\u{1b}' && rest.next_if_eq(&'\\').is_some() {
                    break;
                }
            }
            None
        }
        // One that selects a set of characters has one more.
        Some('(' | ')' | '*' | '+' | '#' | '%') => {
            rest.next();
            None
        }
        _ => None,
    }
}

fn changed(mut style: Style, parameters: &str) -> Style {
    let mut numbers = parameters.split([';', ':']).map(|number| number.parse::<u16>().unwrap_or(0));
    while let Some(number) = numbers.next() {
        style = match number {
            0 => Style::new(),
            1 => style.add_modifier(Modifier::BOLD),
            2 => style.add_modifier(Modifier::DIM),
            3 => style.add_modifier(Modifier::ITALIC),
            4 => style.add_modifier(Modifier::UNDERLINED),
            7 => style.add_modifier(Modifier::REVERSED),
            9 => style.add_modifier(Modifier::CROSSED_OUT),
            22 => style.remove_modifier(Modifier::BOLD | Modifier::DIM),
            23 => style.remove_modifier(Modifier::ITALIC),
            24 => style.remove_modifier(Modifier::UNDERLINED),
            27 => style.remove_modifier(Modifier::REVERSED),
            29 => style.remove_modifier(Modifier::CROSSED_OUT),
            30..=37 => style.fg(COLOURS[usize::from(number - 30)]),
            90..=97 => style.fg(BRIGHT[usize::from(number - 90)]),
            40..=47 => style.bg(COLOURS[usize::from(number - 40)]),
            100..=107 => style.bg(BRIGHT[usize::from(number - 100)]),
            39 => style.fg(Color::Reset),
            49 => style.bg(Color::Reset),
            38 | 48 => match colour(&mut numbers) {
                Some(colour) if number == 38 => style.fg(colour),
                Some(colour) => style.bg(colour),
                None => style,
            },
            _ => style,
        };
    }
    style
}

/// A colour of the palette or of red, green and blue.
fn colour(numbers: &mut impl Iterator<Item = u16>) -> Option<Color> {
    let mut part = || numbers.next().and_then(|number| u8::try_from(number).ok());
    match part()? {
        5 => Some(Color::Indexed(part()?)),
        2 => Some(Color::Rgb(part()?, part()?, part()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(String, Style)> {
        line(text, "").spans.into_iter().map(|span| (span.content.into_owned(), span.style)).collect()
    }

    #[test]
    fn colours_are_kept_and_every_other_sequence_is_dropped() {
        let red = Style::new().fg(Color::Red);
        assert_eq!(
            shown("a\u{1b}[31mred\u{1b}[0m b"),
            [("a".into(), Style::new()), ("red".into(), red), (" b".into(), Style::new())]
        );
        assert_eq!(shown("\u{1b}[1;38;5;9mx")[0].1, Style::new().fg(Color::Indexed(9)).add_modifier(Modifier::BOLD));
        assert_eq!(shown("\u{1b}[48;2;1;2;3mx")[0].1, Style::new().bg(Color::Rgb(1, 2, 3)));
        for hostile in
            ["\u{1b}]0;title\u{7}x", "\u{1b}[2Jx", "\u{1b}[?1049hx", "\u{1b}(0x", "\u{1b}]8;;u\u{1b}\\x", "\u{1b}[8mx"]
        {
            assert_eq!(shown(hostile), [("x".into(), Style::new())], "{hostile:?}");
        }
        for cut in ["\u{1b}", "\u{1b}[", "\u{1b}[31", "\u{1b}]0;never", "\u{1b}["] {
            assert_eq!(shown(cut), [], "{cut:?}");
        }
    }

    #[test]
    fn a_line_that_draws_over_itself_is_shown_as_it_was_last() {
        assert_eq!(shown("10%\r50%\r100%\r")[0].0, "100%");
        assert_eq!(shown("windows\r")[0].0, "windows");
    }

    #[test]
    fn what_is_searched_for_is_marked_in_any_case() {
        let found = line("an ERROR", "error");
        assert!(found.spans[0].style.add_modifier.contains(Modifier::REVERSED));
        assert!(!line("fine", "error").spans[0].style.add_modifier.contains(Modifier::REVERSED));
    }
}
