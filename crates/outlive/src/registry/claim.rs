//! Taking runs: claiming what waits, going on with what has ended, waking what is suspended.

use std::sync::Arc;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::ProcessObserver;
use crate::lifecycle::{Action, apply};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::owner::LiveProcesses;
use crate::model::policy::Lease;
use crate::model::run::{Run, State, StateName};
use crate::model::time::Timestamp;
use crate::ownership::commit::update_until_known;
use crate::ownership::handle::RunHandle;
use crate::ownership::heartbeat::WorkerState;
use crate::store::{Change, Order, Record, Selection};

/// Which runs may be continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResumeOptions {
    /// Also a run that failed, and not only one that is dead or was interrupted.
    pub failed_too: bool,
}

impl Registry {
    /// Takes up to `limit` waiting runs that match, in the order of their priority.
    pub async fn claim(&self, filter: Filter, limit: usize) -> Result<Vec<RunHandle>, Error> {
        self.claim_those(filter, limit, &|_| true).await
    }

    /// Claims up to `limit` runs that match and are `wanted`.
    #[doc(hidden)]
    pub async fn claim_those(
        &self,
        filter: Filter,
        limit: usize,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<Vec<RunHandle>, Error> {
        self.claim_within(filter, limit, None, wanted).await
    }

    /// Claims runs with a lease of at most `longest`: an owner never holds a longer lease than its heartbeats renew.
    pub(crate) async fn claim_within(
        &self,
        filter: Filter,
        limit: usize,
        longest: Option<Lease>,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<Vec<RunHandle>, Error> {
        let keeping = self.keeping()?;
        let _taking = keeping.take();
        // Asked for before the store is: a rule runs inside it, and must not call it.
        let witness = self.store.witness();
        let claim = |run: &Run, _| {
            let asked = run.spec.policy.lease;
            let lease = longest.filter(|longest| longest.lasts() < asked.lasts()).unwrap_or(asked);
            let (owner, leftovers) = (keeping.owner(lease), left_behind(witness.as_deref(), run));
            wanted(run).then_some(Action::Claim { owner, early: false, leftovers })
        };
        let claimed = self.claim_by(filter, (limit, Order::Claim), &claim).await?;
        Ok(claimed.into_iter().map(|record| self.hold(record, keeping.clone(), None)).collect())
    }

    /// Takes up to `limit` waiting runs, in this order, by whatever claim is made of each.
    pub(super) async fn claim_by(
        &self,
        filter: Filter,
        (limit, order): (usize, Order),
        claim: &(dyn Fn(&Run, Timestamp) -> Option<Action> + Send + Sync),
    ) -> Result<Vec<Record>, Error> {
        // A claim may ask whether the run is trusted. Inside the store only what was asked before is known.
        let _ = self.identities();
        let filter = Filter { states: Some([StateName::Pending].into()), ..filter };
        let rule = |run: &Run, now| {
            let transition = apply(run, &claim(run, now)?, &self.me, now).ok()?;
            Some(Change { transition, stamp: Stamp::draw(&*self.entropy) })
        };
        let selection = Selection { filter, order, limit, due: true };
        let is_own = |record: &Record, stamp| self.is_own(record, stamp);
        Ok(update_until_known(&*self.store, &selection, &rule, is_own).await?)
    }

    /// Goes on with a run, owned by this process at once: claims it where it waits, even before its time, and tries it
    /// again where it has ended.
    pub async fn take_up(&self, id: RunId, how: ResumeOptions) -> Result<RunHandle, Error> {
        let found = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        if !matches!(found.run.state, State::Pending(_)) {
            return self.resume(id, how).await;
        }
        let keeping = self.keeping()?;
        self.take(id, &keeping, |run| Action::Claim {
            owner: keeping.owner(run.spec.policy.lease),
            early: true,
            leftovers: self.left_behind(run),
        })
        .await
    }

    /// Live processes of the attempt before the one that a run waits for.
    #[doc(hidden)]
    pub fn left_behind(&self, run: &Run) -> LiveProcesses {
        left_behind(self.store.witness().as_deref(), run)
    }

    /// Has a parked run tried again.
    pub async fn unpark(&self, id: RunId) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Unpark).await?.0.run)
    }

    /// Holds a queued run back, and with it its schedule, until it is unpaused.
    pub async fn pause(&self, id: RunId, reason: Option<String>) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Pause { reason: reason.clone() }).await?.0.run)
    }

    /// Lets a paused run wait for its turn again: a run of a schedule for its next slot.
    pub async fn unpause(&self, id: RunId) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Unpause).await?.0.run)
    }

    /// Tries an ended run again, owned by this process at once.
    pub async fn resume(&self, id: RunId, how: ResumeOptions) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        self.take(id, &keeping, |run| Action::Resume {
            failed_too: how.failed_too,
            leftovers: self
                .look(&[run])
                .and_then(|mut sights| sights.pop())
                .map(|sight| sight.leftovers)
                .unwrap_or_default(),
            owner: Some(keeping.owner(run.spec.policy.lease)),
        })
        .await
    }

    /// Takes a suspended run.
    pub async fn wake(&self, id: RunId) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        self.take(id, &keeping, |run| Action::Wake { owner: Some(keeping.owner(run.spec.policy.lease)) }).await
    }

    /// Has a suspended run wait in the queue again, so that a worker continues it. A run that was not queued is
    /// refused: no worker would claim it.
    pub async fn wake_queued(&self, id: RunId) -> Result<Run, Error> {
        let found = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        if !found.run.spec.queued {
            return Err(Error::Invalid(format!("run `{id}` was not queued: only its own program can wake it")));
        }
        Ok(self.change(id, |_| Action::Wake { owner: None }).await?.0.run)
    }

    async fn take(
        &self,
        id: RunId,
        keeping: &Arc<WorkerState>,
        action: impl Fn(&Run) -> Action,
    ) -> Result<RunHandle, Error> {
        let _taking = keeping.take();
        let (record, _) = self.change(id, action).await?;
        Ok(self.hold(record, keeping.clone(), None))
    }
}

fn left_behind(witness: Option<&dyn ProcessObserver>, run: &Run) -> LiveProcesses {
    let sight = run.started_attempt().and_then(|_| witness?.look(&[run]).pop());
    sight.map(|sight| sight.leftovers).unwrap_or_default()
}
