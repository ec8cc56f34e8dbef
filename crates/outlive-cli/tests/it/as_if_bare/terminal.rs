//! Commands with a terminal: a person's hands and eyes on a pseudo-terminal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};

use super::piped::{difference, differences_of_files, ends};
use super::place::{Deadline, Dir, Place, Way};
use crate::sandbox::is_alive;

/// Something a person does at a terminal.
pub(super) struct Session {
    pub(super) name: &'static str,
    /// The file `prog`, a script for `sh`.
    pub(super) prog: &'static str,
    pub(super) on: On,
    pub(super) steps: &'static [Step],
    pub(super) needs: Option<&'static str>,
    /// In which order things are shown depends on who is faster, typist, shell or command; only the files are compared.
    pub(super) unseen: bool,
}

/// What the terminal is given to.
#[derive(Clone, Copy)]
pub(super) enum On {
    /// A shell with job control.
    Bash,
    /// A script for `sh`, in which `"$@"` stands for `outlive run --` or nothing; how it ended is shown at its end.
    Sh(&'static str),
}

/// One thing that is done, or waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// Types this, with `RUN ` as whoever types the command bare or wrapped would.
    Type(&'static str),
    /// Waits until this is shown, after all that was waited for before.
    Await(&'static str),
    /// Waits until this has been shown, before or after what else was waited for.
    AwaitAnywhere(&'static str),
    /// Makes it this many rows and columns.
    Resize(u16, u16),
    /// Closes the terminal.
    HangUp,
    /// Tells the command to go on, by the pipe `go` that it reads.
    Go,
    /// Waits until this file is there, with something in it.
    AwaitFile(&'static str),
    /// Waits until the process whose pid is in this file is gone.
    AwaitGone(&'static str),
    /// Waits for the end of what the terminal was given to.
    AwaitEnd,
    /// Kills what was started in the foreground.
    Kill(Signal),
    /// Takes these, one after the other.
    Each(&'static [Step]),
}

const SIZE: Winsize = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };

/// How often a command is run bare before it is said that it never does what the wrapped one did.
const BARE: usize = 3;

impl Session {
    /// The differences, or why there was nothing to compare.
    pub(super) fn compare(&self, place: &Place) -> Result<Vec<String>, String> {
        let needed = [Some("setsid"), Some("bash"), self.needs];
        if let Some(program) = needed.into_iter().flatten().find(|program| !super::is_installed(program)) {
            return Err(format!("`{program}` is not installed"));
        }
        let (bare, wrapped) = (self.run(place, Way::Bare), self.run(place, Way::Wrapped));
        let found = self.differences(&bare, &wrapped);
        // What the bare command does at times, nobody can tell by.
        let at_times = |_: &usize| self.differences(&self.run(place, Way::Bare), &wrapped).is_empty();
        if !found.is_empty() && (1..BARE).any(|time| at_times(&time)) {
            println!("{}: bare it is not always the same, and at times this", self.name);
            return Ok(Vec::new());
        }
        Ok(found)
    }

    fn differences(&self, bare: &Seen, wrapped: &Seen) -> Vec<String> {
        let mut found = Vec::new();
        if bare.in_vain != wrapped.in_vain {
            let [a, b] = [bare, wrapped].map(|seen| seen.in_vain.clone().unwrap_or("nothing".into()));
            found.push(format!("waited in vain for: bare {a}, wrapped {b}"));
        }
        if let Some(in_vain) = &bare.in_vain {
            found.push(format!("the bare command does not do that: {in_vain}\n{}", bare.screen));
        }
        if !self.unseen {
            found.extend(difference("screen", bare.screen.as_bytes(), wrapped.screen.as_bytes()));
        }
        found.extend(differences_of_files(&bare.files, &wrapped.files));
        found
    }

    fn run(&self, place: &Place, way: Way) -> Seen {
        let dir = place.empty(self.name);
        std::fs::write(dir.path().join("prog"), self.prog).unwrap();
        nix::unistd::mkfifo(&dir.path().join("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut terminal = Terminal::open(place, &dir, self.on, way);
        let in_vain =
            self.steps.iter().find(|step| !terminal.does(step, &dir, way, self.name)).map(|step| format!("{step:?}"));
        let screen = if in_vain.is_some() { &terminal.shown[..] } else { &terminal.shown[..terminal.read] };
        let screen = settled(&String::from_utf8_lossy(screen));
        let mut files = dir.files();
        files.retain(|name, _| !name.starts_with("pid"));
        dir.kill_what_is_left();
        Seen { screen, files, in_vain }
    }
}

/// What a user could see of it.
struct Seen {
    screen: String,
    files: BTreeMap<String, (u32, Vec<u8>)>,
    /// What did not happen.
    in_vain: Option<String>,
}

/// A pseudo-terminal, and what was given to it.
struct Terminal {
    master: Option<File>,
    child: Child,
    /// All that was shown.
    shown: Vec<u8>,
    /// How much of it was waited for.
    read: usize,
}

impl Terminal {
    fn open(place: &Place, dir: &Dir, on: On, way: Way) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        tcsetwinsize(&pty.master, SIZE).unwrap();
        rustix::io::fcntl_setfd(&pty.master, rustix::io::FdFlags::CLOEXEC).unwrap();
        rustix::io::fcntl_setfd(&pty.slave, rustix::io::FdFlags::CLOEXEC).unwrap();
        // A session of its own, with this as its terminal.
        let mut words: Vec<std::ffi::OsString> = vec!["setsid".into(), "--ctty".into()];
        match on {
            On::Bash => words.extend(["bash", "--norc", "--noprofile", "-i"].map(Into::into)),
            On::Sh(script) => {
                let script = format!("{script}\necho \"status $?\"; read end");
                words.extend(["sh".into(), "-c".into(), script.into(), "sh".into()]);
                words.extend(way.words());
            }
        }
        let stream = |slave: &OwnedFd| Stdio::from(slave.try_clone().unwrap());
        let mut command = place.command(dir, &words);
        command.stdin(stream(&pty.slave)).stdout(stream(&pty.slave)).stderr(stream(&pty.slave));
        let child = command.spawn().unwrap();
        Self { master: Some(pty.master.into()), child, shown: Vec::new(), read: 0 }
    }

    /// Takes a step. Whether it came to its end.
    fn does(&mut self, step: &Step, dir: &Dir, way: Way, name: &'static str) -> bool {
        let deadline = &Deadline::of(name, way);
        let pid_in = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok()?.trim().parse::<u32>().ok();
        match *step {
            Step::Type(text) => {
                let text = text.replace("RUN ", way.typed());
                self.master.as_ref().is_some_and(|mut master| master.write_all(text.as_bytes()).is_ok())
            }
            Step::Await(text) => self.shows(text, deadline),
            Step::AwaitAnywhere(text) => {
                let read = std::mem::take(&mut self.read);
                let shown = self.shows(text, deadline);
                self.read = read.max(self.read);
                shown
            }
            Step::Resize(ws_row, ws_col) => {
                tcsetwinsize(self.master.as_ref().unwrap(), Winsize { ws_row, ws_col, ..SIZE }).is_ok()
            }
            Step::HangUp => self.master.take().is_some(),
            Step::Go => {
                // Opened for both, it waits for nobody.
                let pipe = File::options().read(true).write(true).open(dir.path().join("go"));
                pipe.is_ok_and(|mut pipe| pipe.write_all(b"\n").is_ok())
            }
            Step::AwaitFile(file) => {
                deadline.until(|| std::fs::metadata(dir.path().join(file)).is_ok_and(|file| file.len() > 0))
            }
            Step::AwaitGone(file) => deadline.until(|| pid_in(file).is_some_and(|pid| !is_alive(pid))),
            Step::AwaitEnd => ends(&self.child, deadline),
            Step::Kill(signal) => {
                let leader = self.master.as_ref().and_then(|master| tcgetpgrp(master).ok());
                let shell = Pid::from_raw(self.child.id().cast_signed());
                leader
                    .filter(|leader| Some(*leader) != shell)
                    .is_some_and(|leader| kill_process(leader, signal).is_ok())
            }
            Step::Each(steps) => steps.iter().all(|step| self.does(step, dir, way, name)),
        }
    }

    /// Reads on until this is shown.
    fn shows(&mut self, text: &str, deadline: &Deadline) -> bool {
        loop {
            let found = self.shown[self.read..].windows(text.len()).position(|shown| shown == text.as_bytes());
            if let Some(at) = found {
                self.read += at + text.len();
                return true;
            }
            let (Some(left), Some(mut master)) = (deadline.left(), self.master.as_ref()) else { return false };
            let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            if poll(&mut [PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN)], Some(&limit)).unwrap_or(0) == 0 {
                return false;
            }
            let mut bytes = [0; 4096];
            match master.read(&mut bytes) {
                Ok(0) | Err(_) => return false,
                Ok(count) => self.shown.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was shown, with what differs between two processes or two terminals made equal.
fn settled(shown: &str) -> String {
    let mut settled = String::new();
    for line in shown.replace('\r', "").replace("outlive run -- ", "").split('\n') {
        // `[1] 4711` is what a shell says of a job in the background.
        let job = line.strip_prefix("[1] ").filter(|pid| !pid.is_empty() && pid.bytes().all(|c| c.is_ascii_digit()));
        settled.push_str(if job.is_some() { "[1] PID" } else { line });
        settled.push('\n');
    }
    while let Some((before, after)) = settled.split_once("/dev/pts/").map(|(a, b)| (a.to_owned(), b.to_owned())) {
        settled = format!("{before}a terminal{}", after.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    settled
}
