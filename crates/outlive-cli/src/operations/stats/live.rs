//! `outlive stats --live`: what a registry has to do now, and who does it.
//!
//! The numbers are those of `/metrics`: what the store has counted as runs were written, the heads of its queue, and its
//! workers. No run is read but those that are running.

use std::collections::BTreeMap;
use std::fmt;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::show_duration;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

use crate::ui::table::{Cell, Step, Table};
use crate::ui::{Look, plain};

/// What a registry has to do now.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Live {
    registry: String,
    kinds: Vec<LiveKind>,
    /// Workers that beat.
    workers: usize,
    /// How many runs they execute at a time.
    slots: u64,
    /// How long the worker has been silent that has been so for longest.
    silent_ms: u64,
}

/// The runs of one kind.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct LiveKind {
    kind: String,
    pending: u64,
    running: u64,
    /// How long ago the oldest run was created that could be claimed now; none where none could.
    oldest_ms: Option<u64>,
    succeeded: u64,
    failed: u64,
    dead: u64,
    /// Suspended, interrupted and cancelled ones.
    others: u64,
}

impl Live {
    /// What `registry` has to do.
    pub async fn of(registry: &Registry) -> Result<Self, Error> {
        let mut kinds: BTreeMap<String, LiveKind> = BTreeMap::new();
        for count in registry.counts().await? {
            let kind = kinds.entry(count.kind).or_default();
            let runs = match count.state {
                StateName::Pending => &mut kind.pending,
                StateName::Running => &mut kind.running,
                StateName::Succeeded => &mut kind.succeeded,
                StateName::Failed => &mut kind.failed,
                StateName::Dead => &mut kind.dead,
                _ => &mut kind.others,
            };
            *runs += count.runs;
        }
        for (kind, age) in oldest(registry).await? {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            kinds.entry(kind).or_default().oldest_ms = Some(age);
        }
        let workers = registry.store().workers().await?;
        let silent = workers.iter().map(|worker| worker.heard.silent_for).max().unwrap_or_default();
        let named = kinds.into_iter().map(|(kind, counts)| LiveKind { kind, ..counts });
        Ok(Self {
            registry: registry.shown(),
            kinds: named.collect(),
            workers: workers.len(),
            slots: workers.iter().map(|worker| u64::from(worker.offer.slots)).sum(),
            silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// How long ago the oldest run of each kind was created that could be claimed now.
pub async fn oldest(registry: &Registry) -> Result<BTreeMap<String, Duration>, Error> {
    let now = registry.clock().now();
    let mut oldest: BTreeMap<String, Duration> = BTreeMap::new();
    for head in registry.store().heads(&Filter::default()).await? {
        let age = oldest.entry(head.kind).or_default();
        *age = (*age).max(now.since(head.created_at));
    }
    Ok(oldest)
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |kind: &LiveKind| {
            let oldest = kind.oldest_ms.map_or_else(|| "-".into(), |ms| show_duration(Duration::from_millis(ms)));
            vec![
                Cell::new(plain(&kind.kind)),
                Cell::new(kind.pending.to_string()),
                Cell::new(oldest),
                Cell::new(kind.running.to_string()),
                Cell::new(kind.succeeded.to_string()),
                Cell::new(kind.failed.to_string()),
                Cell::new(kind.dead.to_string()),
            ]
        };
        if self.kinds.is_empty() {
            writeln!(f, "no runs in {}", plain(&self.registry))?;
        } else {
            let headings = ["KIND", "PENDING", "OLDEST", "RUNNING", "SUCCEEDED", "FAILED", "DEAD"];
            let table = Table::new(&headings, self.kinds.iter().map(row));
            writeln!(f, "{}", table.show(Look::of_stdout(), &[Step::Narrow("KIND", 24)], &[]))?;
        }
        let silent = show_duration(Duration::from_millis(self.silent_ms));
        match self.workers {
            0 => writeln!(f, "no workers"),
            workers => writeln!(f, "{workers} workers with {} slots; the longest silence is {silent}", self.slots),
        }
    }
}
