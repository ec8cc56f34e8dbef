//! Deletion of runs with their files.
//!
//! The rename of `runs/<id>` to `deleted/<id>` decides: a database that is rebuilt from the files no longer contains the
//! run. The rename is synced before the rows are deleted, in one transaction. A process that is killed between rename and
//! commit leaves rows without files: readers ignore these rows, and the next process that opens the registry for writing
//! completes the deletion.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;

use super::directory::{RegistryDirectory, from_io};
use super::{Access, OpenDirectory, SqliteStore, rows, run_files};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{State, StateName};
use crate::store::{Error, Order, Revision};
use crate::util::files;

/// Directory of deleted runs whose files are not removed yet.
const DELETED: &str = "deleted";

impl SqliteStore {
    /// Deletes the rows, events and files of these runs, all or none. Returns false, and deletes nothing, if a run does not
    /// have this revision any more or another run waits for it.
    pub fn delete(&self, runs: &[(RunId, Revision)]) -> Result<bool, Error> {
        self.write(|inner, again| inner.delete(runs, again))
    }
}

impl OpenDirectory {
    fn delete(&mut self, runs: &[(RunId, Revision)], again: bool) -> Result<bool, Error> {
        let is_deleted = self.transaction(true, |inner| {
            for (id, revision) in runs {
                let found = rows::find(inner.connection(), *id)?.map(|record| inner.adopt(record)).transpose()?;
                let is_same = match found {
                    Some(record) => record.revision == *revision,
                    // The first try renamed the files, and the database was rebuilt without the run.
                    None => again,
                };
                if !is_same || inner.is_awaited(*id)? {
                    return Ok(false);
                }
            }
            let failed = |error| from_io("the files of the run cannot be deleted", &error);
            set_aside(&inner.place, runs).map_err(failed)?;
            for (id, _) in runs {
                inner.delete_rows(*id)?;
            }
            Ok(true)
        })?;
        if is_deleted {
            remove_files(&self.place, runs.iter().map(|(id, _)| *id));
        }
        Ok(is_deleted)
    }

    fn is_awaited(&self, id: RunId) -> Result<bool, Error> {
        let mut is_awaited = false;
        let filter = Filter { waits: Some(true), ..Filter::in_states([StateName::Pending]) };
        self.scan(&filter, Order::Oldest, None, |record| {
            is_awaited = matches!(&record.run.state, State::Pending(pending) if pending.waits_for.contains(&id));
            Ok(!is_awaited)
        })?;
        Ok(is_awaited)
    }

    /// Completes the deletions of killed processes. A reader only notes these runs, to ignore them.
    pub(super) fn complete_deletions(&mut self, access: Access) {
        self.half_deleted = half_deleted(&self.place);
        if self.half_deleted.is_empty() || access == Access::Read || self.database.read_only {
            return;
        }
        let ids = self.half_deleted.clone();
        let deleted = self.transaction(true, |inner| {
            for id in ids.iter().filter(|id| !files::exists(&inner.place.dir, &run_files::path(**id))) {
                inner.delete_rows(*id)?;
            }
            Ok(())
        });
        // After a failure the next process tries again.
        if deleted.is_ok() {
            remove_files(&self.place, ids.into_iter());
            self.half_deleted.clear();
        }
    }

    fn delete_rows(&self, id: RunId) -> Result<(), Error> {
        rows::delete(self.connection(), id)?;
        self.changed.borrow_mut().note_deleted(id);
        Ok(())
    }
}

/// The runs whose deletion was decided and is not completed.
pub(super) fn half_deleted(place: &RegistryDirectory) -> Vec<RunId> {
    let names = files::open_dir(&place.dir, Path::new(DELETED)).and_then(|dir| files::names(&dir));
    names.unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect()
}

/// Renames the directories of the runs. The new names are on the disk when this returns.
fn set_aside(place: &RegistryDirectory, runs: &[(RunId, Revision)]) -> io::Result<()> {
    let deleted = files::make_dir(&place.dir, Path::new(DELETED), place.sharing.dir_mode())?;
    let kept: OwnedFd = files::open_dir(&place.dir, Path::new("runs"))?;
    for (id, _) in runs {
        let name = id.to_string();
        match rustix::fs::renameat(&kept, &name, &deleted, &name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for dir in [&deleted, &kept, &place.dir] {
        rustix::fs::fsync(dir)?;
    }
    Ok(())
}

/// Removes what is in [`DELETED`]. What cannot be removed now is removed when the registry is opened again.
fn remove_files(place: &RegistryDirectory, ids: impl Iterator<Item = RunId>) {
    let Ok(deleted) = files::open_dir(&place.dir, Path::new(DELETED)) else { return };
    for id in ids {
        let _ = std::fs::remove_dir_all(format!("/proc/self/fd/{}/{id}", deleted.as_raw_fd()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lifecycle::{Action, apply};
    use crate::model::id::SystemEntropy;
    use crate::model::run::Run;
    use crate::model::time::{Clock, SystemClock};
    use crate::store::sqlite::Sharing;
    use crate::store::{Expect, Store, Write};
    use crate::testing::{pending, person, spec, stamp};

    fn open(dir: &Path) -> SqliteStore {
        SqliteStore::create(&dir.join("r"), Sharing::Private, Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap()
    }

    fn add(store: &SqliteStore, run: Run) -> RunId {
        let (id, stamp) = (run.id, stamp(&SystemEntropy));
        let write = Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp };
        pollster::block_on(store.commit(vec![write])).unwrap();
        id
    }

    /// Adds a run that was cancelled before it started.
    fn add_ended(store: &SqliteStore) -> (RunId, Revision) {
        let id = add(store, pending(spec("job"), SystemClock.now(), &SystemEntropy));
        let record = pollster::block_on(store.get(&[id])).unwrap().remove(0);
        let cancel = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
        let transition = apply(&record.run, &cancel, &person("ada"), SystemClock.now()).unwrap();
        let write = Write::change(&record, transition, stamp(&SystemEntropy));
        pollster::block_on(store.commit(vec![write])).unwrap();
        let record = pollster::block_on(store.get(&[id])).unwrap().remove(0);
        assert!(record.run.ending().is_some());
        (id, record.revision)
    }

    fn knows(store: &SqliteStore, id: RunId) -> bool {
        !pollster::block_on(store.get(&[id])).unwrap().is_empty()
    }

    #[test]
    fn t1_16_deleted_run_stays_deleted_in_a_rebuilt_database() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let (gone, kept) = (add_ended(&store), add_ended(&store));
        assert!(!store.delete(&[(gone.0, Revision(gone.1.0 + 1))]).unwrap(), "an outdated revision was accepted");
        assert!(knows(&store, gone.0));
        assert!(store.delete(&[gone]).unwrap());
        assert!(!knows(&store, gone.0) && pollster::block_on(store.events(gone.0)).unwrap().is_empty());
        drop(store);
        for rest in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(dir.path().join(format!("r/registry.db{rest}")));
        }
        let store = open(dir.path());
        assert!(!knows(&store, gone.0) && knows(&store, kept.0));
        assert_eq!(half_deleted(&store.lock().unwrap().place), []);
        assert!(!store.examine().unwrap().iter().any(|finding| finding.what.contains(&gone.0.to_string())));
    }

    #[test]
    fn t1_16_deletion_killed_before_its_commit_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let run = add_ended(&store);
        // All that a process did that was killed right behind the rename.
        set_aside(&store.lock().unwrap().place, &[run]).unwrap();
        drop(store);
        let path = dir.path().join("r");
        let reader = SqliteStore::read(&path, Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap();
        assert!(!knows(&reader, run.0), "a reader shows a run without files");
        let listed = pollster::block_on(reader.list(&Filter::default(), &Default::default())).unwrap();
        assert!(listed.records.is_empty());
        let (briefs, _) = reader.list_summaries(&Filter::default(), &Default::default()).unwrap().unwrap();
        assert!(briefs.is_empty());
        assert!(reader.examine().unwrap().iter().any(|finding| finding.what.contains("deletion")));
        assert!(path.join(format!("deleted/{}", run.0)).exists(), "a reader wrote");
        let writer = open(dir.path());
        assert!(!rows::knows(writer.lock().unwrap().connection(), run.0).unwrap());
        assert!(!path.join(format!("deleted/{}", run.0)).exists());
    }

    #[test]
    fn t1_16_a_run_that_another_run_waits_for_is_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let awaited = add_ended(&store);
        let mut waiting = pending(spec("job"), SystemClock.now(), &SystemEntropy);
        let State::Pending(state) = &mut waiting.state else { panic!("a new run is pending") };
        state.waits_for.push(awaited.0);
        add(&store, waiting);
        assert!(!store.delete(&[awaited]).unwrap());
        assert!(knows(&store, awaited.0) && dir.path().join(format!("r/runs/{}", awaited.0)).exists());
    }
}
