//! Output of strangers on a terminal: colours pass, what would move the cursor, set titles or hide is made visible.

use crate::terminal::plain;

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

enum Found {
    /// So many bytes are shown like this.
    Shown(usize, String),
    /// So many bytes set colours.
    Colours(usize),
    /// It cannot be told before more is there.
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
                Found::Shown(length, text) => {
                    shown.push_str(&text);
                    rest = &rest[length..];
                }
                Found::Colours(length) => {
                    shown.push_str(&String::from_utf8_lossy(&rest[..length]));
                    self.coloured = true;
                    rest = &rest[length..];
                }
                Found::Incomplete => {
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

/// What the bytes begin with, none of which is plain text.
fn look(bytes: &[u8]) -> Found {
    match bytes {
        [] | b"\r" => Found::Incomplete,
        // What a bar of progress overwrites becomes lines.
        [b'\r', b'\n', ..] => Found::Shown(2, "\n".into()),
        [b'\r', ..] => Found::Shown(1, "\n".into()),
        [0x1b, rest @ ..] => match rest.split_first() {
            None => Found::Incomplete,
            Some((b'[', rest)) => {
                let parameters = rest.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b';' | b':')).count();
                match rest.get(parameters) {
                    Some(b'm') if parameters < LONGEST => Found::Colours(parameters + 3),
                    None if parameters < LONGEST => Found::Incomplete,
                    _ => Found::Shown(1, "\\e".into()),
                }
            }
            Some(_) => Found::Shown(1, "\\e".into()),
        },
        [byte, ..] if byte.is_ascii() => Found::Shown(1, plain(&char::from(*byte).to_string())),
        _ => {
            let few = &bytes[..bytes.len().min(4)];
            let (valid, error) = match std::str::from_utf8(few) {
                Ok(text) => (text, None),
                Err(error) => (std::str::from_utf8(&few[..error.valid_up_to()]).unwrap_or_default(), error.error_len()),
            };
            match valid.chars().next() {
                Some(c) => Found::Shown(c.len_utf8(), plain(&c.to_string())),
                None if error.is_none() => Found::Incomplete,
                None => Found::Shown(1, hexadecimal(&bytes[0])),
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
        insta::assert_snapshot!(shown.replace('\u{1b}', "<ESC>"), @r"
        <ESC>[1;31mred<ESC>[0m \e[2Jx\e]0;title\u{7} \e[6n 10%
        20%
        dür \xff\u{9b}31m \u{202e}\u{8}	end
        <ESC>[0m
        ");
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
