//! Notifications for callers that poll: work to be claimed, requests about what this process owns.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::Registry;
use crate::store::Notification;
use crate::util::sync::lock;

/// Can be polled, and is readable as soon as there may be work. Notifications may be lost: no caller may rely on it.
pub struct WorkReady {
    rung: Arc<OwnedFd>,
    _listening: Box<dyn Any + Send + Sync>,
}

impl WorkReady {
    /// Forgets the notifications so far. Answers whether there were any.
    pub fn forget(&self) -> bool {
        // One that was not rung has nothing to be read.
        rustix::io::read(&*self.rung, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for WorkReady {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }
}

impl Registry {
    /// A bell that is rung when there may be work, where the store can tell. What is asked of this process's runs is looked
    /// after at once, too.
    #[doc(hidden)]
    pub fn bell(&self) -> Option<WorkReady> {
        let rung = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let ring = rung.clone();
        let listening = self.subscribe(move || {
            // One that is full of rings rings.
            let _ = rustix::io::write(&*ring, &1_u64.to_ne_bytes());
        })?;
        if let Some(working) = lock(&self.worker).as_ref() {
            working.listening.get_or_init(|| None);
        }
        Some(WorkReady { rung, _listening: listening })
    }

    /// Has this process's worker look after what others ask of its runs at once, where the store can tell.
    #[doc(hidden)]
    pub fn subscribe_requests(&self) {
        let Some(working) = lock(&self.worker).clone() else { return };
        working.listening.get_or_init(|| {
            let keeping = working.keeping.clone();
            self.listen(move |notification| {
                if notification == Notification::Request(keeping.worker) {
                    keeping.ask();
                }
            })
        });
    }
}
