//! The yardstick: the rows of a registered and finished run, in plain prepared SQL.
//!
//! The tables and indexes are the library's own, copied from a database that it made, and so are the contents of the
//! rows. What is left out is everything that is not a row: rules, revisions, files, checks.

use std::path::Path;

use outlive::id::{RunId, SystemEntropy};
use outlive::time::{Clock, SystemClock};
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, params};

use crate::scratch::Outcome;

/// What the library has written about one run at one moment.
pub struct Rows {
    run: Vec<Value>,
    events: Vec<String>,
    keys: Vec<String>,
}

impl Rows {
    /// Reads what is on record of the run with this id.
    pub fn read(database: &Path, id: RunId) -> Outcome<Self> {
        let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let id = id.to_string();
        let run = connection.query_row(
            "SELECT revision, stamp, state, epoch, owner, cancel, archived, priority, created_at, name, kind, body
             FROM runs WHERE id = ?1",
            [&id],
            |row| (0..12).map(|column| row.get(column)).collect::<Result<Vec<Value>, _>>(),
        )?;
        let texts = |sql: &str| -> Outcome<Vec<String>> {
            let mut statement = connection.prepare(sql)?;
            let texts = statement.query_map([&id], |row| row.get(0))?;
            Ok(texts.collect::<Result<_, _>>()?)
        };
        let events = texts("SELECT body FROM events WHERE run = ?1 ORDER BY seq")?;
        let keys = texts("SELECT name FROM keys WHERE run = ?1")?;
        Ok(Self { run, events, keys })
    }
}

/// How a database is opened.
#[derive(Debug, Clone, Copy)]
pub enum Settings {
    /// As the library opens it.
    Library,
    /// As SQLite would have it with a write-ahead log.
    Default,
}

/// A database with the library's tables and nothing else of it.
pub struct Plain {
    connection: Connection,
    registered: Rows,
    finished: Rows,
    worker: String,
}

impl Plain {
    /// Makes one at `path` with the tables and the worker of the library's `model`.
    pub fn create(path: &Path, model: &Path, settings: Settings, registered: Rows, finished: Rows) -> Outcome<Self> {
        let connection = Connection::open(path)?;
        let pages = match settings {
            Settings::Library => 100,
            Settings::Default => 1_000,
        };
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch(&format!("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {pages};"))?;
        connection.set_prepared_statement_cache_capacity(32);
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        let model = Connection::open_with_flags(model, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut schema = model.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")?;
        for sql in schema.query_map([], |row| row.get::<_, String>(0))? {
            connection.execute_batch(&sql?)?;
        }
        let worker: Vec<Value> = model.query_row("SELECT * FROM workers LIMIT 1", [], |row| {
            (0..8).map(|column| row.get(column)).collect::<Result<_, _>>()
        })?;
        connection
            .execute("INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rusqlite::params_from_iter(&worker))?;
        let worker = connection.query_row("SELECT id FROM workers", [], |row| row.get(0))?;
        Ok(Self { connection, registered, finished, worker })
    }

    /// Registers and then finishes each of `runs` runs, `batch` of them in each transaction.
    pub fn register_and_finish(&self, runs: usize, batch: usize) -> Outcome<()> {
        let ids: Vec<(String, i64)> = (0..runs)
            .map(|_| {
                let now = SystemClock.now();
                (RunId::draw(now, &SystemEntropy).to_string(), now.as_micros())
            })
            .collect();
        for ids in ids.chunks(batch) {
            self.transaction(|| ids.iter().try_for_each(|(id, at)| self.register(id, *at)))?;
            self.transaction(|| ids.iter().try_for_each(|(id, _)| self.finish(id)))?;
        }
        Ok(())
    }

    fn transaction(&self, change: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        change()?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn register(&self, id: &str, at: i64) -> Outcome<()> {
        let rows = &self.registered;
        self.connection
            .prepare_cached("INSERT INTO runs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?
            .execute(params![
                id,
                rows.run[0],
                rows.run[1],
                rows.run[2],
                rows.run[3],
                rows.run[4],
                rows.run[5],
                rows.run[6],
                rows.run[7],
                at,
                rows.run[9],
                rows.run[10],
                rows.run[11]
            ])?;
        self.tell(id, 0, &rows.events)?;
        for key in &rows.keys {
            self.connection.prepare_cached("INSERT INTO keys VALUES (?1, ?2)")?.execute(params![key, id])?;
        }
        self.connection
            .prepare_cached(
                "UPDATE workers SET beat = beat + 1, beat_at = ?2, beat_awake = ?2, attention = attention + 1
                 WHERE id = ?1",
            )?
            .execute(params![self.worker, at])?;
        Ok(())
    }

    fn finish(&self, id: &str) -> Outcome<()> {
        let rows = &self.finished;
        self.connection
            .prepare_cached(
                "UPDATE runs SET revision = ?2, stamp = ?3, state = ?4, owner = ?5, body = ?6 WHERE id = ?1",
            )?
            .execute(params![id, rows.run[0], rows.run[1], rows.run[2], rows.run[4], rows.run[11]])?;
        self.tell(id, self.registered.events.len(), &rows.events[self.registered.events.len()..])?;
        for key in &self.registered.keys {
            self.connection
                .prepare_cached("DELETE FROM keys WHERE name = ?1 AND run = ?2")?
                .execute(params![key, id])?;
        }
        self.connection
            .prepare_cached("UPDATE workers SET attention = attention + 1 WHERE id = ?1")?
            .execute([&self.worker])?;
        Ok(())
    }

    fn tell(&self, id: &str, before: usize, events: &[String]) -> Outcome<()> {
        for (index, body) in events.iter().enumerate() {
            self.connection.prepare_cached("INSERT INTO events VALUES (?1, ?2, ?3)")?.execute(params![
                id,
                (before + index + 1) as i64,
                body
            ])?;
        }
        Ok(())
    }
}
