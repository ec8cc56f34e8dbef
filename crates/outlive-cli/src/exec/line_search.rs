//! A search for a line in the output of an attempt, as it is written.

use outlive::error::Error;
use outlive::id::RunId;
use outlive::logs::{LogReader, Part};
use outlive::registry::LogDirectory;
use regex::bytes::{Regex, RegexBuilder};

/// How much memory an expression may take.
const EXPRESSION: usize = 1 << 20;
/// The longest line that is searched as one.
const LINE: usize = 64 << 10;

/// An expression that a call names. It takes time in proportion to what it searches, and little memory.
pub fn expression(text: &str) -> Result<Regex, Error> {
    let built = RegexBuilder::new(text).unicode(false).size_limit(EXPRESSION).dfa_size_limit(EXPRESSION).build();
    built.map_err(|error| {
        let why = error.to_string();
        Error::Invalid(format!("the regular expression cannot be used: {}", why.lines().last().unwrap_or_default()))
    })
}

/// The output of an attempt, as far as it was searched.
pub struct LineSearch {
    run: RunId,
    attempt: u32,
    wanted: Regex,
    reader: Option<LogReader>,
    /// Of each stream the beginning of a line whose end is not there yet.
    unread: [Vec<u8>; 2],
    found: bool,
}

impl LineSearch {
    /// A search in the output of an attempt.
    pub fn new(run: RunId, attempt: u32, wanted: Regex) -> Self {
        Self { run, attempt, wanted, reader: None, unread: [Vec::new(), Vec::new()], found: false }
    }

    /// Whether a line matches, of all that is there by now.
    pub fn is_found(&mut self, logs: &LogDirectory) -> bool {
        if self.reader.is_none() {
            self.reader = logs.read(self.run, self.attempt).ok().flatten();
            if let Some(reader) = &mut self.reader {
                // A line that was written a moment ago may be noted late.
                reader.read_unnoted(true);
            }
        }
        let Some(reader) = &mut self.reader else { return false };
        while !self.found
            && let Ok(Some(piece)) = reader.next_piece()
        {
            let Part::Bytes(bytes) = piece.part else { continue };
            let held = &mut self.unread[piece.stream.index()];
            held.extend_from_slice(&bytes);
            let plain = anstream::adapter::strip_bytes(held).into_vec();
            self.found = plain.split(|byte| *byte == b'\n').any(|line| self.wanted.is_match(line));
            // Of a line that is not whole the rest may match.
            let whole = held.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            held.drain(..whole);
            if held.len() > LINE {
                held.clear();
            }
        }
        self.found
    }
}
