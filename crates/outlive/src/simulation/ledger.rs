//! The ledger: a second, simple account of what is on record, kept from the writes and beats that took effect.
//!
//! It is asked after every write whether the write was allowed. It shares no judgement with the code that it watches:
//! who is silent, who holds a key and who asked for a cancel it knows from its own entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::promises::Promises;
use super::rules::{self, Wrote};
use crate::lifecycle::Fence;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::Evidence;
use crate::model::run::{Run, StateName};
use crate::store::Record;

/// Who made a write, and by which call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Author {
    pub(super) process: usize,
    pub(super) worker: WorkerId,
    /// The call that it belongs to; a keeper's writes belong to none.
    pub(super) call: Option<u64>,
    /// The claim that the call presented.
    pub(super) fence: Option<Fence>,
}

/// How an epoch was left.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochEnd {
    pub(super) process: usize,
    pub(super) call: Option<u64>,
    pub(super) to: StateName,
    pub(super) reaped: bool,
}

#[derive(Debug, Clone)]
struct KnownRun {
    number: usize,
    record: Record,
    /// This attempt has a cancel request.
    asked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sign {
    at: Duration,
    order: u64,
}

/// A look at the runs: when it was, and since when the store had been able to hear.
#[derive(Debug, Clone, Copy)]
struct ObservedAt {
    sign: Sign,
    reachable_since: Duration,
}

/// What is on record, by another hand.
#[derive(Default)]
pub(super) struct Ledger {
    runs: BTreeMap<RunId, KnownRun>,
    heard: BTreeMap<WorkerId, Sign>,
    reachable_since: Duration,
    /// When each process last looked around.
    looked: BTreeMap<usize, ObservedAt>,
    order: u64,
    pub(super) left: BTreeMap<(RunId, Epoch), EpochEnd>,
    pub(super) promises: Promises,
}

impl Ledger {
    /// The run's number, or 0 if it was never made.
    pub(super) fn number(&self, id: RunId) -> usize {
        self.runs.get(&id).map_or(0, |known| known.number)
    }

    pub(super) fn record(&self, id: RunId) -> Option<&Record> {
        self.runs.get(&id).map(|known| &known.record)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.runs.values().map(|known| (known.number, &known.record))
    }

    /// The store heard a beat.
    pub(super) fn beat(&mut self, worker: WorkerId, now: Duration) {
        self.order += 1;
        self.heard.insert(worker, Sign { at: now, order: self.order });
    }

    /// The store hears again.
    pub(super) fn hears_again(&mut self, now: Duration) {
        self.reachable_since = now;
    }

    /// A process listed runs.
    pub(super) fn looked(&mut self, process: usize, now: Duration) {
        let look = ObservedAt { sign: Sign { at: now, order: self.order }, reachable_since: self.reachable_since };
        self.looked.insert(process, look);
    }

    /// Enters a write, or says which promise it broke.
    pub(super) fn wrote(&mut self, author: &Author, wrote: &Wrote<'_>, now: Duration) -> Result<(), String> {
        let id = wrote.after.run.id;
        let before = self.runs.get(&id);
        let describe = |broken| format!("run {}: {broken}", before.map_or(self.runs.len() + 1, |known| known.number));
        rules::check(before.map(|known| &known.record), wrote).map_err(describe)?;
        self.check_history(author, wrote, now).map_err(describe)?;
        self.promises.wrote(author, wrote).map_err(describe)?;
        self.enter(author, wrote, now);
        self.check_keys(&wrote.after.run)
    }

    fn check_history(&self, author: &Author, wrote: &Wrote<'_>, now: Duration) -> Result<(), String> {
        let (after, action) = (&wrote.after.run, wrote.action());
        let known = self.runs.get(&after.id);
        if after.state.name() == StateName::Cancelled
            && action != "request cancel"
            && !known.is_some_and(|known| known.asked)
        {
            return Err("it was cancelled, without a request".into());
        }
        let Some(KnownRun { record: before, .. }) = known else { return Ok(()) };
        if matches!(action, "report" | "suspend" | "finish" | "interrupt")
            && author.fence.is_some_and(|fence| fence.epoch != before.run.epoch)
        {
            return Err(format!("fence: `{action}` by an older claim took effect at epoch {}", before.run.epoch));
        }
        match (action, before.run.owner()) {
            ("reap", Some(owner)) => {
                let sign = self.heard.get(&owner.worker).copied().unwrap_or(Sign { at: Duration::ZERO, order: 0 });
                let silent = now.saturating_sub(sign.at.max(self.reachable_since));
                let lease = owner.lease.lasts();
                if silent <= lease {
                    return Err(format!("reaped after {silent:?} of silence, within its lease of {lease:?}"));
                }
                match self.looked.get(&author.process).filter(|look| sign.order <= look.sign.order) {
                    Some(look) => check_evidence(wrote, look.sign.at.saturating_sub(sign.at.max(look.reachable_since))),
                    None => Err("reaped although its owner was heard of since the reaper looked".into()),
                }
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, author: &Author, wrote: &Wrote<'_>, now: Duration) {
        let (run, action) = (&wrote.after.run, wrote.action());
        let number = self.runs.len() + 1;
        let known = self.runs.get(&run.id);
        let asked = known.is_some_and(|known| known.asked) && action != "resume" || action == "request cancel";
        if let Some(before) = known.map(|known| &known.record.run)
            && before.owner().is_some()
            && run.owner().is_none()
        {
            let (process, call) = (author.process, author.call);
            let left = EpochEnd { process, call, to: run.state.name(), reaped: action == "reap" };
            self.left.insert((run.id, before.epoch), left);
        }
        let owner_before = known.and_then(|known| known.record.run.owner()).map(|owner| owner.worker);
        let number = known.map_or(number, |known| known.number);
        self.runs.insert(run.id, KnownRun { number, record: wrote.after.clone(), asked });
        if let Some(owner) = run.owner().filter(|owner| owner_before != Some(owner.worker)) {
            self.beat(owner.worker, now);
        }
    }

    fn check_keys(&self, changed: &Run) -> Result<(), String> {
        for key in changed.held_keys() {
            let holds = |run: &Run| run.holds(key);
            let holders: BTreeSet<usize> =
                self.runs.values().filter(|known| holds(&known.record.run)).map(|known| known.number).collect();
            if holders.len() > key.limit as usize {
                return Err(format!("key `{}` of {} is held by the runs {holders:?}", key.name, key.limit));
            }
        }
        Ok(())
    }
}

/// What a reap says it rests on must be what its reaper saw.
fn check_evidence(wrote: &Wrote<'_>, seen: Duration) -> Result<(), String> {
    match wrote.events.last().and_then(|event| event.evidence.as_ref()) {
        Some(Evidence::LeaseLapsed { silent_ms, .. }) if u128::from(*silent_ms) == seen.as_millis() => Ok(()),
        other => Err(format!("reaped after a silence of {seen:?} was seen, on the evidence {other:?}")),
    }
}
