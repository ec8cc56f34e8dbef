//! Handing waiting runs to executors outside outlive, which beat, give back and end them by their epoch.
//!
//! Such an owner is no process that could be looked at: its lease alone tells whether it lives. Each run has a worker of
//! its own, so that one that is forgotten takes no other along. Everything else is as for any owner: the same rules
//! decide who may claim, when it comes again, and when it is parked.

use std::sync::Arc;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::{Action, Fence, Outcome, Refusal, is_duplicate_finish};
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::{HostContext, Identity};
use crate::model::policy::Lease;
use crate::model::run::{Exit, Interruption, LastHeartbeat, Owner, Run, State};
use crate::ownership::reaper::Reaper;
use crate::store::{Beat, Order};

/// The kind of runs that are executed outside outlive.
pub const EXTERNAL_KIND: &str = "entry";

/// A run that an external executor holds.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalLease {
    /// The run.
    pub run: Run,
    /// What its holder presents.
    pub epoch: Epoch,
    /// How long it is its own without a beat.
    pub lease: Lease,
}

impl Registry {
    /// Claims up to `limit` runs that wait for an external executor and match, in this order. Those whose holder has not been
    /// heard of for too long are taken back first.
    #[doc(hidden)]
    pub async fn lease_external(
        &self,
        (limit, order): (usize, Order),
        lease: Lease,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<Vec<ExternalLease>, Error> {
        let of_ours = Filter { kind: Some(EXTERNAL_KIND.into()), ..Filter::default() };
        Reaper::new(None).pass_over(self, of_ours.clone()).await?;
        let claim = |run: &Run, now| {
            let worker = WorkerId::draw(now, &*self.entropy);
            let owner = Owner { worker, identity: outside(), lease, heard: LastHeartbeat::default() };
            let is_meant = run.spec.command.is_none() && wanted(run);
            is_meant.then_some(Action::Claim { owner, early: false, leftovers: Default::default() })
        };
        let claimed = self.claim_by(of_ours, (limit, order), &claim).await?;
        Ok(claimed
            .into_iter()
            .map(|record| ExternalLease { epoch: record.run.epoch, lease, run: record.run })
            .collect())
    }

    /// Renews the lease of a run for the caller that presents its epoch. Answers whether it is asked to stop.
    #[doc(hidden)]
    pub async fn renew_external(&self, id: RunId, epoch: Epoch) -> Result<bool, Error> {
        let (run, owner) = self.held_externally(id, epoch).await?;
        let beat = Beat {
            worker: owner.worker,
            identity: owner.identity.clone(),
            lease: owner.lease,
            held: Arc::from([(id, epoch)]),
            attention: None,
            leaving: false,
            offer: Arc::default(),
        };
        let reply = self.store.beat(&beat).await?;
        if reply.lost.contains(&id) || reply.unknown.contains(&id) {
            return Err(lost(&run, epoch));
        }
        Ok(run.cancel.is_some() || reply.cancelled.iter().any(|(cancelled, _)| *cancelled == id))
    }

    /// Finishes a run for the caller that presents its epoch. A repeated finish is answered as the first time.
    #[doc(hidden)]
    pub async fn finish_external(
        &self,
        id: RunId,
        epoch: Epoch,
        outcome: Outcome,
        exit: Option<Exit>,
    ) -> Result<Run, Error> {
        let outcome = match outcome {
            Outcome::Failed { error_type, error_message, permanent } => {
                Outcome::Failed { error_type, error_message: self.redactor.text(&error_message), permanent }
            }
            other => other,
        };
        let finish =
            |run: &Run| Action::Finish { fence: fence(run, epoch, &*self.entropy), outcome: outcome.clone(), exit };
        let finished = match self.held_externally(id, epoch).await {
            Ok(_) => self.change(id, finish).await.map(|(record, _)| record.run),
            Err(error) => Err(error),
        };
        match finished {
            Err(error @ Error::Refused { refusal: Refusal::Lost { .. }, .. }) => {
                let run = self.store.get(&[id]).await?.pop().map(|record| record.run);
                let is_repeated =
                    |run: &Run| run.spec.kind == EXTERNAL_KIND && is_duplicate_finish(run, epoch, &outcome);
                run.filter(is_repeated).ok_or(error)
            }
            finished => finished,
        }
    }

    /// Releases a run unfinished, for the caller that presents its epoch: it waits for the next.
    #[doc(hidden)]
    pub async fn release_external(&self, id: RunId, epoch: Epoch, reason: Option<String>) -> Result<Run, Error> {
        self.held_externally(id, epoch).await?;
        let reason = self.redactor.text(&reason.unwrap_or_else(|| "given back".into()));
        let interrupt = |run: &Run| Action::Interrupt {
            fence: fence(run, epoch, &*self.entropy),
            interruption: Interruption { signal: None, reason: reason.clone() },
            exit: None,
        };
        Ok(self.change(id, interrupt).await?.0.run)
    }

    /// A run that an external executor holds by this epoch.
    async fn held_externally(&self, id: RunId, epoch: Epoch) -> Result<(Run, Owner), Error> {
        let record = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        let run = record.run;
        match &run.state {
            State::Running(running) if run.epoch == epoch && run.spec.kind == EXTERNAL_KIND => {
                Ok((run.clone(), running.owner.clone()))
            }
            _ => Err(lost(&run, epoch)),
        }
    }
}

fn fence(run: &Run, epoch: Epoch, entropy: &dyn crate::model::id::Entropy) -> Fence {
    // A run without an owner matches no worker: the epoch alone says that the caller has lost it.
    let worker = run.owner().map_or_else(|| WorkerId::draw(run.updated_at, entropy), |owner| owner.worker);
    Fence { worker, epoch }
}

fn lost(run: &Run, claimed: Epoch) -> Error {
    Error::Refused { run: run.id, refusal: Refusal::Lost { state: run.state.name(), epoch: run.epoch, claimed } }
}

/// An owner that no host can see. What is left empty proves nothing.
fn outside() -> Identity {
    let vantage = HostContext { host: "outside".into(), boot_id: "".into(), pid_ns: 0, time_ns: 0 };
    Identity { vantage, pid: 0, start_ticks: 0, pidfs_inode: None, lock_inode: None }
}
