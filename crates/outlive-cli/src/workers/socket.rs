//! The socket of a worker: another process of this user has the worker add a run, and neither opens the registry nor commits.
//!
//! It lies in the home, which both must share, and both sides check that the other is this user. A free slot makes the run
//! and owns it in one write, and tells its end. While every slot is busy the worker puts the run into the queue. The caller
//! chooses the id of the run: where no answer comes, it makes the run itself under that id, and there is one run,
//! whichever of them was first. Nothing is decided here: what a run may become is up to the registry.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outlive::host::home::home;
use outlive::registry::{Registry, RequestedRun};
use outlive::time::{Clock, SystemClock};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};
use serde::{Deserialize, Serialize};

use crate::exec::descriptors::wait_for;
use crate::exec::sockets;

/// The directory of the sockets, in the home.
const DIRECTORY: &str = "workers";
/// The longest message. A run that takes more is added without a worker.
const MESSAGE_LIMIT: usize = 64 << 10;
/// How long a caller waits for the word that its run is on disk, before it sees to that itself.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// How long a caller waits here for the end of its run, before it waits as for any other run.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How long a worker waits for the request of a process that has connected.
const REQUEST_WITHIN: Duration = Duration::from_millis(20);
/// How old a request may be that a worker makes a run of. Its caller has long given up by then.
const REQUEST_AGE: Duration = Duration::from_secs(1);
/// A worker answers callers of its own build alone.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a caller asks for.
#[derive(Serialize, Deserialize)]
struct Request<'a> {
    version: &'a str,
    /// The caller, as it knows itself.
    pid: u32,
    run: RequestedRun,
}

/// What a worker answers.
#[derive(Serialize, Deserialize)]
pub enum WorkerAnswer {
    /// The run is on disk.
    Added,
    /// The run was not made, and will not be.
    Refused,
    /// The run has ended, on disk.
    Ended {
        /// What is said of it to people.
        line: String,
        /// The exit status of a process that waits for it.
        exit_status: u8,
    },
}

/// Where the socket of the workers of a registry is.
pub struct Address {
    dir: OwnedFd,
    name: PathBuf,
}

impl Address {
    fn of(registry: &Path) -> io::Result<Self> {
        let registry = std::fs::metadata(registry)?;
        let home = home().ok_or(io::ErrorKind::NotFound)?.join(DIRECTORY);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&home, flags, Mode::empty())?;
        Ok(Self { dir, name: format!("{:x}-{:x}", registry.dev(), registry.ino()).into() })
    }

    /// Where a worker listens for callers of a registry. None where none does.
    pub fn of_worker(registry: &Path) -> Option<Self> {
        Self::of(registry).ok().filter(|address| address.inode().is_some())
    }

    fn inode(&self) -> Option<u64> {
        rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|found| found.st_ino)
    }
}

/// The socket of a worker that stands by. It has no name any more when this is dropped, unless a later worker took that over.
pub struct Listener {
    socket: OwnedFd,
    address: Address,
    inode: Option<u64>,
}

impl Listener {
    /// Listens for callers of a registry in a directory.
    pub fn open(registry: &Registry) -> io::Result<Self> {
        let path = registry.local().ok_or(io::ErrorKind::Unsupported)?.path();
        let home = home().ok_or(io::ErrorKind::NotFound)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home.join(DIRECTORY))?;
        let address = Address::of(path)?;
        let socket = sockets::listen(&address.dir, &address.name, SocketType::SEQPACKET)?;
        let inode = address.inode();
        Ok(Self { socket, address, inode })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.inode.is_some() && self.address.inode() == self.inode {
            let _ = rustix::fs::unlinkat(&self.address.dir, &self.address.name, AtFlags::empty());
        }
    }
}

/// A caller that asked for a run.
pub struct Caller {
    socket: OwnedFd,
    /// Its process.
    pub pid: u32,
}

impl Caller {
    /// Tells it. One that is gone needs no answer.
    pub fn tell(&self, answer: &WorkerAnswer) {
        if let Ok(message) = serde_json::to_vec(answer) {
            let _ = send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Whether it has closed its end. It makes the run itself by then, or wants none: its request stays readable.
    pub fn is_gone(&self) -> bool {
        matches!(recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((0, _)))
    }
}

/// The next request at the socket of a worker, if it is one that `settings` apply to. Others are refused.
pub fn accept(listener: impl AsFd, settings: &Settings) -> Option<(RequestedRun, Caller)> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let pid = sockets::peer(&socket)?.pid().unsigned_abs();
    let caller = Caller { socket, pid };
    wait_for(&[&caller.socket], REQUEST_WITHIN);
    let request = receive(&caller.socket)?;
    let asked = serde_json::from_slice::<Request<'_>>(&request).ok();
    let is_current = |asked: &Request<'_>| asked.version == VERSION && asked.run.age(SystemClock.now()) <= REQUEST_AGE;
    // In another pid namespace the maker of the run would have another pid, and the seal of its command with it.
    let is_here = |asked: &Request<'_>| asked.pid == caller.pid;
    match asked.filter(|asked| is_current(asked) && is_here(asked) && settings.are_current()) {
        Some(asked) => Some((asked.run, caller)),
        None => {
            caller.tell(&WorkerAnswer::Refused);
            None
        }
    }
}

/// Whether a worker of these kinds, or of all where none is named, makes and executes such a run.
pub fn is_taken(registry: &Registry, kinds: &[String], run: &RequestedRun) -> bool {
    let spec = run.spec();
    let is_executable = spec.command.is_some() && spec.withheld.is_none();
    // A call that opens the registry warns that its runs are not signed.
    is_executable && (kinds.is_empty() || kinds.contains(&spec.kind)) && registry.unsigned().is_none()
}

/// A message that is there, and whole.
fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut message = vec![0; MESSAGE_LIMIT];
    let (read, length) = recv(socket, &mut message[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC).ok()?;
    message.truncate(read);
    (length > 0 && length <= MESSAGE_LIMIT).then_some(message)
}

/// The files that a worker has its settings from, as they were when it read them. A call reads them anew: what they say by
/// now is for callers to apply.
pub struct Settings(Vec<(PathBuf, Option<Seen>)>);

/// The inode of a file, its length, and when it was changed.
type Seen = (u64, u64, i64, i64);

impl Settings {
    /// The settings of a registry in a directory, as they are now.
    pub fn of(registry: &Path) -> Self {
        let files = [Some(registry.to_owned()), home()].into_iter().flatten().map(|dir| dir.join("config.toml"));
        Self(files.map(|file| (file.clone(), seen(&file))).collect())
    }

    fn are_current(&self) -> bool {
        self.0.iter().all(|(file, was)| seen(file) == *was)
    }
}

fn seen(file: &Path) -> Option<Seen> {
    let stamp = |found: Metadata| (found.ino(), found.len(), found.ctime(), found.ctime_nsec());
    std::fs::metadata(file).ok().map(stamp)
}

/// A worker that has added a run, as its caller sees it.
pub struct Worker(OwnedFd);

/// What a caller knows of its run after it has asked.
pub enum RequestStatus {
    /// It is on disk.
    Added(Worker),
    /// It was not made.
    Refused,
    /// No answer came: it may be made. From here on no worker begins to make it.
    Unknown,
}

impl Worker {
    /// Asks the worker there to add a run. The message is written before the worker is connected to: from then on a slot
    /// waits for it.
    pub fn ask(address: &Address, run: &RequestedRun) -> RequestStatus {
        let request = Request { version: VERSION, pid: std::process::id(), run: run.clone() };
        let request = serde_json::to_vec(&request).unwrap_or_default();
        if request.is_empty() || request.len() > MESSAGE_LIMIT {
            return RequestStatus::Refused;
        }
        let Address { dir, name } = address;
        let Ok(socket) = sockets::connect(dir, name, SocketType::SEQPACKET, SocketFlags::NONBLOCK) else {
            return RequestStatus::Refused;
        };
        if send(&socket, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            return RequestStatus::Refused;
        }
        let worker = Self(socket);
        match worker.answer(ANSWER_WITHIN) {
            Some(WorkerAnswer::Added) => RequestStatus::Added(worker),
            Some(WorkerAnswer::Refused) => RequestStatus::Refused,
            Some(WorkerAnswer::Ended { .. }) | None => RequestStatus::Unknown,
        }
    }

    /// Waits for the end of the run that it has added. None where that takes long, or the worker is gone.
    pub fn end(&self) -> Option<(String, u8)> {
        match self.answer(END_WITHIN)? {
            WorkerAnswer::Ended { line, exit_status } => Some((line, exit_status)),
            _ => None,
        }
    }

    fn answer(&self, within: Duration) -> Option<WorkerAnswer> {
        wait_for(&[&self.0], within);
        serde_json::from_slice(&receive(&self.0)?).ok()
    }
}
