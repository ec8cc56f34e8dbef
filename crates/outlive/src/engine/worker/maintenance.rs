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
    turns: ReleaseTurns,
    /// When spooled outcomes are delivered next, in time awake.
    next_delivery: Duration,
}

impl<'a> WorkerMaintenance<'a> {
    pub(crate) fn new(order: &'a WorkerContext) -> Self {
        let maintenance = Maintenance::new(order.registry.worker());
        Self { order, maintenance, turns: ReleaseTurns::default(), next_delivery: Duration::ZERO }
    }

    /// Reaps, delivers spooled outcomes, and releases runs that wait for others. `now` is the time awake by the clock that the caller waits by.
    pub(crate) async fn pass(&mut self, now: Duration) -> Result<(), Error> {
        let reaped = self.maintenance.reap(&self.order.registry).await?;
        tracing::debug!(reaped = reaped.ended.len(), live = reaped.live, "registry maintained");
        self.tell(&reaped.ended);
        if now >= self.next_delivery {
            self.next_delivery = now + self.order.times.poll_every;
            // Of this worker and of earlier processes of this user. One that cannot be written keeps nothing from being released.
            if let Err(error) = self.order.registry.deliver_spooled().await {
                self.order.survived(&error);
            }
        }
        let ends = self.order.floor.tally().ends();
        if self.turns.is_due(now, ends) {
            let turn = self.order.spread(self.order.times.poll_every * self.maintenance.living_workers());
            self.turns.begin(now, self.order.times.reap_every);
            let released = self.maintenance.release(&self.order.registry).await?;
            self.turns.end(now + turn, ends);
            if released > 0 {
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

/// When a worker releases runs that wait for others.
///
/// What waits for a run that ended here is released by this worker. Ends of any other origin are looked for in turns: the
/// more workers there are, the more seldom does each of them look.
#[derive(Debug, Default)]
struct ReleaseTurns {
    /// The earliest time of the next, in time awake.
    earliest: Duration,
    /// The time of the next where nothing ends here, in time awake.
    turn: Duration,
    /// How many ends were recorded here before the last.
    ends: u64,
}

impl ReleaseTurns {
    fn is_due(&self, now: Duration, ends: u64) -> bool {
        now >= self.earliest && (ends != self.ends || now >= self.turn)
    }

    /// Notes that runs are released. Where that fails it is due again after `every`.
    fn begin(&mut self, now: Duration, every: Duration) {
        self.earliest = now + every;
    }

    /// Notes that runs were released of which `ends` or more were on record.
    fn end(&mut self, turn: Duration, ends: u64) {
        (self.turn, self.ends) = (turn, ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_a_worker_follow_its_ends_or_its_turn() {
        let second = |count| Duration::from_secs(count);
        let mut turns = ReleaseTurns::default();
        assert!(turns.is_due(second(0), 0), "what ended before this worker came");
        turns.begin(second(0), second(1));
        assert!(!turns.is_due(second(0), 1) && turns.is_due(second(1), 0), "one that failed is due again");
        turns.end(second(8), 0);
        assert!((1..8).all(|now| !turns.is_due(second(now), 0)), "the others have their turns");
        assert!(!turns.is_due(Duration::from_millis(500), 1), "no more often than work is looked for");
        assert!(turns.is_due(second(1), 1), "a run ended here");
        assert!(turns.is_due(second(8), 0));
    }
}
