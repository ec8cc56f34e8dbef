//! The database of a local registry: how it is opened, made, brought up to date, and refused.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use rustix::fs::{FlockOperation, flock};

use super::directory::{RegistryDirectory, from_io};
use super::verify;
use super::wait::Wait;
use crate::store::Error;
use crate::util::files::{self, Prepared};

/// The database, below the registry's directory.
pub(super) const DATABASE: &str = "registry.db";
/// Its write-ahead log. It stays when the last connection is closed.
const LOG: &str = "registry.db-wal";
const LOG_HEAD: i64 = 32;
/// The files that change with every write. They are only ever looked at from outside.
pub(crate) const WRITTEN: [&str; 2] = [DATABASE, LOG];
/// What it begins with; how its sums are made stands behind.
const LOG_MAGIC: [u8; 3] = [0x37, 0x7f, 0x06];
/// A page of the database, with what stands before it in the log.
const FRAME: i64 = 24 + 4096;
/// How many frames a log may have before what is in it goes to where it belongs. The first process that opens
/// the database reads the whole log.
const LONG_LOG: i64 = 100;
/// The index of the log, shared by all who have the database open.
const INDEX: &str = "registry.db-shm";
/// What SQLite makes it longer by.
const INDEX_STEP: i64 = 32 << 10;
/// What it is called until it is whole.
const NEXT: &str = "registry.db.next";
const OPENING: &str = "open.lock";

/// How long a writer waits for the others before it gives up. Writers hold the lock for about a millisecond.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// How often a database is opened that is deleted while it is opened.
const OPENINGS: usize = 512;

/// The first release with the repaired WAL reset: below it two checkpoints at once can corrupt the file.
const OLDEST_SQLITE: i32 = 3_051_003;

/// `outl`: tells our database from any other.
const APPLICATION: i32 = 0x6f75_746c;

/// What makes a database of the newest format at once.
pub(super) const LAYOUT: &str = include_str!("layout.sql");
/// What brings format n to format n+1, from format 1 on. Never edited once released.
pub(super) const MIGRATIONS: &[&str] = &[];

/// The oldest outlive format whose reader understands what this one writes.
const READABLE_FROM: i64 = 1;

/// The inode of a file, and when it was changed.
pub(super) type Change = (u64, i64, i64);

/// An open database.
pub(super) struct Database {
    pub(super) connection: Connection,
    /// Its inode, to notice when the file is replaced under us.
    pub(super) inode: u64,
    /// How the files were that it stands for, if it was put together from others because those could not be used.
    pub(super) instead_of: Option<[Option<Change>; 2]>,
    /// The format it had when it was opened; 0 for one that has not been made yet.
    pub(super) version: i64,
    /// Made by a later outlive, or put together from files: it may be read.
    pub(super) read_only: bool,
    /// Commits are on the disk when they return.
    pub(super) synced: bool,
    /// Its log was not as long as one that something was written to.
    pub(super) log_is_cut: bool,
    /// Its log may be too long.
    pub(super) log_is_long: bool,
}

impl Database {
    /// Has commits synced from here on, or not.
    pub(super) fn sync_commits(&mut self, synced: bool) -> Result<(), Error> {
        if self.synced != synced {
            let sql = if synced { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            self.connection.execute_batch(sql).map_err(from_sqlite)?;
            self.synced = synced;
        }
        Ok(())
    }

    /// Has the next change begin a long log anew. SQLite does that for the second change of a process and later ones:
    /// how much of a log is where it belongs is forgotten when no process has the database open.
    pub(super) fn shorten_log(&mut self) {
        if !std::mem::take(&mut self.log_is_long) {
            return;
        }
        let checkpoint = |mode: &str| {
            let sql = format!("PRAGMA wal_checkpoint({mode})");
            self.connection.query_row(&sql, [], |row| row.get::<_, i64>(1))
        };
        // A log that stays long is only slow to open.
        if checkpoint("NOOP").is_ok_and(|frames| frames > LONG_LOG) {
            let _ = checkpoint("PASSIVE");
        }
    }
}

/// Opens the database of `place`. One that is missing or of an older format is made or migrated by the process that
/// comes first, while the others wait; `fill` runs inside that same transaction when it was missing.
pub(super) fn open(
    place: &RegistryDirectory,
    fill: impl Fn(&Connection) -> Result<(), Error>,
) -> Result<Database, Error> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(Error::Unsupported(format!(
            "SQLite {} can corrupt a database that two processes use",
            rusqlite::version()
        )));
    }
    let mut wait = Wait::new(OPENING, TIMEOUT);
    let mut gone = 0;
    while gone < OPENINGS {
        if let Some(database) = connect(place)? {
            let found = format(&database, place)?;
            if found == place.format() || database.read_only {
                return Ok(database);
            }
        }
        let lock = opening_file(place)?;
        // Its holder may be making the database at this moment: so it is looked for again after each pause.
        if wait.try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
            match make_or_migrate(place, &fill) {
                // It was deleted as it was made.
                Ok(None) => gone += 1,
                Ok(Some(database)) => return Ok(database),
                Err(error) => return Err(error),
            }
        }
    }
    Err(Error::Unavailable("the registry's database is deleted again and again".into()))
}

/// Opens the database of `place` to be read as it is; none if there is none, or it was never filled.
pub(super) fn read(place: &RegistryDirectory) -> Result<Option<Database>, Error> {
    let Some(database) = connect(place)? else { return Ok(None) };
    if format(&database, place)? == 0 {
        return Ok(None);
    }
    Ok(Some(Database { read_only: true, ..database }))
}

/// Makes a database that is missing and brings an older one up to date; none if it was deleted meanwhile.
fn make_or_migrate(
    place: &RegistryDirectory,
    fill: impl Fn(&Connection) -> Result<(), Error>,
) -> Result<Option<Database>, Error> {
    let Some(database) = connect(place)? else {
        create(place, fill)?;
        return connect(place);
    };
    let migrated = format(&database, place).and_then(|found| {
        let fill = |connection: &Connection| if found == 0 { fill(connection) } else { Ok(()) };
        migrate(&database.connection, place, found, fill)
    });
    if is_replaced(place, &database) { Ok(None) } else { migrated.map(|()| Some(database)) }
}

/// An in-memory database, filled and then only read: what can be seen while the one on disk cannot be used.
pub(super) fn salvage(
    place: &RegistryDirectory,
    fill: impl Fn(&Connection) -> Result<(), Error>,
) -> Result<Database, Error> {
    let instead_of = Some(changes(place));
    let connection = Connection::open_in_memory().map_err(from_sqlite)?;
    migrate(&connection, place, 0, fill)?;
    Ok(Database {
        connection,
        inode: 0,
        instead_of,
        version: place.format(),
        read_only: true,
        synced: false,
        log_is_cut: false,
        log_is_long: false,
    })
}

/// Whether the file at the database's name is another than the one that is open, or a process may have mended what could
/// not be used.
pub(super) fn is_replaced(place: &RegistryDirectory, database: &Database) -> bool {
    let is_ours = database.inode == 0 || inode(&place.dir) == Some(database.inode);
    !is_ours || database.instead_of.is_some_and(|files| files != changes(place))
}

fn changes(place: &RegistryDirectory) -> [Option<Change>; 2] {
    [DATABASE, LOG].map(|name| {
        let stat = rustix::fs::statat(&place.dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_ino, stat.st_mtime, stat.st_mtime_nsec.cast_signed()))
    })
}

/// Whether there is a database where there was none when it was looked for.
pub(super) fn is_made(place: &RegistryDirectory, database: &Database) -> bool {
    database.inode == 0 && inode(&place.dir).is_some()
}

fn inode(dir: &OwnedFd) -> Option<u64> {
    rustix::fs::statat(dir, DATABASE, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| stat.st_ino)
}

pub(super) fn opening_lock(place: &RegistryDirectory) -> Result<OwnedFd, Error> {
    let lock = opening_file(place)?;
    Wait::new(OPENING, TIMEOUT).lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

fn opening_file(place: &RegistryDirectory) -> Result<OwnedFd, Error> {
    files::open_lock(&place.dir, OPENING, place.sharing.file_mode())
        .map_err(|error| from_io("the registry cannot be locked to be made", &error))
}

/// A lock on the directory itself. SQLite opens the files of a database by name, one by one: a process that connects shares
/// this lock, so that none makes another database in between and it gets the log of one with the pages of another.
struct Connecting<'a>(&'a OwnedFd);

impl<'a> Connecting<'a> {
    fn lock(place: &'a RegistryDirectory, how: FlockOperation) -> Result<Self, Error> {
        Wait::new("registry.db", TIMEOUT).lock(&place.dir, how)?;
        Ok(Self(&place.dir))
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        // A lock that cannot be freed now is freed when the directory is closed.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Makes the database under another name and gives it its own when it is whole, so that no process ever opens a part of it.
fn create(place: &RegistryDirectory, fill: impl Fn(&Connection) -> Result<(), Error>) -> Result<(), Error> {
    let failed = |error: io::Error| from_io("the registry's database cannot be made", &error);
    remove(place, &[NEXT, "registry.db.next-wal", "registry.db.next-shm"]).map_err(failed)?;
    // SQLite gives its other files the mode of this one.
    Prepared::new(&place.dir, b"", place.sharing.file_mode(), false)
        .and_then(|empty| empty.publish(&place.dir, Path::new(NEXT)))
        .map_err(failed)?;
    let path = place.path().map_err(failed)?.join(NEXT);
    let named = |error| from_sqlite(error).named(&path);
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let next = Connection::open_with_flags(&path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(named)?;
    migrate(&next, place, 0, fill)?;
    // Its last connection moves its log into it.
    next.close().map_err(|(_, error)| named(error))?;
    let _connecting = Connecting::lock(place, FlockOperation::NonBlockingLockExclusive)?;
    // What a deleted database left behind belongs to it, and processes that still have it open go on using theirs.
    remove(place, &[LOG, INDEX]).map_err(failed)?;
    rustix::fs::renameat(&place.dir, NEXT, &place.dir, DATABASE).map_err(|error| failed(error.into()))?;
    make_log(place).map_err(failed)
}

/// Makes the log of a database that has none, and its name last: what is committed to it is synced in the file alone, by
/// the committing process. SQLite takes an empty one for a new one.
fn make_log(place: &RegistryDirectory) -> io::Result<()> {
    Prepared::new(&place.dir, b"", place.sharing.file_mode(), false)?.publish(&place.dir, Path::new(LOG))?;
    Ok(rustix::fs::fsync(&place.dir)?)
}

fn remove(place: &RegistryDirectory, names: &[&str]) -> io::Result<()> {
    for name in names {
        match rustix::fs::unlinkat(&place.dir, *name, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens the database; none if there is none, or it was replaced as it was opened.
fn connect(place: &RegistryDirectory) -> Result<Option<Database>, Error> {
    let Some(inode) = inode(&place.dir) else { return Ok(None) };
    if is_index_cut(place) {
        drop_cut_index(place)?;
    }
    let _connecting = Connecting::lock(place, FlockOperation::NonBlockingLockShared)?;
    let connected = connect_to(place, inode);
    // Whatever was read of a database that is gone, or of two at once, says nothing.
    if self::inode(&place.dir) == Some(inode) { connected.map(Some) } else { Ok(None) }
}

/// Whether the log may have more frames than it should: it is not made shorter when it is begun anew.
fn is_log_long(place: &RegistryDirectory) -> bool {
    let stat = rustix::fs::statat(&place.dir, LOG, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| (stat.st_size - LOG_HEAD) / FRAME > LONG_LOG)
}

/// Whether the log is missing, has no head, has a hole or ends within a frame: it was cut, or was never written to.
pub(super) fn is_log_cut(place: &RegistryDirectory) -> bool {
    let Ok(log) = files::open_file(&place.dir, Path::new(LOG)) else { return true };
    let mut head = [0; LOG_HEAD as usize];
    let has_head = rustix::io::pread(&log, &mut head, 0).is_ok_and(|read| read == head.len() && head[..3] == LOG_MAGIC);
    // A process that goes on writing behind a cut leaves a hole there.
    let data = rustix::fs::seek(&log, rustix::fs::SeekFrom::Hole(0)).map(u64::cast_signed);
    let whole =
        |stat: rustix::fs::Stat| (stat.st_size - LOG_HEAD) % FRAME == 0 && data.is_ok_and(|data| data >= stat.st_size);
    !has_head || !rustix::fs::fstat(&log).is_ok_and(whole)
}

/// Whether the log is whole but for its last frame, as a write on a full disk leaves it.
pub(super) fn is_log_torn(place: &RegistryDirectory) -> bool {
    let Ok(log) = files::open_file(&place.dir, Path::new(LOG)) else { return false };
    let mut head = [0; LOG_HEAD as usize];
    let has_head = rustix::io::pread(&log, &mut head, 0).is_ok_and(|read| read == head.len() && head[..3] == LOG_MAGIC);
    has_head && rustix::fs::fstat(&log).is_ok_and(|stat| (stat.st_size - LOG_HEAD) % FRAME != 0)
}

/// Whether the index of the log was made shorter. SQLite would fill it up with nothing, and believe what is left.
fn is_index_cut(place: &RegistryDirectory) -> bool {
    let stat = rustix::fs::statat(&place.dir, INDEX, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_size % INDEX_STEP != 0)
}

/// Empties an index that was cut: SQLite then makes it again. Alone: a process that connects makes it longer step by step.
fn drop_cut_index(place: &RegistryDirectory) -> Result<(), Error> {
    let _connecting = Connecting::lock(place, FlockOperation::NonBlockingLockExclusive)?;
    if is_index_cut(place) {
        let path = place.path().map_err(|error| from_io("the registry's directory cannot be found", &error))?;
        // SQLite says better what is wrong.
        let _ = empty(&path.join(INDEX));
    }
    Ok(())
}

/// Empties a file by its name. A process that opens and closes a file of a database gives up all its locks on that file.
#[allow(unsafe_code, reason = "rustix truncates open files alone")]
fn empty(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is a string that ends with a NUL, and lives until the call has returned.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn connect_to(place: &RegistryDirectory, inode: u64) -> Result<Database, Error> {
    let path =
        place.path().map_err(|error| from_io("the registry's directory cannot be found", &error))?.join(DATABASE);
    let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let named = |error| from_sqlite(error).named(&path);
    let log_is_cut = is_log_cut(place);
    if log_is_cut && !files::exists(&place.dir, Path::new(LOG)) {
        // It was taken away; where it cannot be made again, SQLite says so better.
        let _ = make_log(place);
    }
    let connection = Connection::open_with_flags(&path, flags | OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(named)?;
    configure(&connection).map_err(named)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(named)?;
    verify::check(&connection, version, place.migrations).map_err(|error| error.named(&path))?;
    let (read_only, log_is_long) = (version > place.format(), is_log_long(place));
    Ok(Database { connection, inode, instead_of: None, version, read_only, synced: true, log_is_cut, log_is_long })
}

/// The file may come from anywhere: nothing in it is trusted to run, and no crafted page is followed.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(TIMEOUT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // A statement that was prepared once is not prepared again because other values are bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, 64 << 20)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.execute_batch(&format!(
        "PRAGMA mmap_size = 0; PRAGMA cell_size_check = ON; PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = {LONG_LOG};"
    ))
}

/// The format of the database, if it is a registry's.
fn format(database: &Database, place: &RegistryDirectory) -> Result<i64, Error> {
    let (connection, found) = (&database.connection, database.version);
    let ask = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(from_sqlite);
    let application = ask("PRAGMA application_id")?;
    let what = || place.path().unwrap_or_default().join(DATABASE).display().to_string();
    if application != i64::from(APPLICATION) && (found != 0 || ask("SELECT count(*) FROM sqlite_schema")? != 0) {
        return Err(Error::Corrupt(format!("`{}` is not a registry's database", what())));
    }
    let known = place.format();
    if found > known {
        let readable: Option<i64> =
            connection.query_row("SELECT value FROM meta WHERE name = 'readable_from'", [], |row| row.get(0)).ok();
        if readable.is_none_or(|readable| readable > known) {
            return Err(Error::Newer { what: what(), found, known });
        }
    }
    Ok(found)
}

/// Makes the tables of a new database, or brings those of an older format up to date, in one transaction.
fn migrate(
    connection: &Connection,
    place: &RegistryDirectory,
    found: i64,
    fill: impl Fn(&Connection) -> Result<(), Error>,
) -> Result<(), Error> {
    if found == 0 {
        let journal: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(from_sqlite)?;
        if journal != "wal" && journal != "memory" {
            return Err(Error::Unsupported(format!(
                "SQLite keeps its journal as `{journal}` here, not as a write-ahead log"
            )));
        }
    }
    let run = |sql: &str| connection.execute_batch(sql).map_err(from_sqlite);
    run("PRAGMA synchronous = FULL; BEGIN IMMEDIATE")?;
    let done = (|| {
        let from = connection.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).map_err(from_sqlite)?;
        if from == 0 {
            run(LAYOUT)?;
        }
        for migration in place.migrations.iter().skip((from as usize).saturating_sub(1)) {
            run(migration)?;
        }
        run(&format!(
            "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {};
             INSERT OR REPLACE INTO meta VALUES ('readable_from', {READABLE_FROM});",
            place.format()
        ))?;
        fill(connection)?;
        run("COMMIT")
    })();
    if done.is_err() {
        // The first error is the one to tell.
        let _ = run("ROLLBACK");
    }
    done
}

/// What an error of SQLite means for a store.
pub(crate) fn from_sqlite(error: rusqlite::Error) -> Error {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::Full(text),
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::CannotOpen
            | ErrorCode::AuthorizationForStatementDenied,
        ) => Error::Denied(text),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt(text),
        Some(ErrorCode::SystemIoFailure) => Error::Unknown(text),
        None if matches!(
            error,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..)
        ) =>
        {
            Error::Corrupt(text)
        }
        _ => Error::Unavailable(text),
    }
}

impl Error {
    /// Names the file in an error.
    fn named(self, path: &Path) -> Self {
        let name = |text: String| format!("`{}`: {text}", path.display());
        match self {
            Self::Unavailable(text) => Self::Unavailable(name(text)),
            Self::Unknown(text) => Self::Unknown(name(text)),
            Self::Full(text) => Self::Full(name(text)),
            Self::Denied(text) => Self::Denied(name(text)),
            Self::Corrupt(text) => Self::Corrupt(name(text)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::store::sqlite::directory::Sharing;

    #[test]
    fn f_33_the_sqlite_in_use_is_new_enough() {
        assert!(rusqlite::version_number() >= OLDEST_SQLITE);
    }

    #[test]
    fn l22_older_format_is_migrated_once_and_keeps_its_rows() {
        // What a later release may do to a table, and what fails if it is done twice.
        const LATER: &[&str] =
            &["ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'", "CREATE TABLE later (x)"];
        const OPENERS: usize = 8;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let made = RegistryDirectory::create(&path, Sharing::Private, &SystemEntropy)
            .unwrap_or_else(|error| panic!("{error}"));
        let first = open(&made, |_| Ok(())).unwrap();
        assert_eq!(format(&first, &made).unwrap(), 1);
        first
            .connection
            .execute_batch(
                "INSERT INTO runs VALUES
            ('r', 1, 's', 'pending', 0, NULL, 0, 0, 0, 5, 'n', 'k', '{}', 1, NULL, '', 0, '', '', NULL, NULL, NULL)",
            )
            .unwrap();
        drop(first);
        let opened: Vec<_> = std::thread::scope(|scope| {
            // Each by a place of its own, as every store has: locks of the directory are between descriptors, not threads.
            let open = || {
                let mut place = RegistryDirectory::open(&path).unwrap_or_else(|error| panic!("{error}"));
                place.migrations = LATER;
                let database = open(&place, |_| panic!("an existing database was filled")).unwrap();
                let sql = "SELECT created_at, name, body, colour FROM runs WHERE id = 'r'";
                let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
                let kept: (i64, String, String, String) = database.connection.query_row(sql, [], row).unwrap();
                (format(&database, &place).unwrap(), kept)
            };
            let threads: Vec<_> = (0..OPENERS).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (version, kept) in opened {
            // The format is the one that was found when the database was opened.
            assert!(matches!(version, 1 | 3), "{version}");
            assert_eq!(kept, (5, "n".into(), "{}".into(), "blue".into()));
        }
        let older = open(&made, |_| Ok(())).unwrap();
        assert!(older.read_only && older.version == 3);
    }
}
