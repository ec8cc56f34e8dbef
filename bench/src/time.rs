//! The stopwatch: the only place of the benchmarks that reads a clock.

use std::time::{Duration, Instant, SystemTime};

use crate::scratch::Outcome;

/// A time that is measured from.
#[derive(Debug, Clone, Copy)]
pub struct Begun(Instant);

impl Begun {
    /// Now.
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time, and nothing sleeps meanwhile")]
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// How long ago that was.
    pub fn ago(self) -> Duration {
        self.0.elapsed()
    }
}

/// How long `work` takes.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time, and nothing sleeps meanwhile")]
pub fn measure(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// Microseconds since 1970, for what one process begins and another ends.
#[allow(clippy::disallowed_methods, reason = "processes of one machine have no other clock in common")]
pub fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
