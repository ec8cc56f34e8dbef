//! How much of the index is still true: every run that it knows is looked at in its source.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::database::from_sqlite;
use super::reader::{Indexed, Reader};
use super::refresh::{Difference, each_difference, marked_otherwise};
use super::source::{Found, Problem, Reading, Source};
use super::sources::Address;
use super::survey::{Looked, each_source, look_over};
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

    fn absorb(&mut self, other: Self) {
        self.count += other.count;
        let room = NAMED.saturating_sub(self.runs.len());
        self.runs.extend(other.runs.into_iter().take(room));
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
    /// What in the home cannot be understood: sources may be left out because of it.
    pub problems: Vec<Problem>,
}

const GONE_LONGER: &str = "gone since an earlier refresh";
/// What was looked at, in words.
const LOOKED: &str = "device, inode, size and times of every run's file; revisions where a database changed";

impl SourceReport {
    /// A source, as a look at it came out: what is wrong beside its runs, or why nothing can be told.
    fn new(address: &Address, looked: Result<Vec<Problem>, String>) -> Self {
        let (problems, reason) = looked.map_or_else(|reason| (Vec::new(), Some(reason)), |problems| (problems, None));
        let shown = Self {
            repo: address.repo(),
            kind: address.kind.as_str(),
            url: address.shown(),
            state: "available",
            reason,
            problems,
            runs: 0,
            indexed_at: None,
        };
        shown.judged(false)
    }

    /// The same with its state, which is told here and nowhere else.
    fn judged(self, has_unreadable: bool) -> Self {
        let state = match (&self.reason, has_unreadable || !self.problems.is_empty()) {
            (Some(_), _) => "unavailable",
            (None, true) => "degraded",
            (None, false) => "available",
        };
        Self { state, ..self }
    }
}

/// How each of these sources stands where nothing is indexed of them, in their order.
pub(super) fn unindexed(known: &[Address]) -> Result<Vec<SourceReport>, Error> {
    let known: Vec<&Address> = known.iter().collect();
    let mut sources = vec![None; known.len()];
    let reach = |place: usize| known[place].open().and_then(|source| source.reach());
    each_source(&known, reach, |place, looked| {
        sources[place] = Some(SourceReport::new(known[place], looked));
        Ok(())
    })?;
    Ok(sources.into_iter().flatten().collect())
}

impl Report {
    /// What there is to tell where there is no index.
    pub(super) fn absent(known: &[Address]) -> Result<Self, Error> {
        let sources = unindexed(known)?;
        Ok(Self { freshness: Standing::Absent, verified: "nothing: there is no index", sources, ..Self::empty() })
    }

    fn empty() -> Self {
        Self {
            freshness: Standing::Valid,
            verified: LOOKED,
            looked_at: 0,
            counts: BTreeMap::new(),
            stale_runs: Sort::default(),
            new_runs: Sort::default(),
            missing_runs: Sort::default(),
            unreadable_runs: Sort::default(),
            sources: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// A source that is not indexed yet: all of it is new.
    fn of_new(address: &Address, looked: &Result<Looked, String>) -> Self {
        let mut report = Self { freshness: Standing::Stale, ..Self::empty() };
        let looked = match looked {
            Err(reason) => Err(reason.clone()),
            Ok(Looked::Same) => Ok(Vec::new()),
            Ok(Looked::Each { count, found, problems }) => {
                let all = found.iter().flatten();
                all.for_each(|found| report.new_runs.add(&address.repo(), &found.name, None));
                report.looked_at = *count;
                Ok(problems.clone())
            }
        };
        report.sources.push(SourceReport::new(address, looked));
        report
    }

    fn absorb(&mut self, other: Self) {
        if other.freshness != Standing::Valid || other.stale_runs.count + other.new_runs.count > 0 {
            self.freshness = Standing::Stale;
        }
        self.looked_at += other.looked_at;
        for (lifecycle, runs) in other.counts {
            *self.counts.entry(lifecycle).or_default() += runs;
        }
        self.stale_runs.absorb(other.stale_runs);
        self.new_runs.absorb(other.new_runs);
        self.missing_runs.absorb(other.missing_runs);
        self.unreadable_runs.absorb(other.unreadable_runs);
        self.sources.extend(other.sources);
    }
}

impl Reader {
    /// Looks at every run of these sources.
    pub(super) fn report(&self, known: &[Address]) -> Result<Report, Error> {
        let indexed = self.indexed(known);
        let known: Vec<&Address> = known.iter().collect();
        let look = |place: usize| -> Result<Looked, String> {
            let looked = match indexed[place] {
                Some(indexed) => look_over(indexed.open()?, indexed.token.as_ref())?,
                None => look_over(&*known[place].open()?, None)?,
            };
            Ok(looked.0)
        };
        let mut parts: Vec<Option<Report>> = known.iter().map(|_| None).collect();
        each_source(&known, look, |place, looked| {
            parts[place] = Some(match indexed[place] {
                Some(indexed) => self.report_source(indexed, looked)?,
                None => Report::of_new(known[place], &looked),
            });
            Ok(())
        })?;
        let mut report = Report::empty();
        parts.into_iter().flatten().for_each(|part| report.absorb(part));
        Ok(report)
    }

    /// What the index has of each of these, in their order.
    fn indexed(&self, known: &[Address]) -> Vec<Option<&Indexed>> {
        let by_url: HashMap<&str, &Indexed> =
            self.sources.values().map(|source| (source.address.url.as_str(), source)).collect();
        known.iter().map(|address| by_url.get(address.url.as_str()).copied()).collect()
    }

    /// How each of these sources stands, in their order, as a report says it, without a look at their runs.
    pub(super) fn standing(&self, known: &[Address]) -> Result<Vec<SourceReport>, Error> {
        let indexed = self.indexed(known);
        let known: Vec<&Address> = known.iter().collect();
        let look = |place: usize| match indexed[place] {
            Some(indexed) => indexed.reach(),
            None => known[place].open().and_then(|source| source.reach()),
        };
        let mut sources = vec![None; known.len()];
        each_source(&known, look, |place, looked| {
            sources[place] = Some(match indexed[place] {
                Some(indexed) => self.source(indexed, looked, &mut Report::empty())?,
                None => SourceReport::new(known[place], looked),
            });
            Ok(())
        })?;
        Ok(sources.into_iter().flatten().collect())
    }

    /// How a source stands, as a look at it came out. Its runs that cannot be understood are added to the report.
    fn source(
        &self,
        indexed: &Indexed,
        looked: Result<Vec<Problem>, String>,
        report: &mut Report,
    ) -> Result<SourceReport, Error> {
        let mut shown = SourceReport::new(&indexed.address, looked);
        (shown.runs, shown.indexed_at) = (self.count(indexed.id, &mut report.counts)?, Some(indexed.indexed_at));
        let unreadable = &mut report.unreadable_runs;
        self.on_file(indexed.id, "reason IS NOT NULL AND place IS NULL", |name, reason| {
            unreadable.add(&shown.repo, name, reason);
        })?;
        self.on_file(indexed.id, "reason IS NOT NULL AND place IS NOT NULL", |_, problem| {
            let problem = problem.and_then(|problem| serde_json::from_str(problem).ok());
            shown.problems.extend(problem.filter(|_| shown.problems.len() < NAMED));
        })?;
        Ok(shown.judged(unreadable.count > 0))
    }

    fn report_source(&self, indexed: &Indexed, looked: Result<Looked, String>) -> Result<Report, Error> {
        let mut report = Report::empty();
        let repo = indexed.address.repo();
        let problems = match &looked {
            Err(reason) => Err(reason.clone()),
            Ok(Looked::Same) => Ok(indexed.problems.clone()),
            Ok(Looked::Each { problems, .. }) => Ok(problems.clone()),
        };
        let shown = self.source(indexed, problems, &mut report)?;
        let runs = shown.runs;
        if !matches!(looked, Ok(Looked::Each { found: Some(_), .. })) {
            self.on_file(indexed.id, "gone_at IS NOT NULL", |name, _| {
                report.missing_runs.add(&repo, name, Some(GONE_LONGER));
            })?;
        }
        match looked {
            Err(_) => {
                // All of its runs are out of reach, and none of them is named.
                report.missing_runs.count += usize::try_from(runs).unwrap_or(0);
                if indexed.unavailable.is_none() {
                    report.freshness = Standing::Stale;
                }
            }
            Ok(Looked::Same) => {
                report.looked_at += usize::try_from(runs).unwrap_or(0);
                report.freshness = if indexed.unavailable.is_some() { Standing::Stale } else { report.freshness };
            }
            Ok(Looked::Each { count, found, problems }) => {
                report.looked_at += count;
                if problems != indexed.problems || indexed.unavailable.is_some() {
                    report.freshness = Standing::Stale;
                }
                self.compare(indexed, found, &mut report)?;
            }
        }
        report.sources.push(shown);
        Ok(report)
    }

    /// Compares what was found of a source, unless all of it looks as it did, and the marks on its runs.
    fn compare(&self, indexed: &Indexed, found: Option<Vec<Found>>, report: &mut Report) -> Result<(), Error> {
        let Ok(source) = indexed.open() else { return Ok(()) };
        let repo = indexed.address.repo();
        let (mut stale, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let mut note = |difference: Difference<'_>| match difference {
            Difference::New(found) => report.new_runs.add(&repo, &found.name, None),
            Difference::Gone(name) => {
                report.missing_runs.add(&repo, name, Some("gone since the last refresh"));
                gone.insert(Box::from(name));
                report.freshness = Standing::Stale;
            }
            Difference::StillGone(name) => report.missing_runs.add(&repo, name, Some(GONE_LONGER)),
            Difference::Known { is_equal: true, settled: true, .. } => {}
            Difference::Known { found, .. } => _ = stale.insert(found.name.clone()),
        };
        if let Some(found) = found {
            each_difference(&self.connection, indexed.id, found, &mut note)?;
        }
        stale.retain(|name| self.is_otherwise(indexed, source, name));
        let marked = marked_otherwise(&self.connection, (indexed.id, &indexed.address), source)?;
        stale.extend(marked.difference(&gone).cloned());
        stale.iter().for_each(|name| report.stale_runs.add(&repo, name, None));
        Ok(())
    }

    /// Whether a run that looks otherwise is.
    fn is_otherwise(&self, indexed: &Indexed, source: &dyn Source, name: &str) -> bool {
        let sql =
            "SELECT runs.source, runs.name, runs.body, files.reason FROM files JOIN runs ON runs.place = files.place
                   WHERE files.source = ?1 AND files.name = ?2";
        let known = self.connection.prepare_cached(sql).and_then(|mut sql| {
            sql.query_row(rusqlite::params![indexed.id, name], |row| {
                let problem: Option<String> = row.get(3)?;
                Ok((self.record(row), problem.and_then(|problem| serde_json::from_str(&problem).ok())))
            })
        });
        match (source.read(name), known) {
            (Reading::Read(read, _, problem), Ok((Some(known), known_problem))) => {
                *read != known || problem != known_problem
            }
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
                   WHERE files.name = ?1 AND files.reason IS NOT NULL AND files.place IS NULL";
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let read = |row: &rusqlite::Row<'_>| Ok(Named { repo: row.get(0)?, name: row.get(1)?, reason: row.get(2)? });
        statement.query_map([name], read).and_then(Iterator::collect).map_err(from_sqlite)
    }
}
