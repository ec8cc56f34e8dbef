//! Planted defects of a store. Without one in the plan, nothing here does anything.

use super::Planted;
use super::faulty::{Faulty, at_once};
use crate::model::run::Run;
use crate::store::{Expect, Store, Write};
use crate::util::sync::lock;

impl Faulty {
    /// The planted defect of a store that ends a run by its id alone.
    pub(super) fn forget_epoch(&self, mut write: Write) -> Write {
        if self.world.plan.planted == Some(Planted::FinishWithoutEpoch)
            && write.events.last().is_some_and(|event| event.action == "finish")
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

    /// What the planted defect of a store without a second look shows to a reaper's rule: the silence that it saw.
    pub(super) fn outdated(&self, run: &Run) -> Option<Run> {
        let seen = lock(&self.seen).get(&run.id).cloned()?;
        let planted = self.world.plan.planted == Some(Planted::ReapWithoutRecheck);
        let same_claim = seen.epoch == run.epoch && seen.owner().is_some() && run.owner().is_some();
        (planted && same_claim).then_some(seen)
    }
}
