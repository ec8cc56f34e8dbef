//! The announcement of a reason to stop: a file descriptor that becomes readable, for `select` and event loops.
//!
//! The library announces from a thread of its own, which must not wait for the interpreter's lock: a program may hold that
//! for minutes in native code.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use outlive::ownership::handle::RunHandle;
use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable from the first reason to stop on.
pub struct Announcement(Arc<OwnedFd>);

impl Announcement {
    /// Has every reason to stop of `handle` announced.
    pub fn of(handle: &RunHandle) -> std::io::Result<Self> {
        let readable = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let announced = readable.clone();
        handle.on_stop(move |_| announce(&announced));
        Ok(Self(readable))
    }

    /// The number of the descriptor. It stays open for as long as this value lives.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Makes it readable, for a thread that waits for a run that has ended.
    pub fn end(&self) {
        announce(&self.0);
    }
}

fn announce(readable: &OwnedFd) {
    // A counter that is saturated is readable already.
    let _ = rustix::io::write(readable, &1_u64.to_ne_bytes());
}
