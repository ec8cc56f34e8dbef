//! The server's time, as far as this host can tell without asking: what is written by a host whose clock is wrong is dated
//! as by all others, and a wait that it sets ends when it should.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::time::{Clock, SystemClock, Timestamp};

/// What clocks that are kept right differ by at most, in microseconds.
const SLACK: i64 = 500_000;

/// This host's clock, put right by what the server says with every beat.
#[derive(Default)]
pub(super) struct ServerClock {
    /// By how many microseconds the server is ahead.
    ahead: AtomicI64,
}

impl ServerClock {
    /// Says that the server told its time, in microseconds, after it was asked at `asked` by this host's clock.
    pub(super) fn heard(&self, told: i64, asked: Timestamp) {
        let (asked, now) = (asked.as_micros(), SystemClock.now().as_micros());
        let ahead = if told < asked.saturating_sub(SLACK) {
            told.saturating_sub(asked)
        } else if told > now.saturating_add(SLACK) {
            told.saturating_sub(now)
        } else {
            0
        };
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(SystemClock.now().as_micros().saturating_add(self.ahead.load(Ordering::Relaxed)))
    }

    fn awake(&self) -> Duration {
        SystemClock.awake()
    }

    fn since_boot(&self) -> Duration {
        SystemClock.since_boot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_put_right_and_one_that_is_not_is_left_alone() {
        let (clock, hour) = (ServerClock::default(), 3_600_000_000);
        let off = |clock: &ServerClock| clock.now().as_micros() - SystemClock.now().as_micros();
        for told in [hour, -hour] {
            let asked = SystemClock.now();
            clock.heard(asked.as_micros() + told, asked);
            assert!((off(&clock) - told).abs() < 60_000_000, "off by {}", off(&clock));
        }
        let asked = SystemClock.now();
        clock.heard(asked.as_micros() + 1_000, asked);
        assert_eq!(clock.ahead.load(Ordering::Relaxed), 0);
    }
}
