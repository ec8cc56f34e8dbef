//! Processes: who one is, whether it still lives, and on what evidence.
//!
//! A pid says little: it is reused, means something else in another namespace, and answers for a zombie. So an
//! [`Identity`] records everything that tells one process from all others of this boot, and [`Identity::probe`]
//! compares. The strongest evidence needs no pid at all: a worker holds a lock on a file of its own, and the kernel
//! frees it when the last process that inherited it is gone. Only full evidence is [`Liveness::Dead`]; whatever could
//! not be seen is [`Liveness::Unknown`]. A probe never sends a signal.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::model::owner::{Evidence, HostContext, Identity, Liveness};

use super::fork::PerProcess;

/// The variable that every process of a run has in its environment: its run's id.
pub const RUN_VARIABLE: &str = "OUTLIVE_RUN_ID";
/// The variable that says which registry that run is of: a copied one has runs of the same ids.
pub const REGISTRY_ID_VARIABLE: &str = "OUTLIVE_REGISTRY_ID";
/// The variable that holds the number of the attempt.
pub const ATTEMPT_VARIABLE: &str = "OUTLIVE_ATTEMPT";
/// The variable that holds the epoch of the attempt.
pub const EPOCH_VARIABLE: &str = "OUTLIVE_EPOCH";
/// The variable that holds the id of the step that a process belongs to, where it belongs to one.
pub const STEP_VARIABLE: &str = "OUTLIVE_STEP_ID";
/// The variable that names the file in which a command declares the outcome of its run.
pub const OUTCOME_VARIABLE: &str = "OUTLIVE_OUTCOME";

impl HostContext {
    /// Where this process stands. What cannot be read is left empty, and nothing empty proves a death. It is read once
    /// per process: a process stays in its boot and its namespaces, and its child may be in others.
    pub fn here() -> Self {
        static HERE: PerProcess<HostContext> = PerProcess::new();
        HERE.get_or_init(Self::look).clone()
    }

    fn look() -> Self {
        let namespace = |name| fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |found| found.ino());
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into(),
            boot_id: read_proc("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into(),
            pid_ns: namespace("pid"),
            time_ns: namespace("time"),
        }
    }
}

impl Identity {
    /// This process.
    pub fn own() -> Self {
        let pid = rustix::process::getpid();
        Self::of(pid.as_raw_nonzero().get().unsigned_abs()).unwrap_or_else(|_| Self {
            vantage: HostContext::here(),
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
            start_ticks: 0,
            pidfs_inode: None,
            lock_inode: None,
        })
    }

    /// The process that has `pid` now.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::seen_from(HostContext::here(), pid)
    }

    /// The process that has `pid` where we stand.
    pub(crate) fn seen_from(vantage: HostContext, pid: u32) -> io::Result<Self> {
        let fd = open_pidfd(pid)?;
        let stat = read_stat(pid)?;
        Ok(Self { vantage, pid, start_ticks: stat.start_ticks, pidfs_inode: pidfs_inode(&fd), lock_inode: None })
    }

    /// Whether this process still lives, seen from `from`.
    #[doc(hidden)]
    pub fn probe(&self, from: &HostContext) -> Liveness {
        self.examine(from).map_or_else(|outcome| outcome, |_| Liveness::Alive)
    }

    /// Sends `signal`, if and only if the process that has the pid is proven to be this one.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.examine(&HostContext::here()) {
            Ok(fd) => Ok(pidfd_send_signal(&fd, signal)?),
            Err(Liveness::Dead(_)) => Err(Errno::SRCH.into()),
            Err(outcome) => Err(io::Error::other(format!("not proven to be the same process: {outcome}"))),
        }
    }

    /// Something that becomes readable when the process ends, if it is proven to be this one and alive.
    pub fn watch(&self) -> Option<OwnedFd> {
        self.examine(&HostContext::here()).ok()
    }

    /// A handle on the living process, or the outcome that it is not one.
    fn examine(&self, from: &HostContext) -> Result<OwnedFd, Liveness> {
        let unknown = |why: &str| Err(Liveness::Unknown(why.into()));
        if self.vantage.boot_id.is_empty() || from.boot_id.is_empty() {
            return unknown("the boot id could not be read");
        }
        if self.vantage.boot_id != from.boot_id {
            return Err(Liveness::Dead(Evidence::OtherBoot {
                recorded: self.vantage.boot_id.to_string(),
                current: from.boot_id.to_string(),
            }));
        }
        if self.vantage.pid_ns != from.pid_ns || from.pid_ns == 0 {
            return unknown("it lives in another pid namespace");
        }
        let fd = match open_pidfd(self.pid) {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                return Err(Liveness::Dead(Evidence::NoSuchProcess { pid: self.pid }));
            }
            Err(error) => return Err(Liveness::Unknown(format!("pid {} could not be opened: {error}", self.pid))),
        };
        match (self.pidfs_inode, pidfs_inode(&fd)) {
            (Some(recorded), Some(current)) if recorded != current => {
                Err(Liveness::Dead(Evidence::PidReused { pid: self.pid }))
            }
            (Some(_), Some(_)) if has_exited(&fd) => Err(Liveness::Dead(Evidence::Zombie { pid: self.pid })),
            (Some(_), Some(_)) => Ok(fd),
            _ => Err(self.compare_start(from, &fd)),
        }
    }

    /// Without pidfs a start time can prove that a process is gone, never that it is the same: a pid can be reused
    /// within one tick.
    fn compare_start(&self, from: &HostContext, fd: &OwnedFd) -> Liveness {
        if self.vantage.time_ns != from.time_ns || from.time_ns == 0 {
            return Liveness::Unknown("it lives in another time namespace".into());
        }
        match read_stat(self.pid) {
            Ok(stat) if stat.start_ticks != self.start_ticks => Liveness::Dead(Evidence::PidReused { pid: self.pid }),
            Ok(_) if has_exited(fd) => Liveness::Dead(Evidence::Zombie { pid: self.pid }),
            Ok(_) => Liveness::Unknown("a pid and a start time do not prove that it is the same process".into()),
            Err(error) => Liveness::Unknown(format!("pid {} could not be read: {error}", self.pid)),
        }
    }
}

pub(super) fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The process's inode in pidfs; none on kernels where every pidfd shares one.
pub(super) fn pidfs_inode(fd: &OwnedFd) -> Option<u64> {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let kind = rustix::fs::fstatfs(fd).ok()?;
    (kind.f_type as u64 == PIDFS_MAGIC).then(|| fstat(fd).ok().map(|stat| stat.st_ino))?
}

/// Whether all threads of the process are gone: a zombie, and not merely an exited first thread.
pub(super) fn has_exited(fd: &OwnedFd) -> bool {
    wait_exited(fd, Duration::ZERO)
}

/// What the kernel says of a process.
pub(super) struct Stat {
    pub(super) has_ended: bool,
    pub(super) parent: u32,
    pub(super) session: u32,
    pub(super) start_ticks: u64,
    /// How it ended, as its parent learns it; known only while it is a zombie.
    pub(super) status: Option<i32>,
}

pub(super) fn read_stat(pid: u32) -> io::Result<Stat> {
    parse_stat(&read_whole(format!("/proc/{pid}/stat"))?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What the kernel says in a file of its own.
pub fn read_proc(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read_whole(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Such a file says of itself that it is empty, and a reader who believes that asks for a few bytes at a time.
fn read_whole(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    const MOSTLY: usize = 4 << 10;
    let mut bytes = Vec::with_capacity(MOSTLY);
    fs::File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A process may call itself anything, `) R 1 1 (` included: the fields begin after the last parenthesis.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[end + 1..]).ok()?.split_ascii_whitespace().collect();
    // The third field of the line is the first behind the name.
    let field = |number: usize| fields.get(number - 3).copied();
    let zombie = field(3)? == "Z";
    Some(Stat {
        has_ended: zombie || field(3)? == "X",
        parent: field(4)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        status: field(52).filter(|_| zombie).and_then(|status| status.parse().ok()),
    })
}

pub(super) fn wait_exited(fd: &OwnedFd, timeout: Duration) -> bool {
    let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(ready) if ready > 0)
}

/// Waits until a process is gone, for at most `timeout`.
pub fn wait_gone(identity: &Identity, timeout: Duration) -> bool {
    match identity.examine(&HostContext::here()) {
        Ok(fd) => wait_exited(&fd, timeout),
        Err(outcome) => matches!(outcome, Liveness::Dead(_)),
    }
}

/// Every process, also those that are born while the others are looked at, as far as that comes to an end.
pub(super) fn pids() -> impl Iterator<Item = u32> {
    const LISTS: usize = 16;
    let list = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let mut known = HashSet::new();
    std::iter::repeat_with(move || {
        let mut born: Vec<u32> = list().filter(|pid| known.insert(*pid)).collect();
        born.sort_unstable();
        born
    })
    .take(LISTS)
    .take_while(|born| !born.is_empty())
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (Identity, HostContext) {
        (Identity::own(), HostContext::here())
    }

    fn sleeper() -> (std::process::Child, Identity) {
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        (child, identity)
    }

    #[test]
    fn a_living_process_is_alive() {
        let (identity, here) = own();
        assert_eq!(identity.probe(&here), Liveness::Alive);
    }

    #[test]
    fn f_06_a_zombie_is_dead_and_so_is_a_collected_one() {
        let (mut child, identity) = sleeper();
        assert_eq!(identity.probe(&HostContext::here()), Liveness::Alive);
        child.kill().unwrap();
        let fd = open_pidfd(identity.pid).unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        assert_eq!(identity.probe(&HostContext::here()), Liveness::Dead(Evidence::Zombie { pid: identity.pid }));
        child.wait().unwrap();
        assert_eq!(identity.probe(&HostContext::here()), Liveness::Dead(Evidence::NoSuchProcess { pid: identity.pid }));
    }

    #[test]
    fn f_05_a_reused_pid_is_recognised_by_its_pidfs_inode_or_start() {
        let (mut identity, here) = own();
        let reused = Liveness::Dead(Evidence::PidReused { pid: identity.pid });
        identity.pidfs_inode = identity.pidfs_inode.map(|inode| inode + 1);
        assert_eq!(identity.probe(&here), reused);
        identity.pidfs_inode = None;
        assert!(matches!(identity.probe(&here), Liveness::Unknown(_)), "a start time alone proved a life");
        identity.start_ticks += 1;
        assert_eq!(identity.probe(&here), reused);
    }

    #[test]
    fn f_07_the_name_of_a_process_cannot_forge_its_start() {
        let honest = b"42 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 259611 0 0";
        let forged = b"42 () R 1 1 () S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 259611 0 0";
        assert_eq!(parse_stat(honest).unwrap().start_ticks, 259_611);
        assert_eq!(parse_stat(forged).unwrap().start_ticks, 259_611);
        assert!(parse_stat(b"").is_none());
    }

    #[test]
    fn f_08_f_09_f_11_what_another_vantage_can_and_cannot_tell() {
        let (identity, here) = own();
        let unknown = |from: &HostContext, identity: &Identity| matches!(identity.probe(from), Liveness::Unknown(_));
        let other_pids = HostContext { pid_ns: here.pid_ns + 1, ..here.clone() };
        assert!(unknown(&other_pids, &identity));
        let other_times = HostContext { time_ns: here.time_ns + 1, ..here.clone() };
        let without_pidfs = Identity { pidfs_inode: None, ..identity.clone() };
        assert!(unknown(&other_times, &without_pidfs));
        let blind = HostContext { boot_id: "".into(), ..here.clone() };
        assert!(unknown(&blind, &identity));
        let rebooted = HostContext { boot_id: "another".into(), ..here };
        assert!(matches!(identity.probe(&rebooted), Liveness::Dead(Evidence::OtherBoot { .. })));
    }

    #[test]
    fn a_signal_reaches_only_the_proven_process() {
        let (mut child, identity) = sleeper();
        let stranger = Identity { start_ticks: 1, pidfs_inode: Some(1), ..identity.clone() };
        assert!(stranger.signal(Signal::KILL).is_err());
        let elsewhere = Identity { vantage: HostContext { pid_ns: 1, ..identity.vantage.clone() }, ..identity.clone() };
        assert!(elsewhere.signal(Signal::KILL).is_err());
        assert_eq!(identity.probe(&HostContext::here()), Liveness::Alive);
        identity.signal(Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
