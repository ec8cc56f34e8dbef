//! The reaper: finds running runs whose owner is gone, and ends those attempts.
//!
//! Looking and writing are two steps, and anything may happen in between. So a reap names what was seen, and the store
//! applies the rule to the run as it is then: a beat in between wins, and of many reapers exactly one learns that it won.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;

use crate::error::Error;
use crate::host;
use crate::lifecycle::health::{OwnerStatus, judge};
use crate::lifecycle::{Action, Observed, Transition, apply};
use crate::model::filter::Filter;
use crate::model::id::{Entropy, RunId, Stamp, WorkerId};
use crate::model::owner::Evidence;
use crate::model::run::{Actor, Owner, Run, StateName};
use crate::model::time::{Clock, Timestamp};
use crate::ownership::commit::update_until_known;
use crate::store::{self, Change, Order, Page, Pages, Record, Selection, Store};

/// How many runs are ended in one write.
const BATCH: usize = 64;

/// What one pass of a reaper found.
#[derive(Debug, Clone, Default)]
pub struct Reaped {
    /// Ended by this pass; no other reaper reports them.
    pub ended: Vec<Run>,
    /// Their owners are gone, but processes of theirs live on.
    pub orphaned: Vec<(Run, crate::model::owner::LiveProcesses)>,
    /// Their owners live, but are silent.
    pub unresponsive: Vec<Run>,
    /// Their owners' leases lapsed, but this reaper could not have heard them for long enough to judge.
    pub unjudged: Vec<Run>,
    /// Nothing is wrong with these.
    pub live: usize,
    /// Written by other programs, whose leases are over. Their records stay as they are.
    pub abandoned: usize,
}

/// What a reaper needs of the registry whose runs it ends.
pub trait ReapContext: Send + Sync {
    /// The store of the runs.
    fn store(&self) -> &dyn Store;
    /// The clocks.
    fn clock(&self) -> &dyn Clock;
    /// The source of write ids.
    fn entropy(&self) -> &dyn Entropy;
    /// Who reaps, for the event log.
    fn me(&self) -> &Actor;
    /// Whether a record bears the write id of our own write.
    fn is_own(&self, record: &Record, stamp: Stamp) -> bool;
    /// Whether the owner of a run may be killed. A record may be forged: only a run that this user trusts, and only a
    /// process that holds the lock of its worker.
    fn may_end(&self, run: &Run, owner: &Owner) -> bool;
    /// Kills all processes of a run on this host.
    fn end_processes(&self, run: &Run);
    /// Removes the control group of a run.
    fn remove_group(&self, run: &Run);
}

/// A reaper that remembers since when it has been able to see.
#[derive(Debug, Default)]
pub struct Reaper {
    /// It could not reach the store when it last tried.
    blind: bool,
    /// Since when it sees again, in time awake.
    sees_since: Option<Duration>,
    /// Its own worker, whose runs it leaves alone.
    worker: Option<WorkerId>,
}

struct Judgement {
    observed: Observed,
    evidence: Evidence,
    stamp: Stamp,
}

impl Reaper {
    /// A reaper. `worker` is the caller's own, if it has one.
    pub fn new(worker: Option<WorkerId>) -> Self {
        Self { worker, ..Self::default() }
    }

    /// Looks at every running run and ends those whose owner is gone.
    pub async fn pass(&mut self, context: &dyn ReapContext) -> Result<Reaped, Error> {
        self.pass_over(context, Filter::default()).await
    }

    /// Looks at the running runs among those that match, and ends those whose owner is gone.
    pub async fn pass_over(&mut self, context: &dyn ReapContext, filter: Filter) -> Result<Reaped, Error> {
        let mut reaped = Reaped::default();
        let running = Filter { states: Some([StateName::Running].into()), ..filter };
        match self.look_and_end(context, &running, &mut reaped).await {
            Err(error) => {
                self.blind = true;
                // No other reaper reports what was ended before the store failed. The next pass meets the failure again.
                return if reaped.ended.is_empty() { Err(error) } else { Ok(reaped) };
            }
            Ok(()) if self.blind => {
                self.blind = false;
                self.sees_since = Some(context.clock().awake());
            }
            Ok(()) => {}
        }
        Ok(reaped)
    }

    async fn look_and_end(
        &self,
        context: &dyn ReapContext,
        running: &Filter,
        reaped: &mut Reaped,
    ) -> Result<(), Error> {
        let mut walk = Pages::from(running.clone(), Page { order: Order::Oldest, ..Page::default() });
        while let Some(records) = walk.next(context.store()).await? {
            let mut judgements = BTreeMap::new();
            let runs: Vec<&Run> = records.iter().map(|record| &record.run).collect();
            self.judge_all(context, &runs, &mut judgements, reaped);
            self.note_missing(context, &runs).await?;
            runs.iter().filter(|run| judgements.contains_key(&run.id)).for_each(|run| context.remove_group(run));
            while !judgements.is_empty() {
                let rest = judgements.keys().nth(BATCH).copied().map(|id| judgements.split_off(&id));
                reaped.ended.extend(self.end(context, &judgements).await?);
                judgements = rest.unwrap_or_default();
            }
        }
        for run in std::mem::take(&mut reaped.unresponsive) {
            match self.end_if_hung(context, &run, is_hung(&run)).await? {
                Some(ended) => reaped.ended.push(ended),
                None => reaped.unresponsive.push(run),
            }
        }
        Ok(())
    }

    /// Has the store look at runs whose owner it has never heard of, though it counts every claim as a beat: the owner's
    /// lease begins when the store notes that it is missing. No run is changed.
    async fn note_missing(&self, context: &dyn ReapContext, runs: &[&Run]) -> Result<(), Error> {
        let is_missing = |run: &&&Run| !run.copied && run.owner().is_some_and(|owner| owner.heard.beat == 0);
        let ids: Vec<RunId> = runs.iter().filter(is_missing).map(|run| run.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let filter = Filter { ids: Some(ids), ..Filter::in_states([StateName::Running]) };
        let selection = Selection { filter, order: Order::Oldest, limit: 1, due: false };
        context.store().update(&selection, &|_, _| None).await?;
        Ok(())
    }

    /// Ends a run whose owner lives and says nothing, if it should be and still says nothing.
    async fn end_if_hung(&self, context: &dyn ReapContext, run: &Run, should: bool) -> Result<Option<Run>, Error> {
        if !should {
            return Ok(None);
        }
        let Some(fresh) = context.store().get(&[run.id]).await?.pop().map(|record| record.run) else {
            return Ok(None);
        };
        let Some(owner) = fresh.owner().filter(|owner| owner.lease.lapsed(owner.heard.silent_for)) else {
            return Ok(None);
        };
        let Some(evidence) = end_hung(context, &fresh) else { return Ok(None) };
        let judgement = self.judgement(context, &fresh, owner.heard.beat, evidence);
        Ok(self.end(context, &BTreeMap::from([(fresh.id, judgement)])).await?.pop())
    }

    /// Ends an unresponsive run because a person said so: its owner and its tree are killed, and it is reaped.
    pub async fn force(&self, context: &dyn ReapContext, run: &Run) -> Result<Option<Run>, Error> {
        self.end_if_hung(context, run, true).await
    }

    fn judgement(&self, context: &dyn ReapContext, run: &Run, beat: u64, evidence: Evidence) -> Judgement {
        let observed = Observed { epoch: run.epoch, beat };
        Judgement { observed, evidence, stamp: Stamp::draw(context.entropy()) }
    }

    fn judge_all(
        &self,
        context: &dyn ReapContext,
        runs: &[&Run],
        judgements: &mut BTreeMap<RunId, Judgement>,
        reaped: &mut Reaped,
    ) {
        let observations = context.store().witness().map(|witness| witness.look(runs));
        for (index, run) in runs.iter().copied().enumerate() {
            let Some(owner) = run.owner() else { continue };
            if run.copied || self.worker == Some(owner.worker) {
                // The record of another program is not ours to end, and an abandoned one is not live.
                let is_abandoned = run.foreign && owner.lease.lapsed(owner.heard.silent_for);
                reaped.live += usize::from(!is_abandoned);
                reaped.abandoned += usize::from(is_abandoned);
                continue;
            }
            let evidence = match judge(owner, observations.as_ref().map(|observations| &observations[index])) {
                OwnerStatus::Live => {
                    reaped.live += 1;
                    continue;
                }
                OwnerStatus::Orphaned { leftovers, .. } => {
                    reaped.orphaned.push((run.clone(), leftovers));
                    continue;
                }
                OwnerStatus::Unresponsive => {
                    reaped.unresponsive.push(run.clone());
                    continue;
                }
                OwnerStatus::Dead(evidence)
                    if evidence.is_silence() && !self.may_judge(context, owner.lease.lasts()) =>
                {
                    reaped.unjudged.push(run.clone());
                    continue;
                }
                OwnerStatus::Dead(evidence) => evidence,
            };
            judgements.insert(run.id, self.judgement(context, run, owner.heard.beat, evidence));
        }
    }

    /// A reaper that was blind must not judge: owners get a full lease to be heard first.
    fn may_judge(&self, context: &dyn ReapContext, lease: Duration) -> bool {
        !self.blind && self.sees_since.is_none_or(|since| context.clock().awake().saturating_sub(since) > lease)
    }

    /// These runs as they would stand after a pass. Nothing is written.
    pub(crate) fn foresee(&self, context: &dyn ReapContext, runs: &mut [Run], now: Timestamp) {
        let mut judgements = BTreeMap::new();
        let running: Vec<&Run> = runs.iter().filter(|run| run.owner().is_some()).collect();
        self.judge_all(context, &running, &mut judgements, &mut Reaped::default());
        for run in runs {
            if let Some(reaped) = judgements.get(&run.id).and_then(|judgement| self.reap(context, run, judgement, now))
            {
                *run = reaped.run;
            }
        }
    }

    fn reap(&self, context: &dyn ReapContext, run: &Run, judgement: &Judgement, now: Timestamp) -> Option<Transition> {
        let Judgement { observed, evidence, .. } = judgement;
        let action = Action::Reap { observed: *observed, evidence: evidence.clone(), reaper: self.worker };
        apply(run, &action, context.me(), now).ok()
    }

    async fn end(&self, context: &dyn ReapContext, judgements: &BTreeMap<RunId, Judgement>) -> Result<Vec<Run>, Error> {
        let rule = |run: &Run, now| {
            let judgement = judgements.get(&run.id)?;
            Some(Change { transition: self.reap(context, run, judgement, now)?, stamp: judgement.stamp })
        };
        let filter = Filter::of(judgements.keys().copied());
        let selection = Selection { filter, order: Order::Oldest, limit: judgements.len(), due: false };
        let is_own = |record: &Record, stamp| context.is_own(record, stamp);
        let ended = match update_until_known(context.store(), &selection, &rule, is_own).await {
            // None bears our stamp: the next pass looks again.
            Err(store::Error::Unknown(_)) => Vec::new(),
            ended => ended?,
        };
        for record in &ended {
            let evidence = judgements.get(&record.run.id).map(|judgement| judgement.evidence.to_string());
            tracing::info!(run = %record.run.id, state = %record.run.state.name(), evidence, "run reaped");
        }
        Ok(ended.into_iter().map(|record| record.run).collect())
    }
}

/// Whether a living but silent owner has been silent for longer than its run's policy allows.
pub fn is_hung(run: &Run) -> bool {
    let limit = run.spec.policy.limits.hung_after;
    run.owner().is_some_and(|owner| limit.is_some_and(|limit| owner.heard.silent_for > limit))
}

/// Ends an owner with its tree. Only a process that is proven to be the owner is signalled.
fn end_hung(context: &dyn ReapContext, run: &Run) -> Option<Evidence> {
    let owner = run.owner()?;
    if !context.may_end(run, owner) {
        return None;
    }
    owner.identity.signal(Signal::KILL).ok()?;
    context.end_processes(run);
    host::wait_gone(&owner.identity, host::GONE_WITHIN)
        .then(|| Evidence::Hung { silent_ms: u64::try_from(owner.heard.silent_for.as_millis()).unwrap_or(u64::MAX) })
}
