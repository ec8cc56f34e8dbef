//! Rows: how a record is laid out in the database.
//!
//! The body of a row is the whole run as JSON. The columns beside it repeat what is searched and sorted by; they hold
//! nothing of their own.

use std::collections::BTreeSet;

use rusqlite::{CachedStatement, Connection, Row, params, params_from_iter};

use super::claims;
use super::query::Query;
use super::run_files::FiledRun;
use super::schema::from_sqlite;
use super::search;
use crate::lifecycle::Start;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, Run, RunSummary};
use crate::model::time::Timestamp;
use crate::store::{Count, Cursor, Error, Order, Record, Revision, RunCounts, counts};

const COLUMNS: &str = "id, revision, stamp, body";
/// What the body of a row begins with whose run has an unknown state.
const DAMAGED: &str = "damaged: ";

fn corrupt(id: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Corrupt(format!("the record of run `{id}` cannot be understood: {error}"))
}

/// A run in a list.
pub(super) enum Listed {
    RunSummary(Box<RunSummary>),
    Other(Box<Record>),
}

/// A row that cannot be understood.
pub(super) struct Damaged {
    /// The run it is of, as far as that can be read.
    pub(super) id: String,
    pub(super) why: Error,
    pub(super) revision: Option<u64>,
    pub(super) body: Vec<u8>,
}

impl Damaged {
    fn new(row: &Row<'_>, why: Error) -> Self {
        use rusqlite::types::ValueRef;
        let bytes = |column| match row.get_ref(column) {
            Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => bytes.to_vec(),
            _ => Vec::new(),
        };
        let revision = row.get::<_, i64>(1).ok().map(i64::unsigned_abs);
        Self { id: String::from_utf8_lossy(&bytes(0)).into_owned(), why, revision, body: bytes(3) }
    }
}

fn record(row: &Row<'_>) -> Result<Record, Error> {
    let id: String = row.get(0).map_err(from_sqlite)?;
    let fields = || Ok((row.get(1)?, row.get(2)?, row.get(3)?));
    let (revision, stamp, body): (i64, String, String) = fields().map_err(|error| corrupt(&id, &from_sqlite(error)))?;
    if let Some(why) = body.strip_prefix(DAMAGED) {
        return Err(corrupt(&id, &why));
    }
    let run: Run = serde_json::from_str(&body).map_err(|error| corrupt(&id, &error))?;
    if !run.id.is_spelt(&id) {
        return Err(corrupt(&id, &"it tells of another run"));
    }
    let stamp = stamp.parse().map_err(|error| corrupt(&id, &error))?;
    Ok(Record { run, revision: Revision(revision.unsigned_abs()), stamp })
}

pub(super) fn find(connection: &Connection, id: RunId) -> Result<Option<Record>, Error> {
    let mut statement = cached(connection, &format!("SELECT {COLUMNS} FROM runs WHERE id = ?1"))?;
    let mut rows = statement.query([id.to_string()]).map_err(from_sqlite)?;
    rows.next().map_err(from_sqlite)?.map(record).transpose()
}

/// Whether there is a row of this run, whatever it says.
pub(super) fn knows(connection: &Connection, id: RunId) -> Result<bool, Error> {
    cached(connection, "SELECT 1 FROM runs WHERE id = ?1")?.exists([id.to_string()]).map_err(from_sqlite)
}

/// Deletes the row, the keys and the events of a run. Its starts stay: they count against a rate until they expire.
pub(super) fn delete(connection: &Connection, id: RunId) -> Result<(), Error> {
    let id = id.to_string();
    cached(connection, "DELETE FROM events WHERE run = ?1")?.execute([&id]).map_err(from_sqlite)?;
    remove(connection, &id)
}

/// Removes the row of a run and the keys it holds.
pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), Error> {
    for sql in ["DELETE FROM runs WHERE id = ?1", "DELETE FROM keys WHERE run = ?1"] {
        cached(connection, sql)?.execute([id]).map_err(from_sqlite)?;
    }
    Ok(())
}

/// Puts what the files of a run know of it where `before` was. A run whose end cannot be understood gets a row that says
/// so: to leave it out would hide it, and the rest of its files say that it runs.
pub(super) fn put_known(connection: &Connection, before: Option<&Run>, known: &FiledRun) -> Result<(), Error> {
    put(connection, &known.record, &known.events)?;
    let Some(end) = &known.damaged_end else { return move_keys(connection, before, &known.record.run) };
    let why = format!("{DAMAGED}its end `{}` is damaged, so its outcome is unknown", end.display());
    cached(connection, "UPDATE runs SET owner = NULL, body = ?2 WHERE id = ?1")?
        .execute(params![known.record.run.id.to_string(), why])
        .map(|_| ())
        .map_err(from_sqlite)
}

/// Calls `visit` with each record that may match, in order, right behind `after`, until it answers that it has enough.
/// A row that cannot be understood is handed to `damaged` and hides no other.
pub(super) fn scan(
    connection: &Connection,
    filter: &Filter,
    order: Order,
    after: Option<Cursor>,
    damaged: impl FnMut(Damaged),
    visit: impl FnMut(Record) -> Result<bool, Error>,
) -> Result<(), Error> {
    scan_as(connection, filter, order, after, record, damaged, visit)
}

/// Scans summaries of runs, where the record alone shows the state.
pub(super) fn scan_briefly(
    connection: &Connection,
    filter: &Filter,
    order: Order,
    after: Option<Cursor>,
    damaged: impl FnMut(Damaged),
    visit: impl FnMut(Listed) -> Result<bool, Error>,
) -> Result<(), Error> {
    let read = |row: &Row<'_>| match summary(row) {
        Some(summary) => Ok(Listed::RunSummary(Box::new(summary))),
        None => record(row).map(|record| Listed::Other(Box::new(record))),
    };
    scan_as(connection, filter, order, after, read, damaged, visit)
}

/// A run of which its record alone shows its state; none of any other, nor where something is wrong with it.
fn summary(row: &Row<'_>) -> Option<RunSummary> {
    let text = |column| row.get_ref(column).ok().and_then(|value| value.as_str().ok());
    let summary: RunSummary = serde_json::from_str(text(3)?).ok()?;
    summary.id.is_spelt(text(0)?).then_some(summary)
}

fn scan_as<T>(
    connection: &Connection,
    filter: &Filter,
    order: Order,
    after: Option<Cursor>,
    read: impl Fn(&Row<'_>) -> Result<T, Error>,
    damaged: impl FnMut(Damaged),
    visit: impl FnMut(T) -> Result<bool, Error>,
) -> Result<(), Error> {
    // One moment for all that is asked, where it is not the moment of a write: else a run that is claimed meanwhile is
    // neither among those that wait nor among those that run.
    let moment = connection.is_autocommit().then(|| connection.unchecked_transaction()).transpose();
    let _moment = moment.map_err(from_sqlite)?;
    let Some(query) = Query::of(connection, COLUMNS, filter, order, after)? else { return Ok(()) };
    visit_rows(connection, query, read, damaged, visit)
}

/// Visits the ready runs that may match, in claim order, right behind `after`, but those whose keyset is `busy`.
pub(super) fn scan_ready(
    connection: &Connection,
    filter: &Filter,
    after: Option<Cursor>,
    busy: &BTreeSet<String>,
    damaged: impl FnMut(Damaged),
    visit: impl FnMut(Record) -> Result<bool, Error>,
) -> Result<(), Error> {
    let Some(query) = Query::ready(COLUMNS, filter, after, busy) else { return Ok(()) };
    visit_rows(connection, query, record, damaged, visit)
}

fn visit_rows<T>(
    connection: &Connection,
    query: Query,
    read: impl Fn(&Row<'_>) -> Result<T, Error>,
    mut damaged: impl FnMut(Damaged),
    mut visit: impl FnMut(T) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut statement = cached(connection, &query.sql)?;
    let mut rows = statement.query(params_from_iter(query.values)).map_err(from_sqlite)?;
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        match read(row) {
            Ok(found) => {
                if !visit(found)? {
                    break;
                }
            }
            Err(why) => damaged(Damaged::new(row, why)),
        }
    }
    Ok(())
}

/// Writes a record and its events over whatever is there. What a run was made with never changes, and so the indexes
/// over that are left alone.
pub(super) fn put(connection: &Connection, record: &Record, events: &[Event]) -> Result<(), Error> {
    let run = &record.run;
    let id = run.id.to_string();
    let body = serde_json::to_string(run).map_err(|error| corrupt(&id, &error))?;
    let (ready, due_at) = claims::readiness(run);
    cached(
        connection,
        "INSERT INTO runs (id, revision, stamp, state, epoch, owner, cancel, archived, priority, created_at, name, kind, body,
             ready, due_at, keyset, claims, evidence, share, user, host, words)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
         ON CONFLICT (id) DO UPDATE SET revision = ?2, stamp = ?3, state = ?4, epoch = ?5, owner = ?6, cancel = ?7,
             archived = ?8, priority = ?9, body = ?13, ready = ?14, due_at = ?15, claims = ?17, evidence = ?18, host = ?21",
    )?
    .execute(params![
        id,
        record.revision.0 as i64,
        record.stamp.to_string(),
        run.state.name().as_str(),
        run.epoch.0 as i64,
        run.owner().map(|owner| owner.worker.to_string()),
        run.cancel.is_some(),
        run.archived.is_some(),
        run.priority(),
        run.created_at.as_micros(),
        run.spec.name,
        run.spec.kind,
        body,
        ready,
        due_at.map(Timestamp::as_micros),
        claims::keyset(run),
        counts::claims(run),
        counts::evidence(run).unwrap_or_default(),
        run.tenant(),
        &*run.spec.created_by.user,
        run.last_host(),
        search::words(run),
    ])
    .map_err(from_sqlite)?;
    for event in events {
        let body = serde_json::to_string(event).map_err(|error| corrupt(&id, &error))?;
        cached(
            connection,
            "INSERT INTO events (run, seq, body) VALUES (?1, (SELECT ifnull(max(seq), 0) + 1 FROM events WHERE run = ?1), ?2)",
        )?
        .execute(params![id, body])
        .map_err(from_sqlite)?;
    }
    Ok(())
}

/// The events of a run. One that cannot be understood hides no other.
pub(super) fn events(connection: &Connection, id: RunId) -> Result<Vec<Event>, Error> {
    let mut statement = cached(connection, "SELECT body FROM events WHERE run = ?1 ORDER BY seq")?;
    let mut rows = statement.query([id.to_string()]).map_err(from_sqlite)?;
    let mut events = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        events.extend(row.get::<_, String>(0).ok().and_then(|body| serde_json::from_str(&body).ok()));
    }
    Ok(events)
}

/// Who else holds a key.
pub(super) fn key_holders(connection: &Connection, key: &str, but: RunId) -> Result<Vec<RunId>, Error> {
    let mut statement = cached(connection, "SELECT run FROM keys WHERE name = ?1 AND run <> ?2")?;
    let mut rows = statement.query(params![key, but.to_string()]).map_err(from_sqlite)?;
    let mut holders = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let run: String = row.get(0).map_err(from_sqlite)?;
        holders.push(run.parse().map_err(|error| corrupt(&run, &error))?);
    }
    Ok(holders)
}

/// Moves a run's keys from what it held to what it holds.
pub(super) fn move_keys(connection: &Connection, before: Option<&Run>, after: &Run) -> Result<(), Error> {
    let id = after.id.to_string();
    for key in before.into_iter().flat_map(Run::held_keys) {
        cached(connection, "DELETE FROM keys WHERE name = ?1 AND run = ?2")?
            .execute(params![key.slot(), id])
            .map_err(from_sqlite)?;
    }
    for key in after.held_keys() {
        cached(connection, "INSERT OR REPLACE INTO keys VALUES (?1, ?2)")?
            .execute(params![key.slot(), id])
            .map_err(from_sqlite)?;
    }
    Ok(())
}

/// What was counted as runs were written; none in a database of an earlier format.
pub(super) fn counts(connection: &Connection) -> Result<Option<RunCounts>, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'tally')";
    if !cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)? {
        return Ok(None);
    }
    let sql = "SELECT state, kind, evidence, runs, claims FROM tally WHERE runs > 0 AND state <> 'running'";
    let mut statement = cached(connection, sql)?;
    let row = |row: &rusqlite::Row<'_>| {
        let (state, evidence): (String, String) = (row.get(0)?, row.get(2)?);
        Ok((state, row.get(1)?, evidence, row.get::<_, i64>(3)?, row.get::<_, i64>(4)?))
    };
    let mut tally = RunCounts::default();
    for row in statement.query_map([], row).map_err(from_sqlite)? {
        let (state, kind, evidence, runs, claims) = row.map_err(from_sqlite)?;
        // A state that cannot be understood is one of a later outlive.
        let Ok(state) = state.parse() else { continue };
        let (runs, claims) = (runs.unsigned_abs(), claims.unsigned_abs());
        let evidence = (!evidence.is_empty()).then_some(evidence);
        tally.extend(vec![Count { state, kind, evidence, runs, claims }]);
    }
    Ok(Some(tally))
}

/// Whether starts are counted in this database at all.
pub(super) fn counts_starts(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'starts')";
    cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)
}

/// The starts that a rate counts.
pub(super) fn starts(connection: &Connection, key: &Key, now: Timestamp) -> Result<Vec<Start>, Error> {
    let mut statement = cached(connection, "SELECT at, until FROM starts WHERE name = ?1")?;
    let moments = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let rows = statement.query_map([key.slot()], moments).map_err(from_sqlite)?;
    let mut starts = Vec::new();
    for row in rows {
        let (at, until) = row.map_err(from_sqlite)?;
        starts.push(Start { at: Timestamp::from_micros(at), until: Timestamp::from_micros(until) });
    }
    starts.retain(|start| start.counts(now));
    Ok(starts)
}

/// Notes a start of a run, and forgets those of its rate that count no more.
pub(super) fn note_start(connection: &Connection, key: &Key, run: &Run, start: Start) -> Result<(), Error> {
    let (slot, at, until) = (key.slot(), start.at.as_micros(), start.until.as_micros());
    cached(connection, "DELETE FROM starts WHERE name = ?1 AND (until <= ?2 OR at > ?2)")?
        .execute(params![slot, at])
        .map_err(from_sqlite)?;
    cached(connection, "INSERT OR REPLACE INTO starts VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![slot, run.id.to_string(), run.epoch.0.cast_signed(), at, until])
        .map_err(from_sqlite)?;
    Ok(())
}

pub(super) fn cached<'a>(connection: &'a Connection, sql: &str) -> Result<CachedStatement<'a>, Error> {
    connection.prepare_cached(sql).map_err(from_sqlite)
}
