//! Reads the index, and believes it only as far as the sources bear it out.
//!
//! What is listed is looked at in its source before it is called valid. One that has changed is read again and shown as
//! it is, and is called stale; one that is gone is not listed. Nothing is ever written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, Row, params};
use serde::Serialize;

use super::changes::{Changes, RepositoryProblem, Unverified};
use super::database::from_sqlite;
use super::fts::is_live;
use super::query::{PAGE_LIMIT, Query, SearchCursor, SearchOrder};
use super::record::{Freshness, IndexRecord, Kind, Lifecycle};
use super::report::Sort;
use super::source::{Problem, Reading, Source, Token};
use super::sources::SourceAddress;
use super::stored;
use crate::model::time::Timestamp;
use crate::store::Error;

/// A run, and how much of what is said of it was borne out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SearchHit {
    /// The run.
    #[serde(flatten)]
    pub record: IndexRecord,
    /// Whether the index knew it so.
    pub freshness: Freshness,
    /// What is wrong, where something is.
    pub freshness_reason: Option<String>,
}

/// A page of runs.
#[derive(Debug, Clone, Default)]
pub struct SearchPage {
    /// The runs.
    pub runs: Vec<SearchHit>,
    /// Runs that the index knows and whose sources are gone.
    pub missing: Vec<SearchHit>,
    /// Where the next page begins.
    pub next: Option<SearchCursor>,
    /// The repositories of runs on this page that cannot be looked at, and why.
    pub unavailable: BTreeMap<String, String>,
    /// How many sources have changed since they were indexed, or are not indexed yet.
    pub changed_sources: usize,
    /// Runs of these sources that cannot be understood, whether or not they would match.
    pub unreadable: Sort,
    /// What was not looked at.
    pub unverified: Unverified,
    /// What in these repositories cannot be understood beside runs.
    pub problems: Vec<RepositoryProblem>,
    /// There is an index. Where there is none, what is listed was read from the sources.
    pub indexed: bool,
    /// How many runs match, where that was asked for.
    pub total: Option<usize>,
}

/// A source, as the index knows it.
pub(super) struct Indexed {
    /// The home that keeps the marks on its runs.
    home: Arc<Path>,
    pub(super) id: i64,
    pub(super) address: SourceAddress,
    pub(super) repo: String,
    pub(super) token: Option<Token>,
    /// Why it could not be looked at when the index was last refreshed.
    pub(super) unavailable: Option<String>,
    pub(super) problems: Vec<Problem>,
    pub(super) indexed_at: Timestamp,
    opened: OnceLock<Result<Box<dyn Source>, String>>,
    reached: OnceLock<Result<Vec<Problem>, String>>,
    unchanged: OnceLock<bool>,
}

impl Indexed {
    /// The source itself, or why it cannot be looked at.
    pub(super) fn open(&self) -> Result<&dyn Source, &str> {
        self.opened.get_or_init(|| self.address.open(Some(&self.home))).as_deref().map_err(String::as_str)
    }

    /// Whether one look is enough to tell that nothing in it has changed.
    pub(super) fn is_unchanged(&self) -> bool {
        *self.unchanged.get_or_init(|| {
            let whole = self.open().ok().and_then(|source| source.whole());
            whole.is_some_and(|whole| self.token == Some(whole.token))
        })
    }

    /// What is wrong beside its runs, or why the source cannot be read: what a look at all of it would find.
    pub(super) fn reach(&self) -> Result<Vec<Problem>, String> {
        if self.unavailable.is_none() && self.is_unchanged() {
            return Ok(self.problems.clone());
        }
        self.reached.get_or_init(|| self.open().map_err(str::to_owned).and_then(Source::reach)).clone()
    }

    /// Whether it has changed since it was indexed, as far as a few looks tell. One that would be waited for is not asked.
    pub(super) fn has_moved_on(&self) -> bool {
        if self.address.is_away() {
            return false;
        }
        match (self.open(), &self.unavailable) {
            (Err(_), unavailable) => unavailable.is_none(),
            // It can be opened, and may still tell nothing.
            (Ok(_), Some(_)) => self.reach().is_ok(),
            (Ok(_), None) if self.is_unchanged() => false,
            (Ok(source), None) => {
                let is_otherwise = self.token.is_some() && source.whole().is_some();
                (is_otherwise || source.written_at() > Some(self.indexed_at)) && source.has_news(self.indexed_at)
            }
        }
    }
}

/// The index, to be read.
pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) home: Arc<Path>,
    pub(super) sources: BTreeMap<i64, Indexed>,
}

/// A run on file.
pub(super) struct Filed {
    pub(super) source: i64,
    pub(super) name: String,
    pub(super) record: IndexRecord,
}

/// A run that a search has met.
enum Met {
    /// As it is indexed.
    Indexed(Box<Filed>),
    /// As it was read from its source.
    Read(Box<SearchHit>),
}

impl Met {
    fn record(&self) -> &IndexRecord {
        match self {
            Self::Indexed(filed) => &filed.record,
            Self::Read(listed) => &listed.record,
        }
    }
}

impl Reader {
    pub(super) fn new(connection: Connection, home: &Path) -> Result<Self, Error> {
        let home: Arc<Path> = home.into();
        // One state of the index for everything that is asked of it.
        connection.execute_batch("BEGIN").map_err(from_sqlite)?;
        let sql = "SELECT id, kind, url, repo, token, unavailable, problems, indexed_at FROM sources";
        let read = |row: &Row<'_>| {
            let kind: String = row.get(1)?;
            let kind = if kind == Kind::CoolWorkflow.as_str() { Kind::CoolWorkflow } else { Kind::Outlive };
            let token: Option<Vec<u8>> = row.get(4)?;
            let problems: String = row.get(6)?;
            Ok(Indexed {
                home: home.clone(),
                id: row.get(0)?,
                address: SourceAddress { kind, url: row.get(2)? },
                repo: row.get(3)?,
                token: token.and_then(|token| Token::from_bytes(&token)),
                unavailable: row.get(5)?,
                problems: serde_json::from_str(&problems).unwrap_or_default(),
                indexed_at: Timestamp::from_micros(row.get(7)?),
                opened: OnceLock::new(),
                reached: OnceLock::new(),
                unchanged: OnceLock::new(),
            })
        };
        let sources: Result<Vec<Indexed>, _> = connection
            .prepare(sql)
            .and_then(|mut sql| sql.query_map([], read).and_then(Iterator::collect))
            .map_err(from_sqlite);
        let sources = sources?.into_iter().map(|source| (source.id, source)).collect();
        Ok(Self { connection, home, sources })
    }

    /// Where the runs come from.
    pub(super) fn addresses(&self) -> Vec<SourceAddress> {
        self.sources.values().map(|indexed| indexed.address.clone()).collect()
    }

    /// A page of the runs that match: those that are indexed, verified, and those that were read because they are not.
    pub(super) fn search(&self, query: &Query, changes: &mut Changes) -> Result<SearchPage, Error> {
        let limit = query.limit.clamp(1, PAGE_LIMIT);
        let mut found = SearchPage::default();
        let mut left_out = 0;
        let mut last = None;
        // As many as are still wanted are looked at together, and one more to tell whether there is a next page.
        let mut together: Vec<Met> = Vec::new();
        let mut look = |together: &mut Vec<Met>| -> Option<usize> {
            self.foresee(together);
            for met in together.drain(..) {
                if found.runs.len() == limit {
                    found.next = last.take();
                    return None;
                }
                let place = SearchCursor::at(met.record());
                let Some(listed) = self.judge(met, query, &mut found) else { continue };
                if left_out < query.offset {
                    left_out += 1;
                    continue;
                }
                last = Some(place);
                found.runs.push(listed);
            }
            Some(limit + 1 - found.runs.len())
        };
        let mut wanted = limit + 1;
        self.merge(query, changes, |met| {
            together.push(met);
            if together.len() < wanted {
                return Ok(true);
            }
            let left = look(&mut together);
            wanted = left.unwrap_or_default();
            Ok(left.is_some())
        })?;
        look(&mut together);
        Ok(found)
    }

    /// The run as it is listed; none where it is not, because it is gone, cannot be understood or is another by now.
    fn judge(&self, met: Met, query: &Query, found: &mut SearchPage) -> Option<SearchHit> {
        let filed = match met {
            Met::Read(listed) => return Some(*listed),
            Met::Indexed(filed) => filed,
        };
        let listed = self.verify(&filed);
        match listed.freshness {
            Freshness::Missing => {
                let reason = self.sources.get(&filed.source).and_then(|indexed| indexed.reach().err());
                found.unavailable.extend(reason.map(|reason| (listed.record.repo.clone(), reason)));
                found.missing.push(listed);
                None
            }
            Freshness::Unreadable => {
                found.unreadable.add(&listed.record.repo, &filed.name, listed.freshness_reason.as_deref());
                None
            }
            // It may be listed for what it was.
            Freshness::Valid | Freshness::Stale | Freshness::New => query.matches(&listed.record).then_some(listed),
        }
    }

    /// Has `visit` called with the runs that match, in order, those that were read among those that are indexed, until it
    /// answers that it has enough.
    fn merge(
        &self,
        query: &Query,
        changes: &mut Changes,
        mut visit: impl FnMut(Met) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let mut read = std::mem::take(&mut changes.read);
        read.retain(|listed| query.is_behind(&listed.record));
        read.sort_by(|one, other| one.record.sort_key().cmp(&other.record.sort_key()));
        if query.order == SearchOrder::Newest {
            read.reverse();
        }
        let is_before = |one: &IndexRecord, other: &IndexRecord| match query.order {
            SearchOrder::Oldest => one.sort_key() < other.sort_key(),
            SearchOrder::Newest => one.sort_key() > other.sort_key(),
        };
        let mut read = read.into_iter().peekable();
        let mut goes_on = true;
        self.walk(query, |filed| {
            while goes_on && let Some(listed) = read.next_if(|listed| is_before(&listed.record, &filed.record)) {
                goes_on = visit(Met::Read(Box::new(listed)))?;
            }
            if goes_on && !changes.replaces(filed.source, &filed.name) {
                goes_on = visit(Met::Indexed(Box::new(filed)))?;
            }
            Ok(goes_on)
        })?;
        while goes_on && let Some(listed) = read.next() {
            goes_on = visit(Met::Read(Box::new(listed)))?;
        }
        Ok(())
    }

    /// How many sources are indexed and not known any more, of all repositories or of these.
    pub(super) fn removed_sources(&self, known: &[SourceAddress], repos: Option<&BTreeSet<String>>) -> usize {
        let urls: BTreeSet<&str> = known.iter().map(|address| address.url.as_str()).collect();
        let is_meant = |indexed: &&Indexed| repos.is_none_or(|repos| repos.contains(&indexed.repo));
        let is_other = |indexed: &&Indexed| !urls.contains(indexed.address.url.as_str());
        self.sources.values().filter(is_meant).filter(is_other).count()
    }

    /// Has each source know what it is asked for next, all of them at once: none is waited for longer than another.
    fn foresee(&self, together: &[Met]) {
        let mut names: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        for met in together {
            if let Met::Indexed(filed) = met {
                names.entry(filed.source).or_default().push(&filed.name);
            }
        }
        let sources = names.iter().filter_map(|(id, names)| Some((self.sources.get(id)?, names)));
        std::thread::scope(|scope| {
            for (indexed, names) in sources.filter(|(indexed, _)| indexed.address.is_away()) {
                scope.spawn(move || indexed.open().map(|source| source.foresee(names)));
            }
        });
    }

    /// The record in a row, if it can be understood.
    pub(super) fn record(&self, row: &Row<'_>) -> Option<IndexRecord> {
        self.filed(row).ok().flatten().map(|filed| filed.record)
    }

    pub(super) fn filed(&self, row: &Row<'_>) -> Result<Option<Filed>, Error> {
        let read = || Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?));
        let (source, name, body) = read().map_err(from_sqlite)?;
        let Some(indexed) = self.sources.get(&source) else { return Ok(None) };
        let home =
            stored::Home { kind: indexed.address.kind, url: &indexed.address.url, repo: &indexed.repo, name: &name };
        let record = stored::read(&body, home);
        record
            .map(|record| Some(Filed { source, name, record }))
            .ok_or_else(|| Error::Corrupt("the index cannot be understood".into()))
    }

    /// The run as its source has it, and whether the index knew.
    pub(super) fn verify(&self, filed: &Filed) -> SearchHit {
        let Some(indexed) = self.sources.get(&filed.source) else {
            return listed(&filed.record, Freshness::Missing, "its source is not known");
        };
        let source = match indexed.open() {
            Ok(source) => source,
            Err(reason) => return listed(&filed.record, Freshness::Missing, reason),
        };
        let mut checked = match indexed.is_unchanged() {
            true => SearchHit { record: filed.record.clone(), freshness: Freshness::Valid, freshness_reason: None },
            false => self.look(source, filed),
        };
        // How one stands that is in flight, its processes tell.
        if is_live(&checked.record)
            && checked.freshness != Freshness::Missing
            && let Some(stands) = source.stands(&checked.record.run_id)
        {
            let lifecycle = if checked.record.archived { Lifecycle::Archived } else { stands };
            (checked.record.lifecycle, checked.record.derived_lifecycle) = (lifecycle, stands);
        }
        if let (Freshness::Valid, Some(unknown)) = (checked.freshness, source.unknown_marks()) {
            (checked.freshness, checked.freshness_reason) = (Freshness::Stale, Some(unknown));
        }
        checked
    }

    fn look(&self, source: &dyn Source, filed: &Filed) -> SearchHit {
        let record = &filed.record;
        let sql = "SELECT token, settled FROM files WHERE source = ?1 AND name = ?2";
        let known = self.connection.prepare_cached(sql).and_then(|mut sql| {
            sql.query_row(params![filed.source, filed.name], |row| {
                Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, bool>(1)?))
            })
        });
        let known = known.ok().filter(|(_, settled)| *settled).and_then(|(token, _)| Token::from_bytes(&token));
        let Some(look) = source.look(&filed.name) else {
            return listed(record, Freshness::Missing, "its source is gone");
        };
        let is_same = known == Some(look.token) && record.bears(&marks_of(source, record));
        if is_same {
            return SearchHit { record: record.clone(), freshness: Freshness::Valid, freshness_reason: None };
        }
        match source.read(&filed.name) {
            Reading::Gone => listed(record, Freshness::Missing, "its source is gone"),
            Reading::Away(reason) => listed(record, Freshness::Missing, &reason),
            Reading::Unreadable(reason, _) => listed(record, Freshness::Unreadable, &reason),
            Reading::Read(read, ..) if *read == *record => {
                SearchHit { record: *read, freshness: Freshness::Valid, freshness_reason: None }
            }
            Reading::Read(read, ..) => listed(&read, Freshness::Stale, "its source has changed since it was indexed"),
        }
    }

    /// Has `visit` called with every run that matches, as it is indexed or was read: none is verified by itself.
    pub(super) fn each(
        &self,
        query: &Query,
        changes: &mut Changes,
        mut visit: impl FnMut(&IndexRecord),
    ) -> Result<(), Error> {
        self.merge(query, changes, |met| {
            visit(met.record());
            Ok(true)
        })
    }
}

fn marks_of(source: &dyn Source, record: &IndexRecord) -> super::record::Marks {
    if record.source == Kind::CoolWorkflow {
        return source.marks(&record.run_id);
    }
    super::record::Marks::of(record)
}

fn listed(record: &IndexRecord, freshness: Freshness, reason: &str) -> SearchHit {
    SearchHit { record: record.clone(), freshness, freshness_reason: Some(reason.into()) }
}
