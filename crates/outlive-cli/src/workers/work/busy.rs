//! Runs that other processes ask for while every slot is busy: the worker puts them into the queue.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use outlive::registry::Registry;

use crate::workers::socket::{Listener, Settings, WorkerAnswer, accept, is_taken};

/// What a worker answers callers with while no slot does.
pub(super) struct BusyIntake {
    listener: Listener,
    settings: Settings,
    registry: Registry,
    /// The kinds of runs that are executed here; none for all.
    kinds: Vec<String>,
}

impl AsFd for BusyIntake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl BusyIntake {
    /// Listens for callers of a registry in a directory. None where that cannot be: callers then add their runs themselves.
    pub(super) fn open(registry: Registry, settings: Settings, kinds: Vec<String>) -> Option<Self> {
        let listener = Listener::open(&registry).ok()?;
        Some(Self { listener, settings, registry, kinds })
    }

    /// The descriptor that the slots inherit.
    pub(super) fn number(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Puts the run that a caller asks for into the queue, unless the caller is gone. Where it cannot be made, the caller is not answered and meets the
    /// reason itself.
    pub(super) fn enqueue(&self) {
        let Some((run, caller)) = accept(&self.listener, &self.settings) else { return };
        if !is_taken(&self.registry, &self.kinds, &run) {
            caller.tell(&WorkerAnswer::Refused);
        } else if !caller.is_gone() && pollster::block_on(self.registry.enqueue_requested(run, caller.pid)).is_ok() {
            caller.tell(&WorkerAnswer::Added);
        }
    }
}
