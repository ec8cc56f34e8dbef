//! What a local registry tells of the processes of its runs' attempts.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::directory::{RegistryDirectory, from_io};
use super::{SqliteStore, run_files};
use crate::host::attempts::{Attempts, attempts_path, found, tree_lock_of};
use crate::host::{LifeLock, LockState, attempts_nearby, lock_state, name_of};
use crate::model::run::Run;
use crate::store::Error;
use crate::util::files;
use crate::util::sync::lock;

impl SqliteStore {
    /// Takes the lock that the processes of a run's attempt are to inherit.
    pub(crate) fn hold_tree_lock(&self, run: &Run) -> Result<LifeLock, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the lock of the run's processes cannot be made", &error);
        run_files::attempts_dir(&inner.place, run.id).map_err(failed)?;
        self.told_in(&inner.place).and_then(|attempts| attempts.hold_lock(run)).map_err(failed)
    }

    /// What it tells of the processes of its runs' attempts.
    pub(crate) fn attempts(&self) -> Result<Attempts, Error> {
        let failed = |error| from_io("the registry cannot be opened once more", &error);
        self.told_in(&self.lock()?.place).map_err(failed)
    }

    /// The attempts of a registry that may just have been replaced: it is not made again.
    pub(crate) fn attempts_as_they_are(&self) -> Option<Attempts> {
        self.told_in(&lock(&self.inner).place).ok()
    }

    fn told_in(&self, place: &RegistryDirectory) -> std::io::Result<Attempts> {
        Ok(Attempts {
            dir: place.dir.try_clone()?,
            names: place.names().cloned().collect(),
            vantage: self.vantage.clone(),
            mode: place.sharing.file_mode(),
        })
    }

    /// Removes the empty control groups of this registry's attempts. Answers with how many.
    pub(super) fn remove_empty_groups(place: &RegistryDirectory) -> usize {
        let is_empty = |(id, attempt, path): &(_, u32, PathBuf)| {
            let lock = tree_lock_of(*id, *attempt);
            let is_held = lock_state(&place.dir, &lock, None) == LockState::Held;
            let group = found(&place.dir, &lock, path, |file| name_of(*id, *attempt, file));
            !is_held && group.is_some_and(|group| group.remove())
        };
        attempts_nearby().iter().filter(|nearby| is_empty(nearby)).count()
    }

    /// Where a viewer of the terminal of a run's attempt finds its owner: a name in a directory.
    pub fn terminal(&self, run: &Run) -> Result<(OwnedFd, PathBuf), Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the directory of the run's attempts cannot be opened", &error);
        let dir = files::open_dir(&inner.place.dir, &attempts_path(run.id)).map_err(failed)?;
        Ok((dir, format!("{:04}.terminal", run.attempt).into()))
    }
}
