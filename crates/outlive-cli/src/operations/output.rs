//! `outlive output`: what a run has written, a page at a time, for programs.

mod text;

pub use self::text::plain as shown_last;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::logs::{LogReader, Part, Piece, Stream};
use outlive::registry::Registry;
use outlive::store;
use outlive::time::{Timestamp, Towards, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::line_search::expression;
use crate::logs::attempt_meant;
use crate::lookup::located::{RegistryRef, locate_one};
use crate::ui::plain;

/// Print the output of a run page by page, for programs
///
/// Programs ask for the next page until `ended` is true and `pieces` is empty. `outlive logs` is for people.
#[derive(Debug, Default, Args)]
pub struct Output {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub run: String,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only its standard error
    #[arg(long)]
    pub stderr: bool,
    /// This attempt, instead of its last
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Begin with the last N lines
    #[arg(long, value_name = "N", conflicts_with = "cursor")]
    pub lines: Option<u64>,
    /// Where the page begins: the `next` of the previous answer
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
    /// Begin with what was written at or after this time: 2026-11-15T09:30:00Z, 18:00, 10m (ago)
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cursor", "lines"])]
    pub since: Option<String>,
    /// Answer with one text instead of pieces: without escape sequences, and of --lines the end where not all of it
    /// fits
    #[arg(long)]
    pub text: bool,
    /// Only lines that match this regular expression; of --lines the last that do
    #[arg(long, value_name = "REGEX", requires = "text")]
    pub grep: Option<String>,
    /// Keep escape sequences in the text
    #[arg(long, requires = "text")]
    pub ansi: bool,
    /// About so many bytes, 1048576 at the most
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    pub limit: u64,
}

/// The most bytes of one answer, and a piece.
const MOST: u64 = 1 << 20;

/// A page of what an attempt has written.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Written {
    id: RunId,
    attempt: u32,
    /// The attempt is over: what is not here by the last page will not come.
    ended: bool,
    pieces: Vec<PieceView>,
    /// What it has written, where that was asked for as one text.
    text: Option<String>,
    /// So many bytes of the text that was asked for come before it and did not fit.
    text_cut: Option<u64>,
    /// Where the next page begins.
    next: String,
}

/// What was written at a time.
#[derive(Debug, JsonSchema, Serialize)]
struct PieceView {
    at: Timestamp,
    /// `out` or `err`.
    stream: &'static str,
    /// What, if it is text.
    text: Option<String>,
    /// What, if it is none.
    base64: Option<String>,
    /// So many bytes are not there any more.
    left_out: Option<u64>,
}

impl PieceView {
    fn of(piece: Piece) -> Self {
        let (at, stream) = (piece.at, piece.stream.as_str());
        let view = Self { at, stream, text: None, base64: None, left_out: None };
        match piece.part {
            Part::LeftOut(bytes) => Self { left_out: Some(bytes), ..view },
            Part::Bytes(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Self { text: Some(text), ..view },
                Err(error) => Self { base64: Some(STANDARD.encode(error.as_bytes())), ..view },
            },
        }
    }
}

impl Operate for Output {
    const NAME: &'static str = "output";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive output train\noutlive output train --lines 20 --json";
    type Output = Written;

    async fn operate(self, context: &Context) -> Result<Written, Error> {
        if self.limit == 0 || self.limit > MOST {
            return Err(Error::Invalid(format!("a page has 1 to {MOST} bytes, not {}", self.limit)));
        }
        let after = self.cursor.as_deref().map(place).transpose()?;
        let (RegistryRef { registry, .. }, seen) = locate_one(context, &self.run, Self::EFFECT).await?;
        let (logs, attempt) = attempt_meant(&registry, &seen, self.attempt)?;
        let id = seen.run.id;
        let ended = seen.state.is_ended() || attempt < seen.run.attempt;
        let next = self.cursor.clone().unwrap_or_else(|| "0.0".into());
        let mut written = Written { id, attempt, ended, pieces: Vec::new(), text: None, text_cut: None, next };
        let grep = self.grep.as_deref().map(expression).transpose()?;
        let since = self.since.as_deref().map(|since| moment(since, &registry)).transpose()?;
        if let Some(mut reader) = logs.read(id, attempt)? {
            for (wanted, stream) in [(self.stdout, Stream::Out), (self.stderr, Stream::Err)] {
                reader = if wanted { reader.only(stream) } else { reader };
            }
            reader.read_unnoted(ended);
            let grepped = grep.as_ref().and(self.lines);
            match (after, self.lines, since) {
                (Some(place), ..) => reader.go_to(place),
                (None, Some(_), _) if grepped.is_some() => {}
                (None, Some(lines), _) => reader.skip_to_last(lines).map_err(|error| unreadable(&error))?,
                (None, None, Some(since)) => reader.skip_before(since).map_err(|error| unreadable(&error))?,
                (None, None, None) => {}
            }
            if self.text {
                let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                let last = self.lines.map(|_| grepped.unwrap_or(u64::MAX));
                let wanted = text::TextRange { grep, ansi: self.ansi, limit, last, ended };
                let read = wanted.read(&mut reader).map_err(|error| unreadable(&error))?;
                (written.text, written.text_cut) = (Some(read.text), Some(read.cut).filter(|cut| *cut > 0));
            } else {
                written.pieces = page(&mut reader, self.limit, ended).map_err(|error| unreadable(&error))?;
            }
            let [out, err] = reader.place();
            written.next = format!("{out}.{err}");
        }
        Ok(written)
    }
}

/// A time, or how long ago it was.
fn moment(text: &str, registry: &Registry) -> Result<Timestamp, Error> {
    parse_moment(text, registry.clock().now(), Towards::Past).map_err(|error| Error::Invalid(error.to_string()))
}

impl Written {
    /// What was written, where it was asked for as one text.
    pub fn into_text(self) -> Option<String> {
        self.text
    }

    /// What was written, and where the next page begins.
    pub fn into_page(self) -> (String, String) {
        (self.text.unwrap_or_default(), self.next)
    }
}

/// The failure of a log that cannot be read.
pub fn unreadable(error: &std::io::Error) -> Error {
    Error::Store(store::Error::Unavailable(format!("the log cannot be read: {error}")))
}

fn place(text: &str) -> Result<[u64; 2], Error> {
    let parsed = text.split_once('.').and_then(|(out, err)| Some([out.parse().ok()?, err.parse().ok()?]));
    parsed.ok_or_else(|| {
        let text: String = text.chars().take(64).collect();
        Error::Invalid(format!("`{text}` is not the `next` of an earlier page"))
    })
}

/// About `limit` bytes from where the reader is. A character that is not whole yet is left to the next page.
fn page(reader: &mut LogReader, limit: u64, ended: bool) -> std::io::Result<Vec<PieceView>> {
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    while bytes < limit {
        let Some(mut piece) = reader.next_piece()? else { break };
        if let Part::Bytes(part) = &mut piece.part {
            let cut = part.len() - whole(part);
            if cut > 0 && (cut < part.len() || !ended) {
                part.truncate(part.len() - cut);
                let mut place = reader.place();
                place[piece.stream.index()] -= cut as u64;
                reader.go_to(place);
            }
            if part.is_empty() {
                break;
            }
            bytes += part.len() as u64;
        }
        pieces.push(PieceView::of(piece));
    }
    Ok(pieces)
}

/// How many of the bytes are there without the beginning of a character at their end.
fn whole(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            text.lines().try_for_each(|line| writeln!(f, "{}", plain(line)))?;
        }
        for piece in &self.pieces {
            match (&piece.text, &piece.base64, piece.left_out) {
                (Some(text), ..) => text.lines().try_for_each(|line| writeln!(f, "{}", plain(line)))?,
                (None, Some(base64), _) => writeln!(f, "base64: {base64}")?,
                (None, None, left_out) => writeln!(f, "{} bytes are left out", left_out.unwrap_or_default())?,
            }
        }
        if self.ended { Ok(()) } else { writeln!(f, "more: outlive output {} --cursor {}", self.id, self.next) }
    }
}
