//! Time in a history: one pace for all, and for each process a wall clock of its own that may be wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::model::policy::Lease;
use crate::model::time::{Clock, Timestamp};
use crate::testing::ManualClock;

/// The lease of every run of a history.
pub(super) fn lease() -> Lease {
    Lease::new(Duration::from_secs(2), Duration::from_secs(6)).expect("three beats fit")
}

/// A clock that shows a wall time of its own. How fast time passes is the same for all.
pub(super) struct SkewedClock {
    clock: Arc<ManualClock>,
    offset_micros: AtomicI64,
}

impl SkewedClock {
    pub(super) fn new(clock: Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self { clock, offset_micros: AtomicI64::new(0) })
    }

    pub(super) fn jump(&self, seconds: i64) {
        self.offset_micros.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().as_micros() + self.offset_micros.load(Ordering::Relaxed))
    }

    fn awake(&self) -> Duration {
        self.clock.awake()
    }

    fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }
}
