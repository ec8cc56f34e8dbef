//! Words: what a run can be found by, and how that is passed to the full-text index.
//!
//! A run is a set of words: those of its text, and one for each thing that it can be asked for by, such as its status or
//! a label. So whatever is asked is a conjunction of words, and the index answers all of it at once, in the order of time.

use std::borrow::Cow;
use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

use super::record::{IndexRecord, Kind};
use crate::model::hex::hex;

/// The beginning of an id of a run has at least so many characters.
const SHORTEST_ID: usize = 8;
/// The most words of a query.
pub(super) const MOST: usize = 64;

/// A text as it is compared: composed by NFKC, in lower case.
fn normal(text: &str) -> Cow<'_, str> {
    match text.is_ascii() {
        true if text.bytes().all(|byte| !byte.is_ascii_uppercase()) => Cow::Borrowed(text),
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Owned(text.nfkc().flat_map(char::to_lowercase).nfkc().collect()),
    }
}

/// The words of a text that is as it is compared: letters and digits.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// The word for a character that is neither a letter nor a digit.
fn symbol(c: char) -> String {
    format!("=c:{:x}", u32::from(c))
}

/// The texts of a run that are searched.
fn texts(record: &IndexRecord) -> impl Iterator<Item = &str> {
    let optional = [&record.kind, &record.app_id, &record.workflow_id, &record.loop_stage];
    let labels = record.labels.iter().flat_map(|(label, value)| [label.as_str(), value.as_str()]);
    // The ids of outlive begin alike: they are found by their beginnings, not by their words.
    let id = (record.source != Kind::Outlive).then_some(record.run_id.as_str());
    [record.title.as_str(), &record.repo, record.lifecycle.as_str(), record.derived_lifecycle.as_str()]
        .into_iter()
        .chain([record.inputs_digest.as_str()])
        .chain(optional.into_iter().flatten().map(String::as_str))
        .chain(labels)
        .chain(id)
}

/// What a search looks for: texts that must all be part of what a run says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextQuery(Vec<Chunk>);

/// What stands between two spaces of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    text: String,
    /// It may be the beginning of an id.
    id: Option<String>,
}

/// A word of a chunk, and what may stand around it in a word of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) word: &'a str,
    /// The word of the run may begin earlier.
    pub(super) open_start: bool,
    /// The word of the run may go on.
    pub(super) open_end: bool,
}

impl TextQuery {
    pub(super) fn new(text: &str) -> Self {
        Self(text.split_whitespace().map(Chunk::new).collect())
    }

    pub(super) fn chunks(&self) -> &[Chunk] {
        &self.0
    }

    /// Whether a run has all of it.
    pub(super) fn is_in(&self, record: &IndexRecord) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let texts: Vec<Cow<'_, str>> = texts(record).map(normal).collect();
        self.0.iter().all(|chunk| {
            let by_id = chunk.id.as_ref().is_some_and(|id| record.run_id.starts_with(id.as_str()));
            by_id || texts.iter().any(|text| text.contains(&chunk.text))
        })
    }
}

impl Chunk {
    fn new(text: &str) -> Self {
        let text = normal(text);
        // `deploy*` is what people type for the beginning of a word, which any part of one is found by anyway.
        let bare = text.trim_end_matches('*');
        let text = if bare.contains(char::is_alphanumeric) { bare.to_owned() } else { text.into_owned() };
        let is_id = text.len() >= SHORTEST_ID && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        Self { id: is_id.then(|| text.clone()), text }
    }

    /// Its words, each with what may stand around it. None where it consists of other characters.
    pub(super) fn pieces(&self) -> Vec<Piece<'_>> {
        let all: Vec<&str> = words(&self.text).collect();
        let last = all.len().saturating_sub(1);
        let mut pieces = Vec::with_capacity(all.len());
        for (place, word) in all.into_iter().enumerate() {
            let open_start = place == 0 && self.text.starts_with(word);
            let open_end = place == last && self.text.ends_with(word);
            pieces.push(Piece { word, open_start, open_end });
        }
        pieces
    }

    /// The words of the full-text index for its characters that are neither letters nor digits.
    pub(super) fn symbols(&self) -> Vec<String> {
        self.text.chars().filter(|c| !c.is_alphanumeric()).map(symbol).collect()
    }

    /// What finds it in the full-text index as the beginning of an id.
    pub(super) fn by_id(&self) -> Option<String> {
        self.id.as_ref().map(|id| format!("\"=i:{}\" *", id.replace('-', "")))
    }
}

/// The word for a thing that a run can be asked for by.
pub(super) fn mark(sort: char, value: &str) -> String {
    format!("={sort}:{}", hex(&Sha256::digest(value.as_bytes())[..8]))
}

/// The word for a label.
pub(super) fn label(label: &str, value: &str) -> String {
    mark('l', &format!("{label}={value}"))
}

/// The word for how a run stands.
pub(super) fn status(word: &str) -> String {
    format!("=s:{word}")
}

/// The word of the runs of one source.
pub(super) fn source(id: i64) -> String {
    format!("=r:{id}")
}

/// The word of runs of which only a look at their processes tells how they stand.
pub(super) const LIVE: &str = "=live";
/// The word of runs that are hidden.
pub(super) const ARCHIVED: &str = "=archived";
/// The word of runs that bear marks which lie beside them.
pub(super) const MARKED: &str = "=marked";
/// The word of those that are not hidden.
pub(super) const SHOWN: &str = "=shown";

/// Whether only a look tells how the run stands.
pub(super) fn is_live(record: &IndexRecord) -> bool {
    record.source == Kind::Outlive && !record.derived_lifecycle.is_ended()
}

/// Those of the words of a run that are parts of its text.
pub(super) fn of_text(all: &str) -> impl Iterator<Item = &str> {
    all.split(' ').filter(|word| !word.is_empty() && !word.starts_with('='))
}

/// All words of a run, as the full-text index takes them.
pub(super) fn of(record: &IndexRecord, source_id: i64) -> String {
    let mut all = String::with_capacity(512);
    let mut say = |word: &str| {
        all.push_str(word);
        all.push(' ');
    };
    let mut symbols = BTreeSet::new();
    for text in texts(record) {
        let text = normal(text);
        words(&text).for_each(&mut say);
        symbols.extend(text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace()));
    }
    symbols.into_iter().for_each(|c| say(&symbol(c)));
    say(&status(record.lifecycle.as_str()));
    say(&source(source_id));
    if record.lifecycle != record.derived_lifecycle {
        say(&status(record.derived_lifecycle.as_str()));
    }
    say(if record.archived { ARCHIVED } else { SHOWN });
    if is_live(record) {
        say(LIVE);
    }
    if record.source != Kind::Outlive && (record.archived || record.provenance.is_some()) {
        say(MARKED);
    }
    let apps = [&record.app_id, &record.workflow_id];
    apps.into_iter().flatten().for_each(|app| say(&mark('a', &app.to_lowercase())));
    record.kind.iter().for_each(|kind| say(&mark('k', kind)));
    record.labels.iter().for_each(|(name, value)| say(&label(name, value)));
    if record.source == Kind::Outlive {
        say(&format!("=i:{}", record.run_id.replace('-', "")));
    }
    all
}
