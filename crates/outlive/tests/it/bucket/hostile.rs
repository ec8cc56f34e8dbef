//! What is around a registry in the histories of [`super::adversary`]: copies of it, records that were forged, data of others.
//!
//! Nothing here is ever to be deleted by a sweep, whichever registry is swept: the original, a copy, or a registry that
//! came with a repository.

use std::sync::atomic::{AtomicU64, Ordering};

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::id::Stamp;
use outlive::ownership::reaper::Reaper;
use outlive::run::{Output, Run, Spec};
use outlive::store::memory::MemoryStore;
use outlive::store::{Expect, Page, Pages, Store, Write};
use outlive::testing::{SeededEntropy, spec};

use super::field::{Field, key, registry_named};
use super::yard::attempt_of;

/// The most copies of one history.
const COPIES: usize = 2;
/// What data is called that no registry here has a record of.
const ALIEN: &str = "alien";

/// A registry that this user may sweep, and that owns nothing of what its records name.
enum Copy {
    Memory { store: MemoryStore, name: &'static str },
    Bucket { prefix: String },
}

pub(crate) struct Hostile {
    copies: Vec<Copy>,
    /// Paths of the place that no sweep may touch.
    pub(crate) precious: Vec<String>,
    /// Data elsewhere, of which the same holds.
    elsewhere: Elsewhere,
    numbers: AtomicU64,
}

enum Elsewhere {
    Directory(tempfile::TempDir),
    Bucket(String),
}

impl Hostile {
    pub(crate) async fn new(field: &Field) -> Self {
        let path = format!("{}/data.sst", attempt_of(ALIEN, 0, 0));
        let elsewhere = match field {
            Field::Directory { .. } => {
                let dir = tempfile::tempdir().unwrap();
                let file = dir.path().join(&path);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "12345").unwrap();
                Elsewhere::Directory(dir)
            }
            Field::Bucket(yard) => {
                let prefix = format!("{}-other", yard.prefix);
                yard.store.raw_put(&format!("{prefix}/{path}"), b"12345").await.unwrap();
                Elsewhere::Bucket(prefix)
            }
        };
        // In the place itself there is a run that another registry has a record of, or none at all.
        field.put(&path, b"12345").await;
        if let Field::Bucket(yard) = field {
            let key = format!("{}/data/runs/{}", yard.prefix, key_of(ALIEN));
            let record = record_of(ALIEN, &field.place(), "running", "2220-01-01T00:00:00Z");
            yard.store.raw_put(&key, record.as_bytes()).await.unwrap();
        }
        Self { copies: Vec::new(), precious: vec![path], elsewhere, numbers: AtomicU64::new(1 << 32) }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn place_elsewhere(&self) -> String {
        match &self.elsewhere {
            Elsewhere::Directory(dir) => dir.path().to_str().unwrap().into(),
            Elsewhere::Bucket(prefix) => format!("s3://{}/{prefix}", outlive::testing::bucket::BUCKET),
        }
    }

    /// One more hostile thing, of whichever kind is drawn. `name` is what a run of the place is called. Answers with whether
    /// its tree is in the way of another's from then on.
    pub(crate) async fn act(&mut self, field: &Field, name: Option<&str>, draw: &SeededEntropy) -> bool {
        match (draw.below(4), name) {
            (0, _) if self.copies.len() < COPIES => {
                self.copy(field, draw).await;
                false
            }
            (1, Some(name)) => {
                self.forge(field, name, &field.place()).await;
                true
            }
            (2, _) => {
                self.forge(field, ALIEN, &field.place()).await;
                false
            }
            _ => {
                self.forge(field, ALIEN, &self.place_elsewhere()).await;
                false
            }
        }
    }

    /// Copies the registry as it is now.
    async fn copy(&mut self, field: &Field, draw: &SeededEntropy) {
        match field {
            Field::Directory { clock, store, .. } => {
                let copy = MemoryStore::new(clock.clone());
                // A copy has another identity, or its runs are known to be copied.
                let is_known = draw.one_in(2);
                for run in runs_of(store).await {
                    put(&copy, Run { copied: is_known, ..run }).await;
                }
                self.copies.push(Copy::Memory { store: copy, name: if is_known { "field" } else { "copy" } });
            }
            Field::Bucket(yard) => {
                // Beside the original, or around its artifacts, so that they are below the prefix of the copy.
                let below = if draw.one_in(2) { "-copy" } else { "/data" };
                let prefix = format!("{}{below}", yard.prefix);
                for key in yard.store.raw_list(&format!("{}/runs", yard.prefix)).await.unwrap() {
                    // What was deleted meanwhile is in no copy.
                    let Some(bytes) = yard.store.raw_get(&key).await.unwrap() else { continue };
                    yard.store.raw_put(&key.replacen(&yard.prefix, &prefix, 1), &bytes).await.unwrap();
                }
                self.copies.push(Copy::Bucket { prefix });
            }
        }
    }

    /// Records a run that failed long ago, which this user did not make: in the registry, and in one that came with a clone.
    async fn forge(&mut self, field: &Field, name: &str, place: &str) {
        match field {
            Field::Directory { clock, store, .. } => {
                let them = key();
                let clone = MemoryStore::new(clock.clone());
                for store in [&**store, &clone] {
                    let registry = registry_named(store, clock, &them, self.number(), "field");
                    let output = Output { prefix: place.into(), run_id: Some(name.into()), ..Output::default() };
                    let forged = Spec { output: Some(output), ..spec("forged") };
                    registry.start(forged).await.unwrap().fail("exit", "1").await.unwrap();
                }
                self.copies.push(Copy::Memory { store: clone, name: "clone" });
            }
            Field::Bucket(yard) => {
                let record = record_of(name, place, "failed", "2020-01-01T00:10:00Z");
                let key = format!("{}/runs/{}", yard.prefix, key_of(&format!("{name}_{}", self.number())));
                yard.store.raw_put(&key, record.as_bytes()).await.unwrap();
            }
        }
    }

    /// Sweeps every copy, after a reap there.
    pub(crate) async fn sweep_copies(&self, field: &Field, spare: &SweepPolicy) -> u64 {
        let mut swept = 0;
        for copy in &self.copies {
            let registry = match (copy, field) {
                (Copy::Memory { store, name }, Field::Directory { clock, trust, .. }) => {
                    registry_named(store, clock, trust, self.number(), name)
                }
                (Copy::Bucket { prefix }, Field::Bucket(yard)) => yard.registry_at(prefix).await,
                _ => continue,
            };
            Reaper::new(None).pass(&registry).await.unwrap();
            swept += sweep(&registry, spare).await.unwrap().objects;
        }
        swept
    }

    /// What was deleted of what is elsewhere.
    pub(crate) async fn lost_elsewhere(&self, field: &Field) -> Option<String> {
        let path = format!("{}/data.sst", attempt_of(ALIEN, 0, 0));
        let is_there = match (&self.elsewhere, field) {
            (Elsewhere::Directory(dir), _) => dir.path().join(&path).exists(),
            (Elsewhere::Bucket(prefix), Field::Bucket(yard)) => {
                yard.store.raw_get(&format!("{prefix}/{path}")).await.unwrap().is_some()
            }
            _ => false,
        };
        (!is_there).then_some(path)
    }

    /// Removes the copies that are in the way of the original.
    pub(crate) async fn leave(&mut self, field: &Field) {
        for copy in self.copies.drain(..) {
            if let (Copy::Bucket { prefix }, Field::Bucket(yard)) = (copy, field) {
                let keys = yard.store.raw_list(&format!("{prefix}/runs")).await.unwrap();
                let keys: Vec<String> = keys.into_iter().filter(|key| !key.contains(ALIEN)).collect();
                yard.store.raw_delete(&keys).await.unwrap();
            }
        }
    }
}

fn key_of(name: &str) -> String {
    format!("2020-01-01T00:00:00.000000Z_run_id={name}_{}/run.yaml", "0".repeat(32))
}

/// A record of another program.
pub(crate) fn record_of(name: &str, place: &str, status: &str, lease_ends: &str) -> String {
    let error = if status == "failed" { "exit" } else { "null" };
    format!(
        "format_version: 1\nrun_id: '{name}'\nwriter_type: x\nstatus: {status}\nstarted_at: '2020-01-01T00:00:00Z'\n\
         updated_at: '2020-01-01T00:00:00Z'\nlease_expires_at: '{lease_ends}'\ns3_prefix: '{place}'\n\
         shard_prefix: shards\ndb_path_template: 'db={{db_id:05d}}'\nmanifest_ref: null\nerror_type: {error}\n\
         error_message: null\n"
    )
}

async fn runs_of(store: &MemoryStore) -> Vec<Run> {
    let mut walk = Pages::from(Default::default(), Page::default());
    let mut runs = Vec::new();
    while let Some(records) = walk.next(store).await.unwrap() {
        runs.extend(records.into_iter().map(|record| record.run));
    }
    runs
}

async fn put(store: &MemoryStore, run: Run) {
    let stamp = Stamp::draw(&outlive::id::SystemEntropy);
    let write = Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp };
    store.commit(vec![write]).await.unwrap();
}
