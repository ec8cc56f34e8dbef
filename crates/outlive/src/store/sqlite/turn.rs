//! Turns: who may write next, in the order of asking.
//!
//! SQLite lets whoever asks at the right moment write, and everybody else sleeps and asks again; with hundreds of
//! writers some never get through. So writers queue for a lock of the kernel first. It is freed when its holder dies,
//! and waiting for it has an end, because a holder may also be stopped.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::place::{Place, from_io};
use crate::store::{Error, files};

const QUEUE: &str = "write.lock";

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The place where writers queue. Opened once, so that a process that can open no more files still beats.
pub(super) struct Queue {
    file: Arc<OwnedFd>,
}

/// A turn. Dropped, it is the next one's.
pub(super) struct Turn {
    file: Arc<OwnedFd>,
}

impl Queue {
    pub(super) fn open(place: &Place) -> Result<Self, Error> {
        let file = files::open_lock(&place.dir, QUEUE, place.sharing.file_mode());
        let file = file.map_err(|error| from_io("the queue of writers cannot be opened", &error))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Waits for a turn, for at most `patience`.
    pub(super) fn wait(&self, patience: Duration) -> Result<Turn, Error> {
        let turn = || Turn { file: self.file.clone() };
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(turn()),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(from_io("no turn to write can be had", &error.into())),
        }
        // The kernel's wait has no end of its own, so another thread waits, and is left behind if it takes too long.
        let state = Arc::new(AtomicU8::new(WAITING));
        let (granted, wait) = mpsc::channel();
        let (file, shared) = (self.file.clone(), state.clone());
        let waiter = move || {
            while flock(&file, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
            if shared.compare_exchange(WAITING, GRANTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                let _ = flock(&file, FlockOperation::Unlock);
            }
            let _ = granted.send(());
        };
        let spawned = std::thread::Builder::new().name("outlive-turn".into()).spawn(waiter);
        spawned.map_err(|error| Error::Unavailable(format!("no thread to wait for a turn to write: {error}")))?;
        let _ = wait.recv_timeout(patience);
        match state.compare_exchange(WAITING, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst) {
            Err(_) => Ok(turn()),
            Ok(_) => Err(Error::Unavailable("somebody has been writing to the registry for too long".into())),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A lock that cannot be freed now is freed when the process ends.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SystemEntropy;
    use crate::store::sqlite::place::Sharing;

    #[test]
    fn a_turn_is_waited_for_with_an_end_and_a_late_one_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::create(&dir.path().join("r"), Sharing::Private, &SystemEntropy).unwrap();
        let (one, other) = (Queue::open(&place).unwrap(), Queue::open(&place).unwrap());
        let held = one.wait(Duration::from_secs(10)).unwrap();
        assert!(other.wait(Duration::from_millis(10)).is_err(), "two had a turn at once");
        drop(held);
        // The wait that was given up may be granted now; it passes the turn on.
        drop(other.wait(Duration::from_secs(10)).unwrap());
        drop(one.wait(Duration::from_secs(10)).unwrap());
    }
}
