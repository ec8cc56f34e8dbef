//! A terminal of our own for the command, and the real one that it stands for.
//!
//! The command's terminal has the modes and the size of the real one. While the command leaves lines to its terminal,
//! the real one edits, echoes and sends signals as ever, and a line is taken from it only when a process waits for one:
//! what is typed ahead is left for the next reader. When the command wants every key, the real terminal passes every
//! byte on, and it is the command's terminal that does what its modes say.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, isatty, tcgetattr,
    tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::readers;
use super::streams::{set_waiting, write_all};
use crate::exec::descriptors::STANDARD;

/// The size of a terminal without a viewer.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// The two terminals, and what is typed.
pub struct Pty {
    screen: Arc<Screen>,
    slave: OwnedFd,
    keyboard: Keyboard,
    /// What was typed and not yet taken by the command's terminal.
    typed: Vec<u8>,
    /// A line was typed that no reader waits for.
    unwanted: bool,
}

/// The two terminals, for the thread that copies from the one to the other.
pub struct Screen {
    master: OwnedFd,
    /// None where the command has a terminal and we have none.
    real: Option<BorrowedFd<'static>>,
    modes: Mutex<Modes>,
}

struct Modes {
    /// Those of the real terminal before we changed them.
    found: Termios,
    /// Those that we have set on the real terminal, if we have.
    set: Option<Termios>,
    /// Those that the command's terminal was given.
    given: Termios,
}

enum Keyboard {
    /// The command's standard input is the terminal.
    Input,
    /// It is something else, and its writers share the keyboard with us.
    Other(OwnedFd),
    /// It is gone.
    None,
}

impl Pty {
    /// Opens a terminal like the one that standard output is.
    pub fn open() -> io::Result<Self> {
        let real = STANDARD[1];
        let found = tcgetattr(real)?;
        let (master, slave) = pair()?;
        tcsetattr(&slave, OptionalActions::Now, &found)?;
        set_waiting(&master, false)?;
        let keyboard = if isatty(STANDARD[0]) {
            Keyboard::Input
        } else {
            let opened = rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
            opened.map_or(Keyboard::None, Keyboard::Other)
        };
        let modes = Mutex::new(Modes { given: found.clone(), found, set: None });
        let screen = Arc::new(Screen { master, real: Some(real), modes });
        screen.resize();
        Ok(Self { screen, slave, keyboard, typed: Vec::new(), unwanted: false })
    }

    /// Opens a terminal that stands for no other.
    pub fn alone() -> io::Result<Self> {
        let (master, slave) = pair()?;
        let mut found = tcgetattr(&slave)?;
        found.input_modes |= InputModes::IUTF8;
        tcsetattr(&slave, OptionalActions::Now, &found)?;
        set_waiting(&master, false)?;
        let modes = Mutex::new(Modes { given: found.clone(), found, set: None });
        let screen = Arc::new(Screen { master, real: None, modes });
        screen.set_size(ROWS, COLUMNS);
        Ok(Self { screen, slave, keyboard: Keyboard::None, typed: Vec::new(), unwanted: false })
    }

    /// The two terminals, for the thread that copies from the one to the other.
    pub fn screen(&self) -> &Arc<Screen> {
        &self.screen
    }

    /// The side that the command writes to and reads from.
    pub fn slave(&self) -> &OwnedFd {
        &self.slave
    }

    /// What to wait for before [`Pty::pass_keys`] has anything to do.
    pub fn awaited(&self) -> Option<PollFd<'_>> {
        if !self.typed.is_empty() {
            return Some(PollFd::new(&self.screen.master, PollFlags::OUT));
        }
        let is_ours = !self.unwanted && self.screen.is_ours();
        self.keyboard.fd().filter(|_| is_ours).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Passes on what was typed, as far as there is a reader, without waiting.
    pub fn pass_keys(&mut self) {
        if self.typed.is_empty() && self.screen.is_ours() {
            self.read_keys();
        }
        if !self.typed.is_empty() {
            match rustix::io::write(&self.screen.master, &self.typed) {
                Ok(written) => drop(self.typed.drain(..written)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.typed.clear(),
            }
        }
    }

    fn read_keys(&mut self) {
        let Some(keyboard) = self.keyboard.fd().filter(|fd| is_readable(*fd)) else { return };
        let Ok(modes) = tcgetattr(&self.screen.master) else { return };
        let lines = modes.local_modes.contains(LocalModes::ICANON);
        self.unwanted = lines && !readers::any_waits_for(&self.slave, self.screen.foreground());
        if self.unwanted {
            return;
        }
        let mut buffer = [0; 4 << 10];
        match rustix::io::read(keyboard, &mut buffer) {
            Ok(read) if lines => self.pass_line(&buffer[..read], modes),
            Ok(read) if read > 0 => {
                self.typed.extend_from_slice(&buffer[..read]);
                self.tell_companions(&modes);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => self.keyboard = Keyboard::None,
        }
    }

    /// Passes on a line that the real terminal has edited and echoed: it is neither edited nor echoed again.
    fn pass_line(&self, line: &[u8], modes: Termios) {
        let mut quoted = Vec::with_capacity(line.len() + 8);
        for byte in line {
            let is_plain = matches!(byte, b'\n' | b'\t') || !byte.is_ascii_control();
            if !is_plain && modes.local_modes.contains(LocalModes::IEXTEN) {
                quoted.push(modes.special_codes[SpecialCodeIndex::VLNEXT]);
            }
            quoted.push(*byte);
        }
        if line.last() != Some(&b'\n') {
            // The end of the input, or of what was typed so far.
            quoted.push(modes.special_codes[SpecialCodeIndex::VEOF]);
        }
        let _alone = self.screen.lock();
        let echoes = modes.local_modes.contains(LocalModes::ECHO);
        if echoes {
            let mut silent = modes.clone();
            silent.local_modes -= LocalModes::ECHO | LocalModes::ECHONL;
            let _ = tcsetattr(&self.screen.master, OptionalActions::Now, &silent);
        }
        let _ = write_all(&self.screen.master, &quoted);
        if echoes {
            // To ask has the kernel finish with what was written.
            is_readable(self.slave.as_fd());
            let _ = tcsetattr(&self.screen.master, OptionalActions::Now, &modes);
        }
    }

    /// Keys that send a signal would have sent it to the others of our pipeline as well. We ignore our own copy.
    fn tell_companions(&self, modes: &Termios) {
        if !matches!(self.keyboard, Keyboard::Other(_)) || !modes.local_modes.contains(LocalModes::ISIG) {
            return;
        }
        for (key, signal) in [(SpecialCodeIndex::VINTR, Signal::INT), (SpecialCodeIndex::VQUIT, Signal::QUIT)] {
            let code = modes.special_codes[key];
            if code != 0 && self.typed.contains(&code) {
                let _ = kill_process_group(getpgrp(), signal);
            }
        }
    }

    /// Looks again whether what was typed is wanted.
    pub fn look_again(&mut self) {
        self.screen.mirror();
        if std::mem::replace(&mut self.unwanted, false) {
            self.pass_keys();
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        self.screen.give_back();
    }
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, Modes> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Our side of the command's terminal.
    pub fn master(&self) -> &OwnedFd {
        &self.master
    }

    /// Whether we are in the foreground of the real terminal, and may change it and read from it. Where there is none,
    /// the command is alone at its own.
    pub fn is_ours(&self) -> bool {
        self.real.is_none_or(|real| tcgetpgrp(real).is_ok_and(|group| group == getpgrp()))
    }

    /// Whether it stands for a real one.
    pub fn is_of_real(&self) -> bool {
        self.real.is_some()
    }

    /// Gives the command's terminal this size. Answers whether it had another.
    pub fn set_size(&self, rows: u16, columns: u16) -> bool {
        let had = tcgetwinsize(&self.master).ok().map(|size| (size.ws_row, size.ws_col));
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        had != Some((rows, columns)) && tcsetwinsize(&self.master, size).is_ok()
    }

    /// The group that is in the foreground of the command's terminal.
    pub fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.master).ok()
    }

    /// Gives the command's terminal the size of the real one.
    pub fn resize(&self) {
        if let Some(Ok(size)) = self.real.map(tcgetwinsize) {
            let _ = tcsetwinsize(&self.master, size);
        }
    }

    /// Has the real terminal do what the command expects of its own.
    pub fn mirror(&self) {
        let mut modes = self.lock();
        let Some(real) = self.real.filter(|_| self.is_ours()) else { return };
        let Ok(mut wanted) = tcgetattr(&self.master) else { return };
        if modes.set.is_none() {
            let Ok(found) = tcgetattr(real) else { return };
            // A shell that reads a line has modes of its own. Ours got those if it was made in the background.
            if same(&wanted, &modes.given) && !same(&wanted, &found) {
                let _ = tcsetattr(&self.master, OptionalActions::Now, &found);
                (modes.given, wanted) = (found.clone(), found.clone());
            }
            modes.found = found;
        }
        if !wanted.local_modes.contains(LocalModes::ICANON) {
            wanted = modes.found.clone();
            wanted.make_raw();
        }
        if !same(&wanted, modes.set.as_ref().unwrap_or(&modes.found)) {
            let _ = tcsetattr(real, OptionalActions::Drain, &wanted);
            modes.set = Some(wanted);
        }
    }

    /// Gives the real terminal back as it was.
    pub fn give_back(&self) {
        let mut modes = self.lock();
        if let (Some(real), Some(_)) = (self.real, modes.set.take()) {
            let _ = tcsetattr(real, OptionalActions::Drain, &modes.found);
        }
    }

    /// Gives the real terminal back with the modes that the command has left, as it would have without us.
    pub fn leave(&self) {
        let Some(real) = self.real else { return };
        let mut modes = self.lock();
        match tcgetattr(&self.master) {
            Ok(left) if !same(&left, &modes.given) && self.is_ours() => {
                let _ = tcsetattr(real, OptionalActions::Drain, &left);
                modes.set = None;
            }
            _ => {
                drop(modes);
                self.give_back();
            }
        }
    }

    /// Shows what the command has written. A failure is ignored.
    pub fn show(&self, bytes: &[u8]) {
        let Some(real) = self.real else { return };
        self.mirror();
        let both_add = [tcgetattr(real), tcgetattr(&self.master)]
            .into_iter()
            .all(|modes| modes.is_ok_and(|modes| modes.output_modes.contains(OutputModes::OPOST | OutputModes::ONLCR)));
        let _ = if both_add { write_all(real, &without_returns(bytes)) } else { write_all(real, bytes) };
    }
}

/// The two sides of a terminal.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

/// Lines as they were before the command's terminal put a return before the end of each; the real one does so again.
fn without_returns(bytes: &[u8]) -> Vec<u8> {
    let added = |(index, byte): &(usize, &u8)| **byte == b'\r' && bytes.get(index + 1) == Some(&b'\n');
    bytes.iter().enumerate().filter(|one| !added(one)).map(|(_, byte)| *byte).collect()
}

fn same(one: &Termios, other: &Termios) -> bool {
    let of = |modes: &Termios| {
        let flags = (modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes);
        (flags, format!("{:?}", modes.special_codes))
    };
    of(one) == of(other)
}

/// Whether something can be read at once.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !fds[0].revents().is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_returns_that_a_terminal_added_are_taken_away() {
        assert_eq!(without_returns(b"a\r\nb\r\r\nc\rd\r"), b"a\nb\r\nc\rd\r");
    }
}
