//! How much of the index is still true: every run that it knows is looked at in its source.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde::Serialize;

use super::database::from_sqlite;
use super::reader::{Indexed, Reader};
use super::refresh::{Difference, each_difference, marked_otherwise};
use super::scan::{Looked, each_source, look_over};
use super::source::{Found, Problem, Reading, Source};
use super::sources::SourceAddress;
use crate::model::time::Timestamp;
use crate::store::Error;

/// The most runs that are named of each sort, unless a caller asks for others.
const NAMED: usize = 100;
/// The most problems that are named of a source.
const PROBLEMS: usize = 100;

/// Whether the whole index can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nothing has changed since it was made.
    Valid,
    /// Nothing has changed that can be read; runs or sources cannot be.
    Degraded,
    /// Something has.
    Stale,
    /// There is none.
    Absent,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Valid => "valid",
            Self::Degraded => "degraded",
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sort {
    /// How many there are, named or not.
    pub count: usize,
    /// A page of them, by repository and name.
    pub runs: Vec<Named>,
    /// How many are kept to be named.
    #[serde(skip)]
    most: usize,
}

impl Default for Sort {
    fn default() -> Self {
        Self::naming(NAMED)
    }
}

impl Sort {
    /// None yet, of which the first `most` are to be named.
    pub(super) fn naming(most: usize) -> Self {
        Self { count: 0, runs: Vec::new(), most }
    }

    pub(super) fn add(&mut self, repo: &str, name: &str, reason: Option<&str>) {
        self.count += 1;
        if self.runs.len() < self.most {
            self.runs.push(Named { repo: repo.into(), name: name.into(), reason: reason.map(Into::into) });
        }
    }

    pub(super) fn absorb(&mut self, other: Self) {
        self.count += other.count;
        let room = self.most.saturating_sub(self.runs.len());
        self.runs.extend(other.runs.into_iter().take(room));
    }

    fn skip(&mut self, offset: usize) {
        self.runs.drain(..offset.min(self.runs.len()));
    }
}

/// Which of the runs of each sort a report names: so many behind so many others.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// How many are left out first.
    pub offset: usize,
    /// How many are named at most.
    pub limit: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self { offset: 0, limit: NAMED }
    }
}

impl Names {
    fn most(self) -> usize {
        self.offset.saturating_add(self.limit)
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
pub struct IndexReport {
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

/// Which runs on file could not be understood.
pub(super) const UNREADABLE: &str = "reason IS NOT NULL AND place IS NULL";
const GONE_LONGER: &str = "gone since an earlier refresh";
/// What was looked at, in words.
const LOOKED: &str = "device, inode, size and times of every run's file; revisions where a database changed";

impl SourceReport {
    /// A source, as a look at it came out: what is wrong beside its runs, or why it cannot be read.
    fn new(address: &SourceAddress, looked: Result<Vec<Problem>, String>) -> Self {
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

    /// A source with its state, which is determined here and nowhere else.
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
pub(super) fn unindexed(home: &Path, known: &[SourceAddress]) -> Result<Vec<SourceReport>, Error> {
    let known: Vec<&SourceAddress> = known.iter().collect();
    let mut sources = vec![None; known.len()];
    let reach = |place: usize| known[place].open(Some(home)).and_then(|source| source.reach());
    each_source(&known, reach, |place, looked| {
        sources[place] = Some(SourceReport::new(known[place], looked));
        Ok(())
    })?;
    Ok(sources.into_iter().flatten().collect())
}

impl IndexReport {
    /// What there is to tell where there is no index.
    pub(super) fn absent(home: &Path, known: &[SourceAddress]) -> Result<Self, Error> {
        let sources = unindexed(home, known)?;
        let verified = "nothing: there is no index";
        Ok(Self { freshness: Standing::Absent, verified, sources, ..Self::empty(Names::default()) })
    }

    fn empty(names: Names) -> Self {
        let most = names.most();
        Self {
            freshness: Standing::Valid,
            verified: LOOKED,
            looked_at: 0,
            counts: BTreeMap::new(),
            stale_runs: Sort::naming(most),
            new_runs: Sort::naming(most),
            missing_runs: Sort::naming(most),
            unreadable_runs: Sort::naming(most),
            sources: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// A source that is not indexed yet: all of it is new.
    fn of_new(address: &SourceAddress, looked: &Result<Looked, String>, names: Names) -> Self {
        let mut report = Self { freshness: Standing::Stale, ..Self::empty(names) };
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
        let is_stale = other.stale_runs.count + other.new_runs.count > 0;
        let standing = if is_stale { Standing::Stale } else { Standing::Valid };
        self.freshness = self.freshness.max(other.freshness).max(standing);
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
    pub(super) fn report(&self, known: &[SourceAddress], names: Names) -> Result<IndexReport, Error> {
        let indexed = self.indexed(known);
        let known: Vec<&SourceAddress> = known.iter().collect();
        let home = &*self.home;
        let look = |place: usize| -> Result<Looked, String> {
            let looked = match indexed[place] {
                Some(indexed) => look_over(indexed.open()?, indexed.token.as_ref())?,
                None => look_over(&*known[place].open(Some(home))?, None)?,
            };
            Ok(looked.0)
        };
        let mut parts: Vec<Option<IndexReport>> = known.iter().map(|_| None).collect();
        each_source(&known, look, |place, looked| {
            parts[place] = Some(match indexed[place] {
                Some(indexed) => self.report_source(indexed, looked, names)?,
                None => IndexReport::of_new(known[place], &looked, names),
            });
            Ok(())
        })?;
        let mut report = IndexReport::empty(names);
        parts.into_iter().flatten().for_each(|part| report.absorb(part));
        let sorts =
            [&mut report.stale_runs, &mut report.new_runs, &mut report.missing_runs, &mut report.unreadable_runs];
        sorts.into_iter().for_each(|sort| sort.skip(names.offset));
        Ok(report)
    }

    /// What the index has of each of these, in their order.
    pub(super) fn indexed(&self, known: &[SourceAddress]) -> Vec<Option<&Indexed>> {
        let by_url: HashMap<&str, &Indexed> =
            self.sources.values().map(|source| (source.address.url.as_str(), source)).collect();
        known.iter().map(|address| by_url.get(address.url.as_str()).copied()).collect()
    }

    /// How each of these sources stands, in their order, as a report says it, without a look at their runs.
    pub(super) fn standing(&self, known: &[SourceAddress]) -> Result<Vec<SourceReport>, Error> {
        let indexed = self.indexed(known);
        let known: Vec<&SourceAddress> = known.iter().collect();
        let home = &*self.home;
        let look = |place: usize| match indexed[place] {
            Some(indexed) => indexed.reach(),
            None => known[place].open(Some(home)).and_then(|source| source.reach()),
        };
        let mut sources = vec![None; known.len()];
        each_source(&known, look, |place, looked| {
            sources[place] = Some(match indexed[place] {
                Some(indexed) => self.source(indexed, looked, &mut BTreeMap::new())?,
                None => SourceReport::new(known[place], looked),
            });
            Ok(())
        })?;
        Ok(sources.into_iter().flatten().collect())
    }

    /// How a source stands, as a look at it came out. How many of its runs stand how is added to the counts.
    fn source(
        &self,
        indexed: &Indexed,
        looked: Result<Vec<Problem>, String>,
        counts: &mut BTreeMap<String, u64>,
    ) -> Result<SourceReport, Error> {
        let mut shown = SourceReport::new(&indexed.address, looked);
        (shown.runs, shown.indexed_at) = (self.count(indexed.id, counts)?, Some(indexed.indexed_at));
        let mut has_unreadable = false;
        self.on_file(indexed.id, UNREADABLE, |_, _| has_unreadable = true)?;
        self.on_file(indexed.id, "reason IS NOT NULL AND place IS NOT NULL", |_, problem| {
            let problem = problem.and_then(|problem| serde_json::from_str(problem).ok());
            shown.problems.extend(problem.filter(|_| shown.problems.len() < PROBLEMS));
        })?;
        Ok(shown.judged(has_unreadable))
    }

    fn report_source(
        &self,
        indexed: &Indexed,
        looked: Result<Looked, String>,
        names: Names,
    ) -> Result<IndexReport, Error> {
        let mut report = IndexReport::empty(names);
        let repo = indexed.address.repo();
        let problems = match &looked {
            Err(reason) => Err(reason.clone()),
            Ok(Looked::Same) => Ok(indexed.problems.clone()),
            Ok(Looked::Each { problems, .. }) => Ok(problems.clone()),
        };
        let shown = self.source(indexed, problems, &mut report.counts)?;
        let runs = shown.runs;
        if !matches!(looked, Ok(Looked::Each { found: Some(_), .. })) {
            self.on_file(indexed.id, "gone_at IS NOT NULL", |name, _| {
                report.missing_runs.add(&repo, name, Some(GONE_LONGER));
            })?;
        }
        let changed = match looked {
            Err(reason) => {
                self.on_file(indexed.id, "gone_at IS NULL AND place IS NOT NULL", |name, _| {
                    report.missing_runs.add(&repo, name, Some(&reason));
                })?;
                let was_known = indexed.unavailable.is_some();
                report.freshness = if was_known { Standing::Degraded } else { Standing::Stale };
                BTreeMap::new()
            }
            Ok(Looked::Same) => {
                report.looked_at += usize::try_from(runs).unwrap_or(0);
                report.freshness = if indexed.unavailable.is_some() { Standing::Stale } else { report.freshness };
                BTreeMap::new()
            }
            Ok(Looked::Each { count, found, problems }) => {
                report.looked_at += count;
                if problems != indexed.problems || indexed.unavailable.is_some() {
                    report.freshness = Standing::Stale;
                }
                self.compare(indexed, found, &mut report)?
            }
        };
        self.on_file(indexed.id, UNREADABLE, |name, reason| {
            if !changed.contains_key(name) {
                report.unreadable_runs.add(&repo, name, reason);
            }
        })?;
        let now_unreadable = changed.iter().filter_map(|(name, reason)| Some((name, reason.as_deref()?)));
        now_unreadable.for_each(|(name, reason)| report.unreadable_runs.add(&repo, name, Some(reason)));
        if report.unreadable_runs.count > 0 {
            report.freshness = report.freshness.max(Standing::Degraded);
        }
        report.sources.push(shown);
        Ok(report)
    }

    /// Compares what was found of a source, unless all of it looks as it did, and the marks on its runs. Answers with the
    /// runs that have changed, and with why each cannot be understood any more, where it cannot.
    fn compare(
        &self,
        indexed: &Indexed,
        found: Option<Vec<Found>>,
        report: &mut IndexReport,
    ) -> Result<BTreeMap<Box<str>, Option<String>>, Error> {
        let Ok(source) = indexed.open() else { return Ok(BTreeMap::new()) };
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
        let mut changed: BTreeMap<Box<str>, Option<String>> = BTreeMap::new();
        for name in stale {
            changed.extend(self.difference(indexed, source, &name).map(|unreadable| (name, unreadable)));
        }
        let marked = marked_otherwise(&self.connection, (indexed.id, &indexed.address), source)?;
        for name in marked.difference(&gone) {
            changed.entry(name.clone()).or_default();
        }
        changed.iter().for_each(|(name, reason)| report.stale_runs.add(&repo, name, reason.as_deref()));
        Ok(changed)
    }

    /// How a run that looks otherwise differs from what is indexed: not at all, or with why it cannot be understood any more.
    fn difference(&self, indexed: &Indexed, source: &dyn Source, name: &str) -> Option<Option<String>> {
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
                (*read != known || problem != known_problem).then_some(None)
            }
            // What could not be understood still cannot be.
            (Reading::Unreadable(..), Err(_)) => None,
            (Reading::Unreadable(reason, _), Ok(_)) => Some(Some(reason)),
            _ => Some(None),
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

    pub(super) fn on_file(
        &self,
        source: i64,
        which: &str,
        mut each: impl FnMut(&str, Option<&str>),
    ) -> Result<(), Error> {
        let sql = format!("SELECT name, reason FROM files WHERE source = ?1 AND {which} ORDER BY name");
        let mut statement = self.connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let mut rows = statement.query([source]).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            let text = |column| row.get_ref(column).ok().and_then(|value| value.as_str().ok());
            each(text(0).unwrap_or_default(), text(1));
        }
        Ok(())
    }
}
