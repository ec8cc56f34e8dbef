//! The standard input of a detached run: what `outlive send` writes reaches the command through its owner.
//!
//! The command reads a pipe whose other end the owner holds: its input ends when that is asked for, not between two
//! writers. No writer is waited for, and a command that does not read keeps its writers waiting, not the owner. If the
//! owner dies, the input ends.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;

use outlive::registry::Registry;
use outlive::run::Run;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::attach::wire::{self, Incoming};
use super::streams::set_waiting;
use super::viewers::Door;

/// How much may be sent that the command has not read.
const UNREAD: usize = 64 << 10;
/// How many processes may write at once.
const WRITERS: usize = 32;

/// A process that writes.
struct Writer {
    stream: UnixStream,
    heard: Incoming,
}

/// The input of a command.
pub struct Input {
    /// Where the command reads from. None once its input has ended, or the command reads it no more.
    pipe: Option<OwnedFd>,
    door: Door,
    writers: Vec<Writer>,
    unread: Vec<u8>,
    /// The input ends behind what is unread.
    ends: bool,
}

impl Input {
    /// The input of a run, and the end of the pipe that its command is given.
    pub fn open(registry: &Registry, run: &Run) -> io::Result<(Self, OwnedFd)> {
        let no_door =
            || io::Error::other("its standard input cannot be kept open: its registry is not on this machine");
        let door = Door::open(registry, run).ok_or_else(no_door)?;
        let (theirs, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        set_waiting(&pipe, false)?;
        Ok((Self { pipe: Some(pipe), door, writers: Vec::new(), unread: Vec::new(), ends: false }, theirs))
    }

    /// Passes on what is sent until `stop` is readable or the input has ended, which is said to `kept`.
    pub fn serve(mut self, stop: &OwnedFd, kept: &Sender<()>) {
        while self.wait(stop) {
            self.writers.extend(self.door.accept(WRITERS.saturating_sub(self.writers.len())).map(Writer::new));
            self.hear();
            self.pass_on();
        }
        let _ = kept.send(());
    }

    /// Waits for something to do. Answers whether there is any input left to pass on.
    fn wait(&mut self, stop: &OwnedFd) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let writes = if self.unread.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let hears = if self.unread.len() < UNREAD { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(stop, PollFlags::IN), PollFd::new(pipe, writes), PollFd::new(&self.door, PollFlags::IN)];
        fds.extend(self.writers.iter().map(|writer| PollFd::new(&writer.stream, hears)));
        let _ = poll(&mut fds, None);
        let [stopped, pipe] = [0, 1].map(|at| fds[at].revents());
        stopped.is_empty() && !pipe.contains(PollFlags::ERR)
    }

    fn hear(&mut self) {
        let (unread, ends) = (&mut self.unread, &mut self.ends);
        self.writers.retain_mut(|writer| {
            loop {
                match writer.heard.next() {
                    // At once: a command may read it and end before the writer has closed its side.
                    Ok(Some((wire::KEYS, bytes))) if !*ends => {
                        unread.extend_from_slice(&bytes);
                        writer.confirm();
                    }
                    Ok(Some((wire::END, _))) => {
                        *ends = true;
                        writer.confirm();
                    }
                    Ok(Some(_)) => {}
                    Ok(None) if unread.len() >= UNREAD => return true,
                    Ok(None) => match writer.heard.take(&writer.stream) {
                        Ok(1..) => {}
                        Ok(0) => return false,
                        Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                    },
                    Err(_) => return false,
                }
            }
        });
    }

    /// Writes as much as the command takes.
    fn pass_on(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        while !self.unread.is_empty() {
            match rustix::io::write(pipe, &self.unread) {
                Ok(written) => drop(self.unread.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // It reads no more.
                Err(_) => {
                    self.pipe = None;
                    return;
                }
            }
        }
        if self.ends {
            self.pipe = None;
        }
    }
}

impl Writer {
    fn new(stream: UnixStream) -> Self {
        Self { stream, heard: Incoming::default() }
    }

    /// Says that what was heard is taken. One that has left need not know.
    fn confirm(&mut self) {
        let _ = self.stream.write_all(&wire::message(wire::TAKEN, b"."));
    }
}
