//! Adopting: taking over what lives on of a run whose owner is gone.

use std::time::Duration;

use super::{Registry, TRIES};
use crate::error::Error;
use crate::host;
use crate::lifecycle::health::{Observation, OwnerStatus, judge};
use crate::lifecycle::{Action, Observed, Refusal, apply};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::owner::LiveProcesses;
use crate::model::run::{Owner, Run, State};
use crate::ownership::commit::update_until_known;
use crate::ownership::handle::RunHandle;
use crate::store::{Change, Order, Record, Selection};

/// How long a process that was killed may take to exit.
const EXITS_WITHIN: Duration = Duration::from_secs(1);

impl Registry {
    /// Takes over a run whose owner is proven gone and of which processes live on here: the same attempt, owned by this
    /// process from now on. The caller sees to its timeout ([`RunHandle::on_stop`]), for only the processes' end is
    /// the run's.
    ///
    /// An owner that was killed a moment ago may be on its way out still: it is waited for, for at most a second.
    pub async fn adopt(&self, id: RunId) -> Result<RunHandle, Error> {
        let observe = |run: &Run| self.look(&[run]).and_then(|mut observations| observations.pop());
        match self.adopt_by(id, observe).await {
            Err(Error::Refused { refusal: Refusal::OwnerLives, .. }) if self.owner_exits(id).await? => {
                self.adopt_by(id, observe).await
            }
            adopted => adopted,
        }
    }

    /// Waits until the process of a run's owner has exited, for at most [`EXITS_WITHIN`]. False where it lives on.
    async fn owner_exits(&self, id: RunId) -> Result<bool, Error> {
        let found = self.store.get(&[id]).await?.pop();
        let owner = found.and_then(|record| record.run.owner().map(|owner| owner.identity.clone()));
        Ok(owner.is_some_and(|identity| host::wait_gone(&identity, EXITS_WITHIN)))
    }

    /// Adopts a run on what `look` observes of its processes.
    ///
    /// Looking and writing are two steps, as for a reap: the store applies the rule to the run as it is then, and a beat
    /// or another adopter in between wins.
    pub(crate) async fn adopt_by(
        &self,
        id: RunId,
        look: impl Fn(&Run) -> Option<Observation>,
    ) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        let _taking = keeping.take();
        for _ in 0..TRIES {
            let found = self.store.get(&[id]).await?.pop();
            let record = found.ok_or_else(|| Error::NotFound(id.to_string()))?;
            let owner = keeping.owner(record.run.spec.policy.lease);
            let action = adoption(&record.run, look(&record.run).as_ref(), owner);
            apply(&record.run, &action, &self.me, self.clock.now())
                .map_err(|refusal| Error::Refused { run: id, refusal })?;
            if let Some(record) = self.take_over(id, &action).await? {
                let ran_for = match &record.run.state {
                    State::Running(running) => self.clock.now().since(running.started_at),
                    _ => Duration::ZERO,
                };
                return Ok(self.hold(record, keeping.clone(), Some(ran_for)));
            }
        }
        Err(Error::Contended(id))
    }

    async fn take_over(&self, id: RunId, action: &Action) -> Result<Option<Record>, Error> {
        let stamp = Stamp::draw(&*self.entropy);
        let rule = |run: &Run, now| {
            let transition = apply(run, action, &self.me, now).ok()?;
            Some(Change { transition, stamp })
        };
        let selection = Selection { filter: Filter::of([id]), order: Order::Oldest, limit: 1, due: false };
        let is_own = |record: &Record, stamp| self.is_own(record, stamp);
        Ok(update_until_known(&*self.store, &selection, &rule, is_own).await?.pop())
    }
}

fn adoption(run: &Run, observation: Option<&Observation>, owner: Owner) -> Action {
    let held = run.owner();
    let observed = Observed { epoch: run.epoch, beat: held.map_or(0, |held| held.heard.beat) };
    let (evidence, leftovers) = match held.map(|held| judge(held, observation)) {
        Some(OwnerStatus::Orphaned { evidence, leftovers }) => (Some(evidence), leftovers),
        Some(OwnerStatus::Dead(evidence)) => (Some(evidence), LiveProcesses::default()),
        Some(OwnerStatus::Live | OwnerStatus::Unresponsive) | None => (None, LiveProcesses::default()),
    };
    Action::Adopt { observed, evidence, leftovers, owner }
}
