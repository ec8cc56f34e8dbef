//! Coming and going of this process as a worker: the lock that proves that it lives, and its leaving.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, flock};

use super::observer::SERVED_LOCK;
use super::{FREE_LOCK, SqliteStore, directory, rows, workers};
use crate::host::{LifeLock, LockState, file_id, holds, id_of, lock_state, worker_lock};
use crate::model::id::{RunId, WorkerId};
use crate::model::owner::Identity;
use crate::model::run::Owner;
use crate::store::Error;
use crate::util::files;
use crate::util::sync::lock;

/// The lock of the process that maintains the registry.
const MAINTENANCE_LOCK: &str = "workers/maintenance.lock";

impl SqliteStore {
    /// Takes the lock that proves, as long as this process lives, that a worker does. Answers with the worker's
    /// identity, which names the lock.
    pub fn hold_life_lock(&self, worker: WorkerId) -> Result<(Identity, LifeLock), Error> {
        let inner = self.lock()?;
        let failed = |error| directory::from_io("the worker's lock cannot be made", &error);
        let (dir, name, sharing) = (&inner.place.dir, worker_lock(worker), inner.place.sharing);
        let make = || -> std::io::Result<LifeLock> {
            files::make_dir(dir, Path::new("workers"), sharing.dir_mode())?;
            LifeLock::create(dir, &name, sharing.file_mode())
        };
        let left = LifeLock::reuse(dir, Path::new(FREE_LOCK), &name, sharing.file_mode());
        let lock = left.map_or_else(make, Ok).map_err(failed)?;
        Ok((Identity { lock_inode: Some(lock.inode()), ..Identity::own() }, lock))
    }

    /// The lock of the process that receives remote heartbeats, `held` if it is that. None where another process has it.
    pub fn hold_served_lock(&self, held: Option<OwnedFd>) -> Option<OwnedFd> {
        let inner = self.lock().ok()?;
        let (dir, sharing) = (&inner.place.dir, inner.place.sharing);
        files::make_dir(dir, Path::new("workers"), sharing.dir_mode()).ok()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, SERVED_LOCK, flags, sharing.file_mode()).ok()?;
        // One that was locked in a registry which is gone says nothing.
        if let Some(held) = held.filter(|held| id_of(held) == id_of(&file)) {
            return Some(held);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// The lock of the one process that maintains the registry, for as long as it is kept; `None` while another has it.
    pub fn hold_maintenance_lock(&self) -> Option<OwnedFd> {
        let inner = self.lock().ok()?;
        let (dir, sharing) = (&inner.place.dir, inner.place.sharing);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, MAINTENANCE_LOCK, flags, sharing.file_mode()).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Says that remote heartbeats can arrive here, and could since it was said last: it counts for
    /// [`HEARD_WITHIN`](super::HEARD_WITHIN).
    pub fn say_served(&self, lock: &OwnedFd) {
        let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        // Where it cannot be said, no remote owner is judged.
        let _ = rustix::fs::futimens(lock, &Timestamps { last_access: omitted, last_modification: now });
    }

    /// Leaves the lock of a worker that is about to end and owns nothing to the next.
    pub fn drop_life_lock(&self, worker: WorkerId) {
        if let Ok(inner) = self.lock() {
            let (dir, name) = (&inner.place.dir, worker_lock(worker));
            if LifeLock::leave(dir, &name, Path::new(FREE_LOCK)).is_err() {
                // What stays behind is swept by `doctor`.
                let _ = rustix::fs::unlinkat(dir, &name, rustix::fs::AtFlags::empty());
            }
        }
    }

    /// Reads what the end of a run will need to know, while there is time.
    pub fn foresee_end(&self, run: RunId) {
        if let Ok(inner) = self.lock() {
            // Whatever is wrong is reported when the run has ended.
            let _ = rows::events(inner.connection(), run).map(|_| workers::foresee_leave(inner.connection()));
        }
    }

    /// Has a worker be forgotten together with the last run that it owns, instead of saying goodbye when that has ended.
    pub(crate) fn leave_with_its_last_run(&self, worker: Option<WorkerId>) {
        lock(&self.inner).leaving = worker;
    }

    /// Whether the process on record as an owner holds the lock of its worker.
    pub(crate) fn holds_its_lock(&self, owner: &Owner) -> bool {
        let Ok(inner) = self.lock() else { return false };
        let name = worker_lock(owner.worker);
        let held = lock_state(&inner.place.dir, &name, owner.identity.lock_inode) == LockState::Held;
        let file = file_id(&inner.place.dir, &name);
        held && owner.identity.lock_inode.is_some() && file.is_some_and(|file| holds(owner.identity.pid, file))
    }
}
