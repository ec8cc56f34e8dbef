//! Planted defects of a store. Without one in the plan, nothing here does anything.

use super::Planted;
use super::faulty::{Faulty, at_once, deliver};
use super::world::WorldState;
use crate::model::run::{Run, StateName};
use crate::store::{Error, Expect, Record, Revision, Rule, Store, Write, WriteOutcome};
use crate::util::sync::lock;

fn does(write: &Write, action: &str) -> bool {
    write.events.last().is_some_and(|event| event.action == action)
}

impl Faulty {
    fn is_planted(&self, planted: Planted) -> bool {
        self.world.plan.planted == Some(planted)
    }

    /// The planted defect of a store that ends a run by its id alone.
    pub(super) fn forget_epoch(&self, mut write: Write) -> Write {
        if self.is_planted(Planted::FinishWithoutEpoch)
            && does(&write, "finish")
            && let Ok(Some(current)) = at_once(self.world.memory.get(&[write.run.id])).map(|mut found| found.pop())
        {
            write.expect = Expect::Revision(current.revision);
            write.run = Run { state: write.run.state, ..current.run };
            if let Some(event) = write.events.last_mut() {
                (event.epoch, event.attempt) = (write.run.epoch, write.run.attempt);
            }
        }
        write
    }

    /// What the planted defects of a store answer that confirms what it does not keep.
    pub(super) fn forgotten(&self, write: &Write) -> Option<WriteOutcome> {
        let ends = self.is_planted(Planted::FinishForgotten) && does(write, "finish");
        let marks = self.is_planted(Planted::SweepMarkForgotten) && does(write, "sweep");
        let Expect::Revision(Revision(expected)) = write.expect else { return None };
        (ends || marks).then_some(WriteOutcome::Done(Revision(expected + 1)))
    }

    /// What the planted defect of a store without a second look shows to a reaper's rule: the silence that it saw.
    pub(super) fn outdated(&self, run: &Run) -> Option<Run> {
        let seen = lock(&self.seen).get(&run.id).cloned()?;
        let same_claim = seen.epoch == run.epoch && seen.owner().is_some() && run.owner().is_some();
        (self.is_planted(Planted::ReapWithoutRecheck) && same_claim).then_some(seen)
    }

    /// Whether the answer of a reap is lost, more often than by chance: only then a planted defect shows.
    pub(super) fn swallows_reap(&self) -> bool {
        self.is_planted(Planted::OwnWriteByEquality) && self.world.entropy.one_in(2)
    }

    /// Whether a planted defect keeps a run from those that claim.
    pub(super) fn is_passed_over(&self, run: &Run) -> bool {
        self.is_planted(Planted::ClaimPassedOver) && run.created_at.as_micros() % 3 == 0
    }

    /// Whether a planted defect forgets a beat that was confirmed.
    pub(super) fn forgets_beat(&self) -> bool {
        self.is_planted(Planted::BeatForgotten) && self.world.entropy.one_in(2)
    }

    /// Whether a planted defect hides a run from listings: its owner has died.
    pub(super) fn hides(&self, state: &WorldState, run: &Run) -> bool {
        let is_dead = |run: &Run| {
            let owner = run.owner().map(|owner| owner.worker);
            state.processes.iter().any(|process| Some(process.worker) == owner && !process.lives)
        };
        self.is_planted(Planted::DeadOwnerHidden) && run.state.name() == StateName::Running && is_dead(run)
    }

    /// The planted defect of a store that gives a run away which it has just given to another: applies the rule of a claim to
    /// the run as it was before the last claim.
    pub(super) fn give_twice(&self, state: &mut WorldState, rule: Rule<'_>) -> Result<Option<Record>, Error> {
        let Some(pending) = state.last_claimed.take().filter(|_| self.is_planted(Planted::ClaimWithoutRevision)) else {
            return Ok(None);
        };
        let Some(current) = at_once(self.world.memory.get(&[pending.id]))?.pop() else { return Ok(None) };
        let Some(change) = rule(&pending, current.run.updated_at) else { return Ok(None) };
        let (transition, stamp) = (change.transition, change.stamp);
        let write = Write::change(&current, transition, stamp);
        let (run, author) = (write.run.clone(), self.world.author(state, self.process));
        match deliver(&self.world, state, &author, write, false)? {
            WriteOutcome::Done(revision) => Ok(Some(Record { run, revision, stamp })),
            _ => Ok(None),
        }
    }
}
