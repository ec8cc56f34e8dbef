//! The lifecycle scenarios, each on every store of this crate.
//!
//! Not here, because they take the `outlive` command or another backend: the signal and the exit status of L18, L21 with
//! processes, and L15 against a store that has a clock of its own host.

mod adopting;
mod cancelling;
mod claims;
mod files;
mod limits;
pub(crate) mod logging;
mod outages;
mod panics;
mod reaping;
mod retried;
mod stopping;
mod watching;
mod zombies;
