//! The stopwatch: the only place of the benchmarks that reads a clock.

use std::time::{Duration, Instant};

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
