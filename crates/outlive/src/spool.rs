//! The spool: results that a store would not take, kept in the user's home until it does.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::id::{Epoch, RunId, Stamp, WorkerId};
use crate::run::{Exit, Interruption};
use crate::store::files::{self, Prepared};
use crate::time::Timestamp;
use crate::transition::{Action, Fence, Verdict};

const LIMIT: u64 = 1 << 20;

/// How a run ended, waiting to be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spooled {
    /// The registry it belongs to: `registry:` and its own name, which it keeps wherever it is moved to, or its URL.
    pub registry: String,
    /// The run.
    pub run: RunId,
    /// The owner's claim.
    pub worker: WorkerId,
    /// The owner's claim.
    pub epoch: Epoch,
    /// The stamp of the write, however often it is tried.
    pub stamp: Stamp,
    /// When it ended.
    pub at: Timestamp,
    /// How it ended.
    pub end: OwnEnd,
    /// The exit status, where a process had one.
    pub exit: Option<Exit>,
}

/// The ways in which an owner can end its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnEnd {
    /// The work came out so.
    Finished(Verdict),
    /// It was asked to stop and did.
    Interrupted(Interruption),
}

impl OwnEnd {
    /// The action that records it, by whoever holds the claim.
    pub fn action(&self, fence: Fence, exit: Option<Exit>) -> Action {
        match self.clone() {
            Self::Finished(verdict) => Action::Finish { fence, verdict, exit },
            Self::Interrupted(interruption) => Action::Interrupt { fence, interruption, exit },
        }
    }
}

impl Spooled {
    /// The action that records it.
    pub fn action(&self) -> Action {
        self.end.action(Fence { worker: self.worker, epoch: self.epoch }, self.exit)
    }

    fn name(&self) -> PathBuf {
        PathBuf::from(format!("{}-{}.json", self.run, self.epoch))
    }
}

/// A directory of results that wait.
#[derive(Debug, Clone)]
pub struct Spool {
    dir: PathBuf,
}

impl Spool {
    /// The spool of a home.
    pub fn new(home: &Path) -> Self {
        Self { dir: home.join("spool") }
    }

    /// Keeps a result. It is on the disk when this returns.
    pub fn keep(&self, spooled: &Spooled) -> io::Result<()> {
        files::make_private_dirs(&self.dir)?;
        let dir = rustix::fs::open(&self.dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let bytes = serde_json::to_vec(spooled)?;
        Prepared::new(&dir, &bytes, Mode::from_raw_mode(0o600), true)?.publish(&dir, &spooled.name())?;
        Ok(rustix::fs::fsync(&dir)?)
    }

    /// The results that wait for the registry that `is_meant` knows by what they say of it. What cannot be read is left
    /// alone.
    pub fn waiting(&self, is_meant: impl Fn(&str) -> bool) -> Vec<Spooled> {
        let Ok(dir) = rustix::fs::open(&self.dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
            return Vec::new();
        };
        let read = |name: &String| serde_json::from_slice(&files::read(&dir, Path::new(name), LIMIT).ok()?).ok();
        let names = files::names(&dir).unwrap_or_default();
        names.iter().filter_map(read).filter(|spooled: &Spooled| is_meant(&spooled.registry)).collect()
    }

    /// Forgets a result that was recorded, or that a later owner has made void.
    pub fn forget(&self, spooled: &Spooled) {
        // What stays is tried once more, and found to be recorded.
        let _ = std::fs::remove_file(self.dir.join(spooled.name()));
    }
}
