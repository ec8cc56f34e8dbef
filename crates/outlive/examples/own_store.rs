//! A store of one's own, held to the contract of `Store` by the conformance suite, and a registry over it.
//!
//! `cargo run --example own_store --features testing` wraps the store in memory in one that counts its writes, runs every check
//! of the suite on it, and works with it. A store over another database implements the same trait.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outlive::conformance::{CHECKS, Ground};
use outlive::store::memory::MemoryStore;
use outlive::store::{
    Beat, BeatReply, Count, Error, Listing, Page, ProcessObserver, QueueHead, Record, Rule, Selection, Start, Store,
    WorkerRecord, Write, WriteOutcome,
};
use outlive::testing::ManualClock;
use outlive::{Event, Filter, Key, Registry, RunId};

/// A store that counts what is written. Clones share everything.
#[derive(Clone, Debug)]
struct CountingStore {
    inner: MemoryStore,
    writes: Arc<AtomicU64>,
}

impl CountingStore {
    fn over(inner: MemoryStore) -> Self {
        Self { inner, writes: Arc::default() }
    }
}

#[async_trait]
impl Store for CountingStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.inner.get(ids).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        self.inner.list(filter, page).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let outcomes = self.inner.commit(writes).await?;
        let done = outcomes.iter().filter(|outcome| matches!(outcome, WriteOutcome::Done(_))).count();
        self.writes.fetch_add(done as u64, Ordering::Relaxed);
        Ok(outcomes)
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        let changed = self.inner.update(selection, rule).await?;
        self.writes.fetch_add(changed.len() as u64, Ordering::Relaxed);
        Ok(changed)
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.inner.beat(beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.inner.counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.inner.workers().await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.inner.next_due(filter).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.inner.heads(filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.inner.starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.inner.events(id).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        self.inner.witness()
    }
}

/// Where the suite makes stores, and lets time pass for them.
struct CountingGround {
    clock: Arc<ManualClock>,
    made: Mutex<Vec<CountingStore>>,
}

impl CountingGround {
    fn new() -> Self {
        Self { clock: ManualClock::new(), made: Mutex::default() }
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<CountingStore>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Ground for CountingGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        let store = CountingStore::over(MemoryStore::new(self.clock.clone()));
        self.made().push(store.clone());
        Arc::new(store)
    }

    async fn again(&self) -> Arc<dyn Store> {
        match self.made().last() {
            Some(store) => Arc::new(store.clone()),
            None => Arc::new(CountingStore::over(MemoryStore::new(self.clock.clone()))),
        }
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.pass(duration);
        self.made().iter().for_each(|store| store.inner.was_deaf());
    }

    fn stretch(&self) -> Duration {
        Duration::from_secs(60)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // In a crate of one's own these are tests: `outlive::conformance_tests!(run)` makes one of each check.
    for check in CHECKS {
        let ground = CountingGround::new();
        (check.run)(&ground).await.map_err(|wrong| format!("{} (promise {}): {wrong}", check.name, check.promise))?;
    }
    println!("{} checks passed", CHECKS.len());

    let store = CountingStore::over(MemoryStore::default());
    let registry = Registry::with_store("counting:", Arc::new(store.clone()))?;
    let run = registry.start(registry.spec("import")).await?;
    run.set_checkpoint(7.into()).await?;
    run.succeed().await?;
    println!("{} writes for a run with a checkpoint", store.writes.load(Ordering::Relaxed));
    registry.close().await;
    Ok(())
}
