//! The session of this process as a worker: when its heartbeats begin, and how it deregisters.
//!
//! Most of what a short run costs is not its work. So one that may be over before its first beat starts no thread for it,
//! and says goodbye in the same write that ends it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::model::policy::Lease;
use crate::model::run::Exit;
use crate::ownership::handle::{Persisted, RunHandle};
use crate::ownership::heartbeat::HeartbeatThread;
use crate::store::{self, Beat, FleetReport, Notification, WorkerCapacity, fork_guard};
use crate::util::sync::lock;
use crate::util::within::block_on_within;

/// Starts the thread that beats.
pub(super) fn start(keeper: &HeartbeatThread) -> Result<(), Error> {
    let failed = |error| store::Error::Unavailable(format!("the thread that beats cannot be started: {error}"));
    Ok(keeper.start().map_err(failed)?)
}

impl Registry {
    /// Defers the heartbeat thread until [`Registry::start_beating`]. A caller that holds a run must call it well
    /// before the first beat is due.
    #[doc(hidden)]
    #[must_use]
    pub fn defer_heartbeat(mut self) -> Self {
        self.beats_later = true;
        self
    }

    /// Sets what this process takes from the queue: its capacity.
    #[doc(hidden)]
    #[must_use]
    pub fn offering(mut self, offer: WorkerCapacity) -> Self {
        self.offer = Arc::new(offer);
        if let Some(working) = lock(&self.worker).as_ref() {
            working.keeping.offer(self.offer.clone());
        }
        self
    }

    /// Registers this process as a worker, with a lease that it keeps while it owns nothing.
    pub(crate) async fn register_worker(&self, lease: Lease) -> Result<(), Error> {
        let keeping = self.keeping()?;
        keeping.set_idle_lease(lease);
        self.start_beating()?;
        Ok(keeping.tick(&*self.store).await?)
    }

    /// What the last heartbeat of this process told of other workers, with the lease that they were measured by.
    pub(crate) fn fleet(&self) -> Option<(FleetReport, Lease)> {
        lock(&self.worker).as_ref()?.keeping.fleet()
    }

    /// Registers this process as a worker before it owns anything, with its capacity.
    #[doc(hidden)]
    pub async fn announce(&self) -> Result<(), Error> {
        self.register_worker(self.lease.unwrap_or_default()).await
    }

    /// Subscribes to notifications of the store: calls `work` when there may be work, and requests a heartbeat when a run of
    /// this worker has a request. Dropping the returned guard unsubscribes.
    pub(crate) fn subscribe(&self, work: impl Fn() + Send + Sync + 'static) -> Option<Box<dyn Any + Send + Sync>> {
        let keeping = self.keeping().ok()?;
        self.listen(move |notification| match notification {
            Notification::Work => work(),
            Notification::Request(worker) if worker == keeping.worker => keeping.ask(),
            Notification::Request(_) => {}
        })
    }

    /// Has this process's worker beat, if it does not yet.
    #[doc(hidden)]
    pub fn start_beating(&self) -> Result<(), Error> {
        let working = lock(&self.worker).clone();
        working.as_ref().and_then(|working| working.keeper.as_ref()).map_or(Ok(()), start)
    }

    /// Ends the last run of this process, which leaves with it.
    #[doc(hidden)]
    pub async fn finish_and_deregister(
        &self,
        handle: RunHandle,
        end: OwnerEnd,
        exit: Option<Exit>,
    ) -> Result<Persisted, Error> {
        fork_guard::check(self.opened_by)?;
        let working = lock(&self.worker).clone();
        // A beat of another thread would have the worker come back.
        let silent = working.filter(|working| working.keeper.as_ref().is_some_and(|keeper| !keeper.is_started()));
        #[cfg(feature = "sqlite")]
        if let (Some(local), Some(working)) = (&self.local, &silent) {
            let worker = working.keeping.worker;
            local.leave_with_its_last_run(Some(worker));
            let recorded = handle.end(None, end, exit).await;
            local.leave_with_its_last_run(None);
            working.left.store(matches!(recorded, Ok(Persisted::Committed)), Ordering::Relaxed);
            return recorded;
        }
        drop(silent);
        handle.end(None, end, exit).await
    }

    /// Ends this process's work: delivers deferred ends and deregisters, so that no reaper waits for its lease.
    pub async fn close(self) {
        self.leave().await;
    }

    /// Closes the registry, and blocks for no longer than `limit`. What the store has not taken by then stays in the spool,
    /// and a worker that has not deregistered is found by its lock or its lease.
    pub fn close_within(self, limit: Duration) {
        if let Some(working) = lock(&self.worker).as_ref() {
            working.keeping.limit_join(limit);
        }
        let _ = block_on_within(limit, self.leave());
    }

    /// Closes the registry of a process that exits: its descriptors are left to the exit, which closes all at once.
    #[doc(hidden)]
    pub async fn close_leaking(self) {
        self.leave().await;
        std::mem::forget(self);
    }

    pub(crate) async fn leave(&self) {
        if !self.opened_by.is_this_process() {
            return;
        }
        let Some(working) = lock(&self.worker).take() else { return };
        let (keeping, left) = (working.keeping.clone(), working.left.load(Ordering::Relaxed));
        // What could not be delivered stays in the spool.
        let _ = keeping.deliver(&*self.store).await;
        if Arc::into_inner(working).is_none() && !keeping.retire() {
            // A run is still held: its worker leaves with the last of them.
            return;
        }
        let beat = Beat {
            worker: keeping.worker,
            identity: keeping.identity.clone(),
            lease: Default::default(),
            held: [].into(),
            attention: None,
            leaving: true,
            offer: Arc::default(),
        };
        if !left {
            // A worker that cannot say goodbye is found by its lock.
            let _ = self.store.beat(&beat).await;
        }
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            local.drop_life_lock(keeping.worker);
        }
    }
}
