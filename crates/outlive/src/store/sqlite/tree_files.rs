//! The processes of a run's attempt: the lock that they inherit, and in the locked file who the command is and where
//! their control group.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use serde::{Deserialize, Serialize};

use super::place::{Place, from_io};
use super::{SqliteStore, run_files};
use crate::process::{
    FileId, Group, Identity, LifeLock, LockState, Tree, attempts_nearby, file_id, lock_state, name_of,
};
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
        if let (Ok(identity), Ok(inner)) = (Identity::seen_from(self.vantage.clone(), pid), self.lock()) {
            let _ = note(&inner.place.dir, run, &Noted { command: Some(identity), group: None });
        }
    }

    /// The command of a run's attempt, as far as it was noted.
    pub fn command(&self, run: &Run) -> Option<Identity> {
        noted(&self.lock().ok()?.place.dir, run)?.command
    }

    /// Makes a control group for the processes of a run's attempt, and notes where. None where there can be none.
    pub fn make_group(&self, run: &Run) -> Option<Group> {
        // As it is: nobody needs a group so much that a registry that was just replaced should be made again.
        let dir = self.inner.lock().unwrap_or_else(PoisonError::into_inner).place.dir.try_clone().ok()?;
        let lock = file_id(&dir, &run_files::tree_lock(run))?;
        let group = Group::make(&name_of(run.id, run.attempt, lock))?;
        let known = noted(&dir, run).unwrap_or_default();
        // Nobody would look in it otherwise.
        if note(&dir, run, &Noted { group: Some(group.path().into()), ..known }).is_err() {
            group.remove();
            return None;
        }
        Some(group)
    }

    /// Removes the control groups of this registry's attempts that nobody is left in. Answers with how many.
    pub(super) fn remove_empty_groups(place: &Place) -> usize {
        let is_empty = |(id, attempt, path): &(_, u32, PathBuf)| {
            let lock = run_files::tree_lock_of(*id, *attempt);
            let is_held = lock_state(&place.dir, &lock, None) == LockState::Held;
            let group = found(&place.dir, &lock, path, |file| name_of(*id, *attempt, file));
            !is_held && group.is_some_and(|group| group.remove())
        };
        attempts_nearby().iter().filter(|nearby| is_empty(nearby)).count()
    }

    /// The processes of a run's attempt.
    pub fn tree(&self, run: &Run) -> Result<Tree, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the registry cannot be opened once more", &error);
        let dir = inner.place.dir.try_clone().map_err(failed)?;
        let names: Vec<String> = inner.place.names().cloned().collect();
        let group = group(&dir, run);
        Ok(Tree::new(names, run.id.to_string(), dir, run_files::tree_lock(run), group))
    }

    /// Where whoever wants to see the terminal of a run's attempt finds its owner: a name in a directory.
    pub fn terminal(&self, run: &Run) -> Result<(OwnedFd, PathBuf), Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the directory of the run's attempts cannot be opened", &error);
        let dir = files::open_dir(&inner.place.dir, &run_files::attempts_path(run.id)).map_err(failed)?;
        Ok((dir, format!("{:04}.terminal", run.attempt).into()))
    }

    /// Ends the processes that a run's attempt left alive: asks them first, and kills what is there after `grace`.
    pub fn end_tree(&self, run: &Run, grace: Duration) -> Result<(), Error> {
        self.tree(run)?.end(grace);
        Ok(())
    }
}

/// What the file says whose lock the processes of an attempt inherit.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Noted {
    #[serde(flatten)]
    command: Option<Identity>,
    /// Where their control group is, below where control groups are mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<PathBuf>,
}

/// In one piece, not synced: no process of this boot outlives a power cut.
fn note(dir: &OwnedFd, run: &Run, noted: &Noted) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, run_files::tree_lock(run), flags, Mode::empty())?;
    std::io::Write::write_all(&mut std::fs::File::from(file), &serde_json::to_vec(noted)?)
}

fn noted(dir: &OwnedFd, run: &Run) -> Option<Noted> {
    serde_json::from_slice(&files::read(dir, &run_files::tree_lock(run), LIMIT).ok()?).ok()
}

/// The control group of a run's attempt, if it has one.
pub(super) fn group(dir: &OwnedFd, run: &Run) -> Option<Group> {
    let path = noted(dir, run)?.group?;
    found(dir, &run_files::tree_lock(run), &path, |lock| name_of(run.id, run.attempt, lock))
}

/// The group at this place, if it is that of the attempt whose lock this is: a copy of a lock is another file.
fn found(dir: &OwnedFd, lock: &Path, path: &Path, name: impl FnOnce(FileId) -> String) -> Option<Group> {
    let user = rustix::fs::statat(dir, lock, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?.st_uid;
    Group::find(path, &name(file_id(dir, lock)?), user)
}
