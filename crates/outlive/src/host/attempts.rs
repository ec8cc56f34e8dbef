//! The processes of attempts on this host: the lock that they inherit, and in the locked file who the command is and where
//! their control group.
//!
//! That is in the directory of a local registry, else in the home of the user who executes them, beside their output.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{FileId, Group, LifeLock, Tree, file_id, name_of};
use crate::model::id::RunId;
use crate::model::owner::{HostContext, Identity};
use crate::model::run::Run;
use crate::util::files;

/// The largest such file that is read back.
const LIMIT: u64 = 4096;

/// Where the attempts of a run are, below a directory.
pub(crate) fn attempts_path(id: RunId) -> PathBuf {
    PathBuf::from(format!("runs/{id}/attempts"))
}

/// Where the lock is that the processes of an attempt inherit.
pub(crate) fn tree_lock(run: &Run) -> PathBuf {
    tree_lock_of(run.id, run.attempt)
}

pub(crate) fn tree_lock_of(run: RunId, attempt: u32) -> PathBuf {
    attempts_path(run).join(format!("{attempt:04}.tree"))
}

/// The files about the attempts of one registry's runs.
pub(crate) struct Attempts {
    pub(crate) dir: OwnedFd,
    /// The names of the registry.
    pub(crate) names: Vec<String>,
    pub(crate) vantage: HostContext,
    pub(crate) mode: Mode,
}

impl Attempts {
    /// Takes the lock that the processes of a run's attempt are to inherit. The directory for it is there.
    pub(crate) fn hold_lock(&self, run: &Run) -> io::Result<LifeLock> {
        LifeLock::create(&self.dir, &tree_lock(run), self.mode)
    }

    /// Notes which process is the command of a run's attempt. A process that adopts the run can tell it from the others
    /// then; where it cannot be noted, none can.
    pub(crate) fn note_command(&self, run: &Run, pid: u32) {
        if let Ok(identity) = Identity::seen_from(self.vantage.clone(), pid) {
            let _ = note(&self.dir, run, &Noted { command: Some(identity), group: None });
        }
    }

    /// The command of a run's attempt, as far as it was noted.
    pub(crate) fn command(&self, run: &Run) -> Option<Identity> {
        noted(&self.dir, run.id, run.attempt)?.command
    }

    /// Makes a control group for the processes of a run's attempt, and notes where. None where there can be none.
    pub(crate) fn make_group(&self, run: &Run) -> Option<Group> {
        let lock = file_id(&self.dir, &tree_lock(run))?;
        let group = Group::make(&name_of(run.id, run.attempt, lock))?;
        let known = noted(&self.dir, run.id, run.attempt).unwrap_or_default();
        // No reader would look in it otherwise.
        if note(&self.dir, run, &Noted { group: Some(group.path().into()), ..known }).is_err() {
            group.remove();
            return None;
        }
        Some(group)
    }

    /// The processes of an attempt of a run.
    pub(crate) fn tree(self, run: RunId, attempt: u32) -> Tree {
        let group = group(&self.dir, run, attempt);
        Tree::new(self.names, run.to_string(), self.dir, tree_lock_of(run, attempt), group)
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
fn note(dir: &OwnedFd, run: &Run, noted: &Noted) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, tree_lock(run), flags, Mode::empty())?;
    io::Write::write_all(&mut std::fs::File::from(file), &serde_json::to_vec(noted)?)
}

fn noted(dir: &OwnedFd, run: RunId, attempt: u32) -> Option<Noted> {
    serde_json::from_slice(&files::read(dir, &tree_lock_of(run, attempt), LIMIT).ok()?).ok()
}

/// The control group of an attempt of a run, if it has one.
pub(crate) fn group(dir: &OwnedFd, run: RunId, attempt: u32) -> Option<Group> {
    let path = noted(dir, run, attempt)?.group?;
    found(dir, &tree_lock_of(run, attempt), &path, |lock| name_of(run, attempt, lock))
}

/// The group at this place, if it is that of the attempt whose lock this is: a copy of a lock is another file.
pub(crate) fn found(dir: &OwnedFd, lock: &Path, path: &Path, name: impl FnOnce(FileId) -> String) -> Option<Group> {
    let user = rustix::fs::statat(dir, lock, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_uid;
    Group::find(path, &name(file_id(dir, lock)?), user)
}
