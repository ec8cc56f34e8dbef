//! The library from outside: every store held to the contract, and the lifecycle on each of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "shown where a test fails: on which store, and how a race went")]

mod bucket;
mod docs;
mod examples;
mod filters;
mod fleet;
mod fleet_workers;
mod forking;
mod ground;
mod index;
mod lent;
mod lifecycle;
mod logs;
mod mutant;
mod redaction;
mod simulation;
mod sorted;
mod steps;
mod suite;
mod world;
