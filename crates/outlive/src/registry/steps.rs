//! Steps of runs, made by the processes of a run and visible to every reader.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::owner::Identity;
use crate::model::run::{LastHeartbeat, Owner, Run, Spec};
use crate::ownership::handle::RunHandle;
use crate::ownership::steps::{Attempt, StepWriter, step_id, step_time};

impl Registry {
    /// The attempt of a run whose processes were handed `epoch`, to make a step of it. Refused where the run is no longer
    /// theirs.
    #[doc(hidden)]
    pub async fn attempt(&self, id: RunId, epoch: Epoch) -> Result<Attempt, Error> {
        Attempt::read(&*self.store, id, epoch).await
    }

    /// The steps of a run in all of its attempts, as they stand, in the order in which they were made.
    pub async fn steps_of(&self, run: &Run) -> Result<Vec<RunStatus>, Error> {
        let mut steps = self.all(&Filter::steps_of(run)).await?;
        steps.reverse();
        Ok(steps)
    }

    /// Makes a step that is to be done, owned by this process at once. Its name must not have been used in this attempt.
    #[doc(hidden)]
    pub async fn start_step(&self, attempt: &Attempt, spec: Spec) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        let _taking = keeping.take();
        let step = self.draft_step(attempt.run(), spec)?;
        let owner = keeping.owner(step.spec.policy.lease);
        let making = StepWriter { store: &*self.store, owner, me: &self.me, stamp: Stamp::draw(&*self.entropy) };
        let record = making.start(attempt.run(), step).await?;
        Ok(self.hold(record, keeping, None))
    }

    /// Makes a step that repeats `original` and is over at once. This process need not beat for it.
    #[doc(hidden)]
    pub async fn replay_step(&self, attempt: &Attempt, spec: Spec, original: &Run) -> Result<Run, Error> {
        let step = self.draft_step(attempt.run(), spec)?;
        let worker = WorkerId::draw(self.clock.now(), &*self.entropy);
        let (identity, lease) = (Identity::own(), step.spec.policy.lease);
        let owner = Owner { worker, identity, lease, heard: LastHeartbeat::default() };
        let making = StepWriter { store: &*self.store, owner, me: &self.me, stamp: Stamp::draw(&*self.entropy) };
        let exit = original.ending().and_then(|ending| ending.exit);
        Ok(making.replay(attempt.run(), step, exit).await?.run)
    }

    fn draft_step(&self, of: &Run, spec: Spec) -> Result<Run, Error> {
        let name = spec.step.as_ref().map(|step| step.name.clone()).unwrap_or_default();
        self.draft_as(step_id(of, &name), spec, step_time(of, self.clock.now()))
    }
}
