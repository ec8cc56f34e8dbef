//! Beats of workers that own few and many runs: a beat must cost the same whatever its worker owns.
//!
//! Measured twice: what the store is asked, and all that the keeper does at each beat.

use std::path::Path;
use std::sync::Arc;

use outlive::filter::Filter;
use outlive::id::SystemEntropy;
use outlive::owner::Identity;
use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use outlive::run::Spec;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::store::{Beat, Store};
use outlive::testing::person;
use outlive::time::SystemClock;

use crate::rounds::{Measured, Plan, Variant, interleave};
use crate::scratch::Outcome;
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 15, slices: 20, units: 20 };
/// How many runs are claimed in one transaction.
const CLAIMED: usize = 1_000;

/// A worker with its runs.
struct Worker {
    name: &'static str,
    registry: Registry,
    store: Arc<SqliteStore>,
    handles: Vec<RunHandle>,
}

/// Measures, and answers whether the rates are the same.
pub fn main(dir: &Path) -> Outcome<bool> {
    let workers =
        [Worker::new(dir, "1 run", 1)?, Worker::new(dir, "100 runs", 100)?, Worker::new(dir, "10,000 runs", 10_000)?];
    let mut beats = workers.iter().map(Worker::beat).collect::<Outcome<Vec<Beat>>>()?;
    let mut variants = Vec::new();
    for (worker, beat) in workers.iter().zip(&mut beats) {
        variants.push(Variant::new(worker.name, || {
            measure(|| {
                (0..PLAN.units).try_for_each(|_| {
                    let reply = pollster::block_on(worker.store.beat(beat))?;
                    beat.attention = Some(reply.attention);
                    Ok(())
                })
            })
        }));
    }
    println!("one beat, as the store sees it:");
    let mut met = print(&interleave(PLAN, variants)?);
    let mut variants = Vec::new();
    for worker in &workers {
        variants.push(Variant::new(worker.name, || {
            measure(|| (0..PLAN.units).try_for_each(|_| Ok(pollster::block_on(worker.registry.tick())?)))
        }));
    }
    println!("one beat, with all that the keeper does:");
    met &= print(&interleave(PLAN, variants)?);
    for worker in workers {
        // They end with this process; nobody waits for a verdict.
        worker.handles.into_iter().for_each(std::mem::forget);
    }
    Ok(met)
}

fn print(measured: &Measured) -> bool {
    measured.print_rates("beats");
    [1, 2].into_iter().fold(true, |met, many| met & measured.print_ratio(many, 0, Some(0.8..=1.25)))
}

impl Worker {
    /// A worker that owns `count` runs in a registry of its own.
    fn new(dir: &Path, name: &'static str, count: usize) -> Outcome<Self> {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let path = dir.join(count.to_string());
        let store = Arc::new(SqliteStore::create(&path, Sharing::Private, clock.clone(), entropy.clone())?);
        let registry = Registry::over(store.clone(), clock, entropy, person("ada"), Identity::own());
        let mut handles = Vec::new();
        pollster::block_on(async {
            for _ in 0..count {
                registry.enqueue(Spec::new("bench", person("ada"))).await?;
            }
            while handles.len() < count {
                handles.extend(registry.claim(Filter::default(), CLAIMED).await?);
            }
            registry.tick().await
        })?;
        Ok(Self { name, registry, store, handles })
    }

    /// The beat that names all its runs, and knows what the last one said.
    fn beat(&self) -> Outcome<Beat> {
        let mut beat = Beat {
            worker: self.registry.worker().ok_or("the worker has claimed nothing")?,
            identity: Identity::own(),
            lease: Default::default(),
            held: self.handles.iter().map(|handle| (handle.id(), handle.fence().epoch)).collect(),
            attention: None,
            leaving: false,
            offer: Default::default(),
        };
        let reply = pollster::block_on(self.store.beat(&beat))?;
        if !(reply.lost.is_empty() && reply.unknown.is_empty() && reply.forgotten.is_empty()) {
            return Err("the worker does not own what it holds".into());
        }
        beat.attention = Some(reply.attention);
        Ok(beat)
    }
}
