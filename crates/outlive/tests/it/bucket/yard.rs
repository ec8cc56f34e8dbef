//! A yard: a registry in a bucket, artifacts beside it, and a clock that is moved by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, SweepReport, sweep};
use outlive::ownership::handle::RunHandle;
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::{Output, Spec};
use outlive::store::Error;
use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{BUCKET, Bucket, KEY, VERSIONED, url_at};
use outlive::testing::{ManualClock, SeededEntropy, person, spec};

use crate::ground::ByTheTest;
use crate::world::unseen;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) struct Yard {
    /// Where its server is, and the bucket.
    port: u16,
    bucket: &'static str,
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
        Self::at(Bucket::shared().port()).await
    }

    /// One on a server of one's own.
    pub(crate) async fn at(port: u16) -> Self {
        Self::make(port, BUCKET).await
    }

    /// One in a bucket that keeps versions.
    pub(crate) async fn versioned() -> Self {
        Bucket::shared().versioned_url("");
        Self::make(Bucket::shared().port(), VERSIONED).await
    }

    async fn make(port: u16, bucket: &'static str) -> Self {
        let (clock, prefix) = (ManualClock::new(), format!("t{:x}", draw()));
        let processes = AtomicU64::new(draw() as u64);
        let opened = open_in(port, bucket, &prefix, &clock, Duration::from_secs(20)).await;
        let store = Arc::new(opened.unwrap_or_else(|error| panic!("{error}")));
        let registry = process(&store, &clock, &processes);
        Self { port, bucket, clock, prefix, store, registry, processes }
    }

    /// Another process on the same registry, through another connection, at that port.
    pub(crate) async fn process_at(&self, port: u16, patience: Duration) -> (Registry, Arc<ObjectStore>) {
        let opened = open_in(port, self.bucket, &self.prefix, &self.clock, patience).await;
        let store = Arc::new(opened.unwrap_or_else(|error| panic!("{error}")));
        (process(&store, &self.clock, &self.processes), store)
    }

    /// Another process on the same registry.
    pub(crate) async fn process(&self) -> Registry {
        self.process_at(self.port, Duration::from_secs(20)).await.0
    }

    /// A process on the registry at another prefix of the bucket.
    pub(crate) async fn registry_at(&self, prefix: &str) -> Registry {
        let opened = open_in(self.port, self.bucket, prefix, &self.clock, Duration::from_secs(20)).await;
        let store = Arc::new(opened.unwrap_or_else(|error| panic!("{error}")));
        process(&store, &self.clock, &self.processes)
    }

    /// Where artifacts are, as records say it.
    pub(crate) fn place(&self) -> String {
        format!("s3://{}/{}/data", self.bucket, self.prefix)
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
        self.store.raw_put(&self.key(path), bytes).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.store.raw_get(&self.key(path)).await.unwrap()
    }

    /// An object of an attempt at a part of a run.
    pub(crate) async fn shard(&self, name: &str, part: u32, attempt: u32) -> String {
        let path = format!("{}/data.sst", attempt_of(name, part, attempt));
        self.put(&path, b"12345").await;
        path
    }

    /// So many objects of one attempt.
    pub(crate) async fn shards_of(&self, name: &str, count: usize) {
        let path = |number: usize| format!("{}/{number:05}.sst", attempt_of(name, 7, 0));
        self.store
            .raw_put_many((0..count).map(|number| (self.key(&path(number)), b"12345".to_vec())).collect())
            .await
            .unwrap();
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
        let mut found = self.store.raw_list(&below).await.unwrap();
        found.sort();
        found.iter().map(|key| key.strip_prefix(&self.key("")).unwrap().to_owned()).collect()
    }

    /// Puts the death of whoever is silent on record.
    pub(crate) async fn reap(&self) -> usize {
        Reaper::new(None).pass(&self.process().await).await.unwrap().ended.len()
    }

    pub(crate) async fn sweep(&self, spare: &SweepPolicy, dry_run: bool) -> SweepReport {
        sweep(&self.process().await, &SweepPolicy { dry_run, ..spare.clone() }).await.unwrap()
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
    open_in(port, BUCKET, prefix, clock, patience).await
}

async fn open_in(
    port: u16,
    bucket: &str,
    prefix: &str,
    clock: &Arc<ManualClock>,
    patience: Duration,
) -> Result<ObjectStore, Error> {
    let time = Arc::new(ByTheTest(clock.clone()));
    let url = url_at(port, KEY, prefix).replace(&format!("@{BUCKET}/"), &format!("@{bucket}/"));
    ObjectStore::open_by(&url.parse().unwrap(), time, patience).await
}

fn process(store: &Arc<ObjectStore>, clock: &Arc<ManualClock>, processes: &AtomicU64) -> Registry {
    let number = processes.fetch_add(1, Ordering::SeqCst);
    let me = outlive::run::Actor { pid: number as u32, ..person("ada") };
    Registry::over_bucket(store.clone(), clock.clone(), Arc::new(SeededEntropy::new(number)), me, unseen(1))
}
