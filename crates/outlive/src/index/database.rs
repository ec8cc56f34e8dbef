//! The file of the index: how it is found, opened, made and replaced.
//!
//! It is derived, so it is never repaired: one that is missing, damaged or of another format is made anew, under a name
//! of its own, and takes the place of the old one in one step. A reader of the old one goes on reading it. A change of
//! one that is there is one transaction. So a reader sees the whole index as it was, or as it is.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, Mode};

use super::stat_token::{changed_at, is_past, parts};
use crate::model::id::{Entropy, Stamp, SystemEntropy};
use crate::store::Error;
use crate::store::sqlite::Wait;
use crate::util::files;

/// Raised whenever the tables, the words or the records change.
const FORMAT: i64 = 3;
/// `olix`: tells an index from any other database.
const APPLICATION: i64 = 0x6f6c_6978;
/// The name by which the index is found: a link to its file.
const CURRENT: &str = "current";
/// Held by the process that changes the index; freed by the kernel when its holder dies.
const LOCK: &str = "lock";
/// How long one waits for another who changes the index.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the index is looked for that is replaced as it is opened.
const OPENINGS: usize = 16;

const TABLES: &str = "
    CREATE TABLE sources (
        id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, repo TEXT NOT NULL,
        token BLOB, unavailable TEXT, problems TEXT NOT NULL DEFAULT '[]', indexed_at INTEGER NOT NULL);
    -- The reason of a run that has a place is a problem beside it; of one that has none it is why.
    CREATE TABLE files (
        source INTEGER NOT NULL, name TEXT NOT NULL, token BLOB NOT NULL, settled INTEGER NOT NULL,
        place INTEGER, gone_at INTEGER, reason TEXT, PRIMARY KEY (source, name)) WITHOUT ROWID;
    CREATE TABLE runs (
        place INTEGER PRIMARY KEY, source INTEGER NOT NULL, name TEXT NOT NULL, run_id TEXT NOT NULL,
        lifecycle TEXT NOT NULL, gone INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL);
    CREATE TABLE counts (source INTEGER NOT NULL, lifecycle TEXT NOT NULL, runs INTEGER NOT NULL,
        PRIMARY KEY (source, lifecycle)) WITHOUT ROWID;
    CREATE INDEX runs_by_id ON runs (run_id);
    CREATE INDEX files_unreadable ON files (source, name) WHERE reason IS NOT NULL;
    CREATE INDEX files_gone ON files (source, name) WHERE gone_at IS NOT NULL;
    -- The distinct words of all texts, by which a part of a word is found. None is ever taken away.
    CREATE TABLE terms (term TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE VIRTUAL TABLE words USING fts5 (
        said, content = '', contentless_delete = 1, detail = none, tokenize = \"ascii tokenchars '=:'\");
";

/// The directory of the index.
pub(super) fn directory(home: &Path) -> PathBuf {
    home.join("index")
}

/// Has `read` called with the index; none where there is none that can be read.
///
/// Where no process is changing it, it is read without a lock or a mark, so that not a byte is written; if it has changed by
/// then, what was read says nothing, and it is read once more. Where one is, SQLite tells readers and writer apart.
pub(super) fn read<T>(home: &Path, read: impl Fn(Connection) -> Result<T, Error>) -> Result<Option<T>, Error> {
    let dir = directory(home);
    for _ in 0..OPENINGS {
        let Ok(target) = std::fs::read_link(dir.join(CURRENT)) else { return Ok(None) };
        let (path, before) = (dir.join(&target), Quiet::look(&dir.join(&target)));
        let opened = match &before {
            Some(_) => connect(&immutable(&path), OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI),
            None => connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY),
        };
        let done = opened.and_then(|connection| connection.map(&read).transpose());
        // Whatever was read of one that has been changed or replaced meanwhile says nothing.
        let is_current = std::fs::read_link(dir.join(CURRENT)).is_ok_and(|now| now == target);
        if is_current && (before.is_none() || Quiet::look(&path) == before) {
            return done;
        }
    }
    Err(Error::Unavailable("the index is changed again and again".into()))
}

/// An index without anything in it, in memory: what is read where there is none.
pub(super) fn empty() -> Result<Connection, Error> {
    let connection = Connection::open_in_memory().map_err(from_sqlite)?;
    connection.execute_batch(TABLES).map_err(from_sqlite)?;
    Ok(connection)
}

/// What an index looks like that no process is changing: its log is empty, and its last change lies far enough back.
#[derive(PartialEq, Eq)]
struct Quiet([u64; 7]);

impl Quiet {
    fn look(path: &Path) -> Option<Self> {
        let log = PathBuf::from(format!("{}-wal", path.display()));
        let log_is_empty = rustix::fs::stat(&log).is_ok_and(|log| log.st_size == 0);
        let stat = rustix::fs::stat(path).ok()?;
        (log_is_empty && is_past(changed_at(&stat))).then(|| Self(parts(&stat)))
    }
}

/// The name of a file for a reader that takes no lock on it.
fn immutable(path: &Path) -> PathBuf {
    let escaped: String = path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .map(|byte| match byte {
            b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(*byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    PathBuf::from(format!("file:{escaped}?immutable=1"))
}

/// The right to change the index, for one process at a time.
pub(super) struct Turn {
    dir: PathBuf,
    _lock: OwnedFd,
}

/// An index that is being made or changed.
pub(super) struct Draft {
    pub(super) connection: Connection,
    /// Its name, where it is to take the place of what is there.
    next: Option<String>,
}

impl Draft {
    /// Whether there is nothing in it yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.next.is_some()
    }
}

impl Turn {
    pub(super) fn wait(home: &Path) -> Result<Self, Error> {
        Self::wait_for(home, PATIENCE)
    }

    /// Waits for the turn to write, at most `patience`.
    fn wait_for(home: &Path, patience: Duration) -> Result<Self, Error> {
        let dir = directory(home);
        let failed = |error: io::Error| Error::Denied(format!("`{}` cannot be used: {error}", dir.display()));
        files::make_private_dirs(&dir).map_err(failed)?;
        let handle = files::open_dir(rustix::fs::CWD, &dir).map_err(failed)?;
        let lock = files::open_lock(&handle, LOCK, Mode::from_raw_mode(0o600)).map_err(failed)?;
        Wait::new(LOCK, patience).of("the index").lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { dir, _lock: lock })
    }

    /// The index, to be changed in one transaction; one that there is not, or that is of no use, is made anew.
    pub(super) fn draft(&self, rebuild: bool) -> Result<Draft, Error> {
        let target = std::fs::read_link(self.dir.join(CURRENT)).ok();
        self.sweep(target.as_deref());
        if let Some(target) = target.filter(|_| !rebuild)
            && let Ok(Some(connection)) = connect(&self.dir.join(target), OpenFlags::SQLITE_OPEN_READ_WRITE)
        {
            connection.execute_batch("BEGIN IMMEDIATE").map_err(from_sqlite)?;
            return Ok(Draft { connection, next: None });
        }
        let name = format!("{}.db", Stamp::draw(&SystemEntropy as &dyn Entropy));
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection = Connection::open_with_flags(self.dir.join(&name), flags).map_err(from_sqlite)?;
        // No other process sees it before it is whole, and what is left of one that was not is swept.
        let alone = format!(
            "PRAGMA page_size = 4096; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;
             PRAGMA cache_size = -32000; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};
             BEGIN; {TABLES}"
        );
        connection.execute_batch(&alone).map_err(from_sqlite)?;
        Ok(Draft { connection, next: Some(name) })
    }

    /// Makes what was drafted the index.
    pub(super) fn publish(&self, draft: Draft) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("the index cannot be replaced: {error}"));
        let Draft { connection, next } = draft;
        connection.execute_batch("COMMIT").map_err(from_sqlite)?;
        let Some(name) = next else {
            // A reader of an index whose log is empty writes nothing, not even that it reads.
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            return Ok(());
        };
        connection.close().map_err(|(_, error)| from_sqlite(error))?;
        let path = self.dir.join(&name);
        std::fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed)?;
        // With a log from here on, which stays when the last who has it open closes it.
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(from_sqlite)?;
        configure(&connection)?;
        connection
            .query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
            .and_then(|()| connection.query_row("SELECT count(*) FROM sources", [], |_| Ok(())))
            .map_err(from_sqlite)?;
        drop(connection);
        let link = self.dir.join(format!("{name}.link"));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&name, &link).map_err(failed)?;
        std::fs::rename(&link, self.dir.join(CURRENT)).map_err(failed)?;
        self.sweep(Some(Path::new(&name)));
        Ok(())
    }

    /// Removes what is neither the index nor the lock: drafts of those who died, and what was replaced.
    fn sweep(&self, current: Option<&Path>) {
        let current = current.and_then(Path::to_str).unwrap_or("/");
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_kept = name.to_str().is_some_and(|name| {
                name == CURRENT
                    || name == LOCK
                    || name.strip_prefix(current).is_some_and(|rest| ["", "-wal", "-shm"].contains(&rest))
            });
            if !is_kept {
                // Whatever cannot be removed is in no process's way.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn configure(connection: &Connection) -> Result<(), Error> {
    let set = || {
        connection.busy_timeout(PATIENCE)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.set_prepared_statement_cache_capacity(32);
        connection
            .execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -16000; PRAGMA cell_size_check = ON;")
    };
    set().map_err(from_sqlite)
}

/// Opens a file; none if it is no index of this format.
fn connect(path: &Path, flags: OpenFlags) -> Result<Option<Connection>, Error> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(from_sqlite)?;
    configure(&connection)?;
    let ask = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(from_sqlite);
    let is_ours = ask("PRAGMA application_id")? == APPLICATION && ask("PRAGMA user_version")? == FORMAT;
    Ok(is_ours.then_some(connection))
}

/// What an error of SQLite means for the index.
pub(super) fn from_sqlite(error: rusqlite::Error) -> Error {
    crate::store::sqlite::from_sqlite(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_writer_is_waited_for_until_a_deadline_and_named() {
        let home = tempfile::tempdir().unwrap();
        let held = Turn::wait(home.path()).unwrap();
        let message = Turn::wait_for(home.path(), Duration::from_millis(50)).err().unwrap().to_string();
        let holder = format!("`lock` of the index has been held by process {}", std::process::id());
        assert!(message.contains(&holder), "{message}");
        drop(held);
        Turn::wait_for(home.path(), Duration::from_millis(50)).unwrap();
    }
}
