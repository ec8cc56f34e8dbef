//! Settings: what the configuration of a registry and of the home says, and a registry that is opened with it.
//!
//! A configuration lies beside the runs of a repository and comes from its author. It can set intervals and
//! limits; it cannot name a command, a store or an address, so there is nothing in it to be trusted. The command, programs
//! and the Python package read the same files: what one of them finds from a directory, each of them finds.
#![cfg_attr(
    not(all(feature = "object", feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "said of stores that are left out")
)]

mod config;
mod home;
mod open;

pub use self::config::{Config, HistoryKept};
pub use self::home::{CoolWorkflow, Hooks, QueueOrder, Sweeps, with_logs};

/// The file of a configuration.
const CONFIG: &str = "config.toml";
