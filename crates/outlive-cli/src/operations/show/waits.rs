//! What a run waits for, as programs read it: runs, a time, keys.

use outlive::error::Error;
use outlive::id::RunId;
use outlive::registry::{KeyUse, Registry};
use outlive::run::{Hold, Run, State};
use outlive::time::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operations::keys::{KeyView, RunRef};
use crate::ui::plain;

/// One thing that keeps a run from being claimed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Wait {
    /// `run`, `time`, `key` or `rate`.
    code: &'static str,
    /// The run that must end first.
    run: Option<RunRef>,
    /// The key that has no room.
    key: Option<String>,
    /// The runs that hold it.
    holders: Vec<RunRef>,
    /// When it is over; none where that is not known.
    until: Option<Timestamp>,
}

impl Wait {
    fn new(code: &'static str) -> Self {
        Self { code, run: None, key: None, holders: Vec::new(), until: None }
    }
}

impl Wait {
    /// What the run with this id is called, where it is waited for and has a name.
    pub fn title(&self, id: RunId) -> Option<String> {
        let run = self.run.as_ref().filter(|run| run.id == id)?;
        run.name.as_deref().map(plain)
    }
}

/// The keys of a run that has not ended, each with who holds it and who waits for it.
pub async fn keys(registry: &Registry, run: &Run) -> Result<Vec<KeyUse>, Error> {
    if run.spec.keys.is_empty() || run.ending().is_some() {
        return Ok(Vec::new());
    }
    let (mut keys, _) = registry.keys_in_use().await?;
    keys.retain(|used| run.spec.keys.iter().any(|key| key.slot() == used.key.slot()));
    Ok(keys)
}

/// The keys as they are shown.
pub fn shown(keys: &[KeyUse]) -> Vec<KeyView> {
    keys.iter().map(KeyView::of).collect()
}

/// What a pending run waits for.
pub async fn waits(registry: &Registry, run: &Run, keys: &[KeyUse]) -> Result<Vec<Wait>, Error> {
    let State::Pending(pending) = &run.state else { return Ok(Vec::new()) };
    let mut waits = Vec::new();
    for record in registry.store().get(&pending.waits_for).await? {
        waits.push(Wait { run: Some(RunRef::of(&record.run)), ..Wait::new("run") });
    }
    let now = registry.clock().now();
    if let Some(until) = pending.not_before.filter(|at| *at > now) {
        waits.push(Wait { until: Some(until), ..Wait::new("time") });
    }
    for used in keys.iter().filter(|used| used.key.hold == Hold::Running && !used.has_room()) {
        let holders = used.holders.iter().map(RunRef::of).collect();
        waits.push(Wait { key: Some(used.key.name.clone()), holders, ..Wait::new("key") });
    }
    for (rate, free_at) in registry.rates_used_up(&[run]).await? {
        waits.push(Wait { key: Some(rate.name), until: Some(free_at), ..Wait::new("rate") });
    }
    Ok(waits)
}
