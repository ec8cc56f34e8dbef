//! Processes: who one is, whether it still lives, and on what evidence.
//!
//! A pid says little: it is reused, means something else in another namespace, and answers for a zombie. So an
//! [`Identity`] records everything that tells one process from all others of this boot, and [`Identity::probe`]
//! compares. The strongest evidence needs no pid at all: a worker holds a lock on a file of its own, and the kernel
//! frees it when the last process that inherited it is gone. Only full evidence is [`Liveness::Dead`]; whatever could
//! not be seen is [`Liveness::Unknown`]. A probe never sends a signal.

pub(crate) mod attempts;
mod command;
mod fork;
mod group;
mod ladder;
mod lock;
mod tree;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::time::show_duration;

use self::tree::owns_a_detached_run;

pub use self::command::Command;
pub(crate) use self::fork::{MadeBy, PerProcess};
pub use self::group::{Group, leave_group, may_have_group};
pub(crate) use self::group::{attempts_nearby, name_of};
pub use self::ladder::weigh;
pub use self::lock::{FileId, LifeLock, LockState, file_id, has_open, holders, holds, id_of, lock_state, worker_lock};
pub use self::tree::{DETACHED, GONE_WITHIN, Member, Tree, carriers};

/// The variable that every process of a run has in its environment: its run's id.
pub const RUN_VARIABLE: &str = "OUTLIVE_RUN_ID";
/// The variable that says which registry that run is of: a copied one has runs of the same ids.
pub const REGISTRY_ID_VARIABLE: &str = "OUTLIVE_REGISTRY_ID";

/// Where a process stands: what a pid or a start time means there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vantage {
    /// The host's name: a label.
    pub host: Arc<str>,
    /// Changes with every boot.
    pub boot_id: Arc<str>,
    /// The pid namespace.
    pub pid_ns: u64,
    /// The time namespace, which shifts start times.
    pub time_ns: u64,
}

impl Vantage {
    /// Where this process stands. What cannot be read is left empty, and nothing empty proves a death. It is read once
    /// per process: a process stays in its boot and its namespaces, and its child may be in others.
    pub fn here() -> Self {
        static HERE: PerProcess<Vantage> = PerProcess::new();
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

/// One process, told from all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Identity {
    /// Where it stands.
    #[serde(flatten)]
    pub vantage: Vantage,
    /// Its pid there.
    pub pid: u32,
    /// When it started, in clock ticks since boot. Alone it collides within a tick.
    pub start_ticks: u64,
    /// Its inode in pidfs, never reused within a boot. Only kernels from 6.9 on have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pidfs_inode: Option<u64>,
    /// The inode of the lock it holds, if it holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_inode: Option<u64>,
}

/// An identity as it is read back: as flat as it is written.
#[derive(Deserialize)]
struct Stored {
    host: Arc<str>,
    boot_id: Arc<str>,
    pid_ns: u64,
    time_ns: u64,
    pid: u32,
    start_ticks: u64,
    #[serde(default)]
    pidfs_inode: Option<u64>,
    #[serde(default)]
    lock_inode: Option<u64>,
}

impl From<Stored> for Identity {
    fn from(stored: Stored) -> Self {
        let Stored { host, boot_id, pid_ns, time_ns, pid, start_ticks, pidfs_inode, lock_inode } = stored;
        Self { vantage: Vantage { host, boot_id, pid_ns, time_ns }, pid, start_ticks, pidfs_inode, lock_inode }
    }
}

impl Identity {
    /// This process.
    pub fn own() -> Self {
        let pid = rustix::process::getpid();
        Self::of(pid.as_raw_nonzero().get().unsigned_abs()).unwrap_or_else(|_| Self {
            vantage: Vantage::here(),
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
            start_ticks: 0,
            pidfs_inode: None,
            lock_inode: None,
        })
    }

    /// A process of which nothing is on record. What is left empty proves nothing.
    pub fn unknown() -> Self {
        let vantage = Vantage { host: "".into(), boot_id: "".into(), pid_ns: 0, time_ns: 0 };
        Self { vantage, pid: 0, start_ticks: 0, pidfs_inode: None, lock_inode: None }
    }

    /// Whether nothing is on record of it.
    pub fn is_unknown(&self) -> bool {
        *self == Self::unknown()
    }

    /// Whether it is a process of another machine: nothing here proves that it lives or does not. Whoever has no process
    /// at all is heard of here, or not.
    pub fn is_far(&self) -> bool {
        self.vantage.boot_id.is_empty() && self.pid != 0
    }

    /// The process that has `pid` now.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::seen_from(Vantage::here(), pid)
    }

    /// The process that has `pid` where we stand.
    pub(crate) fn seen_from(vantage: Vantage, pid: u32) -> io::Result<Self> {
        let fd = open_pidfd(pid)?;
        let stat = read_stat(pid)?;
        Ok(Self { vantage, pid, start_ticks: stat.start_ticks, pidfs_inode: pidfs_inode(&fd), lock_inode: None })
    }

    /// Whether this process still lives, seen from `from`.
    pub fn probe(&self, from: &Vantage) -> Liveness {
        self.examine(from).map_or_else(|verdict| verdict, |_| Liveness::Alive)
    }

    /// Sends `signal`, if and only if the process that has the pid is proven to be this one.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.examine(&Vantage::here()) {
            Ok(fd) => Ok(pidfd_send_signal(&fd, signal)?),
            Err(Liveness::Dead(_)) => Err(Errno::SRCH.into()),
            Err(verdict) => Err(io::Error::other(format!("not proven to be the same process: {verdict}"))),
        }
    }

    /// Something that becomes readable when the process ends, if it is proven to be this one and alive.
    pub fn watch(&self) -> Option<OwnedFd> {
        self.examine(&Vantage::here()).ok()
    }

    /// A handle on the living process, or the verdict that it is not one.
    fn examine(&self, from: &Vantage) -> Result<OwnedFd, Liveness> {
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
    fn compare_start(&self, from: &Vantage, fd: &OwnedFd) -> Liveness {
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

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It lives.
    Alive,
    /// It is gone, and this proves it.
    Dead(Evidence),
    /// It could not be told.
    Unknown(String),
}

impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive => f.write_str("alive"),
            Self::Dead(evidence) => write!(f, "dead: {evidence}"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// What proves that an owner is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The lock it held until its end is free.
    LockFree,
    /// The machine has booted since.
    OtherBoot {
        /// The boot it ran in.
        recorded: String,
        /// The boot of the observer.
        current: String,
    },
    /// Nothing has its pid.
    NoSuchProcess {
        /// The pid.
        pid: u32,
    },
    /// Another process has its pid.
    PidReused {
        /// The pid.
        pid: u32,
    },
    /// It exited and waits to be collected.
    Zombie {
        /// The pid.
        pid: u32,
    },
    /// It was silent for longer than its lease, by the store's clock.
    LeaseLapsed {
        /// For how long.
        silent_ms: u64,
        /// For how long it might have been.
        lease_ms: u64,
    },
    /// Nothing is on record of who it is or what it promised, and it was silent for longer than anybody may be who
    /// promised nothing.
    OwnerUnknown {
        /// For how long.
        silent_ms: u64,
    },
    /// It lived but was silent for longer than its policy allows, and was ended with its tree.
    Hung {
        /// For how long.
        silent_ms: u64,
    },
}

impl Evidence {
    /// Whether it is nothing but silence, which proves nothing of a process.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::LeaseLapsed { .. } | Self::OwnerUnknown { .. })
    }

    /// The one word that it is called by.
    pub fn word(&self) -> String {
        match serde_json::json!(self) {
            serde_json::Value::String(word) => word,
            serde_json::Value::Object(fields) => fields.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ms: &u64| show_duration(Duration::from_millis(*ms));
        match self {
            Self::LockFree => f.write_str("its owner is gone: the lock it held is free"),
            Self::OtherBoot { .. } => f.write_str("the machine has rebooted since"),
            Self::NoSuchProcess { pid } => write!(f, "no process has its owner's pid {pid}"),
            Self::PidReused { pid } => write!(f, "another process has its owner's pid {pid}"),
            Self::Zombie { pid } => write!(f, "its owner, pid {pid}, has exited"),
            Self::LeaseLapsed { silent_ms, lease_ms } => {
                write!(f, "its owner was silent for {}, its lease is {}", time(silent_ms), time(lease_ms))
            }
            Self::OwnerUnknown { silent_ms } => {
                write!(f, "its owner is unknown: it is not on record, and was silent for {}", time(silent_ms))
            }
            Self::Hung { silent_ms } => write!(f, "its owner hung for {} and was ended", time(silent_ms)),
        }
    }
}

fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// The process's inode in pidfs; none on kernels where every pidfd shares one.
fn pidfs_inode(fd: &OwnedFd) -> Option<u64> {
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let kind = rustix::fs::fstatfs(fd).ok()?;
    (kind.f_type as u64 == PIDFS_MAGIC).then(|| fstat(fd).ok().map(|stat| stat.st_ino))?
}

/// Whether all threads of the process are gone: a zombie, and not merely an exited first thread.
fn has_exited(fd: &OwnedFd) -> bool {
    wait_exited(fd, Duration::ZERO)
}

/// What the kernel says of a process.
struct Stat {
    has_ended: bool,
    parent: u32,
    session: u32,
    start_ticks: u64,
    /// How it ended, as for whoever waits for it; told only while it is a zombie.
    status: Option<i32>,
}

fn read_stat(pid: u32) -> io::Result<Stat> {
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

fn wait_exited(fd: &OwnedFd, patience: Duration) -> bool {
    let limit = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(ready) if ready > 0)
}

/// Waits until a process is gone, for at most `patience`.
pub fn wait_gone(identity: &Identity, patience: Duration) -> bool {
    match identity.examine(&Vantage::here()) {
        Ok(fd) => wait_exited(&fd, patience),
        Err(verdict) => matches!(verdict, Liveness::Dead(_)),
    }
}

/// Every process, also those that are born while the others are looked at, as far as that comes to an end.
fn pids() -> impl Iterator<Item = u32> {
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

    fn own() -> (Identity, Vantage) {
        (Identity::own(), Vantage::here())
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
        assert_eq!(identity.probe(&Vantage::here()), Liveness::Alive);
        child.kill().unwrap();
        let fd = open_pidfd(identity.pid).unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        assert_eq!(identity.probe(&Vantage::here()), Liveness::Dead(Evidence::Zombie { pid: identity.pid }));
        child.wait().unwrap();
        assert_eq!(identity.probe(&Vantage::here()), Liveness::Dead(Evidence::NoSuchProcess { pid: identity.pid }));
    }

    #[test]
    fn f_05_a_reused_pid_is_told_by_its_pidfs_inode_or_start() {
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
        let unknown = |from: &Vantage, identity: &Identity| matches!(identity.probe(from), Liveness::Unknown(_));
        let other_pids = Vantage { pid_ns: here.pid_ns + 1, ..here.clone() };
        assert!(unknown(&other_pids, &identity));
        let other_times = Vantage { time_ns: here.time_ns + 1, ..here.clone() };
        let without_pidfs = Identity { pidfs_inode: None, ..identity.clone() };
        assert!(unknown(&other_times, &without_pidfs));
        let blind = Vantage { boot_id: "".into(), ..here.clone() };
        assert!(unknown(&blind, &identity));
        let rebooted = Vantage { boot_id: "another".into(), ..here };
        assert!(matches!(identity.probe(&rebooted), Liveness::Dead(Evidence::OtherBoot { .. })));
    }

    #[test]
    fn a_signal_reaches_only_the_proven_process() {
        let (mut child, identity) = sleeper();
        let stranger = Identity { start_ticks: 1, pidfs_inode: Some(1), ..identity.clone() };
        assert!(stranger.signal(Signal::KILL).is_err());
        let elsewhere = Identity { vantage: Vantage { pid_ns: 1, ..identity.vantage.clone() }, ..identity.clone() };
        assert!(elsewhere.signal(Signal::KILL).is_err());
        assert_eq!(identity.probe(&Vantage::here()), Liveness::Alive);
        identity.signal(Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
