//! A terminal of our own for the command, and the real one that it stands for.
//!
//! The command's terminal has the modes and the size of the real one. What is typed goes to it byte by byte, so that it
//! is the command's terminal that echoes, edits lines and sends signals, as its modes say.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, getpgrp, kill_process_group};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

use super::streams::{Copying, set_waiting};
use crate::descriptors::STANDARD;

/// How often to look whether everything that the command has written is on the real terminal.
const FLUSH_TRIES: usize = 50;

/// The two terminals.
pub struct Pty {
    master: OwnedFd,
    slave: Option<OwnedFd>,
    real: BorrowedFd<'static>,
    keyboard: Keyboard,
    /// The modes that the real terminal had before we took it, and that ours was given.
    modes: Termios,
    /// The real terminal passes every byte on.
    raw: bool,
    /// What was typed and not yet taken by the command's terminal.
    typed: Vec<u8>,
}

enum Keyboard {
    /// The command's standard input is the terminal.
    Input,
    /// It is something else, and whoever writes to it shares the keyboard with us.
    Other(OwnedFd),
    /// It is gone.
    None,
}

impl Pty {
    /// Opens a terminal like the one that standard output is.
    pub fn open() -> io::Result<Self> {
        let real = STANDARD[1];
        let modes = tcgetattr(real)?;
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        set_waiting(&master, false)?;
        let keyboard = if isatty(STANDARD[0]) {
            Keyboard::Input
        } else {
            let opened = rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
            opened.map_or(Keyboard::None, Keyboard::Other)
        };
        let pty = Self { master, slave: Some(slave), real, keyboard, modes, raw: false, typed: Vec::new() };
        pty.resize();
        Ok(pty)
    }

    /// The real terminal.
    pub fn real(&self) -> BorrowedFd<'static> {
        self.real
    }

    /// The side that the command writes to and reads from, until it has it.
    pub fn slave(&self) -> Option<&OwnedFd> {
        self.slave.as_ref()
    }

    /// Lets go of the command's side: it is closed when the last of the command's processes closes it.
    pub fn close_slave(&mut self) {
        self.slave = None;
    }

    /// Our side, to copy from.
    pub fn output(&self) -> io::Result<OwnedFd> {
        self.master.try_clone()
    }

    /// Whether we are in the foreground of the real terminal, and may change it and read from it.
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(self.real).is_ok_and(|group| group == getpgrp())
    }

    /// Has the real terminal pass every byte on.
    pub fn take(&mut self) {
        if !self.raw && self.is_ours() {
            if let Ok(modes) = tcgetattr(self.real) {
                // A shell that reads a line has modes of its own. Ours got them if it was made in the background.
                if self.has_given_modes() {
                    let _ = tcsetattr(&self.master, OptionalActions::Now, &modes);
                }
                self.modes = modes;
            }
            let mut raw = self.modes.clone();
            raw.make_raw();
            self.raw = tcsetattr(self.real, OptionalActions::Drain, &raw).is_ok();
        }
    }

    /// Gives the real terminal back as it was.
    pub fn give_back(&mut self) {
        self.give_back_with(&self.modes.clone());
    }

    /// Gives the real terminal back with the modes that the command has left, as it would have without us.
    pub fn leave(&mut self) {
        match tcgetattr(&self.master) {
            Ok(left) if !self.has_given_modes() => self.give_back_with(&left),
            _ => self.give_back(),
        }
    }

    /// Whether the command has left its terminal's modes as they were given to it.
    fn has_given_modes(&self) -> bool {
        let of = |modes: &Termios| {
            let flags = (modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes);
            (flags, format!("{:?}", modes.special_codes))
        };
        tcgetattr(&self.master).is_ok_and(|modes| of(&modes) == of(&self.modes))
    }

    /// Waits until what the command has written is on the real terminal, unless that takes long.
    pub fn flush(&self, copying: &Copying) {
        let unread = || {
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            fds[0].revents().contains(PollFlags::IN)
        };
        for _ in 0..FLUSH_TRIES {
            let was_unread = unread();
            copying.wait_idle();
            if !was_unread && !unread() {
                return;
            }
        }
    }

    fn give_back_with(&mut self, modes: &Termios) {
        if std::mem::replace(&mut self.raw, false) {
            let _ = tcsetattr(self.real, OptionalActions::Drain, modes);
        }
    }

    /// Gives the command's terminal the size of the real one.
    pub fn resize(&self) {
        if let Ok(size) = tcgetwinsize(self.real) {
            let _ = tcsetwinsize(&self.master, size);
        }
    }

    /// What to wait for before [`Pty::pass_keys`] has anything to do.
    pub fn awaited(&self) -> Option<PollFd<'_>> {
        if !self.typed.is_empty() {
            return Some(PollFd::new(&self.master, PollFlags::OUT));
        }
        self.keyboard.fd().filter(|_| self.raw).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Passes on what was typed, without waiting.
    pub fn pass_keys(&mut self) {
        if self.typed.is_empty() && self.raw {
            let mut buffer = [0; 1 << 10];
            let Some(keyboard) = self.keyboard.fd() else { return };
            match rustix::io::read(keyboard, &mut buffer) {
                Ok(read) if read > 0 => self.typed.extend_from_slice(&buffer[..read]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Ok(_) | Err(_) => self.keyboard = Keyboard::None,
            }
            self.tell_companions();
        }
        match rustix::io::write(&self.master, &self.typed) {
            Ok(written) => drop(self.typed.drain(..written)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.typed.clear(),
        }
    }

    /// Keys that send a signal would have sent it to the others of our pipeline as well. We ignore our own copy.
    fn tell_companions(&self) {
        if !matches!(self.keyboard, Keyboard::Other(_)) {
            return;
        }
        let Ok(modes) = tcgetattr(&self.master) else { return };
        if !modes.local_modes.contains(LocalModes::ISIG) {
            return;
        }
        for (key, signal) in [(SpecialCodeIndex::VINTR, Signal::INT), (SpecialCodeIndex::VQUIT, Signal::QUIT)] {
            let code = modes.special_codes[key];
            if code != 0 && self.typed.contains(&code) {
                let _ = kill_process_group(getpgrp(), signal);
            }
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Keyboard {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Input => Some(STANDARD[0]),
            Self::Other(fd) => Some(fd.as_fd()),
            Self::None => None,
        }
    }
}
