//! Starting a program as a shell would: with the signals, the streams and the environment that its caller gave us.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn, posix_spawnp};
use nix::sys::signal::SigSet;
use rustix::io::FdFlags;
use rustix::process::Pid;

use super::streams::Placed;

/// This very program.
pub const OURSELVES: &CStr = c"/proc/self/exe";

/// What a program is started with.
pub struct Start<'a> {
    /// The program's words.
    pub argv: &'a [OsString],
    /// Variables beside those of this process.
    pub variables: &'a [(&'a str, String)],
    /// Variables of this process that are not for it.
    pub dropped: &'a [&'a str],
    /// The signals that it is not to be given yet.
    pub mask: &'a SigSet,
    /// What it is to find in place of its standard descriptors.
    pub placed: &'a [Placed],
    /// What it is to find open under the numbers that they have here.
    pub kept: &'a [BorrowedFd<'a>],
}

impl Start<'_> {
    /// Starts the program that the first word names, looked for as a shell would.
    pub fn found(&self) -> io::Result<Pid> {
        let argv = words(self.argv)?;
        match self.spawn(&argv, |argv, actions, attributes, environment| {
            posix_spawnp(&argv[0], actions, attributes, argv, environment)
        }) {
            // A script that does not say what it is for is for the shell.
            Err(error) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => {
                let shell: Vec<CString> = [c"/bin/sh".to_owned()].into_iter().chain(argv).collect();
                self.spawn(&shell, |argv, actions, attributes, environment| {
                    posix_spawnp(&argv[0], actions, attributes, argv, environment)
                })
            }
            started => started,
        }
    }

    /// Starts this very program with these words.
    pub fn ourselves(&self) -> io::Result<Pid> {
        let argv = words(self.argv)?;
        self.spawn(&argv, |argv, actions, attributes, environment| {
            posix_spawn(OURSELVES, actions, attributes, argv, environment)
        })
    }

    fn spawn(
        &self,
        argv: &[CString],
        how: impl Fn(&[CString], &PosixSpawnFileActions, &PosixSpawnAttr, &[CString]) -> nix::Result<nix::unistd::Pid>,
    ) -> io::Result<Pid> {
        let mut attributes = PosixSpawnAttr::init()?;
        attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK)?;
        attributes.set_sigmask(self.mask)?;
        let mut actions = PosixSpawnFileActions::init()?;
        for Placed { fd, number } in self.placed {
            actions.add_dup2(fd.as_raw_fd(), *number)?;
        }
        for fd in self.kept {
            // Onto itself: it stays open in the program.
            actions.add_dup2(fd.as_raw_fd(), fd.as_raw_fd())?;
        }
        let pid = how(argv, &actions, &attributes, &self.environment()?)?;
        Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn environment(&self) -> io::Result<Vec<CString>> {
        let ours = self.variables;
        let is_theirs = |name: &OsStr| {
            ours.iter().all(|(ours, _)| name != *ours) && self.dropped.iter().all(|other| name != *other)
        };
        let theirs = std::env::vars_os().filter(|(name, _)| is_theirs(name));
        let all = theirs.chain(ours.iter().map(|(name, value)| (name.into(), value.into())));
        all.map(|(name, value)| word(&[name, value].join(OsStr::new("=")))).collect()
    }
}

fn words(argv: &[OsString]) -> io::Result<Vec<CString>> {
    argv.iter().map(|text| word(text)).collect()
}

/// A word as the kernel takes it.
pub fn word(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The descriptor that the process which started us left open for us under this number.
#[allow(unsafe_code, reason = "a descriptor that is handed over is a number on the command line")]
pub fn handed(number: &str) -> io::Result<OwnedFd> {
    let number: u16 = number.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: nothing else in this process knows of it; one that is not open fails at its first use.
    let fd = unsafe { OwnedFd::from_raw_fd(number.into()) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}
