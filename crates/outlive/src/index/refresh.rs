//! Brings the index up to date: looks at every run from outside, and reads those that look otherwise.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use super::database::{Turn, from_sqlite};
use super::record::IndexRecord;
use super::scan::{Looked, each_source, look_over};
use super::source::{Found, Look, Problem, Reading, Source, Token};
use super::sources::SourceAddress;
use super::writer::{Entry, Writer};
use super::{fts, stored};
use crate::model::time::Timestamp;
use crate::store::Error;

/// How many runs that were read wait to be written.
const AHEAD: usize = 1_024;
/// How many one takes to read at a time. Below this many, the writer also reads.
const FEW: usize = 64;

/// What a refresh has done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refreshed {
    /// Sources that were looked at.
    pub sources: usize,
    /// Runs that were looked at.
    pub looked_at: usize,
    /// Runs that were read.
    pub read: usize,
    /// Of those, how many were new.
    pub added: usize,
    /// How many were known, and are otherwise.
    pub changed: usize,
    /// Runs that are gone since the last refresh.
    pub gone: usize,
    /// Runs that cannot be understood.
    pub unreadable: usize,
    /// What cannot be understood beside runs, in sources and in the home.
    pub problems: usize,
    /// Sources that cannot be looked at.
    pub unavailable: usize,
}

/// What a refresh is to cover.
pub(super) struct Scope<'a> {
    /// The home that keeps the index, and the marks on runs that are only read.
    pub(super) home: &'a Path,
    pub(super) known: &'a [SourceAddress],
    /// Only these of them.
    pub(super) only: Option<&'a BTreeSet<String>>,
    /// Whatever is indexed already.
    pub(super) rebuild: bool,
    /// Whether it is still wanted, with so many sources done of so many.
    pub(super) goes_on: &'a dyn Fn(usize, usize) -> bool,
}

/// Brings the index of a home up to date. One that turns out to be damaged is made anew.
pub(super) fn refresh(scope: &Scope<'_>, now: Timestamp) -> Result<Refreshed, Error> {
    let turn = Turn::wait(scope.home)?;
    match refresh_in(&turn, scope, scope.rebuild, now) {
        Err(Error::Corrupt(_)) => refresh_in(&turn, scope, true, now),
        done => done,
    }
}

fn refresh_in(turn: &Turn, scope: &Scope<'_>, rebuild: bool, now: Timestamp) -> Result<Refreshed, Error> {
    let draft = turn.draft(rebuild)?;
    let mut done = Refreshed::default();
    {
        let mut writer = Writer::new(&draft.connection, now, draft.is_fresh());
        let covers =
            |address: &&SourceAddress| scope.only.is_none_or(|only| only.contains(&address.url) || draft.is_fresh());
        let covered: Vec<&SourceAddress> = scope.known.iter().filter(covers).collect();
        let entered: Result<Vec<_>, Error> =
            covered.iter().map(|address| enter(&draft.connection, address, now)).collect();
        let entered = entered?;
        let look = |place: usize| survey(scope.home, covered[place], entered[place].1.as_ref());
        each_source(&covered, look, |place, surveyed| {
            if !(scope.goes_on)(done.sources, covered.len()) {
                return Err(Error::Unavailable("the refresh was given up; the index is as it was".into()));
            }
            let source = (entered[place].0, covered[place]);
            refresh_source(&draft.connection, &mut writer, source, surveyed, now, &mut done)
        })?;
        if scope.only.is_none() {
            forget_others(&draft.connection, &mut writer, scope.known)?;
        }
        writer.finish()?;
    }
    turn.publish(draft)?;
    Ok(done)
}

fn refresh_source(
    connection: &Connection,
    writer: &mut Writer<'_>,
    (id, address): (i64, &SourceAddress),
    surveyed: Surveyed,
    now: Timestamp,
    done: &mut Refreshed,
) -> Result<(), Error> {
    done.sources += 1;
    let (unavailable, problems, token) = match surveyed {
        // It may be back tomorrow: nothing is forgotten of it.
        Err(reason) => (Some(reason), Vec::new(), None),
        Ok((_, Looked::Same, token)) => {
            // All of them, at one look.
            let sql = "SELECT coalesce(sum(runs), 0) FROM counts WHERE source = ?1";
            let runs: i64 = connection.query_row(sql, [id], |row| row.get(0)).map_err(from_sqlite)?;
            done.looked_at += usize::try_from(runs).unwrap_or(0);
            (None, Vec::new(), token)
        }
        Ok((source, Looked::Each { count, found, problems }, token)) => {
            done.looked_at += count;
            let Applied { settled, away } = apply(connection, writer, (id, address), (&*source, found), done)?;
            let token = token.filter(|_| settled && away.is_none());
            (away, problems, token)
        }
    };
    done.unavailable += usize::from(unavailable.is_some());
    let sql = "SELECT count(*) - count(place), count(place) FROM files WHERE source = ?1 AND reason IS NOT NULL";
    let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let (unreadable, beside) = connection.query_row(sql, [id], counts).map_err(from_sqlite)?;
    done.unreadable += usize::try_from(unreadable).unwrap_or(0);
    done.problems += problems.len() + usize::try_from(beside).unwrap_or(0);
    note(connection, id, unavailable.as_deref(), &problems, token.as_ref(), now)
}

/// A source, how it looks and what tells that from how it looked; or why it cannot be read.
type Surveyed = Result<(Box<dyn Source>, Looked, Option<Token>), String>;

fn survey(home: &Path, address: &SourceAddress, known: Option<&Token>) -> Surveyed {
    let source = address.open(Some(home))?;
    let (looked, token) = look_over(&*source, known)?;
    Ok((source, looked, token))
}

/// The source in the index, made if it is not there, and what its last survey answered with.
fn enter(connection: &Connection, address: &SourceAddress, now: Timestamp) -> Result<(i64, Option<Token>), Error> {
    let known = "SELECT id, token FROM sources WHERE url = ?1";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, Option<Vec<u8>>>(1)?));
    let found = connection.query_row(known, [&address.url], read).optional().map_err(from_sqlite)?;
    if let Some((id, token)) = found {
        return Ok((id, token.and_then(|token| Token::from_bytes(&token))));
    }
    connection
        .execute(
            "INSERT INTO sources (url, kind, repo, indexed_at) VALUES (?1, ?2, ?3, ?4)",
            params![address.url, address.kind.as_str(), address.repo(), now.as_micros()],
        )
        .map_err(from_sqlite)?;
    Ok((connection.last_insert_rowid(), None))
}

fn note(
    connection: &Connection,
    id: i64,
    unavailable: Option<&str>,
    problems: &[Problem],
    token: Option<&Token>,
    now: Timestamp,
) -> Result<(), Error> {
    let problems = serde_json::to_string(problems).unwrap_or_else(|_| "[]".into());
    let sql = "UPDATE sources SET unavailable = ?2, problems = ?3, token = ?4, indexed_at = ?5 WHERE id = ?1";
    let token = token.map(|token| token.as_bytes());
    connection.execute(sql, params![id, unavailable, problems, token, now.as_micros()]).map(|_| ()).map_err(from_sqlite)
}

/// How a run on file compares with the run that was found.
enum Step {
    Read { name: Box<str>, is_new: bool },
    Gone(Box<str>),
}

/// What is to be known of a source whose runs were taken in.
struct Applied {
    /// All that was read can be recognised by its token.
    settled: bool,
    /// Why it does not answer any more.
    away: Option<String>,
}

fn apply(
    connection: &Connection,
    writer: &mut Writer<'_>,
    (id, address): (i64, &SourceAddress),
    (source, found): (&dyn Source, Option<Vec<Found>>),
    done: &mut Refreshed,
) -> Result<Applied, Error> {
    let mut applied = Applied { settled: true, away: None };
    let mut to_read = Vec::new();
    let mut gone = Vec::new();
    compare(connection, (id, address), source, found, |step| match step {
        Step::Read { name, is_new } => to_read.push((name, is_new)),
        Step::Gone(name) => gone.push(name),
    })?;
    for name in gone {
        writer.put_gone(id, &name)?;
        done.gone += 1;
    }
    read_all(source, &to_read, id, |place, prepared| {
        let (name, is_new) = &to_read[place];
        done.read += 1;
        match &prepared {
            Prepared::Entry(_, look) | Prepared::Unreadable(_, look) => applied.settled &= look.settled,
            Prepared::Gone | Prepared::Away(_) => {}
        }
        match prepared {
            Prepared::Entry(entry, look) => {
                let is_same = !is_new && writer.has(id, name, &entry)?;
                done.added += usize::from(*is_new);
                done.changed += usize::from(!is_new && !is_same);
                if is_same { writer.look(id, name, &look) } else { writer.put(id, name, &look, entry) }
            }
            Prepared::Unreadable(reason, look) => writer.put_unreadable(id, name, &look, &reason),
            Prepared::Gone => writer.put_gone(id, name),
            Prepared::Away(reason) => {
                done.read -= 1;
                applied.away.get_or_insert(reason);
                Ok(())
            }
        }
    })?;
    // What is gathered is of this source: places of the next are elsewhere in time.
    writer.flush()?;
    Ok(applied)
}

/// Compares what is on file of a source with what was found in it, both in the order of names.
pub(super) fn each_difference(
    connection: &Connection,
    id: i64,
    found: Vec<Found>,
    mut each: impl FnMut(Difference<'_>),
) -> Result<(), Error> {
    let sql = "SELECT name, token, settled, gone_at IS NOT NULL FROM files WHERE source = ?1 ORDER BY name";
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let mut rows = statement.query([id]).map_err(from_sqlite)?;
    let mut found = found.into_iter().peekable();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let name = row.get_ref(0).ok().and_then(|name| name.as_str().ok()).unwrap_or_default();
        while let Some(new) = found.next_if(|found| &*found.name < name) {
            each(Difference::New(&new));
        }
        let gone: bool = row.get(3).map_err(from_sqlite)?;
        match found.next_if(|found| &*found.name == name) {
            None if gone => each(Difference::StillGone(name)),
            None => each(Difference::Gone(name)),
            Some(again) if gone => each(Difference::New(&again)),
            Some(same) => {
                let token = row.get_ref(1).ok().and_then(|token| Token::from_bytes(token.as_blob().ok()?));
                let settled: bool = row.get(2).map_err(from_sqlite)?;
                let is_equal = token == Some(same.look.token);
                each(Difference::Known { found: &same, is_equal, settled });
            }
        }
    }
    found.for_each(|new| each(Difference::New(&new)));
    Ok(())
}

/// How a run compares with what is on file of it.
pub(super) enum Difference<'a> {
    /// Nothing is.
    New(&'a Found),
    /// It is not there any more.
    Gone(&'a str),
    /// It has not been there for longer.
    StillGone(&'a str),
    /// It is there; it looks as it did, or does not.
    Known { found: &'a Found, is_equal: bool, settled: bool },
}

fn compare(
    connection: &Connection,
    (id, address): (i64, &SourceAddress),
    source: &dyn Source,
    found: Option<Vec<Found>>,
    mut each: impl FnMut(Step),
) -> Result<(), Error> {
    let mut read = HashSet::new();
    let mut step = |difference: Difference<'_>| match difference {
        Difference::New(found) => {
            each(Step::Read { name: found.name.clone(), is_new: true });
        }
        Difference::Gone(name) => {
            read.insert(Box::from(name));
            each(Step::Gone(name.into()));
        }
        Difference::StillGone(_) | Difference::Known { is_equal: true, settled: true, .. } => {}
        Difference::Known { found, .. } => {
            read.insert(found.name.clone());
            each(Step::Read { name: found.name.clone(), is_new: false });
        }
    };
    if let Some(found) = found {
        each_difference(connection, id, found, &mut step)?;
    }
    for name in marked_otherwise(connection, (id, address), source)? {
        if !read.contains(&name) {
            each(Step::Read { name, is_new: false });
        }
    }
    Ok(())
}

/// The runs whose marks are others than those that are indexed. Only runs that bear any, or did, are looked at.
pub(super) fn marked_otherwise(
    connection: &Connection,
    (id, address): (i64, &SourceAddress),
    source: &dyn Source,
) -> Result<BTreeSet<Box<str>>, Error> {
    let columns = "SELECT runs.name, runs.body FROM";
    let indexed = format!("{columns} words CROSS JOIN runs ON runs.place = words.rowid WHERE words MATCH ?1");
    let bearing = format!("\"{}\" AND \"{}\"", fts::MARKED, fts::source(id));
    let by_id = format!("{columns} runs WHERE run_id = ?1 AND source = {id} AND gone = 0");
    let mut otherwise = BTreeSet::new();
    let mut look = |sql: &str, value: &str| -> Result<(), Error> {
        let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
        let mut rows = statement.query([value]).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            let (name, body): (String, String) = (row.get(0).map_err(from_sqlite)?, row.get(1).map_err(from_sqlite)?);
            let home = stored::Home { kind: address.kind, url: &address.url, repo: &address.repo(), name: &name };
            let record = stored::read(&body, home);
            if record.is_none_or(|record| !record.bears(&source.marks(&record.run_id))) {
                otherwise.insert(name.into());
            }
        }
        Ok(())
    };
    let marked = source.marked();
    if address.has_marks() {
        look(&indexed, &bearing)?;
    }
    marked.iter().try_for_each(|run_id| look(&by_id, run_id))?;
    Ok(otherwise)
}

/// A run that was read, as the index takes it.
enum Prepared {
    Entry(Entry, Look),
    Unreadable(String, Look),
    Gone,
    Away(String),
}

impl Prepared {
    fn new(reading: Reading, source: i64) -> Self {
        match reading {
            Reading::Read(record, look, problem) => Self::Entry(Entry { problem, ..entry(&record, source) }, look),
            Reading::Unreadable(reason, look) => Self::Unreadable(reason, look),
            Reading::Gone => Self::Gone,
            Reading::Away(reason) => Self::Away(reason),
        }
    }
}

fn entry(record: &IndexRecord, source: i64) -> Entry {
    Entry {
        made: record.made(),
        run_id: record.run_id.clone(),
        lifecycle: record.lifecycle,
        body: stored::write(record),
        words: fts::of(record, source),
        problem: None,
    }
}

/// Reads runs, many at a time where there are many, and has `each` called with them one by one.
fn read_all(
    source: &dyn Source,
    names: &[(Box<str>, bool)],
    id: i64,
    mut each: impl FnMut(usize, Prepared) -> Result<(), Error>,
) -> Result<(), Error> {
    if names.len() < FEW {
        source.foresee(&names.iter().map(|(name, _)| &**name).collect::<Vec<_>>());
        let mut all = names.iter().enumerate();
        return all.try_for_each(|(place, (name, _))| each(place, Prepared::new(source.read(name), id)));
    }
    let readers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(AHEAD);
        for _ in 0..readers {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(FEW, Ordering::Relaxed);
                    let Some(part) = names.get(first..names.len().min(first + FEW)) else { return };
                    source.foresee(&part.iter().map(|(name, _)| &**name).collect::<Vec<_>>());
                    for (place, (name, _)) in part.iter().enumerate() {
                        if send.send((first + place, Prepared::new(source.read(name), id))).is_err() {
                            return;
                        }
                    }
                }
            });
        }
        drop(send);
        receive.into_iter().try_for_each(|(place, prepared)| each(place, prepared))
    })
}

/// Forgets the runs of sources that are not known any more.
fn forget_others(connection: &Connection, writer: &mut Writer<'_>, known: &[SourceAddress]) -> Result<(), Error> {
    let mut statement = connection.prepare("SELECT id, url FROM sources").map_err(from_sqlite)?;
    let all: Result<Vec<(i64, String)>, _> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).and_then(Iterator::collect).map_err(from_sqlite);
    for (id, url) in all? {
        if known.iter().any(|address| address.url == url) {
            continue;
        }
        let mut names = connection.prepare("SELECT name FROM files WHERE source = ?1").map_err(from_sqlite)?;
        let names: Result<Vec<String>, _> =
            names.query_map([id], |row| row.get(0)).and_then(Iterator::collect).map_err(from_sqlite);
        for name in names? {
            writer.forget(id, &name)?;
        }
        connection.execute("DELETE FROM sources WHERE id = ?1", [id]).map_err(from_sqlite)?;
    }
    Ok(())
}

/// Forgets runs that are gone, and answers with how many. Nothing is forgotten of a source that is away.
pub(super) fn forget_gone(home: &Path, which: Gone<'_>, now: Timestamp) -> Result<usize, Error> {
    let turn = Turn::wait(home)?;
    let draft = turn.draft(false)?;
    let mut forgotten = 0;
    {
        let mut writer = Writer::new(&draft.connection, now, draft.is_fresh());
        loop {
            let gone = gone_before(&draft.connection, which, AHEAD)?;
            if gone.is_empty() {
                break;
            }
            for (source, name, ..) in &gone {
                writer.forget(*source, name)?;
            }
            forgotten += gone.len();
        }
        writer.finish()?;
    }
    turn.publish(draft)?;
    Ok(forgotten)
}

/// Since before when runs are gone, and of which repository, if of one.
type Gone<'a> = (Timestamp, Option<&'a str>);

/// Which runs are gone since before a moment.
const GONE: &str = "FROM files JOIN sources ON sources.id = files.source
                    WHERE gone_at IS NOT NULL AND gone_at < ?1 AND sources.unavailable IS NULL
                    AND (?2 IS NULL OR sources.repo = ?2)";

/// How many runs are gone since before a moment.
pub(super) fn count_gone(connection: &Connection, (before, repo): Gone<'_>) -> Result<usize, Error> {
    let sql = format!("SELECT count(*) {GONE}");
    let which = params![before.as_micros(), repo];
    let count: i64 = connection.query_row(&sql, which, |row| row.get(0)).map_err(from_sqlite)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The first runs that are gone since before a moment: the source, the name there, and the repository.
pub(super) fn gone_before(
    connection: &Connection,
    (before, repo): Gone<'_>,
    limit: usize,
) -> Result<Vec<(i64, String, String)>, Error> {
    let sql = format!("SELECT files.source, files.name, sources.repo {GONE} ORDER BY 1, 2 LIMIT {limit}");
    let mut statement = connection.prepare(&sql).map_err(from_sqlite)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    statement.query_map(params![before.as_micros(), repo], read).and_then(Iterator::collect).map_err(from_sqlite)
}
