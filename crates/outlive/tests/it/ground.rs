//! Grounds: where the stores of this crate are made, with clocks that are moved by hand.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outlive::conformance::Ground;
use outlive::id::SystemEntropy;
use outlive::store::Store;
use outlive::store::memory::MemoryStore;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::testing::ManualClock;
use tempfile::TempDir;

/// Longer than any lease that the tests use by default.
const STRETCH: Duration = Duration::from_secs(60);

pub(crate) struct MemoryGround {
    clock: Arc<ManualClock>,
    made: Mutex<Vec<MemoryStore>>,
}

impl MemoryGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, made: Mutex::default() }
    }

    pub(crate) fn make(&self) -> MemoryStore {
        let store = MemoryStore::new(self.clock.clone());
        self.made.lock().unwrap().push(store.clone());
        store
    }
}

#[async_trait]
impl Ground for MemoryGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.make())
    }

    async fn again(&self) -> Arc<dyn Store> {
        Arc::new(self.made.lock().unwrap().last().unwrap().clone())
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.pass(duration);
        self.made.lock().unwrap().iter().for_each(MemoryStore::was_deaf);
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}

pub(crate) struct SqliteGround {
    clock: Arc<ManualClock>,
    dir: TempDir,
    made: AtomicUsize,
    last: Mutex<PathBuf>,
}

impl SqliteGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, dir: tempfile::tempdir().unwrap(), made: AtomicUsize::new(0), last: Mutex::default() }
    }

    /// Where the next registry will be.
    pub(crate) fn next_path(&self) -> PathBuf {
        let path = self.dir.path().join(self.made.fetch_add(1, Ordering::SeqCst).to_string());
        *self.last.lock().unwrap() = path.clone();
        path
    }

    pub(crate) fn open(&self, path: &std::path::Path) -> SqliteStore {
        SqliteStore::create(path, Sharing::Private, self.clock.clone(), Arc::new(SystemEntropy)).unwrap()
    }
}

#[async_trait]
impl Ground for SqliteGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.open(&self.next_path()))
    }

    async fn again(&self) -> Arc<dyn Store> {
        Arc::new(self.open(&self.last.lock().unwrap()))
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}
