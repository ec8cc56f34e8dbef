//! The ledger: which runs this home has executed to their final end.
//!
//! A signature holds for as long as its record exists. A writer of the store can put a record back to `pending`,
//! and the signature still holds. The home remembers what has succeeded or was cancelled here, so that such a run is not
//! executed again by this home. The lifecycle knows no way back from those two ends, so no run that is honestly resumed
//! is affected.
//!
//! The file holds 16 bytes for each run, and is bounded: when it is full it becomes the older half, and the half before
//! is forgotten.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use crate::model::id::RunId;
use crate::util::sync::lock;

const FILE: &str = "ended";
const OLDER: &str = "ended.old";
const ENTRY: usize = 16;
/// The most runs of one file; two files are kept.
const LIMIT: u64 = 1 << 18;

type LedgerEntry = [u8; ENTRY];

/// The runs that ended for good under a home.
#[derive(Clone)]
pub(super) struct Ledger {
    home: PathBuf,
    limit: u64,
    cache: Arc<Mutex<Cache>>,
}

#[derive(Default)]
struct Cache {
    /// The lengths of both files when they were read.
    lengths: Option<[u64; 2]>,
    entries: HashSet<LedgerEntry>,
}

impl Ledger {
    pub(super) fn of(home: &Path) -> Self {
        Self { home: home.into(), limit: LIMIT, cache: Arc::default() }
    }

    /// Notes that a run ended for good.
    pub(super) fn note(&self, registry: &str, run: RunId) -> io::Result<()> {
        let path = self.home.join(FILE);
        if length(&path) >= self.limit * ENTRY as u64 {
            // Of two processes that do this at once the second finds the file gone, or moves a few entries too early.
            let _ = std::fs::rename(&path, self.home.join(OLDER));
        }
        let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        file.write_all(&entry(registry, run))
    }

    /// Whether a run ended for good under this home.
    pub(super) fn has(&self, registry: &str, run: RunId) -> bool {
        let paths = [self.home.join(FILE), self.home.join(OLDER)];
        let lengths = [length(&paths[0]), length(&paths[1])];
        let mut cache = lock(&self.cache);
        if cache.lengths != Some(lengths) {
            cache.entries.clear();
            for path in &paths {
                let bytes = std::fs::read(path).unwrap_or_default();
                cache.entries.extend(bytes.chunks_exact(ENTRY).filter_map(|chunk| LedgerEntry::try_from(chunk).ok()));
            }
            cache.lengths = Some(lengths);
        }
        cache.entries.contains(&entry(registry, run))
    }
}

fn length(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).map_or(0, |found| found.len())
}

fn entry(registry: &str, run: RunId) -> LedgerEntry {
    let digest = Sha256::digest(format!("outlive ended 1\n{registry}\n{run}"));
    let mut entry = [0; ENTRY];
    entry.copy_from_slice(&digest[..ENTRY]);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::Timestamp;

    fn draw() -> RunId {
        RunId::draw(Timestamp::from_micros(1), &SystemEntropy)
    }

    #[test]
    fn t8_05_ledger_remembers_ends_within_its_bound() {
        let home = tempfile::tempdir().unwrap();
        let ledger = Ledger { limit: 4, ..Ledger::of(home.path()) };
        let runs: Vec<RunId> = (0..12).map(|_| draw()).collect();
        for run in &runs {
            assert!(!ledger.has("here", *run));
            ledger.note("here", *run).unwrap();
            assert!(ledger.has("here", *run) && !ledger.has("elsewhere", *run));
        }
        assert!(runs[8..].iter().all(|run| Ledger::of(home.path()).has("here", *run)), "a recent end was forgotten");
        assert!(!ledger.has("here", runs[0]), "the ledger is not bounded");
        let kept = length(&home.path().join(FILE)) + length(&home.path().join(OLDER));
        assert!(kept <= 2 * 4 * ENTRY as u64, "{kept} bytes");
    }
}
