//! Making steps: each with one write, and each name once an attempt.

use super::attempt::used;
use crate::error::Error;
use crate::lifecycle::{Action, Fence, Outcome, Refusal, Transition, apply, enqueued};
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Actor, Event, Exit, Owner, Run};
use crate::model::time::Timestamp;
use crate::ownership::commit::{UnresolvedWrite, commit_until_known};
use crate::store::{Expect, Record, Store, Write};

/// The id of the step `name` of an attempt, the same for every maker: the second maker finds the name taken.
pub(crate) fn step_id(of: &Run, name: &str) -> RunId {
    RunId::derived(of.created_at, format!("outlive step 1\n{}\n{}\n{name}", of.id, of.attempt).as_bytes())
}

/// When a step is made. A clock that was set back must not have it made before the run that it is a step of.
pub(crate) fn step_time(of: &Run, now: Timestamp) -> Timestamp {
    now.max(of.created_at)
}

/// The maker of a step, and how it recognises its write.
pub(crate) struct StepWriter<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) owner: Owner,
    pub(crate) me: &'a Actor,
    pub(crate) stamp: Stamp,
}

impl StepWriter<'_> {
    /// Makes a step of `of`, owned at once.
    pub(crate) async fn start(self, of: &Run, step: Run) -> Result<Record, Error> {
        let (claimed, events) = self.claimed(&step).map_err(|refusal| Error::Refused { run: step.id, refusal })?;
        self.write(of, claimed, events).await
    }

    /// Makes a step of `of` that repeats another, which is over as soon as it is made: it is on record with one write.
    pub(crate) async fn replay(self, of: &Run, step: Run, exit: Option<Exit>) -> Result<Record, Error> {
        let done = || {
            let (claimed, mut events) = self.claimed(&step)?;
            let fence = Fence { worker: self.owner.worker, epoch: claimed.run.epoch };
            let action = Action::Finish { fence, outcome: Outcome::SUCCEEDED, exit };
            let finished = apply(&claimed.run, &action, self.me, step.created_at)?;
            events.push(finished.event.clone());
            Ok((finished, events))
        };
        let (finished, events) = done().map_err(|refusal| Error::Refused { run: step.id, refusal })?;
        self.write(of, finished, events).await
    }

    fn claimed(&self, step: &Run) -> Result<(Transition, Vec<Event>), Refusal> {
        let action = Action::Claim { owner: self.owner.clone(), early: false, leftovers: Default::default() };
        let claimed = apply(step, &action, self.me, step.created_at)?;
        let events = vec![enqueued(step, self.me), claimed.event.clone()];
        Ok((claimed, events))
    }

    async fn write(
        &self,
        of: &Run,
        Transition { run, ended, .. }: Transition,
        events: Vec<Event>,
    ) -> Result<Record, Error> {
        let name = run.spec.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        let write = Write { expect: Expect::Absent, run, events, ended, stamp: self.stamp };
        let mut doubt = UnresolvedWrite::default();
        commit_until_known(self.store, write, &mut doubt).await?.map_err(|_| doubt.or(used(of, &name)))
    }
}
