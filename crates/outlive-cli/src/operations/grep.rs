//! `outlive grep`: the lines of a run's output that match, with their numbers and their count.

use std::collections::VecDeque;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::logs::{LogReader, Part, Piece, Stream};
use outlive::time::Timestamp;
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::line_search::expression;
use crate::logs::attempt_meant;
use crate::lookup::located::{RegistryRef, locate_one};
use crate::operations::output::{shown_last, unreadable};
use crate::ui::{plain, quote};

/// The most matches of one answer.
const MOST: usize = 10_000;
/// The longest text of a match, in bytes.
const TEXT: usize = 2 << 10;
/// The longest line that is searched as one.
const LINE: usize = 64 << 10;

/// Search the output of a run, with line numbers and the number of matches
///
/// Lines are numbered from 1 in the order in which they ended, standard output and error together, and searched as a
/// terminal shows them last: without escape sequences, and without what was drawn over. All of the output is searched,
/// however many matches are returned.
#[derive(Debug, Default, Args)]
pub struct Grep {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub run: String,
    /// A regular expression
    pub pattern: String,
    /// Upper and lower case are alike
    #[arg(short, long)]
    pub ignore_case: bool,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only its standard error
    #[arg(long)]
    pub stderr: bool,
    /// This attempt, instead of its last
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Return the last matches instead of the first
    #[arg(long)]
    pub last: bool,
    /// Begin behind this line
    #[arg(long, value_name = "LINE", default_value_t = 0)]
    pub after: u64,
    /// Return at most this many matches, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
}

/// What was found.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Found {
    id: RunId,
    attempt: u32,
    /// How many lines were searched.
    lines: u64,
    /// How many of them match, returned or not.
    matches: u64,
    found: Vec<Match>,
}

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
struct Match {
    /// Its number.
    line: u64,
    /// When its end was written.
    at: Timestamp,
    /// `out` or `err`.
    stream: &'static str,
    /// The line, cut after 2 KiB.
    text: String,
}

/// The beginning of a line whose end is not there yet, with when and where it was written.
type Unread = (Vec<u8>, Option<(Timestamp, Stream)>);

/// A search through the lines of a log.
struct Search<'a> {
    wanted: Regex,
    asked: &'a Grep,
    lines: u64,
    matches: u64,
    found: VecDeque<Match>,
}

impl Search<'_> {
    fn read(&mut self, reader: &mut LogReader) -> std::io::Result<()> {
        reader.stop_at_present()?;
        let mut unread: [Unread; 2] = Default::default();
        while let Some(Piece { at, stream, part }) = reader.next_piece()? {
            let Part::Bytes(bytes) = part else { continue };
            let (held, noted) = &mut unread[stream.index()];
            *noted = Some((at, stream));
            held.extend_from_slice(&bytes);
            let mut taken = 0;
            while let Some(end) = line_end(&held[taken..]) {
                self.take(&held[taken..taken + end], at, stream);
                taken += end;
            }
            held.drain(..taken);
        }
        // What is not ended yet is the last line of its stream.
        for (held, noted) in unread.iter().filter(|(held, _)| !held.is_empty()) {
            if let Some((at, stream)) = noted {
                self.take(held, *at, *stream);
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &[u8], at: Timestamp, stream: Stream) {
        self.lines += 1;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let is_drawn = line.contains(&0x1b) || line.contains(&b'\r');
        let drawn = is_drawn.then(|| shown_last(line));
        let shown = drawn.as_deref().unwrap_or(line);
        if self.lines <= self.asked.after || !self.wanted.is_match(shown) {
            return;
        }
        self.matches += 1;
        if self.found.len() >= self.asked.limit {
            if !self.asked.last {
                return;
            }
            self.found.pop_front();
        }
        let text = String::from_utf8_lossy(&shown[..shown.len().min(TEXT)]).into_owned();
        self.found.push_back(Match { line: self.lines, at, stream: stream.as_str(), text });
    }
}

/// Where the first line ends, its newline included; none where its end is not there yet.
fn line_end(bytes: &[u8]) -> Option<usize> {
    let newline = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
    newline.or((bytes.len() >= LINE).then_some(bytes.len()))
}

impl Operate for Grep {
    const NAME: &'static str = "grep";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str =
        "outlive grep train 'error|panic' -i\noutlive grep @last warning --stderr --last -n 5 --json";
    type Output = Found;

    async fn operate(self, context: &Context) -> Result<Found, Error> {
        if self.limit == 0 || self.limit > MOST {
            return Err(Error::Invalid(format!("an answer has 1 to {MOST} matches, not {}", self.limit)));
        }
        let pattern = if self.ignore_case { format!("(?i:{})", self.pattern) } else { self.pattern.clone() };
        let wanted = expression(&pattern)?;
        let located = locate_one(context, &self.run, Self::EFFECT).await;
        if matches!(located, Err(Error::NotFound(_))) && locate_one(context, &self.pattern, Self::EFFECT).await.is_ok()
        {
            let (run, pattern) = (quote(self.pattern.as_bytes()), quote(self.run.as_bytes()));
            return Err(Error::Invalid(format!("the run comes before the pattern: `outlive grep {run} {pattern}`")));
        }
        let (RegistryRef { registry, .. }, seen) = located?;
        let (logs, attempt) = attempt_meant(&registry, &seen, self.attempt)?;
        let id = seen.run.id;
        let mut search = Search { wanted, asked: &self, lines: 0, matches: 0, found: VecDeque::new() };
        if let Some(mut reader) = logs.read(id, attempt)? {
            for (wanted, stream) in [(self.stdout, Stream::Out), (self.stderr, Stream::Err)] {
                reader = if wanted { reader.only(stream) } else { reader };
            }
            reader.read_unnoted(true);
            search.read(&mut reader).map_err(|error| unreadable(&error))?;
        }
        let Search { lines, matches, found, .. } = search;
        Ok(Found { id, attempt, lines, matches, found: found.into() })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.found {
            writeln!(f, "{}:{}: {}", found.line, found.stream, plain(&found.text))?;
        }
        let shown = self.found.len() as u64;
        let left = if shown < self.matches { format!("{shown} of ") } else { String::new() };
        writeln!(f, "matches: {left}{}, in {} lines", self.matches, self.lines)
    }
}
