//! A field: runs and their artifacts, in a bucket, or in memory and a directory, where thousands of histories fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outlive::engine::sweeper::{SweepPolicy, SweepReport, sweep};
use outlive::id::SystemEntropy;
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::{Actor, Output, Spec};
use outlive::secrets::trust::Trust;
use outlive::store::memory::MemoryStore;
use outlive::testing::{ManualClock, SeededEntropy, person, spec};
use tempfile::TempDir;

use super::yard::Yard;
use crate::world::unseen;

pub(crate) enum Field {
    Bucket(Box<Yard>),
    Directory {
        clock: Arc<ManualClock>,
        store: Box<MemoryStore>,
        /// This user's key.
        trust: Box<Trust>,
        place: TempDir,
        look: Box<Registry>,
        processes: AtomicU64,
    },
}

impl Field {
    pub(crate) async fn bucket() -> Self {
        Self::Bucket(Box::new(Yard::new().await))
    }

    pub(crate) fn directory() -> Self {
        let clock = ManualClock::new();
        let store = Box::new(MemoryStore::new(clock.clone()));
        let place = tempfile::tempdir().unwrap();
        let trust = Box::new(key());
        let look = Box::new(registry(&store, &clock, &trust, 0));
        Self::Directory { clock, store, trust, place, look, processes: AtomicU64::new(1) }
    }

    pub(crate) fn clock(&self) -> &ManualClock {
        match self {
            Self::Bucket(yard) => &yard.clock,
            Self::Directory { clock, .. } => clock,
        }
    }

    pub(crate) fn look(&self) -> &Registry {
        match self {
            Self::Bucket(yard) => &yard.registry,
            Self::Directory { look, .. } => look,
        }
    }

    pub(crate) async fn process(&self) -> Registry {
        match self {
            Self::Bucket(yard) => yard.process().await,
            Self::Directory { clock, store, trust, processes, .. } => {
                registry(store, clock, trust, processes.fetch_add(1, Ordering::SeqCst))
            }
        }
    }

    pub(crate) fn place(&self) -> String {
        match self {
            Self::Bucket(yard) => yard.place(),
            Self::Directory { place, .. } => place.path().to_str().unwrap().into(),
        }
    }

    pub(crate) fn spec(&self) -> Spec {
        let mut spec = Spec { output: Some(Output { prefix: self.place(), ..Output::default() }), ..spec("writer") };
        let (beat, lasts) = (std::time::Duration::from_secs(20), std::time::Duration::from_secs(60));
        spec.policy.lease = outlive::policy::Lease::new(beat, lasts).unwrap();
        spec
    }

    pub(crate) async fn put(&self, path: &str, bytes: &[u8]) {
        match self {
            Self::Bucket(yard) => yard.put(path, bytes).await,
            Self::Directory { place, .. } => {
                let path = place.path().join(path);
                // A sweep may clear the directory away in between.
                for _ in 0..100 {
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    if std::fs::write(&path, bytes).is_ok() {
                        return;
                    }
                }
                panic!("`{}` cannot be written", path.display());
            }
        }
    }

    /// Sees to it that there is such a directory, where there are any.
    pub(crate) async fn make(&self, path: &str) {
        if let Self::Directory { place, .. } = self {
            std::fs::create_dir_all(place.path().join(path)).unwrap();
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Vec<u8>> {
        match self {
            Self::Bucket(yard) => yard.get(path).await,
            Self::Directory { place, .. } => std::fs::read(place.path().join(path)).ok(),
        }
    }

    pub(crate) async fn publish(&self, name: &str, winners: &[String]) -> String {
        let path = format!("manifests/2026-11-16T00:00:00Z_run_id={name}/manifest.json");
        let urls: Vec<String> = winners.iter().map(|winner| format!("{}/{winner}", self.place())).collect();
        self.put(&path, serde_json::json!({"format_version": 1, "shards": urls}).to_string().as_bytes()).await;
        path
    }

    pub(crate) async fn shards(&self) -> Vec<String> {
        match self {
            Self::Bucket(yard) => yard.shards().await,
            Self::Directory { place, .. } => {
                let mut found = Vec::new();
                walk(&place.path().join("shards"), &mut found);
                let path =
                    |found: &std::path::PathBuf| found.strip_prefix(place.path()).unwrap().to_str().unwrap().to_owned();
                found.iter().map(path).collect()
            }
        }
    }

    pub(crate) async fn reap(&self) -> usize {
        Reaper::new(None).pass(&self.process().await).await.unwrap().ended.len()
    }

    pub(crate) async fn sweep(&self, spare: &SweepPolicy, dry_run: bool) -> SweepReport {
        sweep(&self.process().await, &SweepPolicy { dry_run, ..spare.clone() }).await.unwrap()
    }
}

fn walk(dir: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    // What cannot be read is not gone.
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        entries => entries.unwrap(),
    };
    for entry in entries.map(Result::unwrap) {
        if entry.path().is_dir() { walk(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

/// A key of its own user.
pub(crate) fn key() -> Trust {
    let home = tempfile::tempdir().unwrap();
    Trust::open(home.path(), &SystemEntropy).unwrap()
}

/// A process of the user with that key, on the registry in a directory.
pub(crate) fn registry(store: &MemoryStore, clock: &Arc<ManualClock>, trust: &Trust, number: u64) -> Registry {
    registry_named(store, clock, trust, number, "field")
}

/// A process of the user with that key, on a registry of that identity.
pub(crate) fn registry_named(
    store: &MemoryStore,
    clock: &Arc<ManualClock>,
    trust: &Trust,
    number: u64,
    name: &str,
) -> Registry {
    let me = Actor { pid: number as u32, ..person("ada") };
    let entropy = Arc::new(SeededEntropy::new(number));
    let over = Registry::over(Arc::new(store.clone()), clock.clone(), entropy, me, unseen(1));
    over.signing_as(trust.clone(), name)
}
