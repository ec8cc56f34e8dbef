//! `outlive workers`: the processes that own runs, or stand by to.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::WorkerId;
use outlive::lifecycle::health::OwnerStatus;
use outlive::run::StateName;
use outlive::store::{Page, Pages, WorkerRecord};
use outlive::time::{Timestamp, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::table::{Cell, Colour, Step, Table};
use crate::ui::{Look, plain};

/// List workers with their slots, last heartbeat and runs
///
/// A worker is one process that owns runs, from its first claim to its end. Without slots it claims nothing from the
/// queue. A worker that is gone, or whose lease has expired where its process cannot be observed, loses its runs to a
/// reaper.
#[derive(Debug, Default, Args)]
pub struct Workers {}

/// All workers that the registry knows.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Known {
    registry: String,
    workers: Vec<WorkerView>,
}

/// A worker, as every surface shows it.
#[derive(Debug, JsonSchema, Serialize)]
struct WorkerView {
    id: WorkerId,
    /// What people call it, where it has a name: a label, never an identity.
    name: Option<String>,
    host: String,
    pid: u32,
    /// The outlive that it is; null where it did not say.
    version: Option<String>,
    /// How many runs it executes from the queue at a time; 0 if it only looks after what it has started.
    slots: u32,
    /// Of which kinds; of any, if none is named.
    kinds: Vec<String>,
    /// `alive`, `late`, `silent`, or `gone` where this host sees that its process is.
    health: &'static str,
    last_beat_at: Timestamp,
    silent_ms: u64,
    beat_ms: u64,
    lease_ms: u64,
    /// How many runs it owns.
    runs: usize,
}

impl WorkerView {
    fn new(worker: &WorkerRecord, judgement: &OwnerStatus, runs: usize) -> Self {
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (lease, silent_for) = (worker.lease, worker.heard.silent_for);
        let health = match judgement {
            OwnerStatus::Dead(evidence) if evidence.is_silence() => "silent",
            OwnerStatus::Dead(_) | OwnerStatus::Orphaned { .. } => "gone",
            OwnerStatus::Unresponsive => "silent",
            OwnerStatus::Live if silent_for > lease.beat() * 3 / 2 => "late",
            OwnerStatus::Live => "alive",
        };
        Self {
            id: worker.id,
            name: worker.offer.name.clone(),
            host: worker.identity.vantage.host.to_string(),
            pid: worker.identity.pid,
            version: Some(worker.offer.version.clone()).filter(|version| !version.is_empty()),
            slots: worker.offer.slots,
            kinds: worker.offer.kinds.clone(),
            health,
            last_beat_at: worker.heard.at,
            silent_ms: millis(silent_for),
            beat_ms: millis(lease.beat()),
            lease_ms: millis(lease.lasts()),
            runs,
        }
    }
}

impl WorkerView {
    /// How many runs it executes at a time, where it takes any.
    fn slots(&self) -> String {
        if self.slots == 0 { String::new() } else { self.slots.to_string() }
    }
}

impl Operate for Workers {
    const NAME: &'static str = "workers";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive workers\noutlive workers --json";
    type Output = Known;

    async fn operate(self, context: &Context) -> Result<Known, Error> {
        let Some(registry) = context.existing().await? else {
            return Ok(Known { registry: context.place()?, workers: Vec::new() });
        };
        let mut owned: BTreeMap<WorkerId, usize> = BTreeMap::new();
        let mut walk = Pages::from(Filter::in_states([StateName::Running]), Page::default());
        while let Some(records) = walk.next(registry.store()).await? {
            for owner in records.iter().filter_map(|record| record.run.owner()) {
                *owned.entry(owner.worker).or_default() += 1;
            }
        }
        let view = |(worker, judgement): &(WorkerRecord, OwnerStatus)| {
            WorkerView::new(worker, judgement, owned.get(&worker.id).copied().unwrap_or(0))
        };
        let workers = registry.workers().await?.iter().map(view).collect();
        Ok(Known { registry: registry.shown(), workers })
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.workers.is_empty() {
            return writeln!(f, "no workers in {}", plain(&self.registry));
        }
        // Most have no name, and need no column for it.
        let is_named = self.workers.iter().any(|worker| worker.name.is_some());
        let row = |worker: &WorkerView| {
            let colour = match worker.health {
                "alive" => Colour::Good,
                "late" => Colour::Doubtful,
                _ => Colour::Bad,
            };
            let name = is_named.then(|| Cell::new(worker.name.as_deref().map(plain).unwrap_or_default()));
            let rest = [
                Cell::new(plain(&worker.host)),
                Cell::new(worker.pid.to_string()),
                Cell::new(worker.version.as_deref().map(plain).unwrap_or_default()),
                Cell::new(worker.slots()),
                Cell::new(worker.kinds.iter().map(|kind| plain(kind)).collect::<Vec<_>>().join(", ")),
                Cell::new(worker.health).coloured(Some(colour)),
                Cell::new(worker.runs.to_string()),
                Cell::new(format!("{} ago", show_duration(std::time::Duration::from_millis(worker.silent_ms)))),
            ];
            [Cell::new(worker.id.to_string())].into_iter().chain(name).chain(rest).collect::<Vec<_>>()
        };
        let all = ["WORKER", "NAME", "HOST", "PID", "VERSION", "SLOTS", "KINDS", "HEALTH", "RUNS", "LAST BEAT"];
        let headings: Vec<&str> = all.into_iter().filter(|heading| is_named || *heading != "NAME").collect();
        let table = Table::new(&headings, self.workers.iter().map(row).collect::<Vec<_>>());
        let steps =
            [Step::LeaveOut("VERSION"), Step::Narrow("KINDS", 16), Step::LeaveOut("PID"), Step::Narrow("NAME", 16)];
        writeln!(f, "{}", table.show(Look::of_stdout(), &steps, &[]))
    }
}
