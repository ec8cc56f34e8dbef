//! The processes of a run's attempt: the lock that they inherit, and in the locked file who the command is.

use std::io::Write;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::place::from_io;
use super::{SqliteStore, run_files};
use crate::process::{Identity, LifeLock, Tree};
use crate::run::Run;
use crate::store::{Error, files};

/// The largest such file that is read back.
const LIMIT: u64 = 4096;

impl SqliteStore {
    /// Takes the lock that the processes of a run's attempt are to inherit.
    pub fn hold_tree_lock(&self, run: &Run) -> Result<LifeLock, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the lock of the run's processes cannot be made", &error);
        run_files::attempts_dir(&inner.place, run.id).map_err(failed)?;
        LifeLock::create(&inner.place.dir, &run_files::tree_lock(run), inner.place.sharing.file_mode()).map_err(failed)
    }

    /// Notes which process is the command of a run's attempt. Whoever takes the run over can tell it from the others
    /// then; where it cannot be noted, nobody can.
    pub fn note_command(&self, run: &Run, pid: u32) {
        let noted = || -> std::io::Result<()> {
            let identity = Identity::seen_from(self.vantage.clone(), pid)?;
            let inner = self.lock().map_err(std::io::Error::other)?;
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&inner.place.dir, run_files::tree_lock(run), flags, Mode::empty())?;
            // In one piece, not synced: no process of this boot outlives a power cut.
            std::fs::File::from(file).write_all(&serde_json::to_vec(&identity)?)
        };
        let _ = noted();
    }

    /// The command of a run's attempt, as far as it was noted.
    pub fn command(&self, run: &Run) -> Option<Identity> {
        let inner = self.lock().ok()?;
        serde_json::from_slice(&files::read(&inner.place.dir, &run_files::tree_lock(run), LIMIT).ok()?).ok()
    }

    /// The processes of a run's attempt.
    pub fn tree(&self, run: &Run) -> Result<Tree, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the registry cannot be opened once more", &error);
        let dir = inner.place.dir.try_clone().map_err(failed)?;
        let names: Vec<String> = inner.place.names().cloned().collect();
        Ok(Tree::new(names, run.id.to_string(), dir, run_files::tree_lock(run)))
    }

    /// Ends the processes that a run's attempt left alive: asks them first, and kills what is there after `grace`.
    pub fn end_tree(&self, run: &Run, grace: Duration) -> Result<(), Error> {
        self.tree(run)?.end(grace);
        Ok(())
    }
}
