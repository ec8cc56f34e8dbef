//! What the store that is left after failovers says, held against what was acknowledged before them.

use std::collections::{BTreeMap, BTreeSet};

use outlive::id::{RunId, WorkerId};
use outlive::registry::Registry;
use outlive::run::{Event, StateName};

use super::workers::{Acknowledged, Write};
use crate::scratch::Outcome;

/// How many runs are read at once.
const PAGE: usize = 500;

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    pub runs: usize,
    /// Claims in the histories of runs: more than runs where owners were given up.
    pub claims: usize,
    /// Acknowledged by a server, and not in the store.
    pub lost_runs: usize,
    pub lost_checkpoints: usize,
    pub lost_ends: usize,
    /// Executed to an acknowledged end by two owners, because the first end was lost.
    pub executed_twice: usize,
    /// Histories that no sequence of owners, one at a time, can have written; and runs that did not end.
    pub broken: Vec<String>,
}

impl Findings {
    /// Acknowledged writes that are lost.
    pub fn lost(&self) -> usize {
        self.lost_runs + self.lost_checkpoints + self.lost_ends
    }

    /// Reads every run that was acknowledged or executed.
    pub fn look(registry: &Registry, enqueued: &BTreeSet<RunId>, acknowledged: &[Acknowledged]) -> Outcome<Self> {
        let mut by_run: BTreeMap<RunId, Vec<&Acknowledged>> = enqueued.iter().map(|run| (*run, Vec::new())).collect();
        for write in acknowledged {
            by_run.entry(write.run).or_default().push(write);
        }
        let mut found = Self::default();
        let ids: Vec<RunId> = by_run.keys().copied().collect();
        for page in ids.chunks(PAGE) {
            let kept = pollster::block_on(registry.store().get(page))?;
            let kept: BTreeMap<RunId, StateName> =
                kept.into_iter().map(|snapshot| (snapshot.run.id, snapshot.run.state.name())).collect();
            for id in page {
                let writes = &by_run[id];
                let Some(state) = kept.get(id) else {
                    found.lost_runs += usize::from(enqueued.contains(id));
                    found.count_lost(writes, &[]);
                    continue;
                };
                let events = pollster::block_on(registry.events(*id))?;
                found.runs += 1;
                if let Err(why) = check(&events) {
                    found.broken.push(format!("{id}: {why}: {}", shown(&events)));
                }
                if *state != StateName::Succeeded {
                    found.broken.push(format!("{id} is {state}"));
                }
                found.claims += events.iter().filter(|event| event.action == "claim").count();
                found.count_lost(writes, &events);
            }
        }
        Ok(found)
    }

    fn count_lost(&mut self, writes: &[&Acknowledged], events: &[Event]) {
        let has = |action: &str, write: &Acknowledged| {
            let is_it = |event: &Event| {
                event.action == action && event.epoch.0 == write.epoch && event.worker == Some(write.worker)
            };
            events.iter().any(is_it)
        };
        let mut ended = BTreeSet::new();
        for write in writes {
            match write.write {
                Write::Saved => self.lost_checkpoints += usize::from(!has("claim", write) && !has("report", write)),
                Write::Ended => {
                    self.lost_ends += usize::from(!has("finish", write));
                    ended.insert((write.epoch, write.worker.to_string()));
                }
            }
        }
        self.executed_twice += usize::from(ended.len() > 1);
    }
}

/// A history in a line.
fn shown(events: &[Event]) -> String {
    let one = |event: &Event| format!("{} {} {:?}", event.action, event.epoch.0, event.worker.map(|w| w.to_string()));
    events.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// One owner at a time: epochs rise, an owner writes in its own epoch only, and there is one end, the last.
fn check(events: &[Event]) -> Result<(), String> {
    let mut owner: Option<(u64, WorkerId)> = None;
    for event in events {
        let epoch = event.epoch.0;
        match (&*event.action, event.worker) {
            ("claim", Some(worker)) => {
                if owner.is_some_and(|(before, _)| epoch <= before) {
                    return Err(format!("epoch {epoch} comes twice"));
                }
                owner = Some((epoch, worker));
            }
            // A run that the store has lost is written again by its owner.
            (_, Some(worker)) if owner.is_none() => owner = Some((epoch, worker)),
            ("finish" | "interrupt", Some(worker)) if owner != Some((epoch, worker)) => {
                return Err(format!("{worker} writes in epoch {epoch}, which is not its own"));
            }
            _ => {}
        }
    }
    let ends = events.iter().filter(|event| event.to == StateName::Succeeded).count();
    let is_last = events.last().is_some_and(|event| event.to == StateName::Succeeded);
    if ends == 1 && is_last { Ok(()) } else { Err(format!("it has {ends} ends")) }
}
