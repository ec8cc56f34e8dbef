//! Starting a program as a shell would: with the signals, the streams and the environment that its caller gave us.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn, posix_spawnp};
use nix::sys::signal::SigSet;
use outlive::run::{Variables, is_of_session};
use rustix::io::FdFlags;
use rustix::process::Pid;

use super::streams::Placed;

/// This very program.
pub const OURSELVES: &CStr = c"/proc/self/exe";

/// The variables that a program is given.
pub struct Environment(Vec<(OsString, OsString)>);

/// What a program finds that another process starts than the maker of its run: who and where it is, and nothing that
/// could change what it does.
const HARMLESS: [&str; 12] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "OUTLIVE_HOME",
];

impl Environment {
    /// That of this process.
    pub fn own() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// What of this process's cannot change what a program does.
    pub fn harmless() -> Self {
        let harmless =
            |name: &OsString| name.to_str().is_some_and(|name| HARMLESS.contains(&name) || name.starts_with("LC_"));
        Self(std::env::vars_os().filter(|(name, _)| harmless(name)).collect())
    }

    /// What was kept when the run was made, with this process's variables of the session.
    pub fn kept(kept: &Variables) -> Self {
        let of_session = std::env::vars_os().filter(|(name, _)| is_of_session(name));
        Self(of_session.collect()).with_all(kept)
    }

    /// This environment with variables set.
    #[must_use]
    pub fn with_all(mut self, variables: &Variables) -> Self {
        for (name, value) in variables.pairs() {
            self.0.retain(|(found, _)| *found != name);
            self.0.push((name, value));
        }
        self
    }

    /// The same with a variable set, or, without a value, not set.
    #[must_use]
    pub fn with(mut self, name: &str, value: Option<String>) -> Self {
        self.0.retain(|(found, _)| found != name);
        self.0.extend(value.map(|value| (name.into(), value.into())));
        self
    }

    fn words(&self) -> io::Result<Vec<CString>> {
        self.0.iter().map(|(name, value)| word(&[name.as_os_str(), value].join(OsStr::new("=")))).collect()
    }
}

/// What a program is started with.
pub struct Start<'a> {
    /// The program's words.
    pub argv: &'a [OsString],
    /// The file to execute, where it is not to be looked for.
    pub program: Option<&'a OsStr>,
    /// The variables that it is given.
    pub environment: &'a Environment,
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
        let program = self.program.map(word).transpose()?.unwrap_or_else(|| argv[0].clone());
        match self.spawn(&argv, |argv, actions, attributes, environment| {
            posix_spawnp(&program, actions, attributes, argv, environment)
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

    /// The same, tried first where it was found a moment ago.
    pub fn found_at(&self, place: Option<&OsStr>) -> io::Result<Pid> {
        let Some(place) = place.filter(|_| self.program.is_none()) else { return self.found() };
        let (argv, place) = (words(self.argv)?, word(place)?);
        let started = self.spawn(&argv, |argv, actions, attributes, environment| {
            posix_spawn(place.as_c_str(), actions, attributes, argv, environment)
        });
        // Whatever is wrong with that one, there may be another behind it.
        started.or_else(|_| self.found())
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
        let pid = how(argv, &actions, &attributes, &self.environment.words()?)?;
        Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::InvalidData.into())
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
