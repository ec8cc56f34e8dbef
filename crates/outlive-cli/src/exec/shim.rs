//! The shim: the process between us and a command that has a terminal of its own.
//!
//! A program that ^Z stops must be stoppable: the kernel asks that its parent be in its session, in another group. And
//! a terminal that we have taken must be given back even if we are killed. So the session of the command's terminal
//! belongs to a small process that does nothing but wait for the command, tell us what it saw, and outlive us.
//!
//! A command that is alone at its terminal must not be stoppable: an attached viewer could not continue it. It stays in
//! the group of the shim, whose parent is outside of its session, and the kernel stops no such group for a key.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use outlive::run::Exit;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process, kill_process_group, waitid};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr, tcsetpgrp};

use super::pty::Pty;
use super::signals;
use super::spawn::{Environment, Start, handed, word};
use super::streams::{Placed, Way};
use crate::exec::descriptors::STANDARD;

/// The words by which this program knows that it is to be the shim, or the last step before the command.
pub const SHIM: &str = "__shim";
const STEP: &str = "__step";

/// The messages to the shim, a byte each.
const GO: u8 = b'g';
const FOREGROUND: u8 = b'f';
const BACKGROUND: u8 = b'b';
const CONTINUE: u8 = b'c';
const LEAVE: u8 = b'l';

/// How the command stands to its terminal: in the foreground or background of it, or alone at it.
const IN_FRONT: &str = "1";
const BEHIND: &str = "0";
const ALONE: &str = "alone";

/// What a command can do without ending.
const MOVES: WaitIdOptions = WaitIdOptions::STOPPED.union(WaitIdOptions::CONTINUED);

/// What the shim tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// A signal has stopped the command.
    Stopped(i32),
    /// It has ended so.
    Ended(Exit),
}

/// A shim that waits for a command.
pub struct Shim {
    link: UnixStream,
    /// A message that has not arrived whole.
    heard: Vec<u8>,
}

impl Shim {
    /// Starts a command on the terminal that `pty` is, through a shim. Answers also with the command's process.
    pub fn start(start: &Start<'_>, pty: &Pty, ways: [Way; 3], tree: Option<&OwnedFd>) -> io::Result<(Self, Pid)> {
        let slave = pty.slave();
        let (link, theirs) = UnixStream::pair()?;
        let on_terminal: String = ways.map(|way| if way == Way::Terminal { '1' } else { '0' }).into_iter().collect();
        let number = |fd: Option<i32>| fd.unwrap_or(-1).to_string();
        let words = [
            "outlive-shim".to_owned(),
            SHIM.into(),
            slave.as_raw_fd().to_string(),
            theirs.as_raw_fd().to_string(),
            number(tree.map(AsRawFd::as_raw_fd)),
            on_terminal,
            standing(pty).to_owned(),
            show_mask(start.mask),
        ];
        let argv: Vec<OsString> = words.into_iter().map(OsString::from).chain(start.argv.iter().cloned()).collect();
        let kept: Vec<_> = [slave.as_fd(), theirs.as_fd()].into_iter().chain(start.kept.iter().copied()).collect();
        let everything = SigSet::all();
        Start { argv: &argv, kept: &kept, mask: &everything, ..*start }.ourselves()?;
        drop(theirs);
        let mut shim = Self { link, heard: Vec::new() };
        shim.expect("ready")?;
        pty.screen().mirror();
        shim.tell(GO);
        let pid = shim.expect("started")?;
        shim.link.set_nonblocking(true)?;
        Ok((shim, Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?))
    }

    /// The command has the keyboard from now on, and goes on if it was stopped.
    pub fn to_foreground(&self) {
        self.tell(FOREGROUND);
    }

    /// The command has not: if it reads, it is stopped.
    pub fn to_background(&self) {
        self.tell(BACKGROUND);
    }

    /// The command goes on where it is.
    pub fn go_on(&self) {
        self.tell(CONTINUE);
    }

    /// Everything that the command wrote is read: its terminal may go.
    pub fn leave(&self) {
        self.tell(LEAVE);
    }

    /// The message of the shim, if there is one. An error says that the shim is gone.
    pub fn next(&mut self) -> io::Result<Option<ChildEvent>> {
        loop {
            if let Some(line) = self.line() {
                let number = || line.split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
                return Ok(Some(match line.split(' ').next() {
                    Some("stopped") => ChildEvent::Stopped(number()),
                    Some("killed") => ChildEvent::Ended(Exit::Signal(number())),
                    _ => ChildEvent::Ended(Exit::Code(number())),
                }));
            }
            match self.receive() {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn expect(&mut self, word: &str) -> io::Result<i32> {
        loop {
            if let Some(line) = self.line() {
                let number = line.split(' ').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
                return if line.starts_with(word) { Ok(number) } else { Err(io::Error::from_raw_os_error(number)) };
            }
            if self.receive()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 256];
        let read = self.link.read(&mut buffer)?;
        self.heard.extend_from_slice(&buffer[..read]);
        Ok(read)
    }

    fn line(&mut self) -> Option<String> {
        let end = self.heard.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    fn tell(&self, word: u8) {
        // A shim that is gone is noticed by listening to it.
        let _ = (&self.link).write(&[word]);
    }
}

impl AsFd for Shim {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Does what this program was started for, where that is to be the shim or the last step before the command.
pub fn main(words: &[OsString]) -> Option<u8> {
    let role = words.get(1)?.to_str()?;
    let given: Vec<&str> = words.iter().skip(2).map_while(|word| word.to_str()).collect();
    match role {
        SHIM => Some(shim(&given, words).map_or(127, |()| 0)),
        STEP => Some(step(&given, words)),
        _ => None,
    }
}

fn shim(given: &[&str], words: &[OsString]) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"outlive-shim");
    let [slave, link, tree, on_terminal, standing, mask, ..] = given else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (slave, link) = (handed(slave)?, UnixStream::from(handed(link)?));
    let starter = rustix::process::getppid().ok_or(io::ErrorKind::NotFound)?;
    let (in_front, shares_group) = (*standing == IN_FRONT, *standing == ALONE);
    let mut session = Session { command: None, starter, slave, link, alone: false, in_front, shares_group };
    let real = STANDARD[1];
    let modes = tcgetattr(real).ok();
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(&session.slave)?;
    session.tell("ready");
    session.await_go()?;
    let argv = words.get(8..).unwrap_or_default();
    match session.start(argv, on_terminal, standing, mask) {
        Ok(pid) => {
            session.command = Some(pid);
            session.tell(&format!("started {}", pid.as_raw_nonzero()));
        }
        Err(error) => {
            session.tell(&format!("failed {}", error.raw_os_error().unwrap_or(0)));
            return Ok(());
        }
    }
    // What the command holds must be let go with the command, not with us.
    drop(handed(tree));
    let real = rustix::io::fcntl_dupfd_cloexec(real, 3)?;
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    session.wait(|| {
        if let Some(modes) = &modes {
            let _ = tcsetattr(&real, OptionalActions::Now, modes);
        }
    })
}

/// The session of the command's terminal.
struct Session {
    command: Option<Pid>,
    /// The process that started us.
    starter: Pid,
    slave: OwnedFd,
    link: UnixStream,
    /// The process that started us is gone.
    alone: bool,
    /// The real terminal is that of the process that started us, which may have changed it.
    in_front: bool,
    /// The command is in our own group.
    shares_group: bool,
}

impl Session {
    fn tell(&mut self, line: &str) {
        // A parent that is gone is noticed by listening.
        let _ = self.link.write_all(format!("{line}\n").as_bytes());
    }

    fn await_go(&mut self) -> io::Result<()> {
        let mut word = [0];
        self.link.read_exact(&mut word)
    }

    /// Starts the command by way of a step that joins its group before it becomes the command.
    fn start(&self, argv: &[OsString], on_terminal: &str, standing: &str, mask: &str) -> io::Result<Pid> {
        let (event, failure) = pipe_with(PipeFlags::CLOEXEC)?;
        let words = [
            "outlive-step".to_owned(),
            STEP.into(),
            self.slave.as_raw_fd().to_string(),
            failure.as_raw_fd().to_string(),
            standing.into(),
            mask.into(),
        ];
        let argv: Vec<OsString> = words.into_iter().map(OsString::from).chain(argv.iter().cloned()).collect();
        let mut placed = Vec::new();
        for (number, _) in (0..).zip(on_terminal.chars()).filter(|(_, on)| *on == '1') {
            placed.push(Placed { fd: self.slave.try_clone()?, number });
        }
        let kept = [self.slave.as_fd(), failure.as_fd()];
        let mask = SigSet::all();
        let environment = Environment::own();
        let start =
            Start { argv: &argv, program: None, environment: &environment, mask: &mask, placed: &placed, kept: &kept };
        let pid = start.ourselves()?;
        drop(failure);
        let mut errno = Vec::new();
        std::fs::File::from(event).read_to_end(&mut errno)?;
        match <[u8; 4]>::try_from(errno.as_slice()) {
            Ok(errno) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            Err(_) => Ok(pid),
        }
    }

    /// Waits for the command, and reports what becomes of it. If our parent dies, `give_back` is called.
    fn wait(&mut self, give_back: impl Fn()) -> io::Result<()> {
        let Some(command) = self.command else { return Ok(()) };
        let children =
            SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        self.link.set_nonblocking(true)?;
        let mut ended = false;
        loop {
            while let Ok(Some(status)) = waitid(WaitId::Pid(command), MOVES | WaitIdOptions::NOHANG) {
                match status.stopped() {
                    true => {
                        // It is given back before our parent stops, too.
                        self.in_front = false;
                        self.tell(&show_status(&status));
                    }
                    // The process that continued it may not know of the one that stopped with it.
                    false if !self.alone => drop(kill_process(self.starter, rustix::process::Signal::CONT)),
                    false => {}
                }
            }
            // It is not collected before we leave, so that its number stays its own as long as it is needed.
            let end = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Ok(Some(status)) = waitid(WaitId::Pid(command), end)
                && !std::mem::replace(&mut ended, true)
            {
                self.tell(&show_status(&status));
            }
            if ended && self.alone {
                return Ok(());
            }
            let mut fds =
                [PollFd::from_borrowed_fd(children.as_fd(), PollFlags::IN), PollFd::new(&self.link, PollFlags::IN)];
            let _ = poll(&mut fds[..if self.alone { 1 } else { 2 }], None);
            while children.read_signal().is_ok_and(|signal| signal.is_some()) {}
            let mut heard = [0; 16];
            match self.link.read(&mut heard) {
                Ok(read) if read > 0 => {
                    for word in &heard[..read] {
                        if *word == LEAVE {
                            return Ok(());
                        }
                        self.obey(*word, command);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ if self.alone => {}
                _ => {
                    self.alone = true;
                    if self.in_front {
                        give_back();
                    }
                }
            }
        }
    }

    fn obey(&mut self, word: u8, command: Pid) {
        match word {
            FOREGROUND => self.in_front = true,
            BACKGROUND => self.in_front = false,
            _ => {}
        }
        let its_group = if self.shares_group { getpid() } else { command };
        if word != CONTINUE {
            let _ = tcsetpgrp(&self.slave, if word == BACKGROUND { getpid() } else { its_group });
        }
        if word != BACKGROUND {
            let _ = kill_process_group(its_group, rustix::process::Signal::CONT);
        }
    }
}

fn show_status(status: &WaitIdStatus) -> String {
    match (status.stopping_signal(), status.terminating_signal()) {
        (Some(signal), _) => format!("stopped {signal}"),
        (_, Some(signal)) => format!("killed {signal}"),
        _ => format!("exited {}", status.exit_status().unwrap_or(0)),
    }
}

fn standing(pty: &Pty) -> &'static str {
    match (pty.screen().is_of_real(), pty.screen().is_ours()) {
        (false, _) => ALONE,
        (true, true) => IN_FRONT,
        (true, false) => BEHIND,
    }
}

/// Joins its group and becomes the command.
fn step(given: &[&str], words: &[OsString]) -> u8 {
    let [slave, failure, standing, mask, ..] = given else { return 127 };
    let (Ok(slave), Ok(failure)) = (handed(slave), handed(failure)) else { return 127 };
    let become_command = || -> Result<std::convert::Infallible, i32> {
        let raw = |error: rustix::io::Errno| error.raw_os_error();
        if *standing != ALONE {
            rustix::process::setpgid(None, None).map_err(raw)?;
        }
        if *standing == IN_FRONT {
            tcsetpgrp(&slave, getpid()).map_err(raw)?;
        }
        let argv: Vec<std::ffi::CString> =
            words.get(6..).unwrap_or_default().iter().filter_map(|text| word(text).ok()).collect();
        read_mask(mask).thread_set_mask().map_err(|error| error as i32)?;
        nix::unistd::execvp(argv.first().ok_or(nix::libc::EINVAL)?, &argv).map_err(|error| error as i32)
    };
    let Err(errno) = become_command();
    let _ = rustix::io::write(&failure, &errno.to_ne_bytes());
    127
}

fn show_mask(mask: &SigSet) -> String {
    let bits: u64 =
        Signal::iterator().filter(|signal| mask.contains(*signal)).map(|signal| signals::bit(signal as i32)).sum();
    format!("{bits:x}")
}

fn read_mask(text: &str) -> SigSet {
    let bits = u64::from_str_radix(text, 16).unwrap_or(0);
    Signal::iterator().filter(|signal| bits & signals::bit(*signal as i32) != 0).collect()
}
