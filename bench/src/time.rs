//! The stopwatch: the only place of the benchmarks that reads a clock.

use std::time::{Duration, Instant};

use crate::scratch::Outcome;

/// How long `work` takes.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time, and nothing sleeps meanwhile")]
pub fn measure(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}
