//! The command `outlive`, as its users meet it: real processes, real signals, real disks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "shown where a test fails, or was skipped")]

mod as_if_bare;
mod bad_input;
mod faults_process;
mod faults_run;
mod faults_store;
mod inside;
mod many;
mod running;
mod sandbox;
mod surface;
mod tidy;
