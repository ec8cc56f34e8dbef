//! Artifacts in a history: the bucket that writers fill, the sweeper that empties it, and what may be deleted.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Planted;
use super::faulty::{unavailable, unknown};
use super::history::{Fact, What};
use super::processes::Process;
use super::world::{World, WorldState};
use crate::engine::sweeper::{Machine, Objects, SweepPolicy, sweep_from};
use crate::lifecycle::Fence;
use crate::model::id::RunId;
use crate::model::run::{End, Output, Run};
use crate::model::time::{Clock, Timestamp};
use crate::store::Error;
use crate::store::object::ListedObject;
use crate::testing::stranger;

/// Where the artifacts of every run of a history are.
pub(super) const PLACE: &str = "s3://simulated/artifacts";

/// An object of the bucket.
pub(super) struct Artifact {
    bytes: Vec<u8>,
    modified: Timestamp,
    /// It is a manifest that was put by the owner of its run.
    published: bool,
}

/// The output of a run that makes artifacts.
pub(super) fn output() -> Output {
    Output { prefix: PLACE.into(), ..Output::default() }
}

fn manifest_of(run: RunId) -> String {
    format!("manifests/run_id={run}/manifest.json")
}

/// The run that an object is of, as its path says.
fn run_of(key: &str) -> Option<RunId> {
    key.split('/').find_map(|part| part.strip_prefix("run_id="))?.parse().ok()
}

/// The bucket as one process sees it.
struct SimulatedBucket {
    world: Arc<World>,
    process: usize,
}

impl SimulatedBucket {
    /// A request: others go first, `effect` happens or does not, others go first, and there is an answer or none.
    async fn request<T>(
        &self,
        operation: &'static str,
        effect: impl FnOnce(&mut WorldState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.world.yield_now().await;
        let answer = {
            let state = &mut *self.world.state();
            if state.outage_until.is_some() || !state.calm && self.world.entropy.one_in(30) {
                self.world.tell(state, Some(self.process), What::Fault(operation, "refused by the bucket"));
                Err(unavailable())
            } else {
                effect(state)
            }
        };
        self.world.yield_now().await;
        if self.world.entropy.one_in(8) {
            self.world.nap(self.world.between(100, 6_000)).await;
        }
        answer
    }

    /// Whether a planted defect hides an object from listings.
    fn is_hidden(&self, key: &str) -> bool {
        self.world.plan.planted == Some(Planted::ListingWithoutManifests) && key.starts_with("manifests/")
    }

    fn listed(&self, state: &WorldState, prefix: &str, after: Option<&str>) -> Vec<ListedObject> {
        let is_below = |key: &str| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        let listed = |(key, object): (&String, &Artifact)| ListedObject {
            key: key.clone(),
            tag: None,
            modified: object.modified,
            size: object.bytes.len() as u64,
        };
        let found = state.objects.iter().filter(|(key, _)| is_below(key) && !self.is_hidden(key));
        found.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after)).map(listed).collect()
    }
}

#[async_trait]
impl Objects for SimulatedBucket {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, Error> {
        self.request("get of an object", |state| Ok(state.objects.get(key).map(|object| object.bytes.clone().into())))
            .await
    }

    async fn has(&self, key: &str) -> Result<bool, Error> {
        self.request("look for an object", |state| Ok(state.objects.contains_key(key))).await
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<ListedObject>, Error> {
        self.request("list of objects", |state| Ok(self.listed(state, prefix, None))).await
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<ListedObject>, Error> {
        self.request("page of objects", |state| Ok(self.listed(state, prefix, after))).await
    }

    async fn delete(&self, keys: Vec<String>) -> Result<Vec<(String, Error)>, Error> {
        self.request("delete of objects", |state| {
            let mut left = Vec::new();
            for key in keys {
                if !state.calm && self.world.entropy.one_in(10) {
                    left.push((key, unavailable()));
                    continue;
                }
                let outcome = check_delete(state, &key);
                self.world.judge(state, outcome);
                if state.objects.remove(&key).is_some() {
                    state.history.counters.saw(Fact::Deleted);
                    self.world.tell(state, Some(self.process), What::World(format!("deletes {key}")));
                }
            }
            if !state.calm && self.world.entropy.one_in(10) { Err(unknown()) } else { Ok(left) }
        })
        .await
    }

    fn time(&self) -> Option<Timestamp> {
        Some(self.world.clock.now())
    }
}

/// Refuses the deletion of what a run may need that is live, can be resumed or is published, or that no record is of.
fn check_delete(state: &WorldState, key: &str) -> Result<(), String> {
    let Some(record) = run_of(key).and_then(|id| state.ledger.record(id)) else {
        return Err(format!("sweep: {key} was deleted, and no record is of its run"));
    };
    let (run, number) = (&record.run, state.ledger.number(record.run.id));
    match run.ending().map(|ending| &ending.how) {
        None => return Err(format!("sweep: {key} of run {number} was deleted, which is {}", run.state.name())),
        Some(End::Interrupted(_)) => {
            return Err(format!("sweep: {key} of run {number} was deleted, which can be resumed"));
        }
        Some(_) if run.swept.is_none() => {
            return Err(format!("sweep: {key} of run {number} was deleted without a mark on record"));
        }
        Some(_) => {}
    }
    let manifest = state.objects.get(&manifest_of(run.id)).filter(|manifest| manifest.published);
    match manifest.is_some_and(|manifest| String::from_utf8_lossy(&manifest.bytes).contains(key)) {
        true => Err(format!("sweep: {key} of run {number} was deleted, and its manifest names it")),
        false => Ok(()),
    }
}

impl Process {
    /// Has a run make an object, if it makes any. An owner that was fenced off makes objects, too.
    pub(super) async fn make_artifact(&self, run: &Run, fence: Fence) {
        if run.spec.output.is_none() {
            return;
        }
        self.world.yield_now().await;
        let part = self.draw(3);
        let key = format!("{}/part-{part}", attempt_of(run, fence));
        self.put(key, vec![0; 16], false);
    }

    /// Puts the manifest of a run that names what its attempt has made. Answers with where it is.
    pub(super) async fn publish(&self, run: &Run, fence: Fence) -> Option<String> {
        run.spec.output.as_ref()?;
        self.make_artifact(run, fence).await;
        self.world.yield_now().await;
        let (key, own) = (manifest_of(run.id), format!("{}/", attempt_of(run, fence)));
        let made: Vec<String> =
            self.world.state().objects.keys().filter(|key| key.starts_with(&own)).cloned().collect();
        let is_owner = self.world.state().ledger.record(run.id).is_some_and(|record| {
            record.run.epoch == fence.epoch && record.run.owner().is_some_and(|owner| owner.worker == fence.worker)
        });
        // An owner that was fenced off may not replace what its successor has published.
        if !is_owner && self.world.state().objects.contains_key(&key) {
            return Some(format!("{PLACE}/{key}"));
        }
        self.put(key.clone(), serde_json::to_vec(&made).unwrap_or_default(), is_owner);
        Some(format!("{PLACE}/{key}"))
    }

    fn put(&self, key: String, bytes: Vec<u8>, published: bool) {
        let state = &mut *self.world.state();
        state.history.counters.saw(if published { Fact::Published } else { Fact::Artifact });
        self.world.tell(state, Some(self.index), What::World(format!("puts {key}")));
        state.objects.insert(key, Artifact { bytes, modified: self.world.clock.now(), published });
    }

    /// A sweeper's loop.
    pub(super) async fn sweep(self: Rc<Self>) {
        let pid = u32::try_from(self.index).unwrap_or_default() + 100;
        let (world, process) = (self.world.clone(), self.index);
        let machine = Machine {
            clock: self.registry.shared_clock(),
            process: stranger(pid),
            open: Box::new(move |_| Some(Arc::new(SimulatedBucket { world: world.clone(), process }))),
        };
        let policy = SweepPolicy {
            grace: Duration::from_millis(500),
            unsure: Duration::from_millis(100),
            ..SweepPolicy::default()
        };
        loop {
            self.nap(1_000, 8_000).await;
            let swept = self.call("a sweep", None, sweep_from(&machine, &self.registry, &policy)).await.0;
            if swept.is_ok_and(|report| !report.swept.is_empty()) {
                self.world.state().history.counters.saw(Fact::Sweep);
            }
        }
    }
}

/// The directory of an attempt. Each claim has its own, as writers that share a bucket must have it.
fn attempt_of(run: &Run, fence: Fence) -> String {
    format!("shards/run_id={}/db=00000/attempt={:02}", run.id, fence.epoch.0)
}

impl World {
    /// Whether all that published manifests of succeeded runs name is there.
    pub(super) fn check_published(&self, state: &WorldState) -> Result<(), String> {
        for (number, record) in state.ledger.records() {
            let Some(End::Succeeded) = record.run.ending().map(|ending| &ending.how) else { continue };
            let Some(manifest) = state.objects.get(&manifest_of(record.run.id)).filter(|object| object.published)
            else {
                continue;
            };
            let named: Vec<String> = serde_json::from_slice(&manifest.bytes).unwrap_or_default();
            if let Some(gone) = named.iter().find(|key| !state.objects.contains_key(*key)) {
                return Err(format!("run {number}: {gone} is gone, and its manifest names it"));
            }
        }
        Ok(())
    }
}
