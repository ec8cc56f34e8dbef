//! Reads the index, and believes it only as far as the sources bear it out.
//!
//! What is listed is looked at in its source before it is called valid. One that has changed is read again and shown as
//! it is, and is called stale; one that is gone is not listed. Nothing is ever written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use rusqlite::{Connection, Row, params};
use serde::Serialize;

use super::database::from_sqlite;
use super::query::{Cursor, Order, PAGE_LIMIT, Query};
use super::record::{Freshness, Kind, Lifecycle, Record};
use super::source::{Problem, Reading, Source, Token};
use super::sources::{Address, is_repo};
use super::stored;
use super::words::{self, Sought, is_live};
use super::writer::first_place;
use crate::store::Error;
use crate::time::Timestamp;

/// How many runs are looked at, before the index is asked for words that begin with something. Of what less than one in twenty
/// has, it gathers all in no more time.
const LOOKED_AT: usize = 2_000;

/// A run, and how much of what is said of it was borne out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Listed {
    /// The run.
    #[serde(flatten)]
    pub record: Record,
    /// Whether the index knew it so.
    pub freshness: Freshness,
    /// What is wrong, where something is.
    pub freshness_reason: Option<String>,
}

/// A page of runs.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The runs.
    pub runs: Vec<Listed>,
    /// Runs that the index knows and whose sources are gone.
    pub missing: Vec<Listed>,
    /// Where the next page begins.
    pub next: Option<Cursor>,
    /// The repositories of runs on this page that cannot be looked at, and why.
    pub unavailable: BTreeMap<String, String>,
    /// How many sources have changed since they were indexed, or are not indexed yet: runs of theirs may be left out.
    pub changed_sources: usize,
}

/// A source, as the index knows it.
pub(super) struct Indexed {
    pub(super) id: i64,
    pub(super) address: Address,
    repo: String,
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
        self.opened.get_or_init(|| self.address.open()).as_deref().map_err(String::as_str)
    }

    /// Whether one look is enough to tell that nothing in it has changed.
    pub(super) fn is_unchanged(&self) -> bool {
        *self.unchanged.get_or_init(|| {
            let whole = self.open().ok().and_then(|source| source.whole());
            whole.is_some_and(|whole| self.token == Some(whole.token))
        })
    }

    /// What is wrong beside its runs, or why nothing can be told of it: what a look at all of it would find.
    pub(super) fn reach(&self) -> Result<Vec<Problem>, String> {
        if self.unavailable.is_none() && self.is_unchanged() {
            return Ok(self.problems.clone());
        }
        self.reached.get_or_init(|| self.open().map_err(str::to_owned).and_then(Source::reach)).clone()
    }

    /// Whether it has changed since it was indexed, as far as a few looks tell. One that would be waited for is not asked.
    fn has_moved_on(&self) -> bool {
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
    pub(super) sources: BTreeMap<i64, Indexed>,
}

/// A run on file.
struct Filed {
    source: i64,
    name: String,
    record: Record,
}

impl Reader {
    pub(super) fn new(connection: Connection) -> Result<Self, Error> {
        // One state of the index for everything that is asked of it.
        connection.execute_batch("BEGIN").map_err(from_sqlite)?;
        let sql = "SELECT id, kind, url, repo, token, unavailable, problems, indexed_at FROM sources";
        let read = |row: &Row<'_>| {
            let kind: String = row.get(1)?;
            let kind = if kind == Kind::CoolWorkflow.as_str() { Kind::CoolWorkflow } else { Kind::Outlive };
            let token: Option<Vec<u8>> = row.get(4)?;
            let problems: String = row.get(6)?;
            Ok(Indexed {
                id: row.get(0)?,
                address: Address { kind, url: row.get(2)? },
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
        Ok(Self { connection, sources })
    }

    /// Where the runs come from.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.sources.values().map(|indexed| indexed.address.clone()).collect()
    }

    /// A page of the runs that match.
    pub(super) fn search(&self, query: &Query) -> Result<Found, Error> {
        let limit = query.limit.clamp(1, PAGE_LIMIT);
        let mut found = Found::default();
        let mut last = None;
        // As many as are still wanted are looked at together, and one more to tell whether there is a next page.
        let mut together: Vec<Filed> = Vec::new();
        let mut look = |together: &mut Vec<Filed>| -> Option<usize> {
            self.foresee(together);
            for filed in together.drain(..) {
                if found.runs.len() == limit {
                    found.next = last.take();
                    return None;
                }
                let listed = self.verify(&filed);
                // It may be listed for what it was.
                if listed.freshness == Freshness::Missing {
                    let reason = self.sources.get(&filed.source).and_then(|indexed| indexed.reach().err());
                    found.unavailable.extend(reason.map(|reason| (listed.record.repo.clone(), reason)));
                    found.missing.push(listed);
                } else if query.matches(&listed.record) {
                    last = Some(Cursor::at(&filed.record));
                    found.runs.push(listed);
                }
            }
            Some(limit + 1 - found.runs.len())
        };
        let mut wanted = limit + 1;
        self.walk(query, |filed| {
            together.push(filed);
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

    /// How many of the sources that are known, or of those of these repositories, have changed since they were indexed.
    pub(super) fn changed_sources(&self, known: &[Address], repos: Option<&BTreeSet<String>>) -> usize {
        let is_meant = |repo: &String| repos.is_none_or(|repos| repos.contains(repo));
        let urls: BTreeSet<&str> = known.iter().map(|address| address.url.as_str()).collect();
        let indexed: BTreeSet<&str> = self.sources.values().map(|indexed| indexed.address.url.as_str()).collect();
        let is_other = |indexed: &&Indexed| !urls.contains(indexed.address.url.as_str()) || indexed.has_moved_on();
        let changed = self.sources.values().filter(|indexed| is_meant(&indexed.repo)).filter(is_other).count();
        let is_new = |address: &&Address| !indexed.contains(address.url.as_str()) && is_meant(&address.repo());
        changed + known.iter().filter(is_new).count()
    }

    /// Has each source know what it is asked for next, all of them at once: none is waited for longer than another.
    fn foresee(&self, together: &[Filed]) {
        let mut names: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        together.iter().for_each(|filed| names.entry(filed.source).or_default().push(&filed.name));
        let sources = names.iter().filter_map(|(id, names)| Some((self.sources.get(id)?, names)));
        std::thread::scope(|scope| {
            for (indexed, names) in sources.filter(|(indexed, _)| indexed.address.is_away()) {
                scope.spawn(move || indexed.open().map(|source| source.foresee(names)));
            }
        });
    }

    /// Has `visit` called with the runs that match as they are indexed, in order, until it answers that it has enough.
    ///
    /// The index gathers all runs with a word that begins with something before it tells the first. If those are many, they are
    /// soon met by whoever just looks: so some runs are looked at before it is asked.
    fn walk(&self, query: &Query, mut visit: impl FnMut(Filed) -> Result<bool, Error>) -> Result<(), Error> {
        let sought = query.text.as_deref().map(Sought::new).unwrap_or_default();
        let mut tries = vec![(sought.expressions().collect(), usize::MAX)];
        if sought.is_open() {
            tries.insert(0, (sought.closed().expressions().collect::<Vec<_>>(), LOOKED_AT));
        }
        // Runs of one millisecond are listed by place, and are to be listed by id.
        let mut together: Vec<Filed> = Vec::new();
        let mut flush = |together: &mut Vec<Filed>| -> Result<bool, Error> {
            together.sort_by(|one, other| one.record.sort_key().cmp(&other.record.sort_key()));
            if query.order == Order::Newest {
                together.reverse();
            }
            for filed in together.drain(..) {
                if query.is_behind(&filed.record) && !visit(filed)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let mut behind = None;
        for (text, most) in tries {
            let Some(expression) = self.expression(query, text) else { return Ok(()) };
            let (sql, values) = statement(query, &expression, behind);
            let mut statement = self.connection.prepare_cached(&sql).map_err(from_sqlite)?;
            let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(from_sqlite)?;
            let mut met = 0;
            while met < most
                && let Some(row) = rows.next().map_err(from_sqlite)?
            {
                met += 1;
                behind = Some(row.get(3).map_err(from_sqlite)?);
                let Some(filed) = self.filed(row)? else { continue };
                let is_apart = |other: &Filed| first_place(other.record.made()) != first_place(filed.record.made());
                if together.last().is_some_and(is_apart) && !flush(&mut together)? {
                    return Ok(());
                }
                if self.may_match(query, &filed) {
                    together.push(filed);
                }
            }
            if met < most {
                break;
            }
        }
        flush(&mut together).map(|_| ())
    }

    /// The record in a row, if it can be understood.
    pub(super) fn record(&self, row: &Row<'_>) -> Option<Record> {
        self.filed(row).ok().flatten().map(|filed| filed.record)
    }

    fn filed(&self, row: &Row<'_>) -> Result<Option<Filed>, Error> {
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

    /// Whether a run is meant, as far as it can be told before it is looked at.
    fn may_match(&self, query: &Query, filed: &Filed) -> bool {
        let record = &filed.record;
        query.matches(record)
            || is_live(record) && {
                let wide = Query { statuses: BTreeSet::new(), text: None, ..query.clone() };
                wide.matches(record)
            }
    }

    /// What the full-text index is asked; none where nothing can be found. Empty where everything is.
    fn expression(&self, query: &Query, text: Vec<String>) -> Option<String> {
        let quoted = |word: String| format!("\"{word}\"");
        let any = |words: Vec<String>| match words.len() {
            1 => words.into_iter().next(),
            0 => None,
            _ => Some(format!("({})", words.join(" OR "))),
        };
        let mut all: Vec<String> = Vec::new();
        if let Some(repos) = &query.repos {
            let of_them = self.sources.values().filter(|source| repos.contains(&source.repo));
            all.push(any(of_them.map(|source| quoted(words::source(source.id))).collect())?);
        }
        if !query.statuses.is_empty() {
            let statuses = query.statuses.iter().map(|status| quoted(words::status(status.as_str())));
            all.extend(any(statuses.chain([quoted(words::LIVE.into())]).collect()));
        }
        all.extend(query.app.iter().map(|app| quoted(words::mark('a', &app.to_lowercase()))));
        all.extend(query.kind.iter().map(|kind| quoted(words::mark('k', kind))));
        all.extend(query.labels.iter().map(|(label, value)| quoted(words::label(label, value))));
        let mark = |archived| if archived { words::ARCHIVED } else { words::SHOWN };
        all.extend(query.archived.map(|archived| quoted(mark(archived).into())));
        all.extend(text.into_iter().map(|expression| format!("({expression})")));
        Some(all.join(" AND "))
    }

    /// The run as its source has it, and whether the index knew.
    fn verify(&self, filed: &Filed) -> Listed {
        let Some(indexed) = self.sources.get(&filed.source) else {
            return listed(&filed.record, Freshness::Missing, "its source is not known");
        };
        let source = match indexed.open() {
            Ok(source) => source,
            Err(reason) => return listed(&filed.record, Freshness::Missing, reason),
        };
        let mut checked = match indexed.is_unchanged() {
            true => Listed { record: filed.record.clone(), freshness: Freshness::Valid, freshness_reason: None },
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
        checked
    }

    fn look(&self, source: &dyn Source, filed: &Filed) -> Listed {
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
            return Listed { record: record.clone(), freshness: Freshness::Valid, freshness_reason: None };
        }
        match source.read(&filed.name) {
            Reading::Gone => listed(record, Freshness::Missing, "its source is gone"),
            Reading::Away(reason) => listed(record, Freshness::Missing, &reason),
            Reading::Unreadable(reason, _) => listed(record, Freshness::Unreadable, &reason),
            Reading::Read(read, ..) if *read == *record => {
                Listed { record: *read, freshness: Freshness::Valid, freshness_reason: None }
            }
            Reading::Read(read, ..) => listed(&read, Freshness::Stale, "its source has changed since it was indexed"),
        }
    }

    /// The runs that `text` may mean, by id, by the beginning of one, by directory or by name; of all repositories, or of
    /// those whose path ends with `repo`. The best sort of match alone.
    pub(super) fn find(&self, text: &str, repo: Option<&str>, limit: usize) -> Result<Vec<Listed>, Error> {
        let is_there = |source: &i64| {
            let indexed = self.sources.get(source);
            indexed.is_some_and(|indexed| repo.is_none_or(|repo| is_repo(&indexed.repo, repo)))
        };
        let columns = "SELECT source, name, body FROM runs";
        let after_last = format!("{text}\u{10ffff}");
        let by_id: [(String, Vec<&str>); 3] = [
            (format!("{columns} WHERE run_id = ?1 ORDER BY place DESC"), vec![text]),
            (String::new(), vec![]),
            (
                format!("{columns} WHERE run_id >= ?1 AND run_id < ?2 ORDER BY place DESC LIMIT 1000"),
                vec![text, &after_last],
            ),
        ];
        for (sql, values) in by_id {
            let mut found = Vec::new();
            if sql.is_empty() {
                for source in self.sources.keys().filter(|source| is_there(source)) {
                    let sql = format!(
                        "SELECT runs.source, runs.name, runs.body FROM files JOIN runs ON runs.place = files.place
                         WHERE files.source = {source} AND files.name = ?1"
                    );
                    self.gather(&sql, &[text], &mut found)?;
                }
            } else if text.chars().count() >= 2 {
                self.gather(&sql, &values, &mut found)?;
            }
            found.retain(|filed: &Filed| is_there(&filed.source));
            if !found.is_empty() {
                return Ok(found.iter().take(limit).map(|filed| self.verify(filed)).collect());
            }
        }
        let named = Query { text: Some(text.into()), order: Order::Newest, ..Query::default() };
        let mut found = Vec::new();
        self.walk(&named, |filed| {
            if filed.record.title == text && is_there(&filed.source) {
                found.push(self.verify(&filed));
            }
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    fn gather(&self, sql: &str, values: &[&str], found: &mut Vec<Filed>) -> Result<(), Error> {
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            found.extend(self.filed(row)?);
        }
        Ok(())
    }

    /// Has `visit` called with every run that matches, as it is indexed: nothing is looked at.
    pub(super) fn each(&self, query: &Query, mut visit: impl FnMut(&Record)) -> Result<(), Error> {
        self.walk(query, |filed| {
            visit(&filed.record);
            Ok(true)
        })
    }
}

fn marks_of(source: &dyn Source, record: &Record) -> super::record::Marks {
    if record.source == Kind::CoolWorkflow {
        return source.marks(&record.run_id);
    }
    super::record::Marks::of(record)
}

fn listed(record: &Record, freshness: Freshness, reason: &str) -> Listed {
    Listed { record: record.clone(), freshness, freshness_reason: Some(reason.into()) }
}

/// What finds the runs, those behind a place if one is named.
fn statement(query: &Query, expression: &str, behind: Option<i64>) -> (String, Vec<rusqlite::types::Value>) {
    use rusqlite::types::Value;
    let mut clauses = Vec::new();
    let mut values = Vec::new();
    let place = if expression.is_empty() {
        clauses.push("runs.gone = 0".to_owned());
        "runs.place"
    } else {
        clauses.push("words MATCH ?".to_owned());
        values.push(Value::Text(expression.into()));
        "words.rowid"
    };
    let (mut from, mut to) = (query.since.map(first_place), query.until.map(first_place));
    // The whole millisecond of the last page's end: what of it was listed is left out later.
    match (&query.after, query.order) {
        (Some(after), Order::Oldest) => from = from.max(Some(first_place(after.made()))),
        (Some(after), Order::Newest) => {
            let place = first_place(after.made());
            to = Some(to.map_or(place, |to| to.min(place)));
        }
        (None, _) => {}
    }
    // A millisecond has places up to the next.
    let whole = first_place(Timestamp::from_micros(1_000)) - 1;
    for (bound, value) in [(">=", from), ("<=", to.map(|to| to.saturating_add(whole)))] {
        if let Some(value) = value {
            clauses.push(format!("{place} {bound} ?"));
            values.push(Value::Integer(value));
        }
    }
    if let Some(behind) = behind {
        clauses.push(format!("{place} {} ?", if query.order == Order::Newest { "<" } else { ">" }));
        values.push(Value::Integer(behind));
    }
    let tables = if expression.is_empty() { "runs" } else { "words CROSS JOIN runs ON runs.place = words.rowid" };
    let direction = if query.order == Order::Newest { "DESC" } else { "ASC" };
    let clauses = clauses.join(" AND ");
    let sql = format!(
        "SELECT runs.source, runs.name, runs.body, {place} FROM {tables} WHERE {clauses} ORDER BY {place} {direction}"
    );
    (sql, values)
}
