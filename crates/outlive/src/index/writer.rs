//! Writes runs into the index, inside the one transaction of a refresh.
//!
//! A run's place in the index rises with the time it was made, so that the full-text index, which lists by place, lists
//! by time. It wants to be written in that order, too: so words are gathered, and written in batches.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::database::from_sqlite;
use super::fts;
use super::record::Lifecycle;
use super::source::{Look, Problem};
use crate::model::time::Timestamp;
use crate::store::Error;

/// How many runs of one millisecond have places of their own.
const PLACES: u32 = 21;
/// How many words are remembered to be in the vocabulary.
const REMEMBERED: usize = 100_000;
/// How many runs' words are gathered.
const BATCH: usize = 20_000;

/// The first place of the runs that were made in the same millisecond.
pub(super) fn first_place(made: Timestamp) -> i64 {
    const LAST: i64 = 1 << 41;
    made.as_micros().div_euclid(1_000).clamp(-LAST, LAST - 1) << PLACES
}

/// A run that is to be in the index.
pub(super) struct Entry {
    pub(super) made: Timestamp,
    pub(super) run_id: String,
    pub(super) lifecycle: Lifecycle,
    pub(super) body: String,
    pub(super) words: String,
    /// What belongs to it and is not understood.
    pub(super) problem: Option<Problem>,
}

/// What the index has on file of a run.
pub(super) struct Filed {
    pub(super) place: Option<i64>,
    pub(super) gone: bool,
}

pub(super) struct Writer<'a> {
    connection: &'a Connection,
    now: Timestamp,
    /// The index was empty when it was begun: nothing has to be looked for before it is written.
    fresh: bool,
    words: Vec<(i64, String)>,
    /// Words that the vocabulary has for sure.
    terms: HashSet<Box<str>>,
    counts: HashMap<(i64, Lifecycle), i64>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(connection: &'a Connection, now: Timestamp, fresh: bool) -> Self {
        Self { connection, now, fresh, words: Vec::new(), terms: HashSet::new(), counts: HashMap::new() }
    }

    fn run(&self, sql: &str, params: impl rusqlite::Params) -> Result<(), Error> {
        self.connection.prepare_cached(sql).and_then(|mut sql| sql.execute(params)).map(|_| ()).map_err(from_sqlite)
    }

    pub(super) fn filed(&self, source: i64, name: &str) -> Result<Option<Filed>, Error> {
        if self.fresh {
            return Ok(None);
        }
        let sql = "SELECT place, gone_at IS NOT NULL FROM files WHERE source = ?1 AND name = ?2";
        let filed = |row: &rusqlite::Row<'_>| Ok(Filed { place: row.get(0)?, gone: row.get(1)? });
        let mut sql = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        sql.query_row(params![source, name], filed).optional().map_err(from_sqlite)
    }

    /// Whether the index has a run exactly as this entry says it, beside which nothing is wrong.
    pub(super) fn has(&self, source: i64, name: &str, entry: &Entry) -> Result<bool, Error> {
        let sql = "SELECT runs.body = ?3 AND files.reason IS NULL FROM files JOIN runs ON runs.place = files.place
                   WHERE files.source = ?1 AND files.name = ?2 AND files.gone_at IS NULL";
        let mut sql = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let same = sql.query_row(params![source, name, entry.body], |row| row.get::<_, bool>(0)).optional();
        Ok(entry.problem.is_none() && same.map_err(from_sqlite)?.unwrap_or_default())
    }

    /// Notes how a run looks by now that is otherwise as it was.
    pub(super) fn look(&self, source: i64, name: &str, look: &Look) -> Result<(), Error> {
        self.run(
            "UPDATE files SET token = ?3, settled = ?4 WHERE source = ?1 AND name = ?2",
            params![source, name, look.token.as_bytes(), look.settled],
        )
    }

    /// Puts a run into the index, over whatever was there of it.
    pub(super) fn put(&mut self, source: i64, name: &str, look: &Look, entry: Entry) -> Result<(), Error> {
        let before = self.filed(source, name)?.and_then(|filed| filed.place);
        if let Some(place) = before {
            self.remove(source, place)?;
        }
        let kept = before.filter(|place| place >> PLACES == first_place(entry.made) >> PLACES);
        let place = kept.map_or_else(|| self.free_place(entry.made), Ok)?;
        self.run(
            "INSERT INTO runs (place, source, name, run_id, lifecycle, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![place, source, name, entry.run_id, entry.lifecycle.as_str(), entry.body],
        )?;
        let problem = entry.problem.and_then(|problem| serde_json::to_string(&problem).ok());
        self.file(source, name, look, Some(place), problem.as_deref())?;
        self.count(source, entry.lifecycle, 1);
        self.learn(&entry.words)?;
        self.words.push((place, entry.words));
        if self.words.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Adds the words of a text to the vocabulary.
    fn learn(&mut self, words: &str) -> Result<(), Error> {
        for word in fts::of_text(words) {
            if self.terms.contains(word) {
                continue;
            }
            if self.terms.len() >= REMEMBERED {
                self.terms.clear();
            }
            self.terms.insert(word.into());
            self.run("INSERT OR IGNORE INTO terms (term) VALUES (?1)", params![word])?;
        }
        Ok(())
    }

    /// Notes why a run is not in the index, though its source has it.
    pub(super) fn put_unreadable(&mut self, source: i64, name: &str, look: &Look, reason: &str) -> Result<(), Error> {
        if let Some(place) = self.filed(source, name)?.and_then(|filed| filed.place) {
            self.remove(source, place)?;
        }
        self.file(source, name, look, None, Some(reason))
    }

    fn file(&self, source: i64, name: &str, look: &Look, place: Option<i64>, why: Option<&str>) -> Result<(), Error> {
        self.run(
            "INSERT OR REPLACE INTO files (source, name, token, settled, place, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![source, name, look.token.as_bytes(), look.settled, place, why],
        )
    }

    /// Says that a run is gone. What is known of it is kept and no longer found.
    pub(super) fn put_gone(&mut self, source: i64, name: &str) -> Result<(), Error> {
        match self.filed(source, name)? {
            Some(Filed { gone: true, .. }) | None => Ok(()),
            // Nothing was ever known of it.
            Some(Filed { place: None, .. }) => {
                self.run("DELETE FROM files WHERE source = ?1 AND name = ?2", params![source, name])
            }
            Some(Filed { place: Some(place), .. }) => {
                self.flush()?;
                self.uncount(source, place)?;
                self.run("DELETE FROM words WHERE rowid = ?1", params![place])?;
                self.run("UPDATE runs SET gone = 1 WHERE place = ?1", params![place])?;
                self.run(
                    "UPDATE files SET gone_at = ?3, reason = NULL WHERE source = ?1 AND name = ?2",
                    params![source, name, self.now.as_micros()],
                )
            }
        }
    }

    /// Forgets a run, gone or not.
    pub(super) fn forget(&mut self, source: i64, name: &str) -> Result<(), Error> {
        if let Some(place) = self.filed(source, name)?.and_then(|filed| filed.place) {
            self.remove(source, place)?;
        }
        self.run("DELETE FROM files WHERE source = ?1 AND name = ?2", params![source, name])
    }

    fn remove(&mut self, source: i64, place: i64) -> Result<(), Error> {
        // What is gathered may be of this very run.
        self.flush()?;
        self.uncount(source, place)?;
        self.run("DELETE FROM words WHERE rowid = ?1", params![place])?;
        self.run("DELETE FROM runs WHERE place = ?1", params![place])
    }

    fn free_place(&self, made: Timestamp) -> Result<i64, Error> {
        let first = first_place(made);
        let sql = "SELECT max(place) FROM runs WHERE place >= ?1 AND place < ?2";
        let mut sql = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let last = first.saturating_add(1 << PLACES);
        let taken: Option<i64> = sql.query_row([first, last], |row| row.get(0)).map_err(from_sqlite)?;
        match taken {
            None => Ok(first),
            Some(taken) if taken + 1 < last => Ok(taken + 1),
            // The millisecond is full: any place that is free will do.
            Some(_) => {
                let sql = "SELECT max(place) + 1 FROM runs";
                self.connection.query_row(sql, [], |row| row.get(0)).map_err(from_sqlite)
            }
        }
    }

    fn count(&mut self, source: i64, lifecycle: Lifecycle, more: i64) {
        *self.counts.entry((source, lifecycle)).or_default() += more;
    }

    /// Counts a run no longer, where it was.
    fn uncount(&mut self, source: i64, place: i64) -> Result<(), Error> {
        let sql = "SELECT lifecycle FROM runs WHERE place = ?1 AND gone = 0";
        let mut sql = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let found: Option<String> = sql.query_row([place], |row| row.get(0)).optional().map_err(from_sqlite)?;
        if let Some(lifecycle) = found.and_then(|lifecycle| lifecycle.parse().ok()) {
            self.count(source, lifecycle, -1);
        }
        Ok(())
    }

    /// Writes the words that were gathered.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let mut words = std::mem::take(&mut self.words);
        words.sort_unstable_by_key(|(place, _)| *place);
        for (place, words) in &words {
            self.run("INSERT INTO words (rowid, said) VALUES (?1, ?2)", params![place, words])?;
        }
        words.clear();
        self.words = words;
        Ok(())
    }

    /// Writes what is left to write.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.flush()?;
        for ((source, lifecycle), more) in std::mem::take(&mut self.counts) {
            self.run(
                "INSERT INTO counts VALUES (?1, ?2, ?3)
                 ON CONFLICT (source, lifecycle) DO UPDATE SET runs = runs + excluded.runs",
                params![source, lifecycle.as_str(), more],
            )?;
        }
        self.run("DELETE FROM counts WHERE runs = 0", [])
    }
}
