//! The status of a run as a reader sees it, with what can be observed of its processes.

use std::collections::{BTreeSet, HashMap};

use super::{EXTERNAL_KIND, Registry};
use crate::error::Error;
use crate::lifecycle::health::{Health, Observation, OwnerStatus, RunStatus, judge, see};
use crate::model::id::RunId;
use crate::model::owner::LiveProcesses;
use crate::model::owner::Liveness;
use crate::model::run::{Owner, Release, Run, State, StateName};
use crate::store::WorkerRecord;

impl Registry {
    /// A run as it stands.
    pub async fn get(&self, id: RunId) -> Result<RunStatus, Error> {
        Ok(self.look_behind(self.glance(id).await?))
    }

    /// The status of a run without the live processes of an ended attempt: finding those looks at every process of this host.
    #[doc(hidden)]
    pub async fn glance(&self, id: RunId) -> Result<RunStatus, Error> {
        let found = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        let seen = self.explain(self.see(vec![found.run]).await?).await?.pop();
        seen.ok_or_else(|| Error::NotFound(id.to_string()))
    }

    /// Every worker on record, and whether it is there.
    pub async fn workers(&self) -> Result<Vec<(WorkerRecord, OwnerStatus)>, Error> {
        let workers = self.store.workers().await?;
        let owners: Vec<Owner> = workers.iter().map(Owner::from).collect();
        let mut observations = self.store.witness().map(|witness| witness.look_at_owners(&owners).into_iter());
        let judged = owners.iter().map(|owner| {
            let liveness = observations.as_mut().and_then(Iterator::next);
            let observation = liveness.map(|owner| Observation { owner, leftovers: LiveProcesses::default() });
            judge(owner, observation.as_ref())
        });
        let judged: Vec<OwnerStatus> = judged.collect();
        Ok(workers.into_iter().zip(judged).collect())
    }

    /// With what a waiting run waits for that its record does not say: what is left of its last attempt, a key, or trust.
    pub(super) async fn explain(&self, mut seen: Vec<RunStatus>) -> Result<Vec<RunStatus>, Error> {
        let now = self.clock.now();
        let is_again =
            |run: &Run| run.attempt > 1 && matches!(&run.state, State::Pending(pending) if pending.is_due(now));
        for seen in seen.iter_mut().filter(|seen| is_again(&seen.run)) {
            let left = self.left_behind(&seen.run);
            if !left.is_empty() {
                seen.reason = Some(format!("waits for what is left of its last attempt: {left}"));
                seen.add_cancel_request();
                seen.leftovers = left;
            }
        }
        self.explain_dependencies(&mut seen).await?;
        let busy = self.blocked_by_keys(&seen.iter().map(|seen| &seen.run).collect::<Vec<_>>()).await?;
        for seen in &mut seen {
            if let Some(busy) = busy.get(&seen.run.id) {
                seen.reason = Some(busy.clone());
            }
        }
        let is_due = |run: &Run| matches!(&run.state, State::Pending(pending) if pending.is_due(now));
        for seen in seen.iter_mut().filter(|seen| is_due(&seen.run)) {
            if !self.signatures_withheld
                && let Some(why) = self.why_not_started(&seen.run)
            {
                seen.reason = Some(why);
            }
        }
        self.say_who_takes_them(&mut seen).await?;
        Ok(seen)
    }

    /// Adds to the reason of a waiting run that a run which it waits for is dead or interrupted, and what to type.
    ///
    /// Such a run may yet be resumed, so its dependents wait; but nothing resumes it by itself.
    async fn explain_dependencies(&self, seen: &mut [RunStatus]) -> Result<(), Error> {
        let parents: BTreeSet<RunId> = seen.iter().flat_map(|seen| waits_for_success(&seen.run)).collect();
        if parents.is_empty() {
            return Ok(());
        }
        let found = self.store.get(&parents.into_iter().collect::<Vec<_>>()).await?;
        let found = self.see(found.into_iter().map(|record| record.run).collect()).await?;
        let stopped = found.iter().filter(|parent| parent.is_over() && !parent.state.is_final());
        let stopped: HashMap<RunId, String> = stopped.map(|parent| (parent.run.id, stopped_parent(parent))).collect();
        for seen in seen {
            let reasons: Vec<&String> =
                waits_for_success(&seen.run).filter_map(|parent| stopped.get(&parent)).collect();
            for reason in reasons {
                seen.add_reason(reason.clone());
            }
        }
        Ok(())
    }

    /// Adds "no worker serves this kind". Shared stores only: a local registry has no long-lived workers.
    async fn say_who_takes_them(&self, seen: &mut [RunStatus]) -> Result<(), Error> {
        let now = self.clock.now();
        let waits_for_worker = |seen: &&mut RunStatus| {
            let is_due = matches!(&seen.run.state, State::Pending(pending) if pending.is_due(now));
            is_due && seen.reason.is_none() && seen.run.spec.queued && seen.run.spec.kind != EXTERNAL_KIND
        };
        let mut waiting = seen.iter_mut().filter(waits_for_worker).peekable();
        if self.name.is_none() || waiting.peek().is_none() {
            return Ok(());
        }
        let is_there = |worker: &WorkerRecord| worker.offer.slots > 0 && !worker.lease.lapsed(worker.heard.silent_for);
        let workers: Vec<WorkerRecord> = self.store.workers().await?.into_iter().filter(is_there).collect();
        for seen in waiting {
            let kind = &seen.run.spec.kind;
            if workers.is_empty() {
                seen.reason = Some("waits for a worker; none is there".into());
            } else if !workers.iter().any(|worker| worker.offer.takes(kind)) {
                seen.reason = Some(format!("waits for a worker that takes kind `{kind}`; none that is there does"));
            }
        }
        Ok(())
    }

    /// Adds the live processes of a run without an owner.
    fn look_behind(&self, mut seen: RunStatus) -> RunStatus {
        if seen.run.owner().is_none() && seen.leftovers.is_empty() {
            seen.leftovers = self.live_processes(&seen.run);
        }
        seen
    }

    /// Runs as they stand. An owner that ended between the look at its record and the look at its process has said how it
    /// did before it was gone: what was read of it is read again.
    pub(crate) async fn see(&self, runs: Vec<Run>) -> Result<Vec<RunStatus>, Error> {
        let mut seen = self.observe_once(runs);
        let is_gone = |seen: &RunStatus| {
            seen.run.owner().is_some() && (seen.state == StateName::Dead || seen.health == Some(Health::Orphaned))
        };
        let gone: Vec<RunId> = seen.iter().filter(|seen| is_gone(seen)).map(|seen| seen.run.id).collect();
        if gone.is_empty() {
            return Ok(seen);
        }
        let again = self.store.get(&gone).await?.into_iter().map(|record| record.run).collect();
        let mut again: HashMap<RunId, RunStatus> =
            self.observe_once(again).into_iter().map(|seen| (seen.run.id, seen)).collect();
        for seen in &mut seen {
            if let Some(again) = again.remove(&seen.run.id) {
                *seen = again;
            }
        }
        Ok(seen)
    }

    fn observe_once(&self, runs: Vec<Run>) -> Vec<RunStatus> {
        let now = self.clock.now();
        // How an owned run stands depends on its processes, and what may be done to a dead or interrupted one.
        let is_observed = |run: &Run| run.owner().is_some() || may_be_resumed(run);
        let observed: Vec<&Run> = runs.iter().filter(|run| is_observed(run)).collect();
        // Only the end of an owned run can be in the spool.
        let any_owned = observed.iter().any(|run| run.owner().is_some());
        let spooled = if any_owned { self.spooled() } else { Vec::new() };
        let mut observations = if observed.is_empty() { None } else { self.look(&observed).map(Vec::into_iter) };
        let one = |run: Run| {
            let observation = if is_observed(&run) { observations.as_mut().and_then(Iterator::next) } else { None };
            let observation =
                if run.owner().is_some() { observation } else { self.with_observation_here(&run, observation) };
            match self.settled(&run, &spooled) {
                Some(settled) => RunStatus {
                    reason: Some("its outcome is spooled, and recorded soon".into()),
                    ..see(settled, None, now)
                },
                None => see(run, observation.as_ref(), now),
            }
        };
        runs.into_iter().map(one).collect()
    }

    /// Adds to what the store observed of a dead or interrupted run the processes that this host has on record.
    fn with_observation_here(&self, run: &Run, observation: Option<Observation>) -> Option<Observation> {
        if !may_be_resumed(run) {
            return None;
        }
        let unobserved =
            || Observation { owner: Liveness::Unknown("not observed".into()), leftovers: LiveProcesses::default() };
        let Observation { owner, leftovers } = observation.unwrap_or_else(unobserved);
        Some(Observation { owner, leftovers: self.with_processes_here(run, leftovers) })
    }
}

/// Whether a run is dead or interrupted on record, and of this registry.
fn may_be_resumed(run: &Run) -> bool {
    matches!(run.state.name(), StateName::Dead | StateName::Interrupted) && !run.copied
}

/// The runs whose success a run waits for.
fn waits_for_success(run: &Run) -> impl Iterator<Item = RunId> {
    let waits_for = match &run.state {
        State::Pending(pending) => &pending.waits_for[..],
        _ => &[],
    };
    let after = run.spec.after.iter().filter(|after| after.release == Release::Success).map(|after| after.run);
    after.filter(|parent| waits_for.contains(parent))
}

/// Why the dependents of a run wait that nothing continues by itself, and what to type about it.
fn stopped_parent(parent: &RunStatus) -> String {
    let (id, state) = (parent.run.id, parent.state);
    let stopped = if state == StateName::Dead { "is dead" } else { "was interrupted" };
    format!("`{id}` {stopped}: `outlive resume {id}` continues it, `outlive cancel {id}` gives it up")
}
