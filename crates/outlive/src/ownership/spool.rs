//! The spool: results that a store would not take, kept in the user's home until it does.
//!
//! The name of a file says which registry its result belongs to. So a process of one registry opens no file of another,
//! however many there are of registries that are gone for good.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::lifecycle::{Action, Fence, OwnerEnd, note_usage};
use crate::model::hex::hex;
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::run::{DOCUMENT_LIMIT, Exit, Run, Usage};
use crate::model::time::Timestamp;
use crate::util::files::{self, Prepared};

/// The longest file: an end with the longest result.
const LIMIT: u64 = DOCUMENT_LIMIT as u64 + (64 << 10);

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
    pub end: OwnerEnd,
    /// The exit status, where a process had one.
    pub exit: Option<Exit>,
    /// What the attempt has used, where its owner has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Arc<Usage>>,
}

impl Spooled {
    /// The action that records it.
    pub fn action(&self) -> Action {
        self.end.action(Fence { worker: self.worker, epoch: self.epoch }, self.exit)
    }

    /// The run with what its attempt has used, as its owner can write it.
    pub(crate) fn noted<'a>(&self, run: &'a Run) -> Cow<'a, Run> {
        let fence = Fence { worker: self.worker, epoch: self.epoch };
        let noted = self.usage.as_ref().and_then(|usage| note_usage(run, &fence, usage).ok());
        noted.map_or(Cow::Borrowed(run), Cow::Owned)
    }

    fn name(&self) -> PathBuf {
        PathBuf::from(format!("{}{}", mark(&self.registry), self.name_without_registry()))
    }

    /// What an earlier outlive called it.
    fn name_without_registry(&self) -> String {
        format!("{}-{}.json", self.run, self.epoch)
    }
}

/// What the names of all results of a registry begin with.
fn mark(registry: &str) -> String {
    hex(&Sha256::digest(registry.as_bytes())[..12]) + "."
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

    /// The results that wait for the registry that is called by any of `names`. Of what an earlier outlive kept under
    /// names that do not say whose it is, those that `is_meant` knows by what they say of their registry. What cannot be
    /// read is left alone.
    pub fn waiting(&self, names: &[String], is_meant: impl Fn(&str) -> bool) -> Vec<Spooled> {
        let Some(dir) = self.open() else { return Vec::new() };
        let marks: Vec<String> = names.iter().map(|name| mark(name)).collect();
        let is_read = |name: &&String| is_unmarked(name) || marks.iter().any(|mark| name.starts_with(mark));
        let all = files::names(&dir).unwrap_or_default();
        all.iter()
            .filter(is_read)
            .filter_map(|name| read(&dir, name))
            .filter(|found| is_meant(&found.registry))
            .collect()
    }

    /// Gives what an earlier outlive kept a name that says whose it is, so that no other registry opens it again. Where it says
    /// only by which path its registry was found, it may belong to any, and is left as it is.
    pub fn sort(&self) {
        let Some(dir) = self.open() else { return };
        for name in files::names(&dir).unwrap_or_default().iter().filter(|name| is_unmarked(name)) {
            let found = read(&dir, name).filter(|found| !found.registry.starts_with("sqlite:"));
            if let Some(found) = found.filter(|found| found.name_without_registry() == *name) {
                // A process that sorts at the same time gives it the same name.
                let _ = rustix::fs::renameat(&dir, name, &dir, found.name());
            }
        }
    }

    /// Forgets a result that was recorded, or that a later owner has made void.
    pub fn forget(&self, spooled: &Spooled) {
        // What stays is tried once more, and found to be recorded.
        let _ = std::fs::remove_file(self.dir.join(spooled.name()));
        let _ = std::fs::remove_file(self.dir.join(spooled.name_without_registry()));
    }

    fn open(&self) -> Option<OwnedFd> {
        rustix::fs::open(&self.dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

fn read(dir: &OwnedFd, name: &str) -> Option<Spooled> {
    serde_json::from_slice(&files::read(dir, Path::new(name), LIMIT).ok()?).ok()
}

/// Whether a name does not say whose a result is.
fn is_unmarked(name: &str) -> bool {
    name.ends_with(".json") && name.find('.') == name.rfind('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Outcome;
    use crate::model::id::{Entropy, SystemEntropy};
    use crate::model::time::{Clock, SystemClock};

    fn end_of(registry: &str) -> Spooled {
        let (now, entropy) = (SystemClock.now(), &SystemEntropy as &dyn Entropy);
        let (run, worker) = (RunId::draw(now, entropy), WorkerId::draw(now, entropy));
        let end = OwnerEnd::Finished(Outcome::SUCCEEDED);
        let (registry, stamp) = (registry.into(), Stamp::draw(entropy));
        Spooled { registry, run, worker, epoch: Epoch(1), stamp, at: now, end, exit: None, usage: None }
    }

    #[test]
    fn result_file_of_an_earlier_version_is_renamed_and_removed() {
        let home = tempfile::tempdir().unwrap();
        let spool = Spool::new(home.path());
        let own = end_of("registry:own");
        let by_path = end_of("sqlite:/somewhere/.outlive");
        for old in [&own, &by_path] {
            spool.keep(old).unwrap();
            let dir = home.path().join("spool");
            std::fs::rename(dir.join(old.name()), dir.join(old.name_without_registry())).unwrap();
        }
        let waiting = || spool.waiting(&["registry:own".into()], |registry| registry == "registry:own");
        assert_eq!(waiting(), std::slice::from_ref(&own));
        spool.sort();
        assert_eq!(waiting(), std::slice::from_ref(&own));
        let dir = home.path().join("spool");
        assert!(dir.join(own.name()).exists() && !dir.join(own.name_without_registry()).exists());
        assert!(dir.join(by_path.name_without_registry()).exists(), "what may belong to any registry is found by all");
        spool.forget(&own);
        assert!(waiting().is_empty());
    }
}
