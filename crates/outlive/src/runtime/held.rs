//! A run that a worker holds: what its holder and the thread that beats share.

use std::sync::Mutex;
use std::time::Duration;

use super::keeper::lock;
use crate::id::{Epoch, RunId};
use crate::policy::{Lease, OnLeaseLoss};
use crate::run::CancelRequest;
use crate::store::Record;

/// Why a holder should stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The run is no longer its own: somebody reaped it, or it was ended.
    Lost,
    /// Somebody asked for it.
    Cancelled(CancelRequest),
    /// It has run for longer than it may.
    TimedOut,
    /// The store could not be reached for so long that somebody else may soon own the run.
    LeaseOver,
}

type Watcher = Box<dyn Fn(&Stop) + Send>;

/// A run that this worker holds.
pub(crate) struct Held {
    pub(crate) id: RunId,
    pub(crate) epoch: Epoch,
    pub(crate) lease: Lease,
    /// Since when it is held, by time since boot: a wall clock that jumps ends nobody's work.
    since: Duration,
    /// How long its attempt had run before that, with another owner.
    ran_for: Option<Duration>,
    timeout: Option<Duration>,
    stops_unheard: bool,
    /// As it was last read or written.
    pub(crate) record: Mutex<Record>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    stop: Option<Stop>,
    watcher: Option<Watcher>,
}

impl Held {
    pub(crate) fn new(record: Record, now: Duration, ran_for: Option<Duration>) -> Self {
        let (run, policy) = (&record.run, &record.run.spec.policy);
        let careful = if run.held_keys().next().is_none() { OnLeaseLoss::Continue } else { OnLeaseLoss::Stop };
        Self {
            id: run.id,
            epoch: run.epoch,
            lease: run.owner().map_or_else(Lease::default, |owner| owner.lease),
            since: now,
            ran_for,
            timeout: policy.limits.timeout,
            stops_unheard: policy.on_lease_loss.unwrap_or(careful) == OnLeaseLoss::Stop,
            record: Mutex::new(record),
            told: Mutex::default(),
        }
    }

    /// Whether a clock alone may stop it.
    pub(super) fn is_limited(&self) -> bool {
        self.timeout.is_some() || self.stops_unheard
    }

    /// How long it may still run, unless it was told to stop.
    pub(super) fn time_left(&self, now: Duration) -> Option<Duration> {
        let timeout = self.timeout.filter(|_| self.stop().is_none())?;
        Some((self.since + timeout.saturating_sub(self.ran_for.unwrap_or_default())).saturating_sub(now))
    }

    /// Whether it has run for longer than it may.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.timeout.is_some_and(|timeout| now.saturating_sub(self.since) + self.ran_for.unwrap_or_default() > timeout)
    }

    /// Whether it must stop by itself after such a time in which the store took no beat.
    pub(super) fn must_stop(&self, unheard_for: Duration) -> bool {
        self.stops_unheard && unheard_for >= self.lease.own_deadline()
    }

    pub(crate) fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        lock(&self.told).stop.clone()
    }

    /// Has `watcher` called with every reason to stop, the present one included.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let mut told = lock(&self.told);
        if let Some(stop) = &told.stop {
            watcher(stop);
        }
        told.watcher = Some(watcher);
    }

    /// Tells the holder to stop. What it was told first stands, unless the run is lost.
    pub(super) fn tell(&self, stop: Stop) {
        let mut told = lock(&self.told);
        if told.stop.is_none() || stop == Stop::Lost && told.stop != Some(Stop::Lost) {
            // Before it is called: one that panics is not called again.
            told.stop = Some(stop.clone());
            if let Some(watcher) = &told.watcher {
                watcher(&stop);
            }
        }
    }

    /// Whether somebody sees to it that its work ends when it is told to stop. Of an adopted run that goes without
    /// saying: processes that live on are not ended by saying so.
    pub(super) fn is_watched(&self) -> bool {
        self.ran_for.is_some() || lock(&self.told).watcher.is_some()
    }
}
