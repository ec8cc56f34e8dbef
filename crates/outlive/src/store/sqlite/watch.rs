//! Watching a local registry: being woken when something in it is written, instead of asking again and again.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::SqliteStore;
use super::place::from_io;
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
