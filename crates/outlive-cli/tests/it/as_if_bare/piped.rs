//! Commands without a terminal: run by a shell that sets the stage, seen by their streams, files and wait status.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::place::{Deadline, Dir, Place, Way};

/// Megabytes of the longest noise.
pub(super) const NOISY: usize = 64;

/// A command and its stage.
///
/// The script is given to `sh`. Where it says `"$@"`, it says nothing if bare and `outlive run --` if wrapped.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) name: Cow<'static, str>,
    script: Cow<'static, str>,
    stdin: Stdin,
    streams: Streams,
    needs: Option<&'static str>,
    settle: fn(&str) -> String,
}

/// What the script reads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stdin {
    Null,
    /// A pipe with this many megabytes of noise.
    Noise(usize),
    /// The same from a socket.
    Socket(usize),
}

/// What the script writes to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Streams {
    /// A pipe for each.
    Pipes,
    /// One pipe for both.
    OnePipe,
    /// A file for each.
    Files,
    /// A socket for each.
    Sockets,
}

/// What a user could see of it.
#[derive(PartialEq, Eq)]
pub(super) struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    raw_status: i32,
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Case {
    pub(super) const fn new(name: &'static str, script: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            script: Cow::Borrowed(script),
            stdin: Stdin::Null,
            streams: Streams::Pipes,
            needs: None,
            settle: str::to_owned,
        }
    }

    pub(super) fn made(name: String, script: String) -> Self {
        Self { name: name.into(), script: script.into(), ..Self::new("", "") }
    }

    pub(super) const fn reads(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    pub(super) const fn writes(mut self, streams: Streams) -> Self {
        self.streams = streams;
        self
    }

    /// It cannot be run where this program is not.
    pub(super) const fn needs(mut self, program: &'static str) -> Self {
        self.needs = Some(program);
        self
    }

    /// What it says is made equal by this where it may differ.
    pub(super) const fn settled_by(mut self, settle: fn(&str) -> String) -> Self {
        self.settle = settle;
        self
    }

    /// The differences, or why there was nothing to compare.
    pub(super) fn compare(&self, place: &Place) -> Result<Vec<String>, String> {
        if let Some(program) = self.needs.filter(|program| !super::is_installed(program)) {
            return Err(format!("`{program}` is not installed"));
        }
        Ok(match (self.run(place, Way::Bare), self.run(place, Way::Wrapped)) {
            (Some(bare), Some(wrapped)) => bare.differences(&wrapped),
            (bare, wrapped) => vec![format!("did it end? bare: {}, wrapped: {}", bare.is_some(), wrapped.is_some())],
        })
    }

    /// Nothing where it does not end.
    fn run(&self, place: &Place, way: Way) -> Option<Seen> {
        let dir = place.empty(&self.name);
        let (child, streams) = self.start(place, &dir, way);
        // Whatever is left of it may keep its streams open: that is waited for as a user would, but not for ever.
        let deadline = Deadline::of(&self.name, way);
        let ended = ends(&child, &deadline) && deadline.until(|| streams.iter().all(JoinHandle::is_finished));
        if !ended {
            dir.kill_what_is_left();
        }
        let [stdout, stderr] = streams.map(|stream| stream.join().unwrap());
        let raw_status = { child }.wait().unwrap().into_raw();
        let settle =
            |bytes: Vec<u8>| std::str::from_utf8(&bytes).map(|text| (self.settle)(text).into()).unwrap_or(bytes);
        let mut files = dir.files();
        for (_, (_, bytes)) in files.iter_mut().filter(|(name, _)| ["out", "err"].contains(&name.as_str())) {
            *bytes = settle(std::mem::take(bytes));
        }
        ended.then(|| Seen { stdout: settle(stdout), stderr: settle(stderr), raw_status, files })
    }

    fn start(&self, place: &Place, dir: &Dir, way: Way) -> (Child, [JoinHandle<Vec<u8>>; 2]) {
        let mut command = place.command(dir, ["sh", "-c", &self.script, "sh"]);
        command.args(way.words()).process_group(0);
        let mut feed: Option<(Box<dyn Write + Send>, usize)> = None;
        match self.stdin {
            Stdin::Null => {}
            Stdin::Noise(megabytes) => {
                let (theirs, ours) = std::io::pipe().unwrap();
                command.stdin(theirs);
                feed = Some((Box::new(ours), megabytes));
            }
            Stdin::Socket(megabytes) => {
                let (theirs, ours) = UnixStream::pair().unwrap();
                command.stdin(OwnedFd::from(theirs));
                feed = Some((Box::new(ours), megabytes));
            }
        }
        let file = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
        let streams: [Box<dyn Read + Send>; 2] = match self.streams {
            Streams::Pipes => {
                let ((out, theirs_out), (err, theirs_err)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
                command.stdout(theirs_out).stderr(theirs_err);
                [Box::new(out), Box::new(err)]
            }
            Streams::OnePipe => {
                let (both, theirs) = std::io::pipe().unwrap();
                command.stdout(theirs.try_clone().unwrap()).stderr(theirs);
                [Box::new(both), Box::new(std::io::empty())]
            }
            Streams::Files => {
                command.stdout(file("out")).stderr(Stdio::from(file("err")));
                [Box::new(std::io::empty()), Box::new(std::io::empty())]
            }
            Streams::Sockets => {
                let ((out, theirs_out), (err, theirs_err)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
                command.stdout(OwnedFd::from(theirs_out)).stderr(OwnedFd::from(theirs_err));
                [Box::new(out), Box::new(err)]
            }
        };
        let child = command.spawn().unwrap();
        // Its ends of the streams are ours no longer.
        drop(command);
        if let Some((mut writer, megabytes)) = feed {
            // A command that does not read it breaks the pipe.
            std::thread::spawn(move || writer.write_all(noise(megabytes)));
        }
        (child, streams.map(|stream| std::thread::spawn(move || all_of(stream))))
    }
}

/// Waits for the end of a process, without collecting it. Whether it came.
pub(super) fn ends(child: &Child, deadline: &Deadline) -> bool {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    while let Some(left) = deadline.left() {
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0) {
            return true;
        }
    }
    false
}

/// Reads to the end. A socket whose other end was closed with something unread has an end as well.
fn all_of(mut stream: Box<dyn Read + Send>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Bytes without a pattern, the same each time.
fn noise(megabytes: usize) -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = Vec::with_capacity(NOISY << 20);
        while bytes.len() < NOISY << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes
    });
    &noise[..megabytes << 20]
}

impl Seen {
    fn differences(&self, wrapped: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.raw_status != wrapped.raw_status {
            found.push(format!("wait status: bare {:#06x}, wrapped {:#06x}", self.raw_status, wrapped.raw_status));
        }
        found.extend(difference("stdout", &self.stdout, &wrapped.stdout));
        found.extend(difference("stderr", &self.stderr, &wrapped.stderr));
        found.extend(differences_of_files(&self.files, &wrapped.files));
        found
    }
}

pub(super) fn differences_of_files(
    bare: &BTreeMap<String, (u32, Vec<u8>)>,
    wrapped: &BTreeMap<String, (u32, Vec<u8>)>,
) -> Vec<String> {
    let mut found = Vec::new();
    let names: std::collections::BTreeSet<&String> = bare.keys().chain(wrapped.keys()).collect();
    for name in names {
        match (bare.get(name), wrapped.get(name)) {
            (Some((mode, bytes)), Some((wrapped_mode, wrapped_bytes))) => {
                if mode != wrapped_mode {
                    found.push(format!("mode of `{name}`: bare {mode:o}, wrapped {wrapped_mode:o}"));
                }
                found.extend(difference(&format!("file `{name}`"), bytes, wrapped_bytes));
            }
            (bare, _) => {
                let way = if bare.is_some() { "bare" } else { "wrapped" };
                let (_, bytes) = bare.or(wrapped.get(name)).unwrap();
                found.push(format!("file `{name}` only {way}: {}", shown(bytes, 0)));
            }
        }
    }
    found
}

/// Where two texts part, with a little of both.
pub(super) fn difference(what: &str, bare: &[u8], wrapped: &[u8]) -> Option<String> {
    if bare == wrapped {
        return None;
    }
    let same = bare.iter().zip(wrapped).take_while(|(a, b)| a == b).count();
    let line =
        bare[..same].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1).max(same.saturating_sub(120));
    let (a, b) = (shown(bare, line), shown(wrapped, line));
    let lengths = format!("{} and {} bytes, the first {same} are equal", bare.len(), wrapped.len());
    Some(format!("{what} ({lengths})\n      bare    {a}\n      wrapped {b}"))
}

fn shown(bytes: &[u8], from: usize) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[from..bytes.len().min(from + 300)]))
}
