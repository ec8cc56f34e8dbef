//! Descriptors: the standard ones of this process, and a wait for any.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::stdio::{stderr, stdin, stdout};

/// The standard descriptors, by number.
pub const STANDARD: [BorrowedFd<'static>; 3] = [stdin(), stdout(), stderr()];

/// Opens something harmless where a standard descriptor is closed, so that no file of ours is taken for it. A command
/// that we start finds it closed again.
pub fn keep_standard_ones_taken() {
    for fd in STANDARD {
        if rustix::io::fcntl_getfd(fd).is_err() {
            // It gets the lowest free number, which is this one, and keeps it until the process ends.
            if let Ok(taken) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                std::mem::forget(taken);
            }
        }
    }
}

/// Whether our caller had closed it.
pub fn was_closed(fd: impl AsFd) -> bool {
    rustix::io::fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// Waits until one of these can be read, for at most `patience`.
pub fn wait_for(fds: &[&dyn AsFd], patience: Duration) {
    let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&limit));
}
