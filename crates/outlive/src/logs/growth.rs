//! Notifications that files grow.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Becomes readable when a file grows that is watched with it. One serves attempt after attempt: the kernel takes tens of
/// milliseconds to forget it, and the process that closes it waits.
#[derive(Debug, Clone)]
pub struct Growth(Arc<OwnedFd>);

impl Growth {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)))
    }

    /// Forgets what has grown so far.
    fn forget(&self) {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        while events.next().is_ok() {}
    }
}

impl AsFd for Growth {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The files of one log, watched until this is dropped.
pub(super) struct Watched {
    growth: Growth,
    files: Vec<i32>,
}

impl Watched {
    pub(super) fn by(growth: &Growth) -> Self {
        growth.forget();
        Self { growth: growth.clone(), files: Vec::new() }
    }

    pub(super) fn add(&mut self, path: String) -> io::Result<()> {
        self.files.push(inotify::add_watch(&self.growth, path, WatchFlags::MODIFY)?);
        Ok(())
    }

    pub(super) fn forget(&self) {
        self.growth.forget();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for file in &self.files {
            // One that is gone is not watched any more.
            let _ = inotify::remove_watch(&self.growth, *file);
        }
    }
}
