//! Benchmarks: what outlive costs, as ratios measured in one run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's result is what it prints")]
mod beats;
mod fleet;
mod idle;
mod lists;
mod output;
mod peers;
mod plane;
mod rounds;
mod run;
mod scratch;
mod serving;
mod sqlite;
mod storm;
mod supervise;
mod sweep;
mod time;
#[rustfmt::skip]
fn main() -> std::process::ExitCode { scratch::main() }
