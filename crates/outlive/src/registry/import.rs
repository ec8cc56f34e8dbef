//! Importing: runs of another system, recorded with their history as the lifecycle would have written it.
//!
//! The id of an imported run follows from where it comes from, so that importing again makes nothing twice.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::{Action, Fence, Outcome, Refusal, Transition, apply, enqueued};
use crate::model::id::{RunId, Stamp, WorkerId};
use crate::model::owner::{Identity, LiveProcesses};
use crate::model::run::{Event, LastHeartbeat, Owner, Run, Spec};
use crate::model::time::Timestamp;
use crate::store::{Expect, Write, WriteOutcome};

/// A run of another system.
#[derive(Debug, Clone)]
pub struct ForeignRun {
    /// What names it there, and nothing else: the system, the table and the row.
    pub key: String,
    /// What is to be done, or was.
    pub spec: Spec,
    /// When it was made there, where that is known.
    pub made_at: Option<Timestamp>,
    /// How it came out; none where it waits to be claimed.
    pub outcome: Option<ForeignOutcome>,
}

/// How a run of another system came out.
#[derive(Debug, Clone)]
pub struct ForeignOutcome {
    /// When its last attempt began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Its outcome.
    pub outcome: Outcome,
}

impl ForeignRun {
    /// The id that it has here, the same with every import.
    pub fn id(&self) -> RunId {
        let made_at = self.made_at.unwrap_or(Timestamp::from_micros(0));
        RunId::derived(made_at, format!("outlive import 1\n{}", self.key).as_bytes())
    }
}

impl Registry {
    /// Records runs of another system. Answers for each whether this call made it: one that was imported before is left as
    /// it is.
    #[doc(hidden)]
    pub async fn import(&self, runs: Vec<ForeignRun>) -> Result<Vec<bool>, Error> {
        let writes: Result<Vec<Write>, Error> = runs.into_iter().map(|run| self.imported(run)).collect();
        let written = self.store.commit(writes?).await?;
        let is_made = |written: WriteOutcome| match written {
            WriteOutcome::Done(_) => Ok(true),
            WriteOutcome::Conflict(_) => Ok(false),
            WriteOutcome::KeyBusy { key, holders, free_at } => Err(Error::KeyBusy { key, holders, free_at }),
        };
        written.into_iter().map(is_made).collect()
    }

    /// The write that records a run with its history.
    fn imported(&self, foreign: ForeignRun) -> Result<Write, Error> {
        let id = foreign.id();
        let ForeignRun { mut spec, made_at, outcome, .. } = foreign;
        let now = self.clock.now();
        let created_at = made_at.or(outcome.as_ref().map(|outcome| outcome.started_at)).unwrap_or(now);
        spec.queued = true;
        // What failed there has been given up there.
        spec.policy.retry.on_failure &= outcome.is_none();
        let run = self.draft_as(id, spec, created_at)?;
        let mut events = vec![enqueued(&run, &self.me)];
        let stamp = Stamp::draw(&*self.entropy);
        let Some(outcome) = outcome else {
            return Ok(Write { expect: Expect::Absent, run, events, ended: None, stamp });
        };
        let ended = self.end_as(&run, &outcome, &mut events).map_err(|refusal| Error::Refused { run: id, refusal })?;
        Ok(Write { expect: Expect::Absent, run: ended.run, events, ended: ended.ended, stamp })
    }

    /// Applies what happened to a run elsewhere. Its owner there is not on record.
    fn end_as(&self, run: &Run, outcome: &ForeignOutcome, events: &mut Vec<Event>) -> Result<Transition, Refusal> {
        let mut act = |run: &Run, action: Action, at: Timestamp| {
            let transition = apply(run, &action, &self.me, at)?;
            events.push(transition.event.clone());
            Ok(transition)
        };
        if outcome.outcome == Outcome::Cancelled {
            let cancel = Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() };
            return act(run, cancel, outcome.ended_at);
        }
        let worker = WorkerId::draw(outcome.started_at, &*self.entropy);
        let (identity, lease, heard) = (Identity::unknown(), run.spec.policy.lease, LastHeartbeat::default());
        let owner = Owner { worker, identity, lease, heard };
        let claim = Action::Claim { owner, early: true, leftovers: LiveProcesses::default() };
        let claimed = act(run, claim, outcome.started_at)?.run;
        let fence = Fence { worker, epoch: claimed.epoch };
        let finish = Action::Finish { fence, outcome: outcome.outcome.clone(), exit: None };
        act(&claimed, finish, outcome.ended_at)
    }
}
