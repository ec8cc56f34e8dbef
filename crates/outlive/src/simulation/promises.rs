//! What processes learned, held against what was so.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{Author, EpochEnd, Ledger};
use super::rules::Wrote;
use crate::lifecycle::Fence;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::run::{Run, StateName};

/// An end that a worker was promised to be on record later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owed {
    pub(super) process: usize,
    pub(super) run: RunId,
    pub(super) epoch: Epoch,
    /// How it must be on record.
    pub(super) to: StateName,
}

impl Owed {
    /// An interrupted run with a cancel request is cancelled. One that could not be suspended is interrupted.
    fn is_met_by(&self, left: &EpochEnd) -> bool {
        let honoured = self.to == StateName::Interrupted && left.to == StateName::Cancelled;
        let not_suspended =
            self.to == StateName::Suspended && matches!(left.to, StateName::Interrupted | StateName::Cancelled);
        left.process == self.process && (left.to == self.to || honoured || not_suspended)
    }
}

/// Everything that processes learned.
#[derive(Default)]
pub(super) struct Promises {
    /// Handles that processes have in their hands.
    held: BTreeSet<(WorkerId, RunId, Epoch)>,
    /// Which process learned that it reaped.
    won: BTreeMap<(RunId, Epoch), usize>,
    /// The attempts of which their worker learned that their end is on record.
    ended: BTreeSet<(RunId, Epoch)>,
    /// The calls that made a write.
    wrote: BTreeSet<u64>,
    /// The calls that learned that nothing was written.
    refused: BTreeSet<u64>,
    owed: Vec<Owed>,
}

/// What the keeper says of a claim that it never heard of.
const FORGOTTEN: &str = "its worker did not know that it owned it";

/// Whether this write ended a run that its owner did not know of.
pub(super) fn is_forgotten(wrote: &Wrote<'_>) -> bool {
    wrote.events.last().is_some_and(|event| event.reason.as_deref() == Some(FORGOTTEN))
}

impl Promises {
    /// A write took effect.
    pub(super) fn wrote(&mut self, author: &Author, wrote: &Wrote<'_>) -> Result<(), String> {
        if let Some(call) = author.call {
            self.wrote.insert(call);
            if self.refused.contains(&call) {
                return Err("a write took effect whose caller had learned that nothing was written".into());
            }
        }
        let run = &wrote.after.run;
        if is_forgotten(wrote) && self.held.contains(&(author.worker, run.id, run.epoch)) {
            return Err("a run was ended as forgotten by the very worker that holds it".into());
        }
        Ok(())
    }

    /// A process has a handle in its hands.
    pub(super) fn hold(&mut self, fence: Fence, run: RunId) {
        self.held.insert((fence.worker, run, fence.epoch));
    }

    /// It has it no more.
    pub(super) fn let_go(&mut self, fence: Fence, run: RunId) {
        self.held.remove(&(fence.worker, run, fence.epoch));
    }

    /// A call learned that nothing was written.
    pub(super) fn told_nothing_written(&mut self, call: u64) -> Result<(), String> {
        self.refused.insert(call);
        match self.wrote.contains(&call) {
            true => Err("a caller learned that nothing was written, and its write had taken effect".into()),
            false => Ok(()),
        }
    }

    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.push(owed);
    }
}

impl Ledger {
    /// A reaper learned that it ended this attempt.
    pub(super) fn told_won(&mut self, process: usize, run: RunId, epoch: Epoch) -> Result<(), String> {
        let number = self.number(run);
        if let Some(other) = self.promises.won.insert((run, epoch), process) {
            return Err(format!("run {number}: processes {other} and {process} both learned that they reaped it"));
        }
        let reaped = Epoch(epoch.0.saturating_sub(1));
        match self.left.get(&(run, reaped)) {
            Some(EpochEnd { process: winner, reaped: true, .. }) if *winner == process => Ok(()),
            left => {
                Err(format!("run {number}: a reaper learned that it won epoch {reaped}, and it was left by {left:?}"))
            }
        }
    }

    /// A worker learned that the end of an attempt is on record: one of its own runs, or one that it reaped.
    pub(super) fn told_ended(&mut self, process: usize, attempt: &Run) -> Result<(), String> {
        let (run, epoch) = (attempt.id, attempt.epoch);
        match self.left.get(&(run, epoch)) {
            Some(EpochEnd { process: by, reaped: false, .. }) if *by == process => {
                match self.promises.ended.insert((run, epoch)) {
                    true => Ok(()),
                    false => Err(format!("run {}: its worker learned twice of one end", self.number(run))),
                }
            }
            Some(left) => {
                Err(format!("run {}: a worker learned of its end, and it was left by {left:?}", self.number(run)))
            }
            None => self.told_won(process, run, epoch),
        }
    }

    /// An owner learned that the run is no longer its own; by the call that was to end it, if `ending` says so.
    pub(super) fn told_lost(&self, fence: Fence, run: RunId, ending: Option<u64>) -> Result<(), String> {
        let number = self.number(run);
        let is_owner = self.record(run).is_some_and(|record| {
            record.run.epoch == fence.epoch && record.run.owner().is_some_and(|owner| owner.worker == fence.worker)
        });
        if is_owner {
            return Err(format!("run {number}: its owner learned that it had lost it at epoch {}", fence.epoch));
        }
        let by = self.left.get(&(run, fence.epoch)).and_then(|left| left.call);
        if ending.is_some() && by == ending {
            return Err(format!(
                "run {number}: its owner learned that it had lost, by the call whose end is on record"
            ));
        }
        Ok(())
    }

    /// An owner learned that its end is on record.
    pub(super) fn told_recorded(&self, owed: Owed) -> Result<(), String> {
        match self.left.get(&(owed.run, owed.epoch)) {
            Some(left) if owed.is_met_by(left) => Ok(()),
            left => Err(format!(
                "run {}: its owner learned that {} is on record, and there is {left:?}",
                self.number(owed.run),
                owed.to
            )),
        }
    }

    /// Whether each end that the living still owe is on record, or void because the owner had been reaped.
    pub(super) fn owed_ends(&self, lives: impl Fn(usize) -> bool) -> OwedEnds {
        let mut ends = OwedEnds::default();
        for owed in self.promises.owed.iter().filter(|owed| lives(owed.process)) {
            match self.left.get(&(owed.run, owed.epoch)) {
                Some(left) if left.reaped => ends.void += 1,
                Some(left) if owed.is_met_by(left) => ends.delivered += 1,
                left => ends.lost.push(format!(
                    "run {}: the end that was owed ({} at epoch {}) is not on record: {left:?}",
                    self.number(owed.run),
                    owed.to,
                    owed.epoch
                )),
            }
        }
        ends
    }
}

/// What became of the ends that were owed.
#[derive(Debug, Default)]
pub(super) struct OwedEnds {
    pub(super) delivered: u64,
    pub(super) void: u64,
    pub(super) lost: Vec<String>,
}
