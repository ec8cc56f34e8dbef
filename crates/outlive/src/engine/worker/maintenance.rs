//! The thread of a worker that maintains the registry: see [`crate::engine::maintenance`].

use std::time::Duration;

use super::builder::WorkerContext;
use crate::engine::maintenance::Maintenance;
use crate::error::Error;
use crate::model::run::{Run, State};
use crate::model::time::{Clock, SystemClock};

/// Maintains the registry until the worker is to end.
pub(super) fn look_after(order: &WorkerContext) {
    let maintenance = Maintenance::new(order.registry.worker());
    let mut chores = Chores { order, maintenance, next_release: Duration::ZERO };
    while order.floor.pause(order.spread(order.times.reap_every)) {
        if let Err(error) = pollster::block_on(chores.pass()) {
            order.survived(&error);
        }
    }
}

struct Chores<'a> {
    order: &'a WorkerContext,
    maintenance: Maintenance,
    next_release: Duration,
}

impl Chores<'_> {
    async fn pass(&mut self) -> Result<(), Error> {
        let now = SystemClock.awake();
        let reaped = self.maintenance.reap(&self.order.registry).await?;
        self.tell(&reaped.ended);
        if now >= self.next_release {
            self.next_release = now + self.order.times.poll_every;
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
