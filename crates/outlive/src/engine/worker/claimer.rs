//! Claiming: as many runs as there are free slots, in one call.
//!
//! A claim that brings all that it asked for says that there may be more: the next follows as soon as a slot is free.
//! Otherwise the worker asks again after a while, or when a notification wakes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use super::builder::WorkerContext;
use crate::engine::claims::Claims;
use crate::error::Error;
use crate::model::id::RunId;
use crate::model::run::Run;
#[cfg(any(test, feature = "testing"))]
use crate::ownership::handle::RunHandle;
use crate::util::backoff::Backoff;
use crate::util::sync::lock;

/// The most runs of one claim.
pub(crate) const BATCH: usize = 500;
/// The waits after failures in a row.
const FAILURES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Claims until the worker is to end.
pub(super) fn claim(order: &WorkerContext) {
    let mut claimer = Claimer::new(order);
    let mut timeout = Duration::ZERO;
    while let Some(room) = order.floor.wait_for_room(timeout, BATCH) {
        if room == 0 {
            // Another was quicker.
            continue;
        }
        timeout = match pollster::block_on(claimer.step(room)) {
            NextClaim::Poll(timeout) => timeout,
            NextClaim::Retry(pause) => {
                order.floor.pause(pause);
                Duration::ZERO
            }
        };
    }
}

/// Claims one run for a worker that claims no other. Answers with its id, or none where none can be claimed.
#[cfg(any(test, feature = "testing"))]
pub(super) fn claim_one(order: &WorkerContext) -> Result<Option<RunId>, Error> {
    let mut claims = Claims::of(order.kinds.iter().cloned()).within(order.times.lease);
    let (handles, _) = pollster::block_on(claims.claim(&order.registry, 1, &|_| true))?;
    let id = handles.first().map(RunHandle::id);
    order.floor.claimed(0, Some(handles.into_iter().map(|handle| order.task(handle)).collect()));
    Ok(id)
}

/// When the next claim is made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NextClaim {
    /// After this time, or as soon as a notification says that there is work.
    Poll(Duration),
    /// After this time: the store has failed.
    Retry(Duration),
}

/// Claims for a worker, one step after the other. A step never waits but for the store.
pub(crate) struct Claimer<'a> {
    order: &'a WorkerContext,
    claims: Claims,
    failures: Backoff,
}

impl<'a> Claimer<'a> {
    pub(crate) fn new(order: &'a WorkerContext) -> Self {
        let claims = Claims::of(order.kinds.iter().cloned()).within(order.times.lease);
        Self { order, claims, failures: FAILURES }
    }

    /// Claims up to `room` runs. Answers with when to claim again.
    pub(crate) async fn step(&mut self, room: usize) -> NextClaim {
        match self.claim(room).await {
            Ok(true) => NextClaim::Poll(Duration::ZERO),
            Ok(false) => NextClaim::Poll(self.order.spread(self.order.times.poll_every)),
            Err(error) => {
                self.order.survived(&error);
                NextClaim::Retry(self.order.spread(self.failures.pause()))
            }
        }
    }

    /// Claims up to `room` runs. Answers whether there may be more.
    async fn claim(&mut self, room: usize) -> Result<bool, Error> {
        let limits = self.order.floor.free_of_kinds();
        let granted: Mutex<BTreeMap<&String, BTreeSet<RunId>>> = Mutex::default();
        let is_wanted = |run: &Run| {
            let Some((kind, limit)) = limits.get_key_value(&run.spec.kind) else { return true };
            let mut granted = lock(&granted);
            let of_kind = granted.entry(kind).or_default();
            // A store may ask about a run more than once.
            of_kind.contains(&run.id) || of_kind.len() < *limit && of_kind.insert(run.id)
        };
        let claimed = self.claims.claim(&self.order.registry, room, &is_wanted).await;
        let (tasks, more) = match claimed {
            Ok((handles, more)) => {
                (Some(handles.into_iter().map(|handle| self.order.task(handle)).collect()), Ok(more))
            }
            Err(error) => (None, Err(error)),
        };
        self.order.floor.claimed(room, tasks);
        let more = more?;
        self.failures = FAILURES;
        Ok(more)
    }
}
