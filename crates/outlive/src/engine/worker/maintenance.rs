//! The thread of a worker that maintains the registry: see [`crate::engine::maintenance`].

use std::time::Duration;

use super::builder::WorkerContext;
use crate::engine::maintenance::Maintenance;
use crate::error::Error;
use crate::model::run::{Run, State};
use crate::model::time::{Clock, SystemClock};

/// Maintains the registry until the worker is to end.
pub(super) fn look_after(order: &WorkerContext) {
    let mut maintenance = WorkerMaintenance::new(order);
    if let Err(error) = pollster::block_on(order.registry.deliver_spooled()) {
        order.survived(&error);
    }
    while order.floor.pause(order.spread(order.times.reap_every)) {
        if let Err(error) = pollster::block_on(maintenance.pass(SystemClock.awake())) {
            order.survived(&error);
        }
    }
}

/// What a worker does now and then for all of the registry, one pass after the other.
pub(crate) struct WorkerMaintenance<'a> {
    order: &'a WorkerContext,
    maintenance: Maintenance,
    next_release: Duration,
}

impl<'a> WorkerMaintenance<'a> {
    pub(crate) fn new(order: &'a WorkerContext) -> Self {
        Self { order, maintenance: Maintenance::new(order.registry.worker()), next_release: Duration::ZERO }
    }

    /// Reaps, delivers spooled outcomes, and releases runs that wait for others. `now` is the time awake by the clock that the caller waits by.
    pub(crate) async fn pass(&mut self, now: Duration) -> Result<(), Error> {
        let reaped = self.maintenance.reap(&self.order.registry).await?;
        tracing::debug!(reaped = reaped.ended.len(), live = reaped.live, "registry maintained");
        self.tell(&reaped.ended);
        if now >= self.next_release {
            self.next_release = now + self.order.times.poll_every;
            // Of this worker and of earlier processes of this user. One that cannot be written keeps nothing from being released.
            if let Err(error) = self.order.registry.deliver_spooled().await {
                self.order.survived(&error);
            }
            if self.maintenance.release(&self.order.registry).await? > 0 {
                self.order.floor.wake();
            }
        }
        Ok(())
    }

    fn tell(&self, reaped: &[Run]) {
        if reaped.is_empty() {
            return;
        }
        self.order.floor.count(|tally| tally.reaped += reaped.len() as u64);
        if reaped.iter().any(|run| matches!(run.state, State::Pending(_)) || !run.spec.keys.is_empty()) {
            self.order.floor.wake();
        }
        reaped.iter().for_each(|run| (self.order.on_end)(run));
    }
}
