//! Turns: who may write next, in the order of asking.
//!
//! SQLite lets the process that asks at the right moment write, and all others sleep and ask again; with hundreds of
//! writers some never get through. So writers queue for a lock of the kernel first. It is freed when its holder dies,
//! and waiting for it has an end, because a holder may also be stopped.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;

use super::directory::{RegistryDirectory, from_io};
use super::wait::{LOOK, Wait, say_holder, stopped_holder};
use crate::host::Writing;
use crate::store::Error;
use crate::util::files;
use crate::util::sync::lock;

/// What they queue for.
pub(super) const QUEUE: &str = "write.lock";
/// How long a reader waits for a writer.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// The place where writers queue. Opened once, so that a process that can open no more files still beats.
pub(super) struct Queue {
    file: Arc<OwnedFd>,
    asking: Arc<QueuedWriter>,
}

/// What this process asks of the kernel. One thread at most waits there: all share one open file, whose lock any of them
/// would free for the others.
#[derive(Default)]
struct QueuedWriter {
    state: Mutex<WaiterState>,
    granted: Condvar,
}

#[derive(Default)]
struct WaiterState {
    /// A thread waits for the lock.
    waiting: bool,
    /// A thread here still wants it.
    wanted: bool,
    /// The thread has got it for the one that wants it.
    granted: bool,
    /// A stopped process was waited for in vain.
    in_vain: Option<u32>,
}

impl QueuedWriter {
    fn state(&self) -> MutexGuard<'_, WaiterState> {
        lock(&self.state)
    }

    /// Waits for the lock and hands it to the thread that wants it by then, or frees it.
    fn wait(&self, file: &OwnedFd) {
        let mut locked = flock(file, FlockOperation::LockExclusive);
        while locked == Err(Errno::INTR) {
            locked = flock(file, FlockOperation::LockExclusive);
        }
        let mut asked = self.state();
        asked.waiting = false;
        asked.granted = asked.wanted && locked.is_ok();
        if asked.granted {
            self.granted.notify_one();
        } else {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// A turn. Dropped, it is the next one's.
pub(super) struct WriterTurn {
    file: Arc<OwnedFd>,
    /// Held until the lock is freed.
    _writing: Writing,
}

/// Waits until no process writes, and keeps it so while the answer lives. None where none has written yet, or another
/// takes longer than a reader should wait.
pub(super) fn standstill(place: &RegistryDirectory) -> Option<OwnedFd> {
    let file = files::open_file(&place.dir, Path::new(QUEUE)).ok()?.into();
    Wait::new(QUEUE, READER_TIMEOUT).lock(&file, FlockOperation::NonBlockingLockShared).ok()?;
    Some(file)
}

impl Queue {
    pub(super) fn open(place: &RegistryDirectory) -> Result<Self, Error> {
        let file = files::open_lock(&place.dir, QUEUE, place.sharing.file_mode());
        let file = file.map_err(|error| from_io("the queue of writers cannot be opened", &error))?;
        Ok(Self { file: Arc::new(file), asking: Arc::default() })
    }

    /// Waits for a turn, for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Result<WriterTurn, Error> {
        let turn = || {
            // Before the turn is used: a fork waits for what has begun, and this for a fork.
            let _writing = Writing::begin();
            say_holder(&self.file);
            WriterTurn { file: self.file.clone(), _writing }
        };
        let mut asked = self.asking.state();
        if !asked.waiting {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(turn()),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(from_io("no turn to write can be had", &error.into())),
            }
            // The kernel's wait has no end of its own, so another thread waits, and goes on if this one gives up.
            let (file, asking) = (self.file.clone(), self.asking.clone());
            let waiter = move || asking.wait(&file);
            let spawned = std::thread::Builder::new().name("outlive-turn".into()).spawn(waiter);
            spawned.map_err(|error| Error::Unavailable(format!("no thread to wait for a turn to write: {error}")))?;
            asked.waiting = true;
        }
        asked.wanted = true;
        let mut wait = Wait::new(QUEUE, timeout);
        if asked.in_vain.take().is_some_and(|pid| stopped_holder(&self.file) == Some(pid)) {
            // A thread that waited for it before has waited for all.
            wait = wait.without_patience();
        }
        let pause = LOOK.min(timeout);
        loop {
            let granted = self.asking.granted.wait_timeout_while(asked, pause, |asked| !asked.granted);
            asked = granted.unwrap_or_else(PoisonError::into_inner).0;
            if std::mem::take(&mut asked.granted) {
                asked.wanted = false;
                return Ok(turn());
            }
            if let Err(error) = wait.passed(pause, &self.file) {
                asked.wanted = false;
                asked.in_vain = stopped_holder(&self.file);
                return Err(error);
            }
        }
    }
}

impl WriterTurn {
    /// Ends the turn and wakes the subscribers of the registry: what was written can be read only now.
    pub(super) fn tell(self) {
        let file = self.file.clone();
        drop(self);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let _ = futimens(&file, &Timestamps { last_access: now, last_modification: now });
    }
}

impl Drop for WriterTurn {
    fn drop(&mut self) {
        // A lock that cannot be freed now is freed when the process ends.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::store::sqlite::directory::Sharing;

    #[test]
    fn a_turn_is_waited_for_with_an_end_and_a_late_one_is_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let place = RegistryDirectory::create(&dir.path().join("r"), Sharing::Private, &SystemEntropy).unwrap();
        let (one, other) = (Queue::open(&place).unwrap(), Queue::open(&place).unwrap());
        let held = one.wait(Duration::from_secs(10)).unwrap();
        assert!(other.wait(Duration::from_millis(10)).is_err(), "two had a turn at once");
        drop(held);
        // The wait that was given up may be granted now; it passes the turn on.
        drop(other.wait(Duration::from_secs(10)).unwrap());
        drop(one.wait(Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn one_thread_waits_however_often_a_turn_was_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let place = RegistryDirectory::create(&dir.path().join("r"), Sharing::Private, &SystemEntropy).unwrap();
        let (one, other) = (Queue::open(&place).unwrap(), Queue::open(&place).unwrap());
        let waiting = || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let name =
                |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            threads.map(name).filter(|name| name.trim() == "outlive-turn").count()
        };
        let held = one.wait(Duration::from_secs(10)).unwrap();
        for _ in 0..5 {
            assert!(other.wait(Duration::from_millis(5)).is_err(), "two had a turn at once");
        }
        assert_eq!(waiting(), 1);
        drop(held);
        let turn = other.wait(Duration::from_secs(10)).unwrap();
        assert!(one.wait(Duration::from_millis(50)).is_err(), "a wait that was given up freed the turn of another");
        drop(turn);
        drop(one.wait(Duration::from_secs(10)).unwrap());
    }
}
