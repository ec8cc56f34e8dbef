//! The streams of the command: its caller's own, or ours in between where what it writes is to be kept.
//!
//! A file stays the command's own: it is kept already. Through a pipe the command writes to us, and we to our caller
//! and the log; if no reader is left, the command learns it as it would without us. A terminal is replaced by one of
//! ours (`pty.rs`). A detached command writes into the files of its log, and needs no other process.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::SigSet;
use outlive::logs::{Growth, NOTE_EVERY, Stream};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use rustix::pipe::{PipeFlags, pipe_with};

use super::input::Input;
use super::pty::{Screen, is_readable};
use super::recording::Recording;
use super::spawn::{Environment, Start, handed};
use super::viewers::Viewers;
use crate::exec::descriptors::{STANDARD, was_closed};

/// The word by which this program knows that it is to pass on what is left.
const PASS: &str = "__pass";
/// How long to wait for one that is stuck, because the terminal it writes to is, before the end is put on record.
const KEPT_WITHIN: Duration = Duration::from_secs(2);
/// How much is copied at a time.
const CHUNK: usize = 64 << 10;

/// Where a stream of the command leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Where our own does.
    Own,
    /// To us, and from us to where our own leads and into the log.
    Copied,
    /// The same as that of standard output.
    AsOutput,
    /// To a terminal of ours.
    Terminal,
}

/// Where each standard stream of a command should lead whose output is to be kept: `all` of it, or what would be lost
/// otherwise.
pub fn ways(all: bool) -> [Way; 3] {
    let [input, output, error] = STANDARD;
    let (out, err) = (written(output, all), written(error, all));
    let err = match (out, err) {
        (Way::Copied, Way::Copied) if same(output, error) => Way::AsOutput,
        (Way::Copied, Way::Terminal) if all => Way::Copied,
        // The reader of our output may read the keyboard too, and a terminal of ours would take it away.
        (Way::Own | Way::Copied, Way::Terminal) => Way::Own,
        (_, err) => err,
    };
    let reads = out == Way::Terminal && rustix::termios::isatty(input);
    [if reads { Way::Terminal } else { Way::Own }, out, err]
}

fn written(fd: BorrowedFd<'_>, all: bool) -> Way {
    if was_closed(fd) {
        return Way::Own;
    }
    // A terminal that does not control us shows what is written to it, and nothing else of it is ours.
    if rustix::termios::tcgetpgrp(fd).is_ok() {
        return Way::Terminal;
    }
    match fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::Fifo) => Way::Copied,
        _ if all => Way::Copied,
        _ => Way::Own,
    }
}

/// Whether whatever is written here is refused, because it has no reader.
fn has_no_reader(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

fn same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let id = |fd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    id(one).is_some() && id(one) == id(other)
}

/// What to put in place of a standard descriptor of the command.
pub struct Placed {
    /// What.
    pub fd: OwnedFd,
    /// In place of which.
    pub number: RawFd,
}

/// The copying of streams.
pub struct Copying {
    stop: Arc<OwnedFd>,
    kept: (Sender<()>, Receiver<()>),
    /// Held from reading something from a terminal until it is shown.
    showing: Arc<Mutex<()>>,
    /// A reader did not want all of it, and so not all was read.
    unwanted: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Option<Rest>>>,
}

/// A stream that processes of the command still write to after its end.
struct Rest {
    from: OwnedFd,
    to: BorrowedFd<'static>,
}

impl Copying {
    /// Begins to copy those of the command's streams that should be. Answers also with what the command is to be given.
    pub fn start(ways: [Way; 3], recording: &Recording) -> io::Result<(Self, Vec<Placed>)> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (showing, unwanted) = Default::default();
        let mut copying = Self { stop, kept: channel(), showing, unwanted, threads: Vec::new() };
        let mut placed = Vec::new();
        for (stream, own) in [(Stream::Out, STANDARD[1]), (Stream::Err, STANDARD[2])] {
            let number = own.as_raw_fd();
            match ways[number.unsigned_abs() as usize] {
                Way::Copied => {
                    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
                    placed.push(Placed { fd: to, number });
                    if has_no_reader(own) {
                        // As without us: what is written first is refused, with nothing of ours having to be quicker.
                        copying.unwanted.store(true, Ordering::Relaxed);
                        continue;
                    }
                    let recording = recording.clone();
                    copying.copy(from, own, move |bytes| recording.write(stream, bytes))?;
                }
                Way::AsOutput => {
                    if let Some(fd) = placed.first().map(|output| output.fd.try_clone()).transpose()? {
                        placed.push(Placed { fd, number });
                    }
                }
                Way::Own | Way::Terminal => {}
            }
        }
        Ok((copying, placed))
    }

    /// Copies from one descriptor to another until nothing can come any more or no reader is left.
    fn copy(
        &mut self,
        from: OwnedFd,
        to: BorrowedFd<'static>,
        keep: impl FnMut(&[u8]) + Send + 'static,
    ) -> io::Result<()> {
        set_waiting(&from, false)?;
        let (stop, kept, unwanted) = (self.stop.clone(), self.kept.0.clone(), self.unwanted.clone());
        let is_file = fstat(to).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let buffer = Vec::with_capacity(CHUNK);
        let work = move || {
            let rest = Copy { from, to, is_file, stop, keep, buffer }.run(&kept);
            unwanted.fetch_or(rest.is_none(), Ordering::Relaxed);
            rest
        };
        self.threads.push(std::thread::Builder::new().name("outlive-copy".into()).spawn(work)?);
        Ok(())
    }

    /// Shows on the real terminal what the command writes to its own.
    pub fn show(&mut self, screen: &Arc<Screen>, recording: &Recording) -> io::Result<()> {
        let (screen, recording) = (screen.clone(), recording.clone());
        let (stop, showing, kept) = (self.stop.clone(), self.showing.clone(), self.kept.0.clone());
        let work = move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                let mut fds = [PollFd::new(screen.master(), PollFlags::IN), PollFd::new(&*stop, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                let [written, stopped] = fds.map(|fd| !fd.revents().is_empty());
                let _showing = showing.lock().unwrap_or_else(PoisonError::into_inner);
                match rustix::io::read(screen.master(), &mut buffer) {
                    Ok(read) if read > 0 => {
                        recording.write(Stream::Out, &buffer[..read]);
                        screen.show(&buffer[..read]);
                    }
                    Err(Errno::AGAIN | Errno::INTR) if !stopped => {}
                    // Nothing is left, or nothing can come any more.
                    _ if stopped || written => break,
                    _ => {}
                }
            }
            let _ = kept.send(());
            None
        };
        self.threads.push(std::thread::Builder::new().name("outlive-screen".into()).spawn(work)?);
        Ok(())
    }

    /// Serves the terminal of a detached command to its attached viewers.
    pub fn serve(&mut self, viewers: Viewers) -> io::Result<()> {
        let (stop, kept) = (self.stop.clone(), self.kept.0.clone());
        let work = move || {
            viewers.serve(&stop, &kept);
            None
        };
        self.threads.push(std::thread::Builder::new().name("outlive-screen".into()).spawn(work)?);
        Ok(())
    }

    /// Passes on what is sent to a detached command.
    pub fn feed(&mut self, input: Input) -> io::Result<()> {
        let (stop, kept) = (self.stop.clone(), self.kept.0.clone());
        let work = move || {
            input.serve(&stop, &kept);
            None
        };
        self.threads.push(std::thread::Builder::new().name("outlive-input".into()).spawn(work)?);
        Ok(())
    }

    /// Waits until what the command has written to its terminal is shown, unless that takes long.
    pub fn flush(&self, screen: &Screen) {
        const TRIES: usize = 200;
        let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        for _ in 0..TRIES {
            let was_unread = is_readable(screen.master().as_fd());
            drop(self.showing.lock().unwrap_or_else(PoisonError::into_inner));
            if !was_unread && !is_readable(screen.master().as_fd()) {
                return;
            }
            let _ = poll(&mut [], Some(&pause));
        }
    }

    /// Takes note of what a detached command writes into its log by itself, as often as `growth` tells that it does.
    pub fn follow(&mut self, recording: &Recording, growth: &Growth) -> io::Result<()> {
        let (stop, kept, recording, growth) =
            (self.stop.clone(), self.kept.0.clone(), recording.clone(), growth.clone());
        let pause = Timespec { tv_sec: 0, tv_nsec: NOTE_EVERY.subsec_nanos().into() };
        let work = move || {
            let mut stopped = false;
            while !stopped {
                let mut fds = [PollFd::new(&*stop, PollFlags::IN), PollFd::new(&growth, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                stopped = !fds[0].revents().is_empty();
                recording.note();
                if !stopped {
                    let _ = poll(&mut fds[..1], Some(&pause));
                }
            }
            let _ = kept.send(());
            None
        };
        self.threads.push(std::thread::Builder::new().name("outlive-notes".into()).spawn(work)?);
        Ok(())
    }

    /// The command has ended: waits until all that it wrote is kept. What others still hold open is not waited for.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        for _ in &self.threads {
            let _ = self.kept.1.recv_timeout(KEPT_WITHIN);
        }
    }

    /// Waits until all that was kept is passed on. What others write later is passed on by a process of its own, so
    /// that they are waited for only by those who would have waited without us. Answers whether all of it was wanted.
    pub fn finish(self) -> bool {
        // A panic of a thread was its own; no caller is left to report it to.
        let joined = self.threads.into_iter().filter_map(|thread| thread.join().ok().flatten());
        let rest: Vec<Rest> = joined.filter(|rest| is_written(&rest.from)).collect();
        let wanted = !self.unwanted.load(Ordering::Relaxed);
        if rest.is_empty() {
            return wanted;
        }
        let pairs = rest.iter().flat_map(|rest| [rest.from.as_fd(), rest.to]);
        let words: Vec<OsString> = ["outlive-pass".into(), PASS.into()]
            .into_iter()
            .chain(pairs.clone().map(|fd| fd.as_raw_fd().to_string().into()))
            .collect();
        let (kept, mask) = (pairs.collect::<Vec<_>>(), SigSet::empty());
        // Without it they learn that no reader is left.
        let environment = Environment::own();
        let start =
            Start { argv: &words, program: None, environment: &environment, mask: &mask, placed: &[], kept: &kept };
        let _ = start.ourselves();
        wanted
    }
}

/// Whether a process can still write to what is read from here.
fn is_written(from: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    !fds[0].revents().contains(PollFlags::HUP)
}

/// Passes on what is left of the streams of a command that has ended, where this program was started for that.
pub fn pass_on(words: &[OsString]) -> Option<u8> {
    let numbers =
        words.strip_prefix(&words[..1]).and_then(<[OsString]>::split_first).filter(|(role, _)| *role == PASS)?.1;
    let fds: Vec<OwnedFd> = numbers.iter().filter_map(|number| handed(number.to_str()?).ok()).collect();
    std::thread::scope(|scope| {
        for pair in fds.chunks_exact(2) {
            scope.spawn(|| {
                let mut buffer = vec![0; CHUNK];
                let _ = set_waiting(&pair[0], true);
                while let Ok(read @ 1..) = rustix::io::read(&pair[0], &mut buffer) {
                    if write_all(&pair[1], &buffer[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Some(0)
}

/// One stream being copied.
struct Copy<Keep> {
    from: OwnedFd,
    to: BorrowedFd<'static>,
    /// It never makes a writer wait for long, and may not know how to refuse to.
    is_file: bool,
    stop: Arc<OwnedFd>,
    keep: Keep,
    /// What is kept and not yet passed on. Nothing is read while there is any: the writer waits for the reader.
    buffer: Vec<u8>,
}

impl<Keep: FnMut(&[u8])> Copy<Keep> {
    fn run(mut self, kept: &Sender<()>) -> Option<Rest> {
        let wanted = self.copy_until_stopped().is_ok();
        if wanted {
            // Bounded by what a pipe holds.
            while self.read().is_ok_and(|read| read > 0) {}
        }
        let _ = kept.send(());
        let Self { from, to, buffer, .. } = self;
        (wanted && write_all(to, &buffer).is_ok()).then_some(Rest { from, to })
    }

    /// Copies until it is asked to stop or nothing can come; an error says that no reader is left.
    fn copy_until_stopped(&mut self) -> rustix::io::Result<()> {
        loop {
            if !self.buffer.is_empty() {
                self.write()?;
            }
            let (read, write) = match self.buffer.is_empty() {
                true => (PollFlags::IN, PollFlags::empty()),
                false => (PollFlags::empty(), PollFlags::OUT),
            };
            let mut fds = [
                PollFd::new(&self.from, read),
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(self.to, write),
            ];
            let _ = poll(&mut fds, None);
            let [source, stop, sink] = fds.map(|fd| fd.revents());
            if !stop.is_empty() {
                return Ok(());
            }
            if sink.contains(PollFlags::ERR) {
                return Err(Errno::PIPE);
            }
            if !source.is_empty() && self.buffer.is_empty() {
                match self.read() {
                    Ok(0) => return Ok(()),
                    Ok(_) => self.write()?,
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    fn read(&mut self) -> rustix::io::Result<usize> {
        let before = self.buffer.len();
        self.buffer.resize(before + CHUNK, 0);
        let read = rustix::io::read(&self.from, &mut self.buffer[before..]);
        self.buffer.truncate(before + read.unwrap_or(0));
        (self.keep)(&self.buffer[before..]);
        read
    }

    /// Passes on as much as can be without waiting.
    fn write(&mut self) -> rustix::io::Result<()> {
        if self.is_file {
            let written = write_all(self.to, &self.buffer);
            self.buffer.clear();
            return written;
        }
        let bytes = [IoSlice::new(&self.buffer)];
        match pwritev2(self.to, &bytes, u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(written) => {
                self.buffer.drain(..written);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::INVAL | Errno::NOSYS) => {
                let written = write_all(self.to, &self.buffer);
                self.buffer.clear();
                written
            }
            Err(error) => Err(error),
        }
    }
}

/// Writes everything, also to a descriptor that would rather not wait.
pub fn write_all(to: impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    let to = to.as_fd();
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets whether reads and writes of a descriptor wait.
pub fn set_waiting(fd: impl AsFd, waits: bool) -> rustix::io::Result<()> {
    let fd = fd.as_fd();
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let flags = if waits { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK };
    rustix::fs::fcntl_setfl(fd, flags)
}
