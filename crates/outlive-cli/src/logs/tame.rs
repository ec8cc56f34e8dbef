//! Output of strangers on a terminal: colours pass, and what redraws a line; what would move the cursor elsewhere, set
//! titles or hide is made visible.

use crate::ui::plain;

/// The longest sequence that sets colours; what is longer sets none.
const LONGEST: usize = 64;
const RESET: &str = "\u{1b}[0m";

/// Makes a stream harmless, piece by piece.
#[derive(Debug, Default)]
pub struct Tame {
    /// The beginning of something whose end is in the next piece.
    held: Vec<u8>,
    /// Colours may be on.
    coloured: bool,
}

enum Sequence {
    /// So many bytes are shown like this.
    Shown(usize, String),
    /// So many bytes set colours.
    Colours(usize),
    /// It is unknown before more is there.
    Incomplete,
}

impl Tame {
    /// The next piece, made harmless.
    pub fn next(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let mut shown = String::with_capacity(held.len());
        let mut rest = held.as_slice();
        while !rest.is_empty() {
            let text = rest.iter().take_while(|byte| matches!(byte, b'\n' | b'\t' | 0x20..=0x7e)).count();
            shown.extend(rest[..text].iter().map(|byte| char::from(*byte)));
            rest = &rest[text..];
            match look(rest) {
                Sequence::Shown(length, text) => {
                    shown.push_str(&text);
                    rest = &rest[length..];
                }
                Sequence::Colours(length) => {
                    shown.push_str(&String::from_utf8_lossy(&rest[..length]));
                    self.coloured = true;
                    rest = &rest[length..];
                }
                Sequence::Incomplete => {
                    self.held = rest.to_vec();
                    break;
                }
            }
        }
        shown
    }

    /// What is left, and the terminal's own colours again.
    pub fn end(&mut self) -> String {
        let mut shown = match std::mem::take(&mut self.held).as_slice() {
            [] | b"\r" => String::new(),
            [0x1b, rest @ ..] => format!("\\e{}", String::from_utf8_lossy(rest)),
            bytes => bytes.iter().map(hexadecimal).collect(),
        };
        if std::mem::take(&mut self.coloured) {
            shown.push_str(RESET);
        }
        shown
    }
}

fn hexadecimal(byte: &u8) -> String {
    format!("\\x{byte:02x}")
}

/// Whether the parameters of a sequence that sets colours hide the text that follows. The `8` of `38;5;8` is a colour.
fn conceals(parameters: &[u8]) -> bool {
    let mut codes = parameters.split(|byte| matches!(byte, b';' | b':'));
    while let Some(code) = codes.next() {
        match code {
            b"38" | b"48" | b"58" => {
                let left = match codes.next() {
                    Some(b"5") => 1,
                    Some(b"2") => 3,
                    _ => 0,
                };
                codes.by_ref().take(left).for_each(drop);
            }
            code => {
                if std::str::from_utf8(code).is_ok_and(|code| code.trim_start_matches('0') == "8") {
                    return true;
                }
            }
        }
    }
    false
}

/// What the bytes begin with, none of which is plain text.
fn look(bytes: &[u8]) -> Sequence {
    match bytes {
        [] | b"\r" => Sequence::Incomplete,
        [b'\r', b'\n', ..] => Sequence::Shown(2, "\n".into()),
        // A bar of progress draws its line again.
        [b'\r', ..] => Sequence::Shown(1, "\r".into()),
        [0x1b, rest @ ..] => match rest.split_first() {
            None => Sequence::Incomplete,
            Some((b'[', rest)) => {
                let parameters = rest.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')).count();
                match rest.get(parameters) {
                    Some(b'm') if parameters < LONGEST && !conceals(&rest[..parameters]) => {
                        Sequence::Colours(parameters + 3)
                    }
                    // Erases within the line, as bars of progress do before they draw it again.
                    Some(b'K') if matches!(&rest[..parameters], [] | [b'0'..=b'2']) => {
                        let text = format!("\u{1b}[{}K", String::from_utf8_lossy(&rest[..parameters]));
                        Sequence::Shown(parameters + 3, text)
                    }
                    None if parameters < LONGEST => Sequence::Incomplete,
                    _ => Sequence::Shown(1, "\\e".into()),
                }
            }
            Some(_) => Sequence::Shown(1, "\\e".into()),
        },
        [byte, ..] if byte.is_ascii() => Sequence::Shown(1, plain(&char::from(*byte).to_string())),
        _ => {
            let few = &bytes[..bytes.len().min(4)];
            let (valid, error) = match std::str::from_utf8(few) {
                Ok(text) => (text, None),
                Err(error) => (std::str::from_utf8(&few[..error.valid_up_to()]).unwrap_or_default(), error.error_len()),
            };
            match valid.chars().next() {
                Some(c) => Sequence::Shown(c.len_utf8(), plain(&c.to_string())),
                None if error.is_none() => Sequence::Incomplete,
                None => Sequence::Shown(1, hexadecimal(&bytes[0])),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tamed(bytes: &[u8]) -> String {
        let mut tame = Tame::default();
        tame.next(bytes) + &tame.end()
    }

    #[test]
    fn s_11_colours_pass_and_nothing_else_that_a_terminal_acts_on() {
        let hostile = b"\x1b[1;31mred\x1b[0m \x1b[2Jx\x1b]0;title\x07 \x1b[6n 10%\r20%\r\nd\xc3\xbcr \xff\xc2\x9b31m \xe2\x80\xae\x08\tend\n";
        let shown = tamed(hostile);
        insta::assert_snapshot!(shown.replace('\u{1b}', "<ESC>").replace('\r', "<CR>"), @r"
        <ESC>[1;31mred<ESC>[0m \e[2Jx\e]0;title\u{7} \e[6n 10%<CR>20%
        dür \xff\u{9b}31m \u{202e}\u{8}	end
        <ESC>[0m
        ");
    }

    #[test]
    fn t8_09_text_that_a_run_conceals_is_shown() {
        for concealed in ["8", "0;8", "1;08;31", "38;5;1;8"] {
            let shown = tamed(format!("a\x1b[{concealed}mhidden").as_bytes());
            assert_eq!(shown, format!("a\\e[{concealed}mhidden"));
        }
        for colour in ["38;5;8", "48;5;8", "38;2;8;8;8", "1;31", "28", "0"] {
            let shown = tamed(format!("a\x1b[{colour}mb").as_bytes());
            assert_eq!(shown, format!("a\x1b[{colour}mb{RESET}"));
        }
    }

    #[test]
    fn t1_20_a_bar_of_progress_redraws_its_line() {
        let bar = b"10%\r\x1b[K20%\r\x1b[2K100%\r\ndone\n";
        assert_eq!(tamed(bar), "10%\r\u{1b}[K20%\r\u{1b}[2K100%\ndone\n");
        // Other lines are out of its reach.
        assert_eq!(tamed(b"\x1b[A\x1b[3K\x1b[1J"), "\\e[A\\e[3K\\e[1J");
    }

    #[test]
    fn s_11_it_is_the_same_wherever_a_piece_ends() {
        let bytes = b"a\x1b[38;5;12mb\xe2\x82\xac\r\n\x1b[2K\xe2\x82 \x1b]8;;x\x1b\\ \xf0\x9f\x98\x80 end\r";
        let whole = tamed(bytes);
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let mut tame = Tame::default();
                let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]].map(|part| tame.next(part));
                assert_eq!(parts.concat() + &tame.end(), whole, "split at {first} and {second}");
            }
        }
    }

    #[test]
    fn s_11_a_sequence_without_an_end_is_not_waited_for() {
        let mut tame = Tame::default();
        let endless = [b"\x1b[".as_slice(), &[b'1'; 100_000]].concat();
        assert_eq!(tame.next(&endless).len(), endless.len() + 1);
        assert_eq!(Tame::default().next(b"\x1b"), "");
        assert_eq!(tamed(b"\x1b"), "\\e");
        assert_eq!(tamed(b"\xe2\x82"), "\\xe2\\x82");
    }
}
