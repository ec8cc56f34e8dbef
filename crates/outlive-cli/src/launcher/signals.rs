//! Signals, read one by one by whoever waits instead of interrupting whatever runs.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that ask a command to stop, or that a person sends it.
const TAKEN: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals of this process, as something to wait for.
pub struct Signals {
    fd: SignalFd,
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// Which.
    pub signal: i32,
    /// The terminal sent it, to the command as well as to us.
    pub from_terminal: bool,
}

impl Signals {
    /// Takes the signals for the whole process. Called before it has a second thread.
    pub fn take() -> nix::Result<Self> {
        // What the caller had ignored, as `nohup` does, is to stay ignored.
        let ignored = ignored();
        let set: SigSet = TAKEN.into_iter().filter(|signal| ignored & 1 << (*signal as i32 - 1) == 0).collect();
        set.thread_block()?;
        Ok(Self { fd: SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)? })
    }

    /// The next signal, if one has arrived.
    pub fn next(&mut self) -> Option<Arrived> {
        const SI_KERNEL: i32 = 0x80;
        let info = self.fd.read_signal().ok().flatten()?;
        Some(Arrived { signal: i32::try_from(info.ssi_signo).unwrap_or(0), from_terminal: info.ssi_code == SI_KERNEL })
    }
}

/// The signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ends this process by a signal, as the command was ended; the shell then says what it would have said of it.
pub fn end_by(signal: i32) {
    let Ok(signal) = Signal::try_from(signal) else { return };
    // The command has left its core already; ours would be of no use to anybody.
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
    );
    let _ = SigSet::from(signal).thread_unblock();
    let _ = nix::sys::signal::raise(signal);
}
