//! Notifications of a local registry: what changed, for the processes that subscribed to it (ADR 0019).
//!
//! A commit touches a file for each topic that it concerns, and the directory of each run that it changed; subscribers are
//! woken by inotify. Heartbeats touch nothing. A notification is a hint: it may be lost, so a waiting process also polls.

use std::collections::BTreeSet;
use std::fs::{OpenOptions, Permissions};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Mode, Timestamps, UTIME_NOW, utimensat};

use super::SqliteStore;
use super::directory::{RegistryDirectory, Sharing, from_io};
use super::writer_queue::QUEUE;
use crate::model::id::{RunId, WorkerId};
use crate::model::run::{Run, State};
use crate::store::Error;

/// The directory of the files that are touched. The first subscriber makes them: without one there is nothing to touch.
const DIRECTORY: &str = "notify";
const WORK: &str = "notify/work";
const STATES: &str = "notify/states";

/// What a subscriber of [`SqliteStore::watch`](crate::store::sqlite::SqliteStore::watch) is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A run may have become claimable: it was made, released or put back, a key was freed, or a run has ended while
    /// others wait for an end.
    Work,
    /// A run was made or removed, or changed its state, its owner, its cancel request or its archive mark.
    States,
    /// Anything was written but heartbeats.
    Changes,
    /// This run changed in any way.
    Run(RunId),
}

/// What a transaction has changed, collected until it is committed.
#[derive(Debug, Default)]
pub(super) struct Noted {
    work: bool,
    states: bool,
    runs: BTreeSet<RunId>,
}

impl Noted {
    /// Notes a change of a run. `has_dependents` tells whether any run waits for the end of another.
    pub(super) fn note(
        &mut self,
        before: Option<&Run>,
        after: &Run,
        has_dependents: impl FnOnce() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.runs.insert(after.id);
        let is_same = |before: &Run| {
            before.state.name() == after.state.name()
                && before.epoch == after.epoch
                && before.cancel == after.cancel
                && before.archived == after.archived
        };
        self.states |= !before.is_some_and(is_same);
        let waits_anew = matches!(after.state, State::Pending(_)) && before.is_none_or(|run| run.state != after.state);
        let frees_keys = || before.is_some_and(|before| before.held_keys().any(|key| !after.holds(key)));
        let has_ended = || after.ending().is_some() && before.is_none_or(|before| before.ending().is_none());
        self.work = self.work || waits_anew || frees_keys() || (has_ended() && has_dependents()?);
        Ok(())
    }

    /// Notes the deletion of a run.
    pub(super) fn note_deleted(&mut self, id: RunId) {
        self.runs.insert(id);
        self.states = true;
    }

    /// Notifies the subscribers of what was noted.
    pub(super) fn send(self, place: &RegistryDirectory) {
        let touch = |name: &Path| {
            let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let now = Timestamps { last_access: now, last_modification: now };
            // Without a subscriber there is nothing to touch.
            let _ = utimensat(&place.dir, name, &now, AtFlags::SYMLINK_NOFOLLOW);
        };
        for (_, name) in [(self.work, WORK), (self.states, STATES)].into_iter().filter(|(is_meant, _)| *is_meant) {
            touch(Path::new(name));
        }
        self.runs.iter().for_each(|run| touch(&run_path(*run)));
    }
}

fn run_path(run: RunId) -> PathBuf {
    Path::new("runs").join(run.to_string())
}

/// A subscription. Made before looking, so that nothing falls in between.
pub struct Watch {
    events: OwnedFd,
    path: PathBuf,
    topics: Vec<Topic>,
    sharing: Sharing,
}

impl SqliteStore {
    /// Subscribes to these topics from now on.
    pub fn watch(&self, topics: &[Topic]) -> Result<Watch, Error> {
        let failed = |error: rustix::io::Errno| from_io("the registry cannot be watched", &error.into());
        let (path, sharing) = {
            let inner = self.lock()?;
            (inner.place.path().map_err(|error| from_io("the registry is gone", &error))?, inner.place.sharing)
        };
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let watch = Watch { events, path, topics: topics.to_vec(), sharing };
        watch.subscribe(true);
        Ok(watch)
    }
}

/// Something to wait for that becomes readable when there is a request for this worker. It has no name in any directory and
/// costs a short run next to nothing; a request that is none only has the worker beat a little early.
pub(crate) fn bell(worker: WorkerId) -> std::io::Result<OwnedFd> {
    let bell = UnixDatagram::bind_addr(&address(worker)?)?;
    bell.set_nonblocking(true)?;
    Ok(bell.into())
}

/// Notifies a worker of a request. One in another network namespace beats when it is due.
pub(super) fn ring(worker: WorkerId) {
    let rung = UnixDatagram::unbound().and_then(|ringer| {
        ringer.set_nonblocking(true)?;
        ringer.send_to_addr(&[1], &address(worker)?)
    });
    drop(rung);
}

fn address(worker: WorkerId) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("outlive-bell-{worker}"))
}

impl Watch {
    /// Waits for a notification, for at most `timeout`. Answers whether there was one, or may have been: of what was
    /// deleted no more is heard until it is watched again.
    pub fn wait(&self, timeout: Duration) -> bool {
        let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let is_ready = poll(&mut [PollFd::new(&self.events, PollFlags::IN)], Some(&limit)) != Ok(0);
        self.forget();
        is_ready
    }

    /// Forgets the notifications so far. Answers whether there were any.
    pub fn forget(&self) -> bool {
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        let (mut any, mut is_gone) = (false, false);
        while let Ok(event) = events.next() {
            any = true;
            is_gone |= event.events().intersects(gone);
        }
        // What was deleted is made again when nothing more happens: deleting the whole registry is not hindered.
        self.subscribe(!any);
        any && !is_gone
    }

    /// Watches what is touched for each topic; what is watched already stays so.
    fn subscribe(&self, makes: bool) {
        let events = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        for topic in &self.topics {
            let (name, is_made) = match topic {
                Topic::Work => (WORK.into(), true),
                Topic::States => (STATES.into(), true),
                Topic::Changes => (QUEUE.into(), false),
                Topic::Run(run) => (run_path(*run), false),
            };
            let path = self.path.join(name);
            let watched = inotify::add_watch(&self.events, &path, events);
            if makes && is_made && watched == Err(rustix::io::Errno::NOENT) && self.make(&path).is_ok() {
                let _ = inotify::add_watch(&self.events, &path, events);
            }
        }
        if self.topics.contains(&Topic::Changes) {
            // Where no process has written yet, or the queue of writers was deleted, the process that makes it notifies.
            let made = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
            let _ = inotify::add_watch(&self.events, &self.path, made);
        }
    }

    fn make(&self, path: &Path) -> std::io::Result<()> {
        let permit = |path: &Path, mode: Mode| std::fs::set_permissions(path, Permissions::from_mode(mode.bits()));
        let directory = self.path.join(DIRECTORY);
        match std::fs::create_dir(&directory) {
            Ok(()) => permit(&directory, self.sharing.dir_mode())?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        OpenOptions::new().append(true).create_new(true).open(path)?;
        // Whatever the umask: every writer of the registry notifies.
        permit(path, self.sharing.file_mode())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
