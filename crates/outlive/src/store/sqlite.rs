//! Runs of one machine, in a directory: a database for what is in flight, write-once files for what has ended.
//!
//! The calls work on the caller's thread and wait for at most the timeout of a writer: a transaction takes
//! about a millisecond, and what beats does so on a thread of its own. See ADR 0004 for how files and database agree.

mod claims;
mod clone_identity;
mod corrupt_rows;
mod delete;
mod directory;
mod disk_reserve;
mod doctor;
mod histogram;
mod hook_receipts;
mod keys;
mod life_lock;
mod log_files;
mod notify;
mod observer;
mod process_files;
mod query;
mod revisions;
mod rows;
mod run_files;
mod schema;
mod search;
mod shares;
mod sigbus;
mod store_impl;
mod summaries;
mod updates;
mod verify;
mod wait;
mod wal_recovery;
mod workers;
mod writer_queue;

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rusqlite::Connection;

use self::corrupt_rows::Damage;
use self::directory::RegistryDirectory;
pub use self::directory::Sharing;
pub use self::doctor::RegistryFinding;
pub use self::hook_receipts::HookReceipts;
use self::notify::Noted;
pub(crate) use self::notify::bell;
pub use self::notify::{Topic, Watch};
pub use self::observer::HEARD_WITHIN;
use self::schema::{Database, TIMEOUT};
pub(crate) use self::schema::{WRITTEN, from_sqlite};
use self::sigbus::Unblocked;
pub use self::sigbus::install_sigbus_handler;
pub(crate) use self::summaries::OnRecord;
pub(crate) use self::wait::Wait;
use self::workers::Moment;
use self::writer_queue::Queue;
use super::{Cursor, Error, Expect, Record, Revision, Write, WriteOutcome};
use crate::host::MadeBy;
use crate::model::filter::Filter;
use crate::model::id::{Entropy, RunId, WorkerId};
use crate::model::owner::HostContext;
use crate::model::run::{Event, Owner, Run};
use crate::model::time::Clock;
use crate::util::sync::lock;

/// How often a change is tried whose database is deleted under it.
const REPLACEMENTS: usize = 32;
/// The lock of a worker that has left, for the next to take.
const FREE_LOCK: &str = "workers/free";

/// A registry in a directory of this machine. [`Registry::open`](crate::Registry::open) makes one for `sqlite:PATH`;
/// most programs need no more.
pub struct SqliteStore {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    vantage: HostContext,
    damage: Arc<Damage>,
    access: Access,
    opened_by: MadeBy,
    inner: Mutex<OpenDirectory>,
}

/// What a registry is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Nothing is written, not even what is missing.
    Read,
    Write,
}

struct OpenDirectory {
    place: RegistryDirectory,
    database: Database,
    /// How long to wait for a turn to write.
    timeout: Duration,
    /// Where writers queue; none where there is nothing to write to.
    queue: Option<Queue>,
    /// Why the database on disk is not used.
    trouble: Option<Error>,
    /// The file system failed under the database: what the connection believes must be read anew.
    suspect: bool,
    /// The worker that leaves with the last of its runs.
    leaving: Option<WorkerId>,
    /// The rows that could not be understood.
    damage: Arc<Damage>,
    /// The files that the transaction has written so far and that are deleted if it is refused.
    noted: RefCell<Vec<PathBuf>>,
    /// The file of an end of this transaction has its name.
    filed: Cell<bool>,
    /// What the transaction has changed so far, for subscribers.
    changed: RefCell<Noted>,
    /// Runs that a killed process has deleted in part, which readers ignore.
    half_deleted: Vec<RunId>,
}

/// The registry as it is on disk, for one thread; a cut of its shared memory does not end that one.
struct Locked<'a> {
    inner: MutexGuard<'a, OpenDirectory>,
    _unblocked: Unblocked,
}

impl Deref for Locked<'_> {
    type Target = OpenDirectory;

    fn deref(&self) -> &OpenDirectory {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut OpenDirectory {
        &mut self.inner
    }
}

impl SqliteStore {
    /// Opens the registry at `path`.
    pub fn open(path: &Path, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Result<Self, Error> {
        Self::at(path, RegistryDirectory::open(path)?, Access::Write, clock, entropy)
    }

    /// Opens the registry at `path` to be read. Nothing is written: where its database is missing, what the files of the
    /// runs say is read instead.
    pub fn read(path: &Path, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Result<Self, Error> {
        Self::at(path, RegistryDirectory::open(path)?, Access::Read, clock, entropy)
    }

    /// Opens the registry at `path`, made if it is missing. Any number of processes may do so at once.
    pub fn create(
        path: &Path,
        sharing: Sharing,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, Error> {
        Self::at(path, RegistryDirectory::create(path, sharing, &*entropy)?, Access::Write, clock, entropy)
    }

    /// Another connection to the same registry, wherever it has been moved to.
    pub fn another(&self) -> Result<Self, Error> {
        let path = self.lock()?.place.path().map_err(|error| directory::from_io("the registry is gone", &error))?;
        let another = Self::open(&path, self.clock.clone(), self.entropy.clone())?;
        // One that can only be read, because descriptors ran out as it was opened, is of no use.
        another.trouble().map_or(Ok(another), Err)
    }

    /// Sets how long this store waits for its turn to write.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        lock(&self.inner).timeout = timeout;
        self
    }

    fn at(
        path: &Path,
        place: RegistryDirectory,
        access: Access,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, Error> {
        let path =
            std::path::absolute(path).map_err(|error| directory::from_io("the working directory is gone", &error))?;
        let vantage = HostContext::here();
        let damage = Arc::<Damage>::default();
        let now = Moment::read(&*clock, &vantage);
        let _unblocked = Unblocked::new();
        let inner = Mutex::new(open_inner(place, access, &now, &*entropy, damage.clone())?);
        Ok(Self { path, clock, entropy, vantage, damage, access, opened_by: MadeBy::this_process(), inner })
    }

    /// Has `tell` called, once for each, with what is wrong with records that cannot be understood and are left out.
    pub fn on_damage(&self, tell: impl Fn(&str) + Send + 'static) {
        self.damage.tell_to(Box::new(tell));
    }

    /// Why the database on disk is not used, if it is not: what is read comes from the files of the runs.
    pub fn trouble(&self) -> Option<Error> {
        self.lock().ok().and_then(|inner| inner.trouble.clone())
    }

    /// The names of this registry, its own first and then those it replaces. None for a copy that was never
    /// written to yet: what it calls itself is still the original.
    pub(crate) fn names(&self) -> Vec<String> {
        let own = |inner: Locked<'_>| inner.place.names().cloned().collect();
        self.lock().ok().filter(|inner| !inner.place.copied).map(own).unwrap_or_default()
    }

    /// The names of this registry, unless another call uses the store now: a rule that runs inside it may ask.
    pub(crate) fn names_unless_busy(&self) -> Option<Vec<String>> {
        drop(self.inner.try_lock().ok()?);
        Some(self.names())
    }

    /// Where the registry is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the registry's directory is gone together with the one that it was in: no write makes it again.
    pub fn is_gone(&self) -> bool {
        let is_linked = lock(&self.inner).place.is_linked();
        !is_linked && !self.has_parent()
    }

    fn has_parent(&self) -> bool {
        self.path.parent().is_some_and(Path::exists)
    }

    /// Who may see it.
    pub fn sharing(&self) -> Result<Sharing, Error> {
        Ok(self.lock()?.place.sharing)
    }

    fn open_inner(&self, place: RegistryDirectory) -> Result<OpenDirectory, Error> {
        open_inner(place, self.access, &self.now(), &*self.entropy, self.damage.clone())
    }

    fn now(&self) -> Moment {
        Moment::read(&*self.clock, &self.vantage)
    }

    /// The registry as it is on disk: reopened if its directory or database was replaced under us.
    fn lock(&self) -> Result<Locked<'_>, Error> {
        super::fork_guard::check(self.opened_by)?;
        let inner = lock(&self.inner);
        let mut inner = Locked { inner, _unblocked: Unblocked::new() };
        let is_linked = inner.place.is_linked();
        if !is_linked && self.access == Access::Read {
            *inner = self.open_inner(RegistryDirectory::open(&self.path)?)?;
        } else if !is_linked {
            // Where its repository is gone as well, there is nothing to make it again in.
            if !self.has_parent() {
                return Err(Error::Unavailable(format!("the registry `{}` is gone", self.path.display())));
            }
            let place = RegistryDirectory::create(&self.path, inner.place.sharing, &*self.entropy)?;
            let mut heir = OpenDirectory { timeout: inner.timeout, ..self.open_inner(place)? };
            heir.inherit(&inner.place.names().cloned().collect::<Vec<_>>(), &*self.entropy)?;
            *inner = heir;
        } else if inner.suspect
            || schema::is_replaced(&inner.place, &inner.database)
            || (inner.trouble.is_none() && schema::is_made(&inner.place, &inner.database))
        {
            let place = RegistryDirectory::open(
                &inner.place.path().map_err(|error| directory::from_io("the registry is gone", &error))?,
            )?;
            *inner = OpenDirectory { timeout: inner.timeout, ..self.open_inner(place)? };
        }
        Ok(inner)
    }

    /// Looks something up. What was read from shared memory that was cut meanwhile is read again.
    fn look<T>(&self, look: impl Fn(&OpenDirectory) -> Result<T, Error>) -> Result<T, Error> {
        for _ in 0..=REPLACEMENTS {
            let cuts = sigbus::cuts();
            let mut inner = self.lock()?;
            let found = look(&inner);
            if sigbus::cuts() != cuts {
                inner.suspect = true;
                continue;
            }
            if matches!(found, Err(Error::Corrupt(_) | Error::Unknown(_)))
                && inner.trouble.is_none()
                && let Ok(Some(damage)) = inner.damaged_pages()
            {
                let damage = Error::Corrupt(format!("the database is damaged: {damage}"));
                inner.damage.note("the database", &damage);
                inner.salvage(damage, &self.now(), &*self.entropy)?;
                continue;
            }
            return found;
        }
        Err(Error::Unavailable("the registry's shared memory is cut again and again".into()))
    }

    fn writer(&self) -> Result<Locked<'_>, Error> {
        if self.access == Access::Read {
            return Err(Error::Denied("the registry was opened to be read".into()));
        }
        let mut inner = self.lock()?;
        if inner.trouble.is_some() {
            // What was in the way may be gone: a disk that was read-only, a file that was put aside.
            inner.suspect = true;
            drop(inner);
            inner = self.lock()?;
        }
        if inner.database.read_only {
            let newer = || Error::Denied("the registry was made by a later outlive and can only be read".into());
            return Err(inner.trouble.clone().unwrap_or_else(newer));
        }
        if inner.place.copied {
            inner.fork_identity(&*self.entropy)?;
        }
        Ok(inner)
    }

    /// Changes something. What went into a database that was deleted meanwhile is tried again in the one that took its
    /// place; `change` is repeated, because files may have carried over what it did.
    fn write<T>(&self, change: impl Fn(&mut OpenDirectory, bool) -> Result<T, Error>) -> Result<T, Error> {
        for tried in 0..=REPLACEMENTS {
            let cuts = sigbus::cuts();
            let mut inner = self.writer()?;
            let done = match change(&mut inner, tried > 0) {
                Err(Error::Full(_)) if disk_reserve::release(&inner.place) => change(&mut inner, tried > 0),
                done => done,
            };
            let is_gone = schema::is_replaced(&inner.place, &inner.database) || sigbus::cuts() != cuts;
            if done.is_ok() || tried == REPLACEMENTS || !is_gone {
                return done;
            }
            inner.suspect = true;
        }
        Err(Error::Unavailable("the registry's database is deleted again and again".into()))
    }
}

fn open_inner(
    place: RegistryDirectory,
    access: Access,
    now: &Moment,
    entropy: &dyn Entropy,
    damage: Arc<Damage>,
) -> Result<OpenDirectory, Error> {
    if access == Access::Write {
        place.close_to_others();
    }
    let fill = |connection: &Connection| fill(connection, &place, now, entropy);
    let opened = match access {
        Access::Write => schema::open(&place, fill).map(Some),
        Access::Read => schema::read(&place),
    };
    let (mut database, mut trouble) = match opened {
        Ok(Some(database)) => (database, None),
        Err(Error::Unknown(text)) if schema::is_log_cut(&place) => {
            (schema::salvage(&place, fill)?, Some(Error::Corrupt(format!("the log of the database was cut: {text}"))))
        }
        Ok(None) => (schema::salvage(&place, fill)?, None),
        Err(trouble @ (Error::Corrupt(_) | Error::Denied(_))) => (schema::salvage(&place, fill)?, Some(trouble)),
        Err(error) => return Err(error),
    };
    let mut queue = None;
    if !database.read_only {
        match Queue::open(&place) {
            Ok(opened) => queue = Some(opened),
            // It can be read, and a writer gets the reason why not.
            Err(error) => (database.read_only, trouble) = (true, Some(error)),
        }
    }
    if !database.read_only && !disk_reserve::is_set_aside(&place) {
        disk_reserve::set_aside(&place);
    }
    let log_is_cut = database.log_is_cut;
    let mut inner = OpenDirectory {
        place,
        database,
        timeout: TIMEOUT,
        queue,
        trouble,
        suspect: false,
        leaving: None,
        damage,
        noted: RefCell::default(),
        filed: Cell::default(),
        changed: RefCell::default(),
        half_deleted: Vec::new(),
    };
    if log_is_cut && !inner.database.read_only {
        let read_back = inner.read_back();
        // One that was deleted meanwhile is made again with what is in the files.
        if !schema::is_replaced(&inner.place, &inner.database) {
            read_back?;
        }
    } else if log_is_cut && access == Access::Read {
        // The writer of the first change to a log has files before it has a log: what it does is seen whole, or not yet.
        let _standstill = writer_queue::standstill(&inner.place);
        let ahead = if schema::is_log_cut(&inner.place) { inner.behind()? } else { Vec::new() };
        let behind = ahead.len();
        if behind > 0 {
            let knows = |id| rows::knows(inner.connection(), id).unwrap_or(false);
            let knows_all = ahead.iter().all(|known| knows(known.record.run.id));
            let trouble = if knows_all && schema::is_log_torn(&inner.place) {
                Error::Unavailable(format!(
                    "its log ends within a change, as a full disk leaves it: the files of {behind} runs know more, and the next write reads them back"
                ))
            } else {
                Error::Corrupt(format!(
                    "the log of the database was cut or taken away: {behind} runs are known to their files alone"
                ))
            };
            inner.salvage(trouble, now, entropy)?;
        }
    }
    inner.complete_deletions(access);
    Ok(inner)
}

/// Fills a database with what the files of the runs know.
fn fill(connection: &Connection, place: &RegistryDirectory, now: &Moment, entropy: &dyn Entropy) -> Result<(), Error> {
    workers::set_reachable_since(connection, now, entropy)?;
    run_files::visit(place, |_, known| {
        // The doctor reports what cannot be understood.
        let Ok(known) = known else { return Ok(()) };
        rows::put_known(connection, None, &known)
    })
}

impl OpenDirectory {
    fn connection(&self) -> &Connection {
        &self.database.connection
    }

    fn execute(&self, sql: &str) -> Result<(), Error> {
        rows::cached(self.connection(), sql)?.execute([]).map(|_| ()).map_err(from_sqlite)
    }

    /// Runs `change` alone. Durable ones are on the disk when this returns.
    fn transaction<T>(
        &mut self,
        durable: bool,
        change: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let turn = self.queue.as_ref().map(|queue| queue.wait(self.timeout)).transpose()?;
        let (cuts, changes) = (sigbus::cuts(), self.connection().total_changes());
        self.noted.get_mut().clear();
        self.filed.set(false);
        self.database.sync_commits(durable)?;
        self.database.shorten_log();
        self.execute("BEGIN IMMEDIATE")?;
        let done = change(self);
        // What is committed to a database that was deleted is lost with it, however well it is committed.
        let in_place = |inner: &Self| match schema::is_replaced(&inner.place, &inner.database) {
            true => Err(Error::Unknown("the registry's database was deleted meanwhile".into())),
            false if sigbus::cuts() != cuts => {
                // No reader may take half an index for a whole one because it was committed with.
                sigbus::distrust(&inner.place.path().unwrap_or_default());
                Err(Error::Unknown("the registry's shared memory was cut meanwhile".into()))
            }
            false => Ok(()),
        };
        let ended = match &done {
            Ok(_) => in_place(self).and_then(|()| self.execute("COMMIT")).and_then(|()| in_place(self)),
            Err(_) => Ok(()),
        };
        if !self.connection().is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        let is_unknown = matches!(ended, Err(Error::Unknown(_))) || matches!(done, Err(Error::Unknown(_)));
        if is_unknown {
            self.suspect = true;
        } else if ended.is_err() || done.is_err() {
            // Before the next writer's turn, which may read the files back.
            run_files::take_back(&self.place, self.noted.get_mut());
        }
        let (noted, changed) = (self.changed.take(), self.connection().total_changes() != changes);
        // What was written can be read only now. Heartbeats, which are not durable, notify no process.
        match turn {
            Some(turn) if changed && durable => turn.tell(),
            turn => drop(turn),
        }
        if changed {
            noted.send(&self.place);
        }
        match ended.and(done) {
            // An end whose file has its name has happened, whatever the database says.
            Err(error) if self.filed.get() => Err(Error::Unknown(error.to_string())),
            done => done,
        }
    }

    /// A record as it is read: with the end that its file may know already, and what was heard of its owner.
    fn read(&self, record: Record, now: &Moment) -> Result<Record, Error> {
        let mut record = record;
        if record.run.owner().is_some()
            && let Some(filed) = run_files::filed_end(&self.place, &record.run)
        {
            record = filed.record();
        }
        if self.place.copied && !record.run.state.name().is_ended() {
            record.run.copied = true;
        }
        if let Some(owner) = record.run.owner_mut() {
            owner.heard = workers::heard(self.connection(), owner.worker, now)?;
        }
        Ok(record)
    }

    /// Visits the records that may match. Rows that cannot be understood are noted and left out.
    fn scan(
        &self,
        filter: &Filter,
        order: super::Order,
        after: Option<Cursor>,
        mut visit: impl FnMut(Record) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let damaged = |damaged: rows::Damaged| self.damage.note(&damaged.id, &damaged.why);
        rows::scan(self.connection(), filter, order, after, damaged, |record| {
            if self.half_deleted.contains(&record.run.id) { Ok(true) } else { visit(record) }
        })
    }

    fn find(&self, id: RunId, now: &Moment) -> Result<Option<Record>, Error> {
        let found = rows::find(self.connection(), id)?.filter(|_| !self.half_deleted.contains(&id));
        found.map(|record| self.read(record, now)).transpose()
    }

    /// Writes down an end that a file knows and the database does not. Answers with what is on record then.
    fn adopt(&self, record: Record) -> Result<Record, Error> {
        let Some(filed) = record.run.owner().and_then(|_| run_files::filed_end(&self.place, &record.run)) else {
            return Ok(record);
        };
        let recorded = rows::events(self.connection(), record.run.id)?;
        let missed: Vec<Event> = filed.events.iter().filter(|event| !recorded.contains(event)).cloned().collect();
        self.replace(Some(&record.run), &filed.record(), &missed)?;
        Ok(filed.record())
    }

    /// Tries one write inside a transaction.
    fn apply(&self, write: &Write, now: &Moment) -> Result<WriteOutcome, Error> {
        let current = rows::find(self.connection(), write.run.id)?.map(|record| self.adopt(record)).transpose()?;
        let revision = match (&current, write.expect) {
            (None, Expect::Absent) => Revision(1),
            (Some(record), Expect::Revision(expected)) if record.revision == expected => Revision(expected.0 + 1),
            _ => {
                let found = current.map(|record| self.read(record, now)).transpose()?;
                return Ok(WriteOutcome::Conflict(found.map(Box::new)));
            }
        };
        let before = current.map(|record| record.run);
        if let Some(busy) = self.busy_key(before.as_ref(), &write.run)? {
            return Ok(busy);
        }
        if let Some(busy) = self.count_start(write, now.at)? {
            return Ok(busy);
        }
        if let Some(ended) = &write.ended {
            run_files::file_end(&self.place, ended, write, rows::events(self.connection(), write.run.id)?)?;
            self.filed.set(true);
        }
        run_files::note(&self.place, before.as_ref(), write, &mut self.noted.borrow_mut())?;
        let owner = write.run.owner();
        let taker =
            owner.filter(|owner| before.as_ref().and_then(Run::owner).map(|owner| owner.worker) != Some(owner.worker));
        let fresh = taker.map(|owner| workers::took(self.connection(), owner, now)).transpose()? == Some(true);
        let record = Record { run: write.run.clone(), revision, stamp: write.stamp };
        self.put(before.as_ref(), &record, &write.events)?;
        self.alert(before.as_ref(), owner.filter(|_| !fresh))?;
        Ok(WriteOutcome::Done(revision))
    }

    fn replace(&self, before: Option<&Run>, record: &Record, events: &[Event]) -> Result<(), Error> {
        self.put(before, record, events)?;
        self.alert(before, record.run.owner())
    }

    fn put(&self, before: Option<&Run>, record: &Record, events: &[Event]) -> Result<(), Error> {
        rows::put(self.connection(), record, events)?;
        rows::move_keys(self.connection(), before, &record.run)?;
        let has_dependents = || claims::has_dependents(self.connection());
        self.changed.borrow_mut().note(before, &record.run, has_dependents)?;
        let asked = record.run.cancel.is_some() && before.is_some_and(|before| before.cancel.is_none());
        if let Some(owner) = record.run.owner().filter(|_| asked) {
            // It beats behind this transaction, and learns of it then.
            notify::ring(owner.worker);
        }
        Ok(())
    }

    /// Has the owners of a run, before and after a change, compare what they hold. One that has never beaten will anyway.
    fn alert(&self, before: Option<&Run>, after: Option<&Owner>) -> Result<(), Error> {
        for owner in [before.and_then(Run::owner), after].into_iter().flatten() {
            if self.leaving != Some(owner.worker) || !workers::forget_idle(self.connection(), owner.worker)? {
                workers::alert(self.connection(), owner.worker)?;
            }
        }
        Ok(())
    }
}
