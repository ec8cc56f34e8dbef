//! Waiting for locks of the kernel that another process holds: with a timeout, and an answer to which process that is.
//!
//! A holder may be stopped for as long as it likes, and the kernel's own wait has no end. So a wait asks again and again
//! with pauses between, and gives up early where there is nothing to wait for: its holder is stopped, or this process
//! has been asked to stop and is too busy waiting to hear it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::directory::from_io;
use crate::host::{has_open, id_of};
use crate::store::Error;
use crate::util::backoff::Backoff;

/// The pauses between two tries to take a lock.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
/// How often a wait looks whether it is in vain.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// For how long a holder may be stopped before no process waits for it any more.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(3);

/// A wait for one lock.
pub(crate) struct Wait {
    /// What the lock is called, in the error of a process that waits in vain.
    name: &'static str,
    /// What it is a lock of.
    whose: &'static str,
    timeout: Duration,
    waited: Duration,
    backoff: Backoff,
    looked: Duration,
    /// Who was said to hold it at the last look.
    said: Option<u32>,
    stopped_since: Option<Duration>,
}

impl Wait {
    pub(crate) fn new(name: &'static str, timeout: Duration) -> Self {
        Self {
            name,
            whose: "the registry",
            timeout,
            waited: Duration::ZERO,
            backoff: PAUSES,
            looked: Duration::ZERO,
            said: None,
            stopped_since: None,
        }
    }

    /// Names the lock that is waited for.
    pub(crate) fn of(self, whose: &'static str) -> Self {
        Self { whose, ..self }
    }

    /// Gives up at the first look at a holder that is stopped.
    pub(super) fn without_patience(self) -> Self {
        Self { timeout: Duration::from_millis(1), ..self }
    }

    /// Takes the lock, or pauses and answers that it is still held.
    pub(super) fn try_lock(&mut self, lock: &OwnedFd, how: FlockOperation) -> Result<bool, Error> {
        match flock(lock, how) {
            Ok(()) => {
                if how == FlockOperation::NonBlockingLockExclusive {
                    say_holder(lock);
                }
                Ok(true)
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                let pause = self.backoff.pause();
                std::thread::park_timeout(pause);
                self.passed(pause, lock)?;
                Ok(false)
            }
            Err(error) => Err(from_io(&format!("`{}` cannot be locked", self.name), &error.into())),
        }
    }

    /// Takes the lock.
    pub(crate) fn lock(mut self, lock: &OwnedFd, how: FlockOperation) -> Result<(), Error> {
        while !self.try_lock(lock, how)? {}
        Ok(())
    }

    /// Notes that time was spent waiting. An error where it makes no sense to wait any longer.
    pub(super) fn passed(&mut self, pause: Duration, lock: &OwnedFd) -> Result<(), Error> {
        self.waited += pause;
        if self.waited < self.timeout && self.waited - self.looked < LOOK {
            return Ok(());
        }
        self.looked = self.waited;
        let in_vain = |why: String| Err(Error::Unavailable(format!("`{}` of {} {why}", self.name, self.whose)));
        if is_asked_to_stop() {
            return in_vain("was waited for until this process was asked to stop".into());
        }
        let said = said_holder(lock);
        let progress = std::mem::replace(&mut self.said, said) != said;
        let file = id_of(lock);
        let has_it = |pid: &u32| file.is_some_and(|file| has_open(*pid, file));
        // Another program may hold it, and say nothing.
        let asks_kernel = !progress && self.waited >= STOPPED_TIMEOUT.min(self.timeout);
        let holder = said.filter(has_it).or_else(|| if asks_kernel { kernels_holder(lock) } else { None });
        let stopped = holder.filter(|pid| is_stopped(*pid));
        let since = *self.stopped_since.get_or_insert(self.waited);
        match (stopped, holder) {
            (Some(pid), _) if self.waited - since >= STOPPED_TIMEOUT.min(self.timeout) => {
                in_vain(format!("is held by process {pid}, which is stopped: `kill -CONT {pid}` continues it"))
            }
            (None, Some(pid)) if self.waited >= self.timeout => {
                in_vain(format!("has been held by process {pid} for too long"))
            }
            _ if self.waited >= self.timeout => in_vain("has been held for too long".into()),
            (Some(_), _) => Ok(()),
            (None, _) => {
                self.stopped_since = None;
                Ok(())
            }
        }
    }
}

/// The process that holds the lock of an open file, if it is stopped.
pub(super) fn stopped_holder(lock: &OwnedFd) -> Option<u32> {
    let file = id_of(lock)?;
    let said = said_holder(lock).filter(|pid| has_open(*pid, file));
    said.or_else(|| kernels_holder(lock)).filter(|pid| is_stopped(*pid))
}

/// The process that says in the file that it has its lock.
fn said_holder(lock: &OwnedFd) -> Option<u32> {
    let mut said = [0; 16];
    let read = rustix::io::pread(lock, &mut said, 0).ok()?;
    let pid = std::str::from_utf8(&said[..read]).ok()?.lines().next()?.parse().ok()?;
    // The caller had it, and has it no more.
    (pid != std::process::id()).then_some(pid)
}

/// The process that holds the lock by the kernel's own account. Everybody who uses any lock stands still while the kernel
/// gives it, so it is asked only about a lock that has long been held by a process that does not say so.
fn kernels_holder(lock: &OwnedFd) -> Option<u32> {
    let file = id_of(lock)?;
    let inode = format!(":{}", file.inode());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 42 08:01:5678 0 EOF`; a waiting process has an arrow before its kind.
    let pid = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let held = words.next() == Some("FLOCK");
        let (pid, place) = (words.nth(2)?.parse().ok()?, words.next()?);
        (held && place.ends_with(&inode)).then_some(pid)
    };
    let holders: Vec<u32> = locks.lines().filter_map(pid).collect();
    // What another user's process has open cannot be seen.
    let is_hidden = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).is_err();
    holders.iter().copied().find(|pid| has_open(*pid, file)).or_else(|| holders.iter().copied().find(is_hidden))
}

/// Says in a file whose lock was taken which process has it, for those that wait.
pub(super) fn say_holder(lock: &OwnedFd) {
    // A waiting process then does not learn for whom.
    let _ = rustix::io::pwrite(lock, format!("{}\n", std::process::id()).as_bytes(), 0);
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let name_ends = stat.iter().rposition(|byte| *byte == b')');
    name_ends.and_then(|end| stat.get(end + 2)).is_some_and(|state| matches!(state, b'T' | b't'))
}

/// Whether a signal that asks to stop has arrived and waits to be read.
fn is_asked_to_stop() -> bool {
    const HUP_INT_QUIT_TERM: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = |line: &str| {
        let mask = line.strip_prefix("ShdPnd:").or_else(|| line.strip_prefix("SigPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|mask| mask & HUP_INT_QUIT_TERM != 0)
}
