//! The server's time, as far as this host can tell without asking: what is written by a host whose clock is wrong is dated
//! as by all others, and a wait that it sets ends when it should.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::model::time::{Clock, SystemClock, Timestamp};

/// What a clock that is right may seem to be off by, in microseconds.
const SLACK: i64 = 10_000;

/// This host's clock, put right by what the server says with every beat.
#[derive(Default)]
pub(super) struct ServerClock {
    /// By how many microseconds the server is ahead.
    ahead: AtomicI64,
}

impl ServerClock {
    /// Notes the server's time, in microseconds, after it was asked at `asked` by this host's clock.
    pub(super) fn heard(&self, server_time: i64, asked: Timestamp) {
        let (asked, now) = (asked.as_micros(), SystemClock.now().as_micros());
        let known = self.ahead.load(Ordering::Relaxed);
        self.ahead.store(put_right(known, server_time, asked, now), Ordering::Relaxed);
    }
}

/// By how much the server is ahead that read its clock between `asked` and `now`. An answer that took long, perhaps because
/// this process was stopped meanwhile, says little: what is known is kept where it may be so.
fn put_right(known: i64, server_time: i64, asked: i64, now: i64) -> i64 {
    let (most, least) = (server_time.saturating_sub(asked), server_time.saturating_sub(now.max(asked)));
    let may_be = |ahead: i64| (least.saturating_sub(SLACK)..=most.saturating_add(SLACK)).contains(&ahead);
    [0, known].into_iter().find(|ahead| may_be(*ahead)).unwrap_or_else(|| known.clamp(least, most))
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
    fn wrong_clock_is_corrected_and_a_right_one_left_alone() {
        let (clock, hour) = (ServerClock::default(), 3_600_000_000);
        let off = |clock: &ServerClock| clock.now().as_micros() - SystemClock.now().as_micros();
        for server_time in [hour, -hour] {
            let asked = SystemClock.now();
            clock.heard(asked.as_micros() + server_time, asked);
            assert!((off(&clock) - server_time).abs() < 60_000_000, "off by {}", off(&clock));
        }
        let asked = SystemClock.now();
        clock.heard(asked.as_micros() + 1_000, asked);
        assert_eq!(clock.ahead.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn f_57_slow_answer_does_not_move_a_clock_that_may_be_right() {
        let (second, hour) = (1_000_000, 3_600_000_000);
        for ahead in [hour, -hour] {
            // Asked, stopped for five seconds, and answered in the first or the last moment of them.
            for server_time in [ahead, ahead + 5 * second] {
                assert_eq!(put_right(ahead, server_time, 0, 5 * second), ahead);
            }
            let guessed = put_right(0, ahead, 0, 5 * second);
            assert!((guessed - ahead).abs() <= 5 * second, "{guessed}");
            assert!((put_right(guessed, ahead, 0, 1_000) - ahead).abs() <= SLACK + 1_000);
        }
    }
}
