//! A yard: a registry in a bucket, artifacts beside it, and a clock that is moved by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outlive::registry::Registry;
use outlive::run::{Output, Spec};
use outlive::runtime::handle::RunHandle;
use outlive::runtime::reaper::Reaper;
use outlive::runtime::sweeper::{Report, Spare, sweep};
use outlive::store::Error;
use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{BUCKET, Bucket, KEY, url_at};
use outlive::testing::{ManualClock, SeededEntropy, person, spec};

use crate::ground::ByTheTest;
use crate::world::unseen;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) struct Yard {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) prefix: String,
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) registry: Registry,
    processes: AtomicU64,
}

fn draw() -> u128 {
    use outlive::id::Entropy;
    outlive::id::SystemEntropy.draw()
}

impl Yard {
    pub(crate) async fn new() -> Self {
        let (clock, prefix) = (ManualClock::new(), format!("t{:x}", draw()));
        let processes = AtomicU64::new(draw() as u64);
        let store = Arc::new(open(Bucket::shared().port(), &prefix, &clock, Duration::from_secs(20)).await);
        let registry = process(&store, &clock, &processes);
        Self { clock, prefix, store, registry, processes }
    }

    /// Another process on the same registry, through another connection, at that port.
    pub(crate) async fn process_at(&self, port: u16, patience: Duration) -> (Registry, Arc<ObjectStore>) {
        let store = Arc::new(open(port, &self.prefix, &self.clock, patience).await);
        (process(&store, &self.clock, &self.processes), store)
    }

    /// Another process on the same registry.
    pub(crate) async fn process(&self) -> Registry {
        self.process_at(Bucket::shared().port(), Duration::from_secs(20)).await.0
    }

    /// Where artifacts are, as records say it.
    pub(crate) fn place(&self) -> String {
        format!("s3://{BUCKET}/{}/data", self.prefix)
    }

    fn key(&self, path: &str) -> String {
        format!("{}/data/{path}", self.prefix)
    }

    pub(crate) fn spec(&self) -> Spec {
        Spec { output: Some(Output { prefix: self.place(), ..Output::default() }), ..spec("writer") }
    }

    pub(crate) async fn start(&self) -> RunHandle {
        self.registry.start(self.spec()).await.unwrap()
    }

    pub(crate) async fn put(&self, path: &str, bytes: &[u8]) {
        self.store.put_by_hand(&self.key(path), bytes).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.store.get_by_hand(&self.key(path)).await.unwrap()
    }

    /// An object of an attempt at a part of a run.
    pub(crate) async fn shard(&self, name: &str, part: u32, attempt: u32) -> String {
        let path = format!("{}/data.sst", attempt_of(name, part, attempt));
        self.put(&path, b"12345").await;
        path
    }

    pub(crate) async fn publish(&self, name: &str, winners: &[String]) -> String {
        let path = format!("manifests/2026-11-16T00:00:00Z_run_id={name}/manifest.json");
        let urls: Vec<_> =
            winners.iter().map(|path| serde_json::json!({"db_url": format!("{}/{path}", self.place())})).collect();
        self.put(&path, serde_json::json!({"format_version": 1, "shards": urls}).to_string().as_bytes()).await;
        path
    }

    /// What is there below the trees of runs.
    pub(crate) async fn shards(&self) -> Vec<String> {
        let below = self.key("shards");
        let mut found = self.store.list_by_hand(&below).await.unwrap();
        found.sort();
        found.iter().map(|key| key.strip_prefix(&self.key("")).unwrap().to_owned()).collect()
    }

    /// Puts the death of whoever is silent on record.
    pub(crate) async fn reap(&self) -> usize {
        Reaper::new(None).pass(&self.process().await).await.unwrap().ended.len()
    }

    pub(crate) async fn sweep(&self, spare: &Spare, dry_run: bool) -> Report {
        sweep(&self.process().await, spare, dry_run).await.unwrap()
    }
}

pub(crate) fn attempt_of(name: impl std::fmt::Display, part: u32, attempt: u32) -> String {
    format!("shards/run_id={name}/db={part:05}/attempt={attempt:02}")
}

pub(crate) async fn open(port: u16, prefix: &str, clock: &Arc<ManualClock>, patience: Duration) -> ObjectStore {
    open_within(port, prefix, clock, patience).await.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn open_within(
    port: u16,
    prefix: &str,
    clock: &Arc<ManualClock>,
    patience: Duration,
) -> Result<ObjectStore, Error> {
    let time = Arc::new(ByTheTest(clock.clone()));
    ObjectStore::open_by(&url_at(port, KEY, prefix).parse().unwrap(), time, patience).await
}

fn process(store: &Arc<ObjectStore>, clock: &Arc<ManualClock>, processes: &AtomicU64) -> Registry {
    let number = processes.fetch_add(1, Ordering::SeqCst);
    let me = outlive::run::Actor { pid: number as u32, ..person("ada") };
    Registry::over_bucket(store.clone(), clock.clone(), Arc::new(SeededEntropy::new(number)), me, unseen(1))
}
