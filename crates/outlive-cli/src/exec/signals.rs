//! Signals, read one by one by the waiting thread instead of interrupting whatever runs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use outlive::host::read_proc;

/// The signals of this process, as something to wait for.
pub struct Signals {
    fd: SignalFd,
    /// The mask that our caller gave us, for the command to inherit.
    before: SigSet,
    ignored: u64,
}

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Which.
    pub signal: i32,
    /// The kernel sent it because of a terminal: to the whole group that we are in.
    pub from_terminal: bool,
    /// A process sent it, to us.
    pub is_sent: bool,
    /// The child of whose end it tells.
    pub end_of: Option<u32>,
}

impl Signals {
    /// Takes the signals for the whole process, whose caller gave it the mask `before`. Called before it has a second
    /// thread.
    pub fn take(before: SigSet) -> nix::Result<Self> {
        let ignored = mask_of("SigIgn:");
        if ignored & bit(libc::SIGCHLD) != 0 {
            default_action(Signal::SIGCHLD)?;
        }
        // A fault of our own ends us all the same.
        let set = SigSet::all();
        set.thread_block()?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd, before, ignored })
    }

    /// Another descriptor for the same signals: each of them is read from one of the two.
    pub fn another(&self) -> nix::Result<Self> {
        let fd = SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd, before: self.before, ignored: self.ignored })
    }

    /// The mask that our caller gave us.
    pub fn before(&self) -> &SigSet {
        &self.before
    }

    /// The next signal, if one has arrived. What our caller had ignored, as `nohup` does, stays ignored.
    pub fn next(&mut self) -> Option<Arrived> {
        const SI_KERNEL: i32 = 0x80;
        loop {
            let info = self.fd.read_signal().ok().flatten()?;
            let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
            // What we sent to the others of our group came to us as well, and the write reports a closed pipe.
            let own = info.ssi_pid == std::process::id() && info.ssi_code <= 0;
            if !own && (self.ignored & bit(signal) == 0 || signal == libc::SIGCHLD) {
                let (from_terminal, is_sent) = (info.ssi_code == SI_KERNEL, info.ssi_code <= 0);
                let tells_end = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&info.ssi_code);
                let end_of = (signal == libc::SIGCHLD && tells_end).then_some(info.ssi_pid);
                return Some(Arrived { signal, from_terminal, is_sent, end_of });
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The bit of a signal in a mask.
pub fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|shift| 1_u64.checked_shl(shift)).unwrap_or(0)
}

/// The signals of which the kernel says so of this process, a bit each.
fn mask_of(what: &str) -> u64 {
    let status = read_proc("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(what));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[allow(unsafe_code, reason = "there is no safe way to reset an action")]
fn default_action(signal: Signal) -> nix::Result<()> {
    // SAFETY: the default action runs no code of ours.
    unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }.map(|_| ())
}

/// Sends any signal, real-time ones included, to the process that is open as `process`.
#[allow(unsafe_code, reason = "safe wrappers know the signals that have names")]
pub fn send(process: impl AsFd, signal: i32) {
    let process = process.as_fd().as_raw_fd();
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and there is nothing to point to. One that is gone is noticed by waiting for it.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, none, 0) };
}

/// Stops this process as the command was stopped by its terminal; our parent then sees that, and continues us
/// again. Answers whether it has: a process that no other could continue is not stopped.
pub fn stop_by(signal: i32) -> bool {
    let Ok(signal) = Signal::try_from(signal) else { return false };
    let set = SigSet::from(signal);
    let _ = nix::sys::signal::raise(signal);
    // It is delivered here, and we go on here.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
    mask_of("ShdPnd:") & bit(libc::SIGCONT) != 0
}

/// Ends this process by a signal, as the command was ended; the shell then says what it would have said of it.
#[allow(unsafe_code, reason = "safe wrappers know the signals that have names")]
pub fn end_by(signal: i32) {
    // The command has left its core already; ours would be of no use.
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
    );
    // Faults of our own are over.
    let _ = default_action(Signal::SIGBUS);
    // SAFETY: it is blocked, and no handler of ours is installed.
    unsafe { libc::raise(signal) };
    // Others that wait must not end us first. Real-time signals have no names to tell them apart by.
    let mut set = SigSet::all();
    Signal::iterator().filter(|named| *named as i32 != signal).for_each(|named| set.remove(named));
    let _ = set.thread_unblock();
}
