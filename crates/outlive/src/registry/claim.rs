//! Taking runs: claiming what waits, going on with what has ended, waking what is suspended.

use std::sync::Arc;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::ProcessObserver;
use crate::lifecycle::{Action, OwnerEnd, QueueEdit, apply};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::owner::LiveProcesses;
use crate::model::policy::Lease;
use crate::model::run::{Exit, Run, State, StateName};
use crate::model::time::Timestamp;
#[cfg(feature = "sqlite")]
use crate::ownership::commit::StampedChanges;
use crate::ownership::commit::update_until_known;
use crate::ownership::handle::{Persisted, RunHandle};
use crate::ownership::heartbeat::WorkerState;
#[cfg(feature = "sqlite")]
use crate::store::{self, Write};
use crate::store::{Change, Order, Record, Selection};

/// Which runs may be continued, for [`Registry::resume`](crate::Registry::resume) and
/// [`Registry::requeue_each`](crate::Registry::requeue_each).
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
        let claim = self.claim_of(&keeping, longest, wanted);
        let claimed = self.claim_by(filter, (limit, Order::Claim), &claim).await?;
        Ok(claimed.into_iter().map(|record| self.hold(record, keeping.clone(), None)).collect())
    }

    /// Ends a run and claims the next that matches and is `wanted` in one transaction, in a local registry: one sync for
    /// both. Elsewhere, and where the end cannot be written so, the run is ended alone and none is claimed.
    pub(crate) async fn end_and_claim(
        &self,
        handle: RunHandle,
        end: (OwnerEnd, Option<Exit>),
        (filter, longest): (Filter, Option<Lease>),
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> (Result<Persisted, Error>, Option<RunHandle>) {
        #[cfg(feature = "sqlite")]
        if let (Some(local), Ok(keeping)) = (&self.local, self.keeping()) {
            let _taking = keeping.take();
            let claim = self.claim_of(&keeping, longest, wanted);
            let (rule, selection) = self.claim_rule(filter, (1, Order::Claim), &claim);
            let (changes, mut claimed) = (StampedChanges::default(), Ok(Vec::new()));
            let committed = |write: &Write| {
                let done = local.commit_and_update(write, &selection, &changes.noting(&rule));
                let (written, records) = done.inspect_err(|error| claimed = Err(error.clone()))?;
                claimed = Ok(records);
                Ok(written)
            };
            let recorded = handle.end_by(end, committed).await;
            let claimed = match claimed {
                Err(store::Error::Unknown(_)) => {
                    changes.found(&*self.store, |record, stamp| self.is_own(record, stamp)).await
                }
                claimed => claimed.unwrap_or_default(),
            };
            return (recorded, claimed.into_iter().next().map(|record| self.hold(record, keeping.clone(), None)));
        }
        let _ = (filter, longest, wanted);
        (handle.end(None, end.0, end.1).await, None)
    }

    /// What a claim by this process's worker makes of a run that is `wanted`, with a lease of at most `longest`.
    fn claim_of<'a>(
        &self,
        keeping: &'a Arc<WorkerState>,
        longest: Option<Lease>,
        wanted: &'a (dyn Fn(&Run) -> bool + Send + Sync),
    ) -> impl Fn(&Run, Timestamp) -> Option<Action> + Send + Sync + use<'a> {
        // Asked for before the store is: a rule runs inside it, and must not call it.
        let witness = self.store.witness();
        move |run, _| {
            let asked = run.spec.policy.lease;
            let lease = longest.filter(|longest| longest.lasts() < asked.lasts()).unwrap_or(asked);
            let (owner, leftovers) = (keeping.owner(lease), left_behind(witness.as_deref(), run));
            wanted(run).then_some(Action::Claim { owner, early: false, leftovers })
        }
    }

    /// Takes up to `limit` waiting runs, in this order, by whatever claim is made of each.
    pub(super) async fn claim_by(
        &self,
        filter: Filter,
        range: (usize, Order),
        claim: &(dyn Fn(&Run, Timestamp) -> Option<Action> + Send + Sync),
    ) -> Result<Vec<Record>, Error> {
        let (rule, selection) = self.claim_rule(filter, range, claim);
        let is_own = |record: &Record, stamp| self.is_own(record, stamp);
        Ok(update_until_known(&*self.store, &selection, &rule, is_own).await?)
    }

    /// The rule of a claim, and which runs it is applied to.
    fn claim_rule<'a>(
        &'a self,
        filter: Filter,
        (limit, order): (usize, Order),
        claim: &'a (dyn Fn(&Run, Timestamp) -> Option<Action> + Send + Sync),
    ) -> (impl Fn(&Run, Timestamp) -> Option<Change> + Send + Sync + use<'a>, Selection) {
        // A claim may ask whether the run is trusted. Inside the store only what was asked before is known.
        let _ = self.identities();
        let filter = Filter { states: Some([StateName::Pending].into()), ..filter };
        let rule = move |run: &Run, now| {
            let transition = apply(run, &claim(run, now)?, &self.me, now).ok()?;
            Some(Change { transition, stamp: Stamp::draw(&*self.entropy) })
        };
        (rule, Selection { filter, order, limit, due: true })
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
        let pause = Action::Pause { reason: self.redacted(reason) };
        Ok(self.change(id, |_| pause.clone()).await?.0.run)
    }

    /// Lets a paused run wait for its turn again: a run of a schedule for its next slot.
    pub async fn unpause(&self, id: RunId) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Unpause).await?.0.run)
    }

    /// Changes when a queued run is claimed.
    #[doc(hidden)]
    pub async fn edit(&self, id: RunId, edit: QueueEdit) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Edit(edit)).await?.0.run)
    }

    /// Tries an ended run again, owned by this process at once.
    pub async fn resume(&self, id: RunId, how: ResumeOptions) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        self.take(id, &keeping, |run| Action::Resume {
            failed_too: how.failed_too,
            leftovers: self
                .look(&[run])
                .and_then(|mut observations| observations.pop())
                .map(|observation| observation.leftovers)
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
    let observation = run.started_attempt().and_then(|_| witness?.look(&[run]).pop());
    observation.map(|observation| observation.leftovers).unwrap_or_default()
}
