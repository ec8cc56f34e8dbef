//! How much of the index is still true: every run that it knows is looked at in its source.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::database::from_sqlite;
use super::reader::{Indexed, Reader};
use super::refresh::{Difference, each_difference, marked_otherwise};
use super::source::{Problem, Reading};
use super::sources::Address;
use crate::store::Error;
use crate::time::Timestamp;

/// The most runs that are named of each sort.
const NAMED: usize = 100;

/// Whether the whole index can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nothing has changed since it was made.
    Valid,
    /// Something has.
    Stale,
    /// There is none.
    Absent,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Valid => "valid",
            Self::Stale => "stale",
            Self::Absent => "absent",
        })
    }
}

/// A run that is named in a report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Named {
    /// The repository.
    pub repo: String,
    /// Its name there.
    pub name: String,
    /// What is wrong with it, where something is.
    pub reason: Option<String>,
}

/// Runs of one sort: how many, and the first of them by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sort {
    /// How many.
    pub count: usize,
    /// The first of them.
    pub runs: Vec<Named>,
}

impl Sort {
    fn add(&mut self, repo: &str, name: &str, reason: Option<&str>) {
        self.count += 1;
        if self.runs.len() < NAMED {
            self.runs.push(Named { repo: repo.into(), name: name.into(), reason: reason.map(Into::into) });
        }
    }
}

/// How a source stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceReport {
    /// The repository.
    pub repo: String,
    /// What can be read there.
    pub kind: &'static str,
    /// Its address, without a password.
    pub url: String,
    /// `available`, `degraded` where something in it cannot be understood, or `unavailable`.
    pub state: &'static str,
    /// Why it is not available.
    pub reason: Option<String>,
    /// What is wrong beside its runs.
    pub problems: Vec<Problem>,
    /// How many runs of it are indexed.
    pub runs: u64,
    /// When it was last refreshed; none before the first time.
    pub indexed_at: Option<Timestamp>,
}

/// What a look at everything came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Whether the index can be believed.
    pub freshness: Standing,
    /// What was done to find that out.
    pub verified: &'static str,
    /// How many runs were looked at.
    pub looked_at: usize,
    /// How many runs stand how, as they are indexed.
    pub counts: BTreeMap<String, u64>,
    /// Runs that have changed.
    pub stale_runs: Sort,
    /// Runs that are not indexed.
    pub new_runs: Sort,
    /// Runs that are gone.
    pub missing_runs: Sort,
    /// Runs that cannot be understood.
    pub unreadable_runs: Sort,
    /// Where they come from.
    pub sources: Vec<SourceReport>,
}

const GONE_LONGER: &str = "gone since an earlier refresh";
/// What was looked at, in words.
const LOOKED: &str = "device, inode, size and times of every run's file; revisions where a database changed";

impl Report {
    pub(super) fn absent(known: &[Address]) -> Self {
        let sources = known.iter().map(|address| SourceReport {
            repo: address.repo(),
            kind: address.kind.as_str(),
            url: address.shown(),
            state: if address.open().is_ok() { "available" } else { "unavailable" },
            reason: address.open().err(),
            problems: Vec::new(),
            runs: 0,
            indexed_at: None,
        });
        Self {
            freshness: Standing::Absent,
            verified: "nothing: there is no index",
            looked_at: 0,
            counts: BTreeMap::new(),
            stale_runs: Sort::default(),
            new_runs: Sort::default(),
            missing_runs: Sort::default(),
            unreadable_runs: Sort::default(),
            sources: sources.collect(),
        }
    }
}

impl Reader {
    /// Looks at every run of these sources.
    pub(super) fn report(&self, known: &[Address]) -> Result<Report, Error> {
        let mut report = Report { freshness: Standing::Valid, verified: LOOKED, ..Report::absent(&[]) };
        for address in known {
            match self.sources.values().find(|source| source.address.url == address.url) {
                Some(indexed) => self.report_source(indexed, &mut report)?,
                None => {
                    report.freshness = Standing::Stale;
                    let mut new = Report::absent(std::slice::from_ref(address));
                    if let Ok(survey) = address.open().and_then(|source| source.survey()) {
                        survey.found.iter().for_each(|found| report.new_runs.add(&address.repo(), &found.name, None));
                        report.looked_at += survey.found.len();
                    }
                    report.sources.append(&mut new.sources);
                }
            }
        }
        let changed = [&report.stale_runs, &report.new_runs].iter().any(|sort| sort.count > 0);
        if changed || report.freshness == Standing::Stale {
            report.freshness = Standing::Stale;
        }
        Ok(report)
    }

    fn report_source(&self, indexed: &Indexed, report: &mut Report) -> Result<(), Error> {
        let repo = indexed.address.repo();
        let runs = self.count(indexed.id, &mut report.counts)?;
        let surveyed = match indexed.open() {
            Ok(_) if indexed.is_unchanged() => Ok(None),
            Ok(source) => source.survey().map(Some),
            Err(reason) => Err(reason.to_owned()),
        };
        let mut shown = SourceReport {
            repo: repo.clone(),
            kind: indexed.address.kind.as_str(),
            url: indexed.address.shown(),
            state: "available",
            reason: None,
            problems: indexed.problems.clone(),
            runs,
            indexed_at: Some(indexed.indexed_at),
        };
        self.on_file(indexed.id, "reason IS NOT NULL", |name, reason| {
            report.unreadable_runs.add(&repo, name, reason);
            shown.state = "degraded";
        })?;
        if !matches!(surveyed, Ok(Some(_))) {
            self.on_file(indexed.id, "gone_at IS NOT NULL", |name, _| {
                report.missing_runs.add(&repo, name, Some(GONE_LONGER));
            })?;
        }
        match surveyed {
            Err(reason) => {
                // All of its runs are out of reach, and none of them is named.
                report.missing_runs.count += usize::try_from(runs).unwrap_or(0);
                if indexed.unavailable.is_none() {
                    report.freshness = Standing::Stale;
                }
                (shown.state, shown.reason) = ("unavailable", Some(reason));
            }
            Ok(None) => {
                report.looked_at += usize::try_from(runs).unwrap_or(0);
                report.freshness = if indexed.unavailable.is_some() { Standing::Stale } else { report.freshness };
            }
            Ok(Some(survey)) => {
                report.looked_at += survey.found.len();
                if survey.problems != indexed.problems || indexed.unavailable.is_some() {
                    report.freshness = Standing::Stale;
                }
                shown.problems = survey.problems;
                self.compare(indexed, survey.found, report)?;
            }
        }
        if !shown.problems.is_empty() && shown.state == "available" {
            shown.state = "degraded";
        }
        report.sources.push(shown);
        Ok(())
    }

    fn compare(&self, indexed: &Indexed, found: Vec<super::source::Found>, report: &mut Report) -> Result<(), Error> {
        let Ok(source) = indexed.open() else { return Ok(()) };
        let repo = indexed.address.repo();
        let (mut stale, mut gone) = (BTreeSet::new(), BTreeSet::new());
        each_difference(&self.connection, indexed.id, found, |difference| match difference {
            Difference::New(found) => report.new_runs.add(&repo, &found.name, None),
            Difference::Gone(name) => {
                report.missing_runs.add(&repo, name, Some("gone since the last refresh"));
                gone.insert(Box::from(name));
                report.freshness = Standing::Stale;
            }
            Difference::StillGone(name) => report.missing_runs.add(&repo, name, Some(GONE_LONGER)),
            Difference::Known { is_equal: true, settled: true, .. } => {}
            Difference::Known { found, .. } => _ = stale.insert(found.name.clone()),
        })?;
        stale.retain(|name| self.is_otherwise(indexed, source, name));
        let marked = marked_otherwise(&self.connection, (indexed.id, &indexed.address), source)?;
        stale.extend(marked.difference(&gone).cloned());
        stale.iter().for_each(|name| report.stale_runs.add(&repo, name, None));
        Ok(())
    }

    /// Whether a run that looks otherwise is.
    fn is_otherwise(&self, indexed: &Indexed, source: &dyn super::source::Source, name: &str) -> bool {
        let sql = "SELECT runs.source, runs.name, runs.body FROM files JOIN runs ON runs.place = files.place
                   WHERE files.source = ?1 AND files.name = ?2";
        let known = self
            .connection
            .prepare_cached(sql)
            .and_then(|mut sql| sql.query_row(rusqlite::params![indexed.id, name], |row| Ok(self.record(row))));
        match (source.read(name), known) {
            (Reading::Read(read, _), Ok(Some(known))) => *read != known,
            // What could not be understood still cannot be.
            (Reading::Unreadable(..), Err(_)) => false,
            _ => true,
        }
    }

    fn count(&self, source: i64, counts: &mut BTreeMap<String, u64>) -> Result<u64, Error> {
        let sql = "SELECT lifecycle, runs FROM counts WHERE source = ?1";
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let mut rows = statement.query([source]).map_err(from_sqlite)?;
        let mut total = 0;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            let runs = row.get::<_, i64>(1).map_err(from_sqlite)?.unsigned_abs();
            *counts.entry(row.get(0).map_err(from_sqlite)?).or_default() += runs;
            total += runs;
        }
        Ok(total)
    }

    fn on_file(&self, source: i64, which: &str, mut each: impl FnMut(&str, Option<&str>)) -> Result<(), Error> {
        let sql = format!("SELECT name, reason FROM files WHERE source = ?1 AND {which} ORDER BY name");
        let mut statement = self.connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let mut rows = statement.query([source]).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            let text = |column| row.get_ref(column).ok().and_then(|value| value.as_str().ok());
            each(text(0).unwrap_or_default(), text(1));
        }
        Ok(())
    }

    /// Why a run of this name cannot be understood, in any repository.
    pub(super) fn unreadable(&self, name: &str) -> Result<Vec<Named>, Error> {
        let sql = "SELECT sources.repo, files.name, files.reason FROM sources JOIN files ON files.source = sources.id
                   WHERE files.name = ?1 AND files.reason IS NOT NULL";
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let read = |row: &rusqlite::Row<'_>| Ok(Named { repo: row.get(0)?, name: row.get(1)?, reason: row.get(2)? });
        statement.query_map([name], read).and_then(Iterator::collect).map_err(from_sqlite)
    }
}
