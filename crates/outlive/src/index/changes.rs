//! What sources have that the index does not: runs that changed, are new, cannot be read or are gone since the last refresh.
//!
//! A read merges these changes with what is indexed, in memory, so that a filter decides by what a run is and not by what
//! it was. Nothing is written. The work of one read is bounded: where a scope has more runs than [`LOOKED_AT`], only the
//! repository of the working directory is looked at as a whole, and the answer says what was not looked at.

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::OptionalExtension;
use serde::Serialize;

use super::database::from_sqlite;
use super::fts::is_live;
use super::query::Query;
use super::reader::{Indexed, Reader, SearchHit};
use super::record::{Freshness, IndexRecord, Kind, Lifecycle};
use super::refresh::{Difference, each_difference, marked_otherwise};
use super::report::{Sort, UNREADABLE};
use super::scan::{Looked, each_source, look_over};
use super::source::{Problem, Reading, Source};
use super::sources::SourceAddress;
use crate::store::Error;

/// The most runs of a scope that a read looks at from outside without being asked to.
pub(super) const LOOKED_AT: u64 = 20_000;
/// The most runs that one read reads from their sources.
const READ_AT_MOST: usize = 10_000;
/// How many runs a source is asked for at a time.
const AT_ONCE: usize = 256;

/// Runs that a read did not look at, so that a filter may have decided by what they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unverified {
    /// Sources of which only the listed runs were looked at.
    pub sources: usize,
    /// How many runs of these sources are indexed.
    pub runs: u64,
    /// Runs that are not indexed or have changed, and were not read because there are too many.
    pub unread: usize,
}

/// Something in a repository that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryProblem {
    /// The repository.
    pub repo: String,
    /// The file or directory.
    pub what: String,
    /// Why it cannot be understood.
    pub reason: String,
}

/// What sources have that the index does not.
#[derive(Default)]
pub(super) struct Changes {
    /// Runs that were read from their sources, in no order.
    pub(super) read: Vec<SearchHit>,
    /// Names of runs, by source, of which the indexed record is not to be used.
    replaced: HashMap<i64, HashSet<Box<str>>>,
    pub(super) unreadable: Sort,
    pub(super) unverified: Unverified,
    pub(super) problems: Vec<RepositoryProblem>,
    /// Sources that hold runs which are not indexed or have changed.
    pub(super) changed_sources: usize,
    left: usize,
}

impl Changes {
    /// Whether the indexed record of a run is not to be used.
    pub(super) fn replaces(&self, source: i64, name: &str) -> bool {
        self.replaced.get(&source).is_some_and(|names| names.contains(name))
    }

    fn note_unreadable(&mut self, repo: &str, name: &str, reason: &str) {
        self.unreadable.add(repo, name, Some(reason));
    }

    fn note_problems(&mut self, repo: &str, problems: &[Problem]) {
        let one = |problem: &Problem| RepositoryProblem {
            repo: repo.into(),
            what: problem.what.clone(),
            reason: problem.reason.clone(),
        };
        self.problems.extend(problems.iter().map(one));
    }

    fn replace(&mut self, source: Option<i64>, name: &str) {
        if let Some(source) = source {
            self.replaced.entry(source).or_default().insert(name.into());
        }
    }
}

/// A source to look at, and what the index has of it.
struct Candidate<'a> {
    address: &'a SourceAddress,
    indexed: Option<&'a Indexed>,
    runs: u64,
}

impl Reader {
    /// Looks at the sources of a query, and reads what is not indexed as it is.
    pub(super) fn changes(
        &self,
        known: &[SourceAddress],
        here: &[SourceAddress],
        query: &Query,
    ) -> Result<Changes, Error> {
        let unreadable = Sort::naming(query.limit);
        let mut changes = Changes { left: READ_AT_MOST, unreadable, ..Changes::default() };
        let (looked_at, others) = self.candidates(known, here, query)?;
        for other in &others {
            changes.unverified.sources += 1;
            changes.unverified.runs += other.runs;
            if let Some(indexed) = other.indexed {
                self.note_indexed(indexed, &HashSet::new(), &mut changes)?;
                changes.changed_sources += usize::from(indexed.has_moved_on());
            } else {
                changes.changed_sources += 1;
            }
        }
        let addresses: Vec<&SourceAddress> = looked_at.iter().map(|candidate| candidate.address).collect();
        let home = &*self.home;
        let look = |place: usize| match looked_at[place].indexed {
            Some(indexed) => look_over(indexed.open()?, indexed.token.as_ref()).map(|(looked, _)| looked),
            None => look_over(&*addresses[place].open(Some(home))?, None).map(|(looked, _)| looked),
        };
        let mut parts: Vec<Option<Result<Looked, String>>> = addresses.iter().map(|_| None).collect();
        each_source(&addresses, look, |place, looked| {
            parts[place] = Some(looked);
            Ok(())
        })?;
        for (candidate, looked) in looked_at.iter().zip(parts.into_iter().flatten()) {
            self.take_in(candidate, looked, &mut changes)?;
        }
        changes.read.retain(|listed| query.matches(&listed.record));
        Ok(changes)
    }

    /// The sources that a query is about: those that are looked at as a whole, and the others.
    fn candidates<'a>(
        &'a self,
        known: &'a [SourceAddress],
        here: &[SourceAddress],
        query: &Query,
    ) -> Result<(Vec<Candidate<'a>>, Vec<Candidate<'a>>), Error> {
        let counts = self.indexed_runs()?;
        let indexed = self.indexed(known);
        let is_meant =
            |address: &&SourceAddress| query.repos.as_ref().is_none_or(|repos| repos.contains(&address.repo()));
        let all: Vec<Candidate<'_>> = known
            .iter()
            .zip(indexed)
            .filter(|(address, _)| is_meant(address))
            .map(|(address, indexed)| {
                let runs = indexed.and_then(|indexed| counts.get(&indexed.id).copied()).unwrap_or_default();
                Candidate { address, indexed, runs }
            })
            .collect();
        // One look tells that nothing in a registry has changed, however many runs it has.
        let cost = |candidate: &Candidate<'_>| match candidate.indexed {
            Some(indexed) if candidate.address.kind == Kind::Outlive && indexed.is_unchanged() => 0,
            _ => candidate.runs,
        };
        let local = |candidate: &&Candidate<'_>| !candidate.address.is_away();
        let total: u64 = all.iter().filter(local).map(cost).sum();
        let is_looked_at = |candidate: &Candidate<'_>| {
            let is_small = total <= LOOKED_AT || cost(candidate) == 0;
            let is_here = here.contains(candidate.address) && cost(candidate) <= LOOKED_AT;
            !candidate.address.is_away() && (query.verify_all || is_small || is_here)
        };
        Ok(all.into_iter().partition(is_looked_at))
    }

    /// How many runs of each source are indexed.
    fn indexed_runs(&self) -> Result<HashMap<i64, u64>, Error> {
        let sql = "SELECT source, sum(runs) FROM counts GROUP BY source";
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
        statement.query_map([], row).and_then(Iterator::collect).map_err(from_sqlite)
    }

    /// Notes what the last refresh could not understand of a source, but for these names.
    fn note_indexed(&self, indexed: &Indexed, but: &HashSet<Box<str>>, changes: &mut Changes) -> Result<(), Error> {
        let repo = indexed.address.repo();
        self.on_file(indexed.id, UNREADABLE, |name, reason| {
            if !but.contains(name) {
                changes.note_unreadable(&repo, name, reason.unwrap_or_default());
            }
        })
    }

    fn take_in(
        &self,
        candidate: &Candidate<'_>,
        looked: Result<Looked, String>,
        changes: &mut Changes,
    ) -> Result<(), Error> {
        let repo = candidate.address.repo();
        let (found, problems) = match looked {
            // Its runs are missing, which is said of each that is listed.
            Err(_) => {
                let was_known = candidate.indexed.is_some_and(|indexed| indexed.unavailable.is_some());
                changes.changed_sources += usize::from(!was_known);
                return Ok(());
            }
            Ok(Looked::Same) => (None, candidate.indexed.map(|indexed| indexed.problems.clone()).unwrap_or_default()),
            Ok(Looked::Each { found, problems, .. }) => (found, problems),
        };
        changes.note_problems(&repo, &problems);
        let (mut changed, mut new) = (BTreeSet::new(), BTreeSet::new());
        let Some(indexed) = candidate.indexed else {
            new.extend(found.into_iter().flatten().map(|found| found.name));
            changes.changed_sources += 1;
            let Ok(source) = candidate.address.open(Some(&self.home)) else { return Ok(()) };
            return self.read_runs(None, &*source, (&repo, new, BTreeSet::new()), changes);
        };
        let mut gone = HashSet::new();
        let mut note = |difference: Difference<'_>| match difference {
            Difference::New(found) => _ = new.insert(found.name.clone()),
            Difference::Gone(name) => _ = gone.insert(Box::from(name)),
            Difference::StillGone(_) | Difference::Known { is_equal: true, settled: true, .. } => {}
            Difference::Known { found, .. } => _ = changed.insert(found.name.clone()),
        };
        if let Some(found) = found {
            each_difference(&self.connection, indexed.id, found, &mut note)?;
        }
        let Ok(source) = indexed.open() else { return Ok(()) };
        let marked = marked_otherwise(&self.connection, (indexed.id, &indexed.address), source)?;
        changed.extend(marked.into_iter().filter(|name| !gone.contains(name)));
        let but = changed.iter().chain(&new).chain(&gone).cloned().collect();
        self.note_indexed(indexed, &but, changes)?;
        let before = (changes.read.len(), changes.unreadable.count);
        let is_other = problems != indexed.problems || indexed.unavailable.is_some();
        let has_moved = is_other || !gone.is_empty() || !new.is_empty();
        self.read_runs(Some(indexed), source, (&repo, new, changed), changes)?;
        changes.changed_sources += usize::from(has_moved || before != (changes.read.len(), changes.unreadable.count));
        Ok(())
    }

    /// Reads runs that are new or may have changed, those with the greatest names first.
    fn read_runs(
        &self,
        indexed: Option<&Indexed>,
        source: &dyn Source,
        (repo, new, changed): (&str, BTreeSet<Box<str>>, BTreeSet<Box<str>>),
        changes: &mut Changes,
    ) -> Result<(), Error> {
        let all: Vec<(&str, bool)> =
            changed.iter().map(|name| (&**name, false)).chain(new.iter().rev().map(|name| (&**name, true))).collect();
        let (read, unread) = all.split_at(all.len().min(changes.left));
        changes.left -= read.len();
        changes.unverified.unread += unread.len();
        let id = indexed.map(|indexed| indexed.id);
        for part in read.chunks(AT_ONCE) {
            source.foresee(&part.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            for (name, is_new) in part {
                match source.read(name) {
                    Reading::Read(record, ..) => {
                        let known = indexed.filter(|_| !is_new).map(|indexed| self.known(indexed, name));
                        if known.transpose()?.flatten().as_ref() == Some(&*record) {
                            continue;
                        }
                        changes.replace(id, name);
                        changes.read.push(read_now(*record, source, *is_new));
                    }
                    Reading::Unreadable(reason, _) => {
                        changes.replace(id, name);
                        changes.note_unreadable(repo, name, &reason);
                    }
                    // It is met where it is indexed, and found to be gone.
                    Reading::Gone => {}
                    Reading::Away(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// The record of a run as it is indexed; none where it could not be understood then.
    fn known(&self, indexed: &Indexed, name: &str) -> Result<Option<IndexRecord>, Error> {
        let sql = "SELECT runs.source, runs.name, runs.body FROM files JOIN runs ON runs.place = files.place
                   WHERE files.source = ?1 AND files.name = ?2";
        let mut sql = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let found = sql.query_row(rusqlite::params![indexed.id, name], |row| Ok(self.record(row)));
        found.optional().map(Option::flatten).map_err(from_sqlite)
    }
}

/// A run that was read from its source just now.
pub(super) fn read_now(mut record: IndexRecord, source: &dyn Source, is_new: bool) -> SearchHit {
    if is_live(&record)
        && let Some(stands) = source.stands(&record.run_id)
    {
        let lifecycle = if record.archived { Lifecycle::Archived } else { stands };
        (record.lifecycle, record.derived_lifecycle) = (lifecycle, stands);
    }
    let unknown = source.unknown_marks();
    let (freshness, reason) = match is_new {
        true => (Freshness::New, "it is not indexed yet; it was read from its source"),
        false => (Freshness::Stale, "its source has changed since it was indexed"),
    };
    SearchHit { record, freshness, freshness_reason: Some(unknown.unwrap_or_else(|| reason.into())) }
}
