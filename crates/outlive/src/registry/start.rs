//! Starting runs: drafting a run from its spec, writing it, and holding it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::{Action, apply, enqueued};
use crate::model::id::{RunId, Stamp};
use crate::model::policy::Lease;
use crate::model::run::{Actor, Event, Run, Spec};
use crate::model::time::Timestamp;
use crate::ownership::commit::{UnresolvedWrite, commit_until_known};
use crate::ownership::handle::RunHandle;
use crate::ownership::heartbeat::WorkerState;
use crate::secrets::masking;
use crate::secrets::trust::Trust;
use crate::store::{Expect, Record, Write};
use crate::util::sync::lock;

impl Registry {
    /// A new run of this user, not written yet.
    pub(super) fn draft(&self, spec: Spec) -> Result<Run, Error> {
        let now = self.clock.now();
        self.draft_as(RunId::draw(now, &*self.entropy), spec, now)
    }

    /// A run of that id, with its secrets put away and signed by this user.
    pub(super) fn draft_as(&self, id: RunId, spec: Spec, now: Timestamp) -> Result<Run, Error> {
        let keeps_durably = spec.queued;
        self.draft_by(&self.me, id, spec, now, keeps_durably)
    }

    /// A run of that id that `maker` makes: this user, in this process or another. What is kept of it in the home is synced
    /// with `keeps_durably`.
    pub(super) fn draft_by(
        &self,
        maker: &Actor,
        id: RunId,
        mut spec: Spec,
        now: Timestamp,
        keeps_durably: bool,
    ) -> Result<Run, Error> {
        if let Some(lease) = self.lease.filter(|_| spec.policy.lease == Lease::default()) {
            spec.policy.lease = lease;
        }
        spec.check().map_err(|error| Error::Invalid(error.to_string()))?;
        // The author is the user who makes the run, whatever the spec says.
        spec.created_by = maker.clone();
        let registry = self.identity_to_sign()?;
        masking::draft(&self.redactor, self.trust.as_ref(), || self.id(), id, &mut spec, keeps_durably);
        let sign = |trust: &Trust| Some(trust.sign(registry.as_deref()?, id, &spec, now));
        let signature = self.trust.as_ref().and_then(sign);
        Ok(Run::new(id, Arc::new(spec), signature, now))
    }

    /// Makes a run and owns it at once.
    pub async fn start(&self, spec: Spec) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        let _taking = keeping.take();
        let run = self.draft(spec)?;
        let (run, events) = self.claimed_draft(&run, &self.me, &keeping)?;
        let record = self.create(run, events).await?;
        Ok(self.hold(record, keeping.clone(), None))
    }

    /// A run that `maker` makes, owned by this process, and its first events: to be written at once.
    pub(super) fn claimed_draft(
        &self,
        run: &Run,
        maker: &Actor,
        keeping: &WorkerState,
    ) -> Result<(Run, Vec<Event>), Error> {
        let made = enqueued(run, maker);
        let action =
            Action::Claim { owner: keeping.owner(run.spec.policy.lease), early: false, leftovers: Default::default() };
        let claimed = apply(run, &action, &self.me, self.clock.now())
            .map_err(|refusal| Error::Refused { run: run.id, refusal })?;
        Ok((claimed.run, vec![made, claimed.event]))
    }

    /// A handle on a run that this process owns. `ran_for` is how long the attempt ran under an earlier owner. The handle
    /// keeps the worker alive, even where the registry is dropped first.
    pub(super) fn hold(&self, record: Record, keeping: Arc<WorkerState>, ran_for: Option<Duration>) -> RunHandle {
        let worker: Arc<dyn Any + Send + Sync> = match lock(&self.worker).clone() {
            Some(worker) => worker,
            None => Arc::new(()),
        };
        RunHandle::new(record, ran_for, keeping, self.store.clone(), worker, self.redactor.clone())
    }

    /// Writes a run that is not there yet, under an id that this process has drawn.
    pub(super) async fn create(&self, run: Run, events: Vec<Event>) -> Result<Record, Error> {
        let (id, mut doubt) = (run.id, UnresolvedWrite::default());
        let settled = self.write_absent(run, events, &mut doubt).await;
        if settled.is_err() && !doubt.remains() {
            // It was not made. What stays behind of it is sealed, private and never asked for.
            let _ = self.forget_sealed(id);
        }
        made(id, settled?, &doubt)
    }

    /// Writes a run that is not there yet, under an id that another process may write as well. What is kept for it in the
    /// home stays: the other process may have kept it for the run that it makes.
    pub(super) async fn create_requested(&self, run: Run, events: Vec<Event>) -> Result<Record, Error> {
        let (id, mut doubt) = (run.id, UnresolvedWrite::default());
        let settled = self.write_absent(run, events, &mut doubt).await?;
        made(id, settled, &doubt)
    }

    async fn write_absent(
        &self,
        run: Run,
        events: Vec<Event>,
        doubt: &mut UnresolvedWrite,
    ) -> Result<Result<Record, Option<Record>>, Error> {
        let write = Write { expect: Expect::Absent, run, events, ended: None, stamp: Stamp::draw(&*self.entropy) };
        commit_until_known(&*self.store, write, doubt).await
    }
}

/// The record that was made, unless another run has the id.
fn made(id: RunId, settled: Result<Record, Option<Record>>, doubt: &UnresolvedWrite) -> Result<Record, Error> {
    settled.map_err(|_| doubt.or(Error::Invalid(format!("there is a run `{id}` already"))))
}
