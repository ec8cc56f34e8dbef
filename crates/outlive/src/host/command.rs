//! The command of an attempt, observed by a process that did not start it: whether it has ended, and how.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use super::process::{has_exited, open_pidfd, pidfs_inode, read_stat};
use crate::model::owner::{HostContext, Identity};
use crate::model::run::Exit;

/// A command that is not a child of ours, held so that its end can be observed.
#[derive(Debug)]
pub struct HeldCommand {
    identity: Identity,
    process: OwnedFd,
}

/// What became of a command that was noted when it was started.
#[derive(Debug)]
pub enum Noted {
    /// It lives, or is a zombie: it is held.
    Held(HeldCommand),
    /// It has ended and was collected.
    Collected,
    /// Neither can be proven here.
    Unknown,
}

impl HeldCommand {
    /// Holds the process that `identity` names, if it is proven to be the same and has not been collected.
    pub fn hold(identity: Identity) -> Noted {
        let here = HostContext::here();
        let same_place = !here.boot_id.is_empty()
            && (&identity.vantage.boot_id, identity.vantage.pid_ns) == (&here.boot_id, here.pid_ns);
        if !same_place {
            return Noted::Unknown;
        }
        match open_pidfd(identity.pid) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Noted::Collected,
            Err(_) => Noted::Unknown,
            Ok(process) => match (pidfs_inode(&process), identity.pidfs_inode) {
                (Some(inode), Some(noted)) if inode == noted => Noted::Held(Self { identity, process }),
                // Another process has its pid.
                (Some(_), Some(_)) => Noted::Collected,
                _ => Noted::Unknown,
            },
        }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        has_exited(&self.process)
    }

    /// How it ended, if that is known; where it is not yet, this waits `timeout` for it to be collected.
    pub fn exit(&self, timeout: Duration) -> Option<Exit> {
        if !self.has_ended() {
            return None;
        }
        self.noted_exit().or_else(|| {
            let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
            // Nothing is asked for but what is always reported: that it has been collected.
            let _ = poll(&mut [PollFd::new(&self.process, PollFlags::empty())], Some(&limit));
            self.noted_exit()
        })
    }

    /// The kernel reports the exit of a collected process to its pidfd; of a zombie `/proc` has it.
    fn noted_exit(&self) -> Option<Exit> {
        let zombie = || {
            let stat = read_stat(self.identity.pid).ok()?;
            stat.status.filter(|_| stat.start_ticks == self.identity.start_ticks)
        };
        status_of(&self.process).or_else(zombie).map(exit)
    }
}

impl AsFd for HeldCommand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

fn exit(status: i32) -> Exit {
    match status & 0x7f {
        0 => Exit::Code((status >> 8) & 0xff),
        signal => Exit::Signal(signal),
    }
}

/// What the kernel tells of a process: the first edition of its `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    status: i32,
}

/// How a collected process ended, as reported to its waiting parent; from Linux 6.15 on.
#[allow(unsafe_code, reason = "there is no safe wrapper for this question")]
fn status_of(process: &OwnedFd) -> Option<i32> {
    const ENDED: u64 = 1 << 3;
    const QUESTION: u32 = opcode::read_write::<PidfdInfo>(0xff, 11);
    let mut info = PidfdInfo { mask: ENDED, ..PidfdInfo::default() };
    // SAFETY: the number names the size of the struct, of which the kernel writes no more; every value of it is valid.
    // Kernels that do not know the question say so.
    unsafe { ioctl(process, Updater::<QUESTION, PidfdInfo>::new(&mut info)) }.ok()?;
    (info.mask & ENDED != 0).then_some(info.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(script: &str) -> (std::process::Child, HeldCommand) {
        let mut shell = std::process::Command::new("sh");
        let child = shell.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let Noted::Held(command) = HeldCommand::hold(Identity::of(child.id()).unwrap()) else {
            panic!("it is not held")
        };
        (child, command)
    }

    #[test]
    fn the_holder_of_a_command_learns_its_exit() {
        for (script, expected) in [("read x; exit 7", Exit::Code(7)), ("read x; kill -9 $$", Exit::Signal(9))] {
            let (mut child, command) = started(script);
            assert_eq!((command.has_ended(), command.exit(Duration::ZERO)), (false, None));
            drop(child.stdin.take());
            let mut ended = [PollFd::new(&command.process, PollFlags::IN)];
            poll(&mut ended, None).unwrap();
            assert_eq!(command.exit(Duration::ZERO), Some(expected), "of a zombie");
            child.wait().unwrap();
            assert_eq!(command.exit(Duration::ZERO), Some(expected), "of one that was collected");
            let again = HeldCommand::hold(command.identity.clone());
            assert!(matches!(again, Noted::Collected), "one that was collected: {again:?}");
        }
    }

    #[test]
    fn another_process_with_its_pid_is_not_the_command() {
        let other = Identity::own();
        let other = Identity { pidfs_inode: other.pidfs_inode.map(|inode| inode + 1), ..other };
        assert!(matches!(HeldCommand::hold(other), Noted::Collected));
        let elsewhere = Identity::own();
        let vantage = HostContext { pid_ns: elsewhere.vantage.pid_ns + 1, ..elsewhere.vantage };
        assert!(matches!(HeldCommand::hold(Identity { vantage, ..elsewhere }), Noted::Unknown));
    }
}
