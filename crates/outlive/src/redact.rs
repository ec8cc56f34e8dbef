//! Redaction: finds secrets in text and command lines, so that they are not stored.
//!
//! What is looked for are shapes: values beside a name that says what they are, tokens that begin as only tokens do,
//! passwords in URLs. Text is searched for a few short anchors at once, and only where one stands is it looked at
//! closer, so that text without secrets costs next to nothing. It is best effort: a secret that looks like any other
//! word is found only by a pattern from the configuration.
//!
//! Deliberately not here: guessing by randomness. Hashes, ids and file names are as random as keys.

mod names;
mod services;
mod shapes;
mod tokens;

use std::fmt;
use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};

use self::names::Name;

/// What stands in place of a secret.
pub const MASK: &str = "[redacted]";
/// The most patterns that a configuration may add.
pub const PATTERNS_LIMIT: usize = 64;
/// The longest of them, in bytes.
pub const PATTERN_LIMIT: usize = 1 << 10;
/// The longest match, with the name beside it, that is found across the borders of chunks.
const LONGEST: usize = 8 << 10;
/// How much memory one pattern may take once it is compiled.
const COMPILED_LIMIT: usize = 1 << 20;

/// Knows secrets by their looks.
#[derive(Clone)]
pub struct Redactor {
    looks: Looks,
    patterns: Vec<Regex>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Like nothing but the patterns.
    Patterns,
    /// Like the usual shapes too.
    Shapes,
    /// Like anything.
    Everything,
}

/// A secret, and where what gives it away begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Match {
    from: usize,
    value: Range<usize>,
}

impl Default for Redactor {
    /// Knows the usual shapes.
    fn default() -> Self {
        Self { looks: Looks::Shapes, patterns: Vec::new() }
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A pattern may spell out what it is to hide.
        f.debug_struct("Redactor").field("patterns", &self.patterns.len()).finish_non_exhaustive()
    }
}

impl Redactor {
    /// Knows the given patterns, and with `defaults` the usual shapes. Of a pattern with a group the first group is the
    /// secret, of any other the whole match.
    pub fn new<S: AsRef<str>>(defaults: bool, patterns: &[S]) -> Result<Self, InvalidPattern> {
        if patterns.len() > PATTERNS_LIMIT {
            return Err(InvalidPattern(format!("{} patterns; the most is {PATTERNS_LIMIT}", patterns.len())));
        }
        let patterns = patterns.iter().map(|pattern| compile(pattern.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { looks: if defaults { Looks::Shapes } else { Looks::Patterns }, patterns })
    }

    /// Takes no text for secret.
    pub fn nothing() -> Self {
        Self { looks: Looks::Patterns, patterns: Vec::new() }
    }

    /// Takes all text for secret: for a configuration that cannot be read.
    pub fn everything() -> Self {
        Self { looks: Looks::Everything, patterns: Vec::new() }
    }

    /// Where the secrets are: sorted, apart from each other, without the names beside them.
    pub fn spans(&self, text: &[u8]) -> Vec<Range<usize>> {
        merged(self.matches(text).into_iter().map(|found| found.value).collect())
    }

    /// How many bytes a reader of chunks holds back, so that no secret is missed where two of them meet. What is longer
    /// may be cut. [`Redactor::settled`] says exactly how many may be let go.
    pub fn longest(&self) -> usize {
        LONGEST
    }

    /// The secrets in a chunk to which more will be appended, and how much of its beginning can be let go: nothing that
    /// follows changes what is secret in it, and the rest can be searched without it.
    pub fn settled(&self, chunk: &[u8]) -> (Vec<Range<usize>>, usize) {
        let mut found = self.matches(chunk);
        found.sort_by_key(|found| found.from);
        let mut until = chunk.len().saturating_sub(LONGEST);
        // What is found astride the cut is kept whole, with what gives it away; so is a word.
        let within = |byte: &u8| !byte.is_ascii_whitespace();
        let word = chunk[..until].iter().rev().take(names::LONGEST).take_while(|byte| within(byte)).count();
        until -= if word < names::LONGEST { word } else { 0 };
        for found in found.iter().rev() {
            if found.from < until && until < found.value.end {
                let overlong = chunk.len() - found.from > 2 * LONGEST;
                until = if overlong { found.value.end } else { found.from };
            }
        }
        let spans = merged(found.into_iter().map(|found| found.value).collect());
        (spans, until)
    }

    /// The text with its secrets masked.
    pub fn text(&self, text: &str) -> String {
        let spans = self.spans(text.as_bytes());
        if spans.is_empty() {
            return text.to_owned();
        }
        // A pattern may end within a character.
        String::from_utf8_lossy(&masked(text.as_bytes(), &spans)).into_owned()
    }

    /// A value with the name it bears, masked if the two are a secret together.
    pub fn named(&self, name: &str, value: &str) -> String {
        // A label or a variable that is called `token` holds one: no tokeniser prints those.
        let is_token = matches!(names::judge(name.as_bytes()), Some(Name::Piece { of_text: false }));
        if self.looks == Looks::Shapes && is_token && !names::is_plain(value.as_bytes(), Name::Token) {
            return MASK.into();
        }
        let pair = self.text(&format!("{name}={value}"));
        pair.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).map_or_else(|| MASK.into(), str::to_owned)
    }

    /// A command line, word by word, with its secrets masked: also those that only the word before, the program or a
    /// shell's quotes give away.
    pub fn argv<W: AsRef<[u8]>>(&self, words: &[W]) -> Vec<Vec<u8>> {
        let texts: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut found: Vec<Vec<Range<usize>>> = texts.iter().map(|text| self.spans(text)).collect();
        match self.looks {
            Looks::Shapes => tokens::find(&texts, &mut found),
            Looks::Patterns | Looks::Everything => {}
        }
        texts.iter().zip(found).map(|(text, spans)| masked(text, &merged(spans))).collect()
    }

    fn matches(&self, text: &[u8]) -> Vec<Match> {
        let mut found = Vec::new();
        match self.looks {
            Looks::Everything if !text.is_empty() => found.push(Match { from: 0, value: 0..text.len() }),
            Looks::Shapes => shapes::find(text, &mut found),
            Looks::Everything | Looks::Patterns => {}
        }
        for pattern in &self.patterns {
            for captures in pattern.captures_iter(text) {
                let (Some(whole), secret) = (captures.get(0), captures.iter().skip(1).flatten().next()) else {
                    continue;
                };
                let value = secret.unwrap_or(whole).range();
                if !value.is_empty() {
                    found.push(Match { from: whole.start(), value });
                }
            }
        }
        found
    }
}

fn compile(pattern: &str) -> Result<Regex, InvalidPattern> {
    let invalid = |why: &str| InvalidPattern(format!("the pattern `{}`: {why}", pattern.escape_debug()));
    if pattern.len() > PATTERN_LIMIT {
        return Err(InvalidPattern(format!("a pattern of {} bytes; the longest is {PATTERN_LIMIT}", pattern.len())));
    }
    let compiled = RegexBuilder::new(pattern).unicode(false).size_limit(COMPILED_LIMIT).build();
    let compiled = compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => invalid(&format!("it takes more than {limit} bytes")),
        // The last line says why; those above it draw the pattern again.
        error => invalid(error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ")),
    })?;
    if compiled.is_match(b"") {
        return Err(invalid("it matches where there is nothing"));
    }
    Ok(compiled)
}

/// Sorts spans and joins those that touch.
fn merged(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|span| span.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

fn masked(text: &[u8], spans: &[Range<usize>]) -> Vec<u8> {
    let mut masked = Vec::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        masked.extend_from_slice(&text[at..span.start]);
        masked.extend_from_slice(MASK.as_bytes());
        at = span.end;
    }
    masked.extend_from_slice(&text[at..]);
    masked
}

/// A pattern that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPattern(String);
