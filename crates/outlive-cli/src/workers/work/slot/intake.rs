//! Runs that other processes ask a free slot for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use outlive::discovery::Location;
use outlive::error::Error;

use super::{Flags, WorkSlot};
use crate::call::Context;
use crate::exec::spawn::handed;
use crate::workers::socket::{Settings, WorkerAnswer, accept, is_taken};

/// Where callers ask for runs.
pub(super) struct Intake {
    socket: OwnedFd,
    settings: Settings,
}

impl Intake {
    /// The socket that the parent of this slot handed over, if it did.
    pub(super) fn handed(context: &Context, flags: &Flags) -> Option<Self> {
        let socket = handed(flags.listener.as_ref()?).ok()?;
        let Ok(Location::Directory(path)) = context.location() else { return None };
        Some(Self { socket, settings: Settings::of(&path) })
    }
}

impl AsFd for Intake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl WorkSlot<'_> {
    /// Makes the run that a caller asks for, if one does and is not gone. Answers whether this slot owns a run now: that one, or one that
    /// comes before it in the queue. Where the run cannot be made, the caller is not answered and meets the reason itself.
    pub(super) fn take_request(&mut self) -> Result<bool, Error> {
        let intake = self.intake.as_ref();
        let Some((run, caller)) = intake.and_then(|intake| accept(intake, &intake.settings)) else { return Ok(false) };
        if !is_taken(self.registry, &self.flags.kinds, &run) {
            caller.tell(&WorkerAnswer::Refused);
            return Ok(false);
        }
        let first = self.claim_one()?;
        let is_free = first.is_none();
        self.next = first.map(|first| (first, None));
        // Looked at just before the write: the claim may have taken a while.
        if caller.is_gone() {
            return Ok(self.next.is_some());
        }
        if !is_free {
            if pollster::block_on(self.registry.enqueue_requested(run, caller.pid)).is_ok() {
                caller.tell(&WorkerAnswer::Added);
            }
        } else if let Ok(handle) = pollster::block_on(self.registry.start_requested(run, caller.pid)) {
            caller.tell(&WorkerAnswer::Added);
            self.next = Some((handle, Some(caller)));
        }
        Ok(self.next.is_some())
    }
}
