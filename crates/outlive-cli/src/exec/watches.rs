//! What else the owner of a command waits for: that it is ready, and that the process it is tied to still lives.
//!
//! Each is waited for on a thread of its own, and said by the descriptor that wakes the owner.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outlive::error::Error;
use outlive::lifecycle::health::is_leash_gone;
use outlive::owner::{HostContext, Identity};
use outlive::registry::Registry;
use outlive::run::{Run, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ready::{Checking, Over};

/// How long to wait before a process is waited for again that could not be.
const AGAIN: Duration = Duration::from_millis(100);

/// A process that a run ends with.
#[derive(Debug, Clone)]
pub struct Leash {
    identity: Identity,
    /// What becomes readable when it ends; none where it has.
    process: Option<Arc<OwnedFd>>,
}

impl Leash {
    /// The leash of a run to a process, which must live.
    pub fn to(pid: u32) -> Result<Self, Error> {
        let opened = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        // While the first can be waited for, the other is the same process.
        let process = match (opened, Identity::of(pid)) {
            (Some(Ok(process)), Ok(identity)) => Some(Self { identity, process: Some(Arc::new(process)) }),
            _ => None,
        };
        let lives = process.filter(|leash| !leash.has_ended());
        lives.ok_or_else(|| Error::Invalid(format!("a run cannot end with process {pid}: there is none")))
    }

    /// The leash of an attempt that another owner has started, where it is proven what became of the process.
    pub fn of(run: &Run) -> Option<Self> {
        let identity = run.leash()?.clone();
        let process = identity.watch().map(Arc::new);
        let is_gone = || is_leash_gone(&identity.probe(&HostContext::here()));
        (process.is_some() || is_gone()).then_some(Self { identity, process })
    }

    /// The identity of the process, as it is recorded with the run.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.process
            .as_ref()
            .is_none_or(|fd| matches!(poll(&mut [PollFd::new(&**fd, PollFlags::IN)], Some(&now)), Ok(1..)))
    }

    /// What becomes readable when the process ends. None where it has.
    pub fn process(&self) -> Option<&OwnedFd> {
        self.process.as_deref()
    }

    /// Why a run is ended with it.
    pub fn why(&self) -> String {
        format!("its leash ended: process {} is gone", self.identity.pid)
    }

    /// Waits until the process has ended.
    fn wait(&self) {
        while let Some(fd) = &self.process {
            match poll(&mut [PollFd::new(&**fd, PollFlags::IN)], None) {
                Ok(_) => return,
                Err(Errno::INTR) => {}
                // The kernel has no memory for it now.
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }
}

/// Why an owner stops a command by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnStop {
    /// It was not ready in time.
    NotReady(String),
    /// The process that it is tied to has ended.
    Unleashed(String),
    /// What it is to end with cannot be waited for.
    Unwatched(String),
}

/// An event that the owner is notified of.
pub enum Word {
    /// The attempt is ready.
    Ready,
    /// The command is to stop.
    Stop(OwnStop),
}

/// What is waited for beside the command itself. Dropping it ends the wait.
#[derive(Default)]
pub struct Watches {
    said: Arc<Mutex<Vec<Word>>>,
    over: Arc<Over>,
}

impl Watches {
    /// Waits for what concerns an attempt, and wakes the owner by `bell`. Fails where something is to be waited for and
    /// there is no bell, or no thread.
    pub fn begin(registry: &Registry, run: &Run, leash: Option<Leash>, bell: Option<&OwnedFd>) -> io::Result<Self> {
        let watches = Self::default();
        let is_ready = matches!(&run.state, State::Running(running) if running.ready_at.is_some());
        if let Some(checking) = Checking::of(run, registry).filter(|_| !is_ready) {
            watches.spawn("outlive-ready", bell, move |over| {
                checking.wait(over).map(|ready| match ready {
                    Ok(()) => Word::Ready,
                    Err(why) => Word::Stop(OwnStop::NotReady(why)),
                })
            })?;
        }
        if let Some(leash) = leash {
            watches.spawn("outlive-leash", bell, move |_| {
                // It ends with this process, which has nothing else to wait for once the command has ended.
                leash.wait();
                Some(Word::Stop(OwnStop::Unleashed(leash.why())))
            })?;
        }
        Ok(watches)
    }

    /// Begins to wait. Where that fails, the command is to stop: none would end it later.
    pub fn begin_or_stop(registry: &Registry, run: &Run, leash: Option<Leash>, bell: Option<&OwnedFd>) -> Self {
        Self::begin(registry, run, leash, bell).unwrap_or_else(|error| {
            let why = format!("its leash and readiness cannot be watched: {error}");
            let watches = Self::default();
            watches.said.lock().unwrap_or_else(PoisonError::into_inner).push(Word::Stop(OwnStop::Unwatched(why)));
            watches
        })
    }

    fn spawn(
        &self,
        name: &str,
        bell: Option<&OwnedFd>,
        wait: impl FnOnce(&Over) -> Option<Word> + Send + 'static,
    ) -> io::Result<()> {
        let (said, over) = (self.said.clone(), self.over.clone());
        let bell = bell.ok_or_else(|| io::Error::other("no descriptor is left for it"))?.try_clone()?;
        let work = move || {
            if let Some(word) = wait(&over) {
                said.lock().unwrap_or_else(PoisonError::into_inner).push(word);
                let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
    }

    /// What was said since the last look.
    pub fn take(&self) -> Vec<Word> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.over.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leash_that_cannot_be_watched_is_an_error() {
        let watches = Watches::default();
        assert!(watches.spawn("outlive-leash", None, |_| None).is_err());
        assert!(Leash::to(std::process::id()).is_ok_and(|leash| !leash.has_ended()));
        let mut child = std::process::Command::new("sleep").arg("300").spawn().unwrap();
        let leash = Leash::to(child.id()).unwrap();
        child.kill().unwrap();
        leash.wait();
        assert!(leash.has_ended() && Leash::to(child.id()).is_err(), "it has ended, and is not collected yet");
        child.wait().unwrap();
    }
}
