//! Deletion of runs that have ended.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::lifecycle::{ActionKind, Refusal, check_delete};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{State, StateName};
use crate::store::sqlite::SqliteStore;
use crate::store::{Page, Pages};

impl Registry {
    /// Refuses where runs cannot be deleted at all.
    #[doc(hidden)]
    pub fn check_deletes(&self) -> Result<&SqliteStore, Error> {
        self.local().ok_or_else(|| Error::CannotDelete(self.shown()))
    }

    /// Returns a run as it stands, and refuses if it cannot be deleted now. Changes nothing.
    #[doc(hidden)]
    pub async fn check_delete(&self, id: RunId) -> Result<RunStatus, Error> {
        self.check_deletes()?;
        let refused = |run, refusal| Error::Refused { run, refusal };
        let seen = self.get(id).await?;
        check_delete(&seen, self.awaited_by(id).await?).map_err(|refusal| refused(id, refusal))?;
        let steps = self.steps_of(&seen.run).await?;
        match steps.iter().find(|step| !step.state.is_ended()) {
            Some(step) => {
                Err(refused(step.run.id, Refusal::WrongState { action: ActionKind::Delete, state: step.state }))
            }
            None => Ok(seen),
        }
    }

    /// Deletes a run that has ended, with its steps, events and logs, and with what the home keeps for it.
    ///
    /// A run whose owner is gone must be reaped first.
    pub async fn delete(&self, id: RunId) -> Result<(), Error> {
        let local = self.check_deletes()?;
        // Read before the checks: a later change has another revision.
        let found = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        let seen = self.check_delete(id).await?;
        if found.run.ending().is_none() {
            let refusal = Refusal::WrongState { action: ActionKind::Delete, state: found.run.state.name() };
            return Err(Error::Refused { run: id, refusal });
        }
        let mut runs = vec![(id, found.revision)];
        let mut walk = Pages::from(Filter::steps_of(&seen.run), Page::default());
        while let Some(steps) = walk.next(self.store()).await? {
            runs.extend(steps.iter().map(|step| (step.run.id, step.revision)));
        }
        if !local.delete(&runs)? {
            return Err(Error::Contended(id));
        }
        for (id, _) in runs {
            // The doctor finds what stays, which is private and of no use without the run.
            let _ = self.forget_sealed(id);
        }
        Ok(())
    }

    /// The runs that wait for the end of this one.
    async fn awaited_by(&self, id: RunId) -> Result<Vec<RunId>, Error> {
        let filter = Filter { waits: Some(true), ..Filter::in_states([StateName::Pending]) };
        let mut walk = Pages::from(filter, Page::default());
        let mut waiting = Vec::new();
        while let Some(records) = walk.next(self.store()).await? {
            let waits = |state: &State| matches!(state, State::Pending(pending) if pending.waits_for.contains(&id));
            waiting.extend(records.iter().filter(|record| waits(&record.run.state)).map(|record| record.run.id));
        }
        Ok(waiting)
    }
}
