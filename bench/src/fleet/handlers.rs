//! What handlers cost: claim and finish with async handlers against blocking ones, and with `tracing` at `info` against off.
//!
//! Each slice is a process of its own, because a subscriber of `tracing` is installed once and for all. "Before" is the
//! blocking handler, with a thread for each slot: the only one that there was before handlers could be async.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{load, rounds, server};
use crate::rounds::{Plan, Variant, interleave};
use crate::scratch::Outcome;

/// How many runs a slice claims and finishes.
const RUNS: usize = 10_000;
/// Async handlers, as a rate over that of blocking ones.
const ASYNC_BAR: f64 = 1.15;
/// With events at `info`, as a rate over that without.
const INFO_BAR: f64 = 0.98;

/// Measures all in turns.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = server();
    let url = server.fresh_url();
    let variants = ["blocking", "async", "info"].map(|how| Variant::new(how, || drained(&url, how)));
    let plan = Plan { rounds: rounds(7), slices: 2, units: RUNS };
    let measured = interleave(plan, variants.into())?;
    println!("500 slots, PostgreSQL with default durability, handlers that do nothing; load {}", load());
    measured.print_rates("claimed + finished");
    let is_faster = measured.print_ratio(1, 0, Some(ASYNC_BAR..=f64::INFINITY));
    let is_quiet = measured.print_ratio(2, 1, Some(INFO_BAR..=f64::INFINITY));
    Ok(is_faster && is_quiet)
}

/// How long a process takes to claim and finish what it has enqueued.
fn drained(url: &str, how: &str) -> Outcome<Duration> {
    let words = ["fleet-process", url, "handle", &RUNS.to_string(), how];
    let output = Command::new(std::env::current_exe()?).args(words).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let done = said.lines().find_map(|line| line.strip_prefix("done ")).ok_or("it did not say how long it took")?;
    Ok(Duration::from_secs_f64(done.parse()?))
}
