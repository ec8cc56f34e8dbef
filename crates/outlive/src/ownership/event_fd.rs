//! An eventfd that wakes the heartbeat thread: from its own process, or from another that notifies the worker.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A wake-up call that this process can make.
pub(crate) struct EventFd {
    /// None where the process can open no more files; then the next beat comes when it is due.
    call: Option<OwnedFd>,
}

impl EventFd {
    pub(crate) fn new() -> Self {
        Self { call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok() }
    }

    /// Wakes the thread that waits, or that waits next.
    pub(crate) fn call(&self) {
        if let Some(call) = &self.call {
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for a call or the bell, for at most `timeout`. Answers whether it was the bell.
    pub(crate) fn wait(&self, bell: Option<&OwnedFd>, timeout: Duration) -> bool {
        let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> =
            [self.call.as_ref(), bell].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&limit));
        let drained = |fd: &OwnedFd| {
            let mut buffer = [MaybeUninit::uninit(); 256];
            std::iter::repeat_with(|| rustix::io::read(fd, &mut buffer).is_ok_and(|(read, _)| !read.is_empty()))
                .take_while(|more| *more)
                .count()
                > 0
        };
        self.call.as_ref().map(drained);
        bell.is_some_and(drained)
    }
}
