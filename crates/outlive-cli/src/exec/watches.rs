//! What else the owner of a command waits for: that it is ready, and that the process it is tied to still lives.
//!
//! Each is waited for on a thread of its own, and said by the descriptor that wakes the owner.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use outlive::error::Error;
use outlive::registry::Registry;
use outlive::run::Run;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ready::{Checking, Over};

/// A process that a run ends with.
#[derive(Debug, Clone)]
pub struct Leash {
    pid: u32,
    process: Arc<OwnedFd>,
}

impl Leash {
    /// The leash of a run to a process, which must live.
    pub fn to(pid: u32) -> Result<Self, Error> {
        let opened = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            Some(Ok(process)) => Ok(Self { pid, process: Arc::new(process) }),
            _ => Err(Error::Invalid(format!("a run cannot end with process {pid}: there is none"))),
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
    /// Waits for what concerns an attempt, and wakes the owner by `bell`. Without a thread or a bell, nothing is
    /// waited for.
    pub fn begin(registry: &Registry, run: &Run, leash: Option<Leash>, bell: Option<&OwnedFd>) -> Self {
        let watches = Self::default();
        let Some(bell) = bell else { return watches };
        if let Some(checking) = Checking::of(run, registry) {
            watches.spawn("outlive-ready", bell, move |over| {
                checking.wait(over).map(|ready| match ready {
                    Ok(()) => Word::Ready,
                    Err(why) => Word::Stop(OwnStop::NotReady(why)),
                })
            });
        }
        if let Some(Leash { pid, process }) = leash {
            watches.spawn("outlive-leash", bell, move |_| {
                // It ends with this process, which has nothing else to wait for once the command has ended.
                while poll(&mut [PollFd::new(&*process, PollFlags::IN)], None).is_err() {}
                Some(Word::Stop(OwnStop::Unleashed(format!("its leash ended: process {pid} is gone"))))
            });
        }
        watches
    }

    fn spawn(&self, name: &str, bell: &OwnedFd, wait: impl FnOnce(&Over) -> Option<Word> + Send + 'static) {
        let (said, over) = (self.said.clone(), self.over.clone());
        let Ok(bell) = bell.try_clone() else { return };
        let work = move || {
            if let Some(word) = wait(&over) {
                said.lock().unwrap_or_else(PoisonError::into_inner).push(word);
                let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
            }
        };
        let _ = std::thread::Builder::new().name(name.into()).spawn(work);
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
