//! Chores: what some worker must do, and any can. Silent workers are found, runs that wait for others are told of their
//! ends.
//!
//! Workers are looked at, not runs: only those of a worker that is late are read, so that looking costs the same however
//! many runs are alive.

use std::collections::BTreeMap;
use std::time::Duration;

use super::builder::Order;
use crate::error::Error;
use crate::filter::Filter;
use crate::id::WorkerId;
use crate::run::{Run, State, StateName};
use crate::runtime::reaper::Reaper;
use crate::store::{self, Order as Sorted, Page, Walk};
use crate::time::{Clock, SystemClock};

/// How often all running runs are looked at, whoever owns them, by some worker of the fleet.
const FULL_PASS_EVERY: Duration = Duration::from_secs(60);

/// Does the chores until the worker is to end.
pub(super) fn look_after(order: &Order) {
    let reaper = Reaper::new(order.registry.worker());
    let mut chores = Chores { order, reaper, silent: BTreeMap::new(), next_full: None, next_release: Duration::ZERO };
    while order.floor.pause(order.spread(order.times.reap_every)) {
        if let Err(error) = pollster::block_on(chores.pass()) {
            order.survived(&error);
        }
    }
}

struct Chores<'a> {
    order: &'a Order,
    reaper: Reaper,
    /// Workers that are silent and own nothing, by their last beat.
    silent: BTreeMap<WorkerId, u64>,
    /// By the time awake; none before the first look.
    next_full: Option<Duration>,
    next_release: Duration,
}

impl Chores<'_> {
    async fn pass(&mut self) -> Result<(), Error> {
        let now = SystemClock.awake();
        self.reap(now).await?;
        if now >= self.next_release {
            self.next_release = now + self.order.times.poll_every;
            self.release().await?;
        }
        Ok(())
    }

    async fn reap(&mut self, now: Duration) -> Result<(), Error> {
        let registry = &*self.order.registry;
        // Where processes can be seen, death is seen before it is heard.
        let sees = registry.store().witness().is_some();
        let workers = if sees { Vec::new() } else { registry.store().workers().await? };
        // The more there are who do it, the more seldom each of them does, and not all when they begin.
        let turn = FULL_PASS_EVERY * u32::try_from(workers.len()).unwrap_or(u32::MAX).max(1);
        let next_full = *self.next_full.get_or_insert_with(|| now + self.order.part(turn));
        if sees || now >= next_full {
            self.next_full = Some(now + self.order.spread(turn));
            let reaped = self.reaper.pass(registry).await?.ended;
            self.tell(&reaped);
            return Ok(());
        }
        let late: Vec<store::Worker> = workers.into_iter().filter(is_late).collect();
        self.silent.retain(|id, beat| late.iter().any(|worker| worker.id == *id && worker.heard.beat == *beat));
        for worker in late {
            if self.silent.contains_key(&worker.id) {
                continue;
            }
            let owned = Filter { owner: Some(worker.id), ..Filter::default() };
            let reaped = self.reaper.pass_over(registry, owned).await?;
            let owns_nothing = reaped.live == 0 && reaped.unjudged.is_empty() && reaped.orphaned.is_empty();
            if owns_nothing && reaped.unresponsive.is_empty() {
                self.silent.insert(worker.id, worker.heard.beat);
            }
            self.tell(&reaped.ended);
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

    /// Tells runs that wait for others of their ends.
    async fn release(&self) -> Result<(), Error> {
        let registry = &*self.order.registry;
        let waits = Filter { waits: Some(true), ..Filter::in_states([StateName::Pending]) };
        let mut walk = Walk::from(waits, Page { order: Sorted::Claim, ..Page::default() });
        let mut changed = 0;
        while let Some(records) = walk.next(registry.store()).await? {
            let waiting: Vec<Run> = records.into_iter().map(|record| record.run).collect();
            if !waiting.is_empty() {
                changed += registry.release(&waiting).await?;
            }
        }
        if changed > 0 {
            self.order.floor.wake();
        }
        Ok(())
    }
}

/// Whether a worker has said nothing for longer than it should.
fn is_late(worker: &store::Worker) -> bool {
    worker.heard.silent_for > worker.lease.beat() * 3 / 2
}
