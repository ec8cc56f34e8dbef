//! Who owns a run: the identity of a process, what proves that it is gone, and what still lives of its attempt.
//!
//! These are values. Reading them from this machine is the part of [`crate::host`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::show_duration;

/// Where a process stands: what a pid or a start time means there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostContext {
    /// The host's name: a label.
    pub host: Arc<str>,
    /// Changes with every boot.
    pub boot_id: Arc<str>,
    /// The pid namespace.
    pub pid_ns: u64,
    /// The time namespace, which shifts start times.
    pub time_ns: u64,
}

/// One process, unique among all of its boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredIdentity")]
pub struct Identity {
    /// Where it stands.
    #[serde(flatten)]
    #[doc(hidden)]
    pub vantage: HostContext,
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
struct StoredIdentity {
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

impl From<StoredIdentity> for Identity {
    fn from(stored: StoredIdentity) -> Self {
        let StoredIdentity { host, boot_id, pid_ns, time_ns, pid, start_ticks, pidfs_inode, lock_inode } = stored;
        Self { vantage: HostContext { host, boot_id, pid_ns, time_ns }, pid, start_ticks, pidfs_inode, lock_inode }
    }
}

impl Identity {
    /// A process of which nothing is on record. What is left empty proves nothing.
    pub fn unknown() -> Self {
        let vantage = HostContext { host: "".into(), boot_id: "".into(), pid_ns: 0, time_ns: 0 };
        Self { vantage, pid: 0, start_ticks: 0, pidfs_inode: None, lock_inode: None }
    }

    /// Whether nothing is on record of it.
    pub fn is_unknown(&self) -> bool {
        *self == Self::unknown()
    }

    /// Whether it is a process of another machine: local evidence cannot decide whether it lives. An
    /// external lease (pid 0) is judged by its lease.
    pub fn is_far(&self) -> bool {
        self.vantage.boot_id.is_empty() && self.pid != 0
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
    /// It could not be determined.
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

/// What proves that an owner is gone. Read it in the end of a dead run, to tell a killed process from a silent host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(description = "What proves that an owner is gone."))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
    /// Nothing is on record of who it is or of its lease, and it was silent for longer than an owner without a known
    /// lease may be.
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
                write!(f, "its owner is unknown: it has no record, and sent no heartbeat for {}", time(silent_ms))
            }
            Self::Hung { silent_ms } => write!(f, "its owner hung for {} and was ended", time(silent_ms)),
        }
    }
}

/// Living processes of an attempt, its owner not counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveProcesses {
    /// Those that could be named.
    pub pids: Vec<u32>,
    /// There are others, which this user may not look into.
    pub unseen: bool,
}

impl LiveProcesses {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.pids.is_empty() && !self.unseen
    }
}

impl fmt::Display for LiveProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        match (pids.is_empty(), self.unseen) {
            (true, true) => f.write_str("processes that you may not look into"),
            (true, false) => f.write_str("nothing"),
            (false, true) => write!(f, "pid {} and others that you may not look into", pids.join(", ")),
            (false, false) => write!(f, "pid {}", pids.join(", ")),
        }
    }
}
