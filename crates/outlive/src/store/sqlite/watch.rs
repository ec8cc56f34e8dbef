//! Watching a local registry: being woken when something in it is written or asked, instead of asking again and again.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::SqliteStore;
use super::place::from_io;
use super::turn::QUEUE;
use crate::id::WorkerId;
use crate::store::Error;

/// Wakes its holder when the registry is written. Made before looking, so that nothing falls in between.
pub struct Watch {
    events: OwnedFd,
    /// What whoever has written touches.
    queue: PathBuf,
}

impl SqliteStore {
    /// Watches the registry from now on.
    pub fn watch(&self) -> Result<Watch, Error> {
        let failed = |error: rustix::io::Errno| from_io("the registry cannot be watched", &error.into());
        let path = self.lock()?.place.path().map_err(|error| from_io("the registry is gone", &error))?;
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        // The database itself is written before what is written can be read. Whoever is done touches the queue of writers;
        // what else is touched, as SQLite does with its files when they are opened, says nothing.
        let made = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
        inotify::add_watch(&events, &path, made).map_err(failed)?;
        let watch = Watch { events, queue: path.join(QUEUE) };
        watch.hear_writers();
        Ok(watch)
    }
}

/// Something to wait for that becomes readable when somebody rings for this worker. It has no name in any directory and
/// costs a short run next to nothing; whoever rings without need only has the worker beat a little early.
pub(crate) fn bell(worker: WorkerId) -> std::io::Result<OwnedFd> {
    let bell = UnixDatagram::bind_addr(&address(worker)?)?;
    bell.set_nonblocking(true)?;
    Ok(bell.into())
}

/// Rings for a worker. One that does not hear it, in another network namespace, beats when it is due.
pub(super) fn ring(worker: WorkerId) {
    let rung = UnixDatagram::unbound().and_then(|ringer| {
        ringer.set_nonblocking(true)?;
        ringer.send_to_addr(&[1], &address(worker)?)
    });
    drop(rung);
}

fn address(worker: WorkerId) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("outlive-bell-{worker}"))
}

impl Watch {
    /// Waits until something was written, for at most `patience`.
    pub fn wait(&self, patience: Duration) {
        let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&limit));
        self.forget();
    }

    /// Forgets what was written so far. Answers whether anything was.
    pub fn forget(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        let (mut any, mut is_new) = (false, false);
        while let Ok(event) = events.next() {
            any = true;
            is_new |= event.file_name().is_some_and(|name| name.to_bytes() == QUEUE.as_bytes());
        }
        if is_new {
            self.hear_writers();
        }
        any
    }

    /// Is woken by whoever touches the queue of writers from now on. Where there is none nobody has written yet, or it was
    /// deleted; who makes it wakes us.
    fn hear_writers(&self) {
        let _ = inotify::add_watch(&self.events, &self.queue, WatchFlags::ATTRIB);
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
