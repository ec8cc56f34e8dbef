//! The terminal of a detached run, and its attached viewers.
//!
//! One thread reads what the command shows, keeps it, and passes it on to those who are there; what they type goes to
//! the command. No viewer is waited for: one that does not read is given up when too much has piled up for it, and a
//! command that does not read keeps its viewers waiting, not us.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use outlive::logs::Stream;
use outlive::registry::Registry;
use outlive::run::Run;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};
use rustix::process::{Signal, kill_process_group};

use super::attach::wire::{self, Incoming};
use super::pty::Screen;
use super::recording::Recording;
use super::sockets;

/// How much of what was shown last is shown to a new viewer.
const RECENT: usize = 32 << 10;
/// How much may pile up for a viewer before it is given up.
const UNSENT: usize = 1 << 20;
/// How much may be typed that the command has not read.
const TYPED: usize = 64 << 10;
/// How often is read before others are heard, and how often when the command has ended.
const READS: usize = 8;
const LAST_READS: usize = 64;
/// How many may be attached at once.
const VIEWERS: usize = 32;
/// How often, and for how many milliseconds each time, viewers are waited for when the command has ended.
const LAST_ROUNDS: usize = 10;
const LAST_WAIT: i64 = 50;

/// Where viewers come in.
pub struct Door {
    socket: OwnedFd,
    dir: OwnedFd,
    name: PathBuf,
}

impl Door {
    /// Opens it beside the run. Where that cannot be, no viewer comes.
    pub fn open(registry: &Registry, run: &Run) -> Option<Self> {
        let (dir, name) = registry.local()?.terminal(run).ok()?;
        let socket = sockets::listen(&dir, &name, SocketType::STREAM).ok()?;
        Some(Self { socket, dir, name })
    }

    /// The processes of this user that have come in since the last call, as far as there is room for more.
    pub fn accept(&self, room: usize) -> impl Iterator<Item = UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let come = std::iter::from_fn(move || rustix::net::accept_with(&self.socket, flags).ok());
        come.filter(|socket| sockets::peer(socket).is_some())
            .enumerate()
            .filter(move |(place, _)| *place < room)
            .map(|(_, socket)| socket.into())
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, &self.name, rustix::fs::AtFlags::empty());
    }
}

/// The attached viewers.
struct Viewer {
    stream: UnixStream,
    heard: Incoming,
    unsent: VecDeque<u8>,
    has_size: bool,
}

impl Viewer {
    /// Sends what can be sent at once. Answers whether it is worth going on.
    fn send(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match (&self.stream).write(self.unsent.as_slices().0) {
                Ok(0) => return false,
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.unsent.len() <= UNSENT
    }
}

/// The terminal and its viewers.
pub struct Viewers {
    screen: Arc<Screen>,
    recording: Recording,
    door: Option<Door>,
    viewers: Vec<Viewer>,
    recent: VecDeque<u8>,
    typed: Vec<u8>,
}

impl Viewers {
    pub fn new(screen: Arc<Screen>, recording: Recording, door: Option<Door>) -> Self {
        Self { screen, recording, door, viewers: Vec::new(), recent: VecDeque::new(), typed: Vec::new() }
    }

    /// Serves them until `stop` is readable and everything that the command wrote is kept, which is said to `kept`.
    pub fn serve(mut self, stop: &OwnedFd, kept: &Sender<()>) {
        while !self.wait(stop) {
            self.let_in();
            self.hear();
            self.pass_keys();
            // A viewer that writes all the time must not keep us from listening.
            let _ = (0..READS).all(|_| self.read());
            self.viewers.retain_mut(Viewer::send);
        }
        // Others may go on writing for ever.
        let _ = (0..LAST_READS).all(|_| self.read());
        let _ = kept.send(());
        // No other viewer may come, and those who are here see the rest.
        drop(self.door.take());
        for _ in 0..LAST_ROUNDS {
            self.viewers.retain_mut(|viewer| viewer.send() && !viewer.unsent.is_empty());
            if self.viewers.is_empty() {
                break;
            }
            let mut fds: Vec<_> =
                self.viewers.iter().map(|viewer| PollFd::new(&viewer.stream, PollFlags::OUT)).collect();
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: LAST_WAIT * 1_000_000 }));
        }
    }

    /// Waits for something to do. Answers whether the command has ended.
    fn wait(&self, stop: &OwnedFd) -> bool {
        let keys = if self.typed.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(self.screen.master(), PollFlags::IN | keys)];
        fds.extend(self.door.as_ref().map(|door| PollFd::new(door, PollFlags::IN)));
        for viewer in &self.viewers {
            let hears = if self.typed.len() < TYPED { PollFlags::IN } else { PollFlags::empty() };
            let sends = if viewer.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(&viewer.stream, hears | sends));
        }
        let _ = poll(&mut fds, None);
        let [ended, terminal] = [0, 1].map(|at| fds[at].revents());
        if terminal.contains(PollFlags::HUP) && !terminal.contains(PollFlags::IN) {
            // No process has it open, which may change and is no end; meanwhile it would not let us wait.
            drop(fds);
            let pause = Timespec { tv_sec: 0, tv_nsec: LAST_WAIT * 1_000_000 };
            return matches!(poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&pause)), Ok(1..));
        }
        !ended.is_empty()
    }

    fn let_in(&mut self) {
        let Some(door) = &self.door else { return };
        for stream in door.accept(VIEWERS.saturating_sub(self.viewers.len())) {
            let recent: Vec<u8> = self.recent.iter().copied().collect();
            let unsent = wire::message(wire::SHOWN, &recent).into();
            self.viewers.push(Viewer { stream, heard: Incoming::default(), unsent, has_size: false });
        }
    }

    fn hear(&mut self) {
        let (screen, typed) = (&self.screen, &mut self.typed);
        self.viewers.retain_mut(|viewer| {
            loop {
                match viewer.heard.next() {
                    Ok(Some((wire::KEYS, keys))) => typed.extend_from_slice(&keys),
                    Ok(Some((wire::SIZE, size))) => {
                        if let Some((rows, columns)) = wire::read_size(&size) {
                            let changed = screen.set_size(rows, columns);
                            let first = !std::mem::replace(&mut viewer.has_size, true);
                            if let Some(group) = screen.foreground().filter(|_| first && !changed) {
                                // A new viewer has seen nothing of a screen that is only changed in places.
                                let _ = kill_process_group(group, Signal::WINCH);
                            }
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) if typed.len() >= TYPED => return true,
                    Ok(None) => match viewer.heard.take(&viewer.stream) {
                        Ok(1..) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                        _ => return false,
                    },
                    Err(_) => return false,
                }
            }
        });
    }

    fn pass_keys(&mut self) {
        while !self.typed.is_empty() {
            match rustix::io::write(self.screen.master(), &self.typed) {
                Ok(written) => drop(self.typed.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.typed.clear(),
            }
        }
    }

    /// Takes what the command has shown. Answers whether there may be more.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; 16 << 10];
        let Ok(read @ 1..) = rustix::io::read(self.screen.master().as_fd(), &mut buffer) else { return false };
        let shown = &buffer[..read];
        self.recording.write(Stream::Out, shown);
        self.recent.extend(shown);
        let old = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..old);
        let message = wire::message(wire::SHOWN, shown);
        for viewer in &mut self.viewers {
            viewer.unsent.extend(&message);
        }
        true
    }
}
