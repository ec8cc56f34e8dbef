//! Words: what a run can be found by, and how that is told to the full-text index.
//!
//! A run is a set of words: those of its text, and one for each thing that it can be asked for by, such as its status or
//! a label. So whatever is asked is a conjunction of words, and the index answers all of it at once, in the order of time.

use sha2::{Digest, Sha256};

use super::record::{Kind, Record};
use crate::hex::hex;

/// The beginning of an id of a run has at least so many characters.
const SHORTEST_ID: usize = 8;
/// The most words that are looked for at once.
const MOST: usize = 32;

/// The words of a text: letters and digits, in lower case.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The texts of a run that are searched.
fn texts(record: &Record) -> impl Iterator<Item = &str> {
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

/// What a search looks for, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sought(Vec<Chunk>);

/// What stands between two spaces of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    words: Vec<String>,
    /// The last of them may go on: it stands before a `*`.
    open: bool,
    /// It may be the beginning of an id.
    id: Option<String>,
}

impl Sought {
    pub(super) fn new(text: &str) -> Self {
        let chunk = |text: &str| {
            let lower = text.to_lowercase();
            let is_id = lower.len() >= SHORTEST_ID && lower.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
            Chunk { words: words(text).collect(), open: text.ends_with('*'), id: is_id.then_some(lower) }
        };
        let chunks = text.split_whitespace().map(chunk).filter(|chunk| !chunk.words.is_empty() || chunk.id.is_some());
        Self(chunks.take(MOST).collect())
    }

    /// Whether a run has all of it.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let known: Vec<String> = texts(record).flat_map(words).collect();
        let has = |(sought, open): (&String, bool)| {
            known.iter().any(|word| word == sought || open && word.starts_with(sought.as_str()))
        };
        self.0.iter().all(|chunk| {
            let by_id = chunk.id.as_ref().is_some_and(|id| record.run_id.starts_with(id.as_str()));
            by_id || !chunk.words.is_empty() && chunk.each().all(has)
        })
    }

    /// Whether anything of it may go on.
    pub(super) fn is_open(&self) -> bool {
        self.0.iter().any(|chunk| chunk.open)
    }

    /// What of it may not.
    pub(super) fn closed(&self) -> Self {
        Self(self.0.iter().filter(|chunk| !chunk.open).cloned().collect())
    }

    /// The same for the full-text index, one expression for each part of a conjunction.
    pub(super) fn expressions(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|chunk| {
            let one = |(word, open): (&String, bool)| format!("\"{word}\"{}", if open { " *" } else { "" });
            let words = chunk.each().map(one).collect::<Vec<_>>().join(" AND ");
            match &chunk.id {
                None => words,
                Some(id) => {
                    let id = format!("\"=i:{}\" *", id.replace('-', ""));
                    if words.is_empty() { id } else { format!("{id} OR ({words})") }
                }
            }
        })
    }
}

impl Chunk {
    /// Its words, each with whether its beginning will do.
    fn each(&self) -> impl Iterator<Item = (&String, bool)> {
        let last = self.words.len().saturating_sub(1);
        self.words.iter().enumerate().map(move |(place, word)| (word, self.open && place == last))
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
pub(super) fn is_live(record: &Record) -> bool {
    record.source == Kind::Outlive && !record.derived_lifecycle.is_ended()
}

/// All words of a run, as the full-text index takes them.
pub(super) fn of(record: &Record, source_id: i64) -> String {
    let mut all = String::with_capacity(512);
    let mut say = |word: &str| {
        all.push_str(word);
        all.push(' ');
    };
    texts(record).flat_map(words).for_each(|word| say(&word));
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
