//! Watching a local registry: being woken when something in it is written or asked, instead of asking again and again.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, Timestamps};

use super::SqliteStore;
use super::place::{Place, from_io};
use crate::id::WorkerId;
use crate::process::worker_lock;
use crate::store::Error;

/// Wakes its holder when the registry is written. Made before looking, so that nothing falls in between.
pub struct Watch {
    events: OwnedFd,
}

impl SqliteStore {
    /// Watches the registry from now on.
    pub fn watch(&self) -> Result<Watch, Error> {
        let failed = |error: rustix::io::Errno| from_io("the registry cannot be watched", &error.into());
        let path = self.lock()?.place.path().map_err(|error| from_io("the registry is gone", &error))?;
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let written = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
        inotify::add_watch(&events, path, written).map_err(failed)?;
        Ok(Watch { events })
    }
}

impl SqliteStore {
    /// Something to wait for that becomes readable when somebody rings for this worker.
    pub fn bell(&self, worker: WorkerId) -> Result<OwnedFd, Error> {
        let failed = |error: rustix::io::Errno| from_io("the worker's bell cannot be hung up", &error.into());
        let path = self.lock()?.place.path().map_err(|error| from_io("the registry is gone", &error))?;
        let bell = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        inotify::add_watch(&bell, path.join(worker_lock(worker)), WatchFlags::ATTRIB).map_err(failed)?;
        Ok(bell)
    }
}

/// Rings for a worker, by touching its lock. One that does not hear it beats when it is due.
pub(super) fn ring(place: &Place, worker: WorkerId) {
    let now = Timestamps { last_access: NOW, last_modification: NOW };
    let _ = rustix::fs::utimensat(&place.dir, worker_lock(worker), &now, AtFlags::SYMLINK_NOFOLLOW);
}

const NOW: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };

impl Watch {
    /// Waits until something was written, for at most `patience`.
    pub fn wait(&self, patience: Duration) {
        let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&limit));
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        while events.next().is_ok() {}
    }
}
