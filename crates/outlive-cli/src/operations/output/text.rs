//! Output as one text: whole lines, without what only a terminal understands, those that match.

use std::collections::VecDeque;
use std::io;

use outlive::logs::{LogReader, Part};
use regex::bytes::Regex;

/// The longest line that is kept together.
const LINE: usize = 64 << 10;

/// What is wanted of a log.
pub struct TextRange {
    /// Only lines that match.
    pub grep: Option<Regex>,
    /// With escape sequences.
    pub ansi: bool,
    /// About so many bytes.
    pub limit: usize,
    /// Of what is there the end, and at most so many lines of it; else the beginning.
    pub last: Option<u64>,
    /// Nothing more comes.
    pub ended: bool,
}

/// A text that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The lines.
    pub text: String,
    /// So many bytes that were wanted came before it and did not fit.
    pub cut: u64,
}

impl TextRange {
    /// Reads from where the reader is, and leaves it behind what was read.
    pub fn read(&self, reader: &mut LogReader) -> io::Result<Text> {
        if self.last.is_some() {
            reader.stop_at_present()?;
        }
        let mut kept = KeptLines { lines: VecDeque::new(), bytes: 0, cut: 0 };
        let mut unread: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
        let mut full = false;
        while !full && let Some(piece) = reader.next_piece()? {
            let held = &mut unread[piece.stream.index()];
            match piece.part {
                Part::LeftOut(bytes) => full = !kept.add(self, format!("[{bytes} bytes are left out]\n")),
                Part::Bytes(bytes) => {
                    held.extend_from_slice(&bytes);
                    full = self.take_lines(held, &mut kept);
                }
            }
        }
        for held in &mut unread {
            // The end of a line that is not there yet may decide whether it matches.
            if !full && !held.is_empty() && (self.ended || self.grep.is_none()) && self.take(held, &mut kept) {
                held.clear();
            }
        }
        let mut place = reader.place();
        for (place, held) in place.iter_mut().zip(&unread) {
            *place -= held.len() as u64;
        }
        reader.go_to(place);
        Ok(Text { text: kept.lines.into_iter().collect(), cut: kept.cut })
    }

    /// Takes the whole lines, and answers whether there is no room for more.
    fn take_lines(&self, held: &mut Vec<u8>, kept: &mut KeptLines) -> bool {
        let (mut taken, mut full) = (0, false);
        loop {
            let rest = &held[taken..];
            let newline = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            let Some(end) = newline.or((rest.len() >= LINE).then_some(rest.len())) else { break };
            if !self.take(&rest[..end], kept) {
                full = true;
                break;
            }
            taken += end;
        }
        held.drain(..taken);
        full
    }

    /// Takes a line, and answers whether there was room for it.
    fn take(&self, line: &[u8], kept: &mut KeptLines) -> bool {
        let plain = if self.ansi { line.to_vec() } else { plain(line) };
        if self.grep.as_ref().is_some_and(|grep| !grep.is_match(plain.strip_suffix(b"\n").unwrap_or(&plain))) {
            return true;
        }
        kept.add(self, String::from_utf8_lossy(&plain).into_owned())
    }
}

/// The lines that are kept so far.
struct KeptLines {
    lines: VecDeque<String>,
    bytes: usize,
    cut: u64,
}

impl KeptLines {
    /// Keeps a line, and answers whether there was room for it. Where the end is wanted there always is.
    fn add(&mut self, wanted: &TextRange, mut line: String) -> bool {
        if wanted.last.is_none() && !self.lines.is_empty() && self.bytes + line.len() > wanted.limit {
            return false;
        }
        if line.len() > wanted.limit {
            let cut = (0..=wanted.limit).rev().find(|at| line.is_char_boundary(*at));
            line.truncate(cut.unwrap_or_default());
            line.push_str("…\n");
        }
        self.bytes += line.len();
        self.lines.push_back(line);
        while let Some(last) = wanted.last
            && (self.lines.len() as u64 > last || self.bytes > wanted.limit && self.lines.len() > 1)
        {
            let did_not_fit = self.lines.len() as u64 <= last;
            let gone = self.lines.pop_front().map_or(0, |gone| gone.len());
            self.bytes -= gone;
            self.cut += if did_not_fit { gone as u64 } else { 0 };
        }
        true
    }
}

/// A line without escape sequences, as a terminal would show it last: what was drawn over is not there any more.
pub fn plain(line: &[u8]) -> Vec<u8> {
    let stripped: Vec<u8> = anstream::adapter::strip_bytes(line).into_vec();
    let (line, end) = match stripped.strip_suffix(b"\n") {
        Some(line) => (line, &b"\n"[..]),
        None => (&stripped[..], &b""[..]),
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let drawn_last = line.rsplit(|byte| *byte == b'\r').find(|part| !part.is_empty()).unwrap_or_default();
    [drawn_last, end].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::line_search::expression;

    #[test]
    fn a_line_is_shown_as_a_terminal_shows_it_last() {
        for (written, expected) in [
            ("\u{1b}[31mred\u{1b}[0m\n", "red\n"),
            ("10%\r50%\r100%\r\n", "100%\n"),
            ("windows\r\n", "windows\n"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\n", "\n"),
        ] {
            assert_eq!(String::from_utf8(plain(written.as_bytes())).unwrap(), expected, "{written:?}");
        }
    }

    #[test]
    fn exploding_expression_is_refused_and_a_harmless_one_is_quick() {
        assert!(expression("a{1000}{1000}{1000}").is_err());
        assert!(expression("(").is_err());
        let feared = expression("(a+)+$").unwrap();
        assert!(!feared.is_match(&[&[b'a'; 30_000][..], b"b"].concat()));
    }
}
