//! The doctor: looks a local registry over, and mends what can be mended without losing anything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::from_io;
use super::schema::{self, DATABASE};
use super::{OpenDirectory, SqliteStore, disk_reserve, rows, run_files, workers};
use crate::host::{LockState, lock_state};
use crate::model::filter::Filter;
use crate::model::run::{State, StateName};
use crate::store::{Error, Order, Revision};
use crate::util::files::{self, TEMPORARY};

/// How old a file must be before it counts as left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(3_600);

/// With fewer free bytes than this a disk counts as full: a new run and its log need about as many.
const FULL: u64 = 256 << 10;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryFinding {
    /// What, and where.
    pub what: String,
    /// What mends it, or has; none where only a person can.
    pub remedy: Option<String>,
    /// It was mended.
    pub mended: bool,
}

impl SqliteStore {
    /// Looks the registry over, and changes nothing.
    pub fn examine(&self) -> Result<Vec<RegistryFinding>, Error> {
        self.look_over(false)
    }

    /// Looks the registry over, and mends what can be mended.
    pub fn mend(&self) -> Result<Vec<RegistryFinding>, Error> {
        self.look_over(true)
    }

    fn look_over(&self, mend: bool) -> Result<Vec<RegistryFinding>, Error> {
        let mut findings = Vec::new();
        let mut note = |what: String, remedy: Option<&str>, mended: bool| {
            findings.push(RegistryFinding { what, remedy: remedy.map(Into::into), mended });
        };
        if let Some(free) = self.free_space()?.filter(|free| *free < FULL) {
            let what = format!("the disk of the registry is full: {} KiB are free", free >> 10);
            note(what, None, false);
        }
        let damage = self.damage()?;
        if let Some(damage) = &damage {
            if mend {
                self.quarantine()?;
            }
            let remedy = "the database is kept under another name and rebuilt from the files of the runs";
            note(format!("the database is damaged: {damage}"), Some(remedy), mend);
        } else if let Some(trouble) = self.trouble() {
            note(format!("the database cannot be used: {trouble}"), None, false);
        }
        let mut inner = self.lock()?;
        let writable = !inner.database.read_only;
        for damaged in inner.damaged_rows()? {
            let known = damaged.id.parse().ok().and_then(|id| run_files::read_run(&inner.place, id).ok());
            let known = known.filter(|known| known.damaged_end.is_none());
            let remedy = known.as_ref().map(|_| "its row is kept in a file and rebuilt from the files of the run");
            let mended = mend && writable && known.is_some();
            if let Some(known) = known.filter(|_| mended) {
                inner.rebuild(&damaged, known, self.clock.now().as_micros())?;
            }
            note(damaged.why.to_string(), remedy, mended);
        }
        for what in inner.damaged_specs(mend, self.clock.now().as_micros())? {
            note(what, Some("it is written again from the database"), mend);
        }
        let old = |inner: &OpenDirectory, path: &Path| inner.is_old(path, self.clock.now());
        let mut unknown = Vec::new();
        run_files::visit(&inner.place, |id, known| {
            match known {
                Ok(known) if !rows::knows(inner.connection(), id)? => {
                    let mend = mend && writable;
                    if mend {
                        rows::put_known(inner.connection(), None, &known)?;
                    }
                    let what = format!("the database does not know run {id}");
                    unknown.push((what, Some("it is read back from its files"), mend));
                }
                Ok(_) => {}
                Err(_) if run_files::is_empty(&inner.place, id) => {
                    // A young one is being filled by the process that made it.
                    if old(&inner, &run_files::path(id)) {
                        if mend {
                            run_files::remove_empty(&inner.place, id);
                        }
                        unknown.push((format!("`runs/{id}` is empty"), Some("it is removed"), mend));
                    }
                }
                Err(error) => unknown.push((format!("runs/{id}: {error}"), None, false)),
            }
            Ok(())
        })?;
        for (what, remedy, mended) in unknown {
            note(what, remedy, mended);
        }
        for (what, path) in inner.damaged_ends()? {
            let aside = path.with_extension(format!("json.damaged-{}", self.clock.now().as_micros()));
            if mend {
                rustix::fs::renameat(&inner.place.dir, &path, &inner.place.dir, &aside)
                    .map_err(|error| from_io(&what, &error.into()))?;
            }
            note(what, Some("it is kept under another name"), mend);
        }
        for what in inner.missing_ends(mend)? {
            note(what, Some("it is written again from the database"), mend);
        }
        match inner.half_deleted.len() {
            0 => {}
            count => note(format!("the deletion of {count} runs was not completed"), Some("it is completed"), false),
        }
        for path in inner.left_behind(self.clock.now())? {
            if mend {
                let _ = rustix::fs::unlinkat(&inner.place.dir, &path, rustix::fs::AtFlags::empty());
            }
            note(
                format!("`{}` was left behind by a process that is gone", path.display()),
                Some("it is removed"),
                mend,
            );
        }
        match if mend { Self::remove_empty_groups(&inner.place) } else { 0 } {
            0 => {}
            count => note(format!("{count} control groups were left behind"), Some("they are removed"), true),
        }
        if !inner.database.read_only && !disk_reserve::is_set_aside(&inner.place) {
            if mend {
                disk_reserve::set_aside(&inner.place);
            }
            note("no room is set aside for a full disk".into(), Some("it is set aside"), mend);
        }
        if mend && !inner.database.read_only {
            workers::forget_silent(inner.connection(), &self.now(), LEFT_BEHIND)?;
        }
        Ok(findings)
    }

    /// How many bytes this user may still write to the file system; none where it does not tell.
    fn free_space(&self) -> Result<Option<u64>, Error> {
        let found = rustix::fs::fstatvfs(&self.lock()?.place.dir).ok();
        Ok(found.filter(|found| found.f_blocks > 0).map(|found| found.f_bavail.saturating_mul(found.f_frsize)))
    }

    /// What is wrong with the pages of the database, if anything is.
    fn damage(&self) -> Result<Option<String>, Error> {
        let inner = self.lock()?;
        if let Some(Error::Corrupt(what)) = &inner.trouble {
            return Ok(Some(what.clone()));
        }
        inner.damaged_pages()
    }

    /// Puts the database aside, whole, and has it rebuilt. Nothing of it is deleted.
    fn quarantine(&self) -> Result<(), Error> {
        let mut inner = self.lock()?;
        let _alone = schema::opening_lock(&inner.place)?;
        let mark = self.clock.now().as_micros();
        for rest in ["", "-wal", "-shm"] {
            let (from, to) = (format!("{DATABASE}{rest}"), format!("{DATABASE}.corrupt-{mark}{rest}"));
            match rustix::fs::renameat(&inner.place.dir, &from, &inner.place.dir, &to) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(from_io("the damaged database cannot be put aside", &error.into())),
            }
        }
        inner.suspect = true;
        Ok(())
    }
}

impl OpenDirectory {
    fn each(&self, filter: &Filter, mut visit: impl FnMut(&super::Record) -> Result<(), Error>) -> Result<(), Error> {
        self.scan(filter, Order::Oldest, None, |record| visit(&record).map(|()| true))
    }

    /// Rows that cannot be understood.
    fn damaged_rows(&self) -> Result<Vec<rows::Damaged>, Error> {
        let mut found = Vec::new();
        let damaged = |damaged| found.push(damaged);
        rows::scan(self.connection(), &Filter::default(), Order::Oldest, None, damaged, |_| Ok(true))?;
        Ok(found)
    }

    /// Replaces a row that cannot be understood by what the files of its run say.
    fn rebuild(&mut self, damaged: &rows::Damaged, mut known: run_files::FiledRun, mark: i64) -> Result<(), Error> {
        let id = known.record.run.id;
        run_files::keep_row(&self.place, id, mark, &damaged.body)
            .map_err(|error| from_io("what the damaged row says cannot be kept", &error))?;
        // Revisions only rise.
        let least = damaged.revision.map_or(0, |revision| revision + 1);
        known.record.revision = Revision(known.record.revision.0.max(least));
        self.transaction(true, |inner| {
            let recorded = rows::events(inner.connection(), id)?;
            known.events.retain(|event| !recorded.contains(event));
            rows::remove(inner.connection(), &damaged.id)?;
            rows::put(inner.connection(), &known.record, &known.events)?;
            rows::move_keys(inner.connection(), None, &known.record.run)
        })
    }

    /// Ends whose file cannot be understood, whether the database knows them or not.
    fn damaged_ends(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let mut damaged = Vec::new();
        self.each(&Filter::default(), |record| {
            let ends = run_files::ends(&self.place, record.run.id).into_iter().filter(|(_, whole)| !whole);
            damaged.extend(ends.map(|(path, _)| (format!("`{}` is damaged", path.display()), path)));
            Ok(())
        })?;
        Ok(damaged)
    }

    /// Ends that the database knows and that have no file, as after a power cut.
    fn missing_ends(&self, mend: bool) -> Result<Vec<String>, Error> {
        let mut missing = Vec::new();
        self.each(&Filter::default(), |record| {
            let path = run_files::end_path(&record.run);
            if matches!(record.run.state, State::Ended(_)) && !files::exists(&self.place.dir, &path) {
                if mend && !self.database.read_only {
                    run_files::file_again(&self.place, record, rows::events(self.connection(), record.run.id)?)?;
                }
                missing.push(format!("`{}` is missing", path.display()));
            }
            Ok(())
        })?;
        Ok(missing)
    }

    /// Runs that wait and whose `spec.json` cannot be read: the database alone knows them.
    fn damaged_specs(&self, mend: bool, mark: i64) -> Result<Vec<String>, Error> {
        let mut damaged = Vec::new();
        self.each(&Filter::in_states([StateName::Pending]), |record| {
            let run = &record.run;
            if run.attempt == 1 && !run.copied && !run_files::has_spec(&self.place, run.id) {
                if mend && !self.database.read_only {
                    let events = rows::events(self.connection(), run.id)?;
                    run_files::file_spec_again(&self.place, record, events, mark)?;
                }
                damaged.push(format!("`runs/{}/spec.json` is missing or damaged", run.id));
            }
            Ok(())
        })?;
        Ok(damaged)
    }

    fn is_old(&self, path: &Path, now: crate::model::time::Timestamp) -> bool {
        rustix::fs::statat(&self.place.dir, path, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            let at = crate::model::time::Timestamp::from_micros(stat.st_mtime.saturating_mul(1_000_000));
            now.since(at) > LEFT_BEHIND
        })
    }

    /// Unnamed files of processes that died before naming them, and locks that no process holds any more.
    fn left_behind(&self, now: crate::model::time::Timestamp) -> Result<Vec<PathBuf>, Error> {
        let failed = |error| from_io("the registry's directory cannot be read", &error);
        let old = |path: &Path| self.is_old(path, now);
        let mut found = Vec::new();
        let mut dirs = vec![PathBuf::from(".")];
        self.each(&Filter::default(), |record| {
            dirs.extend(run_files::end_path(&record.run).ancestors().skip(1).take(2).map(Path::to_path_buf));
            Ok(())
        })?;
        for dir in dirs {
            let Ok(open) = files::open_dir(&self.place.dir, &dir) else { continue };
            let names = files::names(&open).map_err(failed)?.into_iter().filter(|name| name.starts_with(TEMPORARY));
            found.extend(names.map(|name| dir.join(name)).filter(|path| old(path)));
        }
        let owners = workers::owners(self.connection())?;
        if let Ok(open) = files::open_dir(&self.place.dir, Path::new("workers")) {
            for name in files::names(&open).map_err(failed)? {
                let owns = name.strip_suffix(".lock").is_none_or(|worker| owners.contains(worker));
                let path = Path::new("workers").join(&name);
                if !owns && lock_state(&self.place.dir, &path, None) == LockState::Free && old(&path) {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }
}
