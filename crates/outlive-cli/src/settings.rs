//! Settings: what the configuration of a registry and of the home says.
//!
//! A configuration lies beside the runs of a repository and comes from its author. It can set intervals and
//! limits; it cannot name a command, a store or an address, so there is nothing in it to be trusted.
#![cfg_attr(
    not(all(feature = "mcp", feature = "object", feature = "server")),
    allow(dead_code, reason = "needed by surfaces that are left out")
)]

mod config;
mod home;

use std::path::Path;

pub use outlive::discovery::{DIRECTORY, Location, REGISTRY_VARIABLE};

pub use self::config::Config;
#[cfg(feature = "postgres")]
pub use self::config::History;
pub use self::home::{CoolWorkflow, Hooks, QueueOrder, Sweeps, with_logs};

/// The file of a configuration.
const CONFIG: &str = "config.toml";

/// Whether there is no registry here yet, or another process is creating it. A registry that may not be read, or that
/// lost its identity, is not missing.
///
/// The order matters: a creator writes the identity before it records a run or makes the database, so what is found
/// after a missing identity proves either that the registry is incomplete, or that it is complete by now.
pub fn is_missing(path: &Path) -> bool {
    is_absent(&path.join("registry.id")) && has_no_runs(&path.join("runs")) && is_absent(&path.join("registry.db"))
}

fn has_no_runs(runs: &Path) -> bool {
    match std::fs::read_dir(runs) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a directory is a registry.
pub fn is_registry(path: &Path) -> bool {
    !is_absent(&path.join("registry.id"))
}

fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}
