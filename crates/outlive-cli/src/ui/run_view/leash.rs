//! The process that a run ends with, as every surface shows it.

use outlive::owner::Identity;
use schemars::JsonSchema;
use serde::Serialize;

/// A process, as it can be told from all others.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LeashView {
    pub pid: u32,
    /// The boot of its host that it belongs to.
    pub boot_id: String,
    /// When it started, in clock ticks since that boot.
    pub start_ticks: u64,
}

impl LeashView {
    /// What is shown of a process.
    pub fn of(leash: &Identity) -> Self {
        Self { pid: leash.pid, boot_id: leash.vantage.boot_id.to_string(), start_ticks: leash.start_ticks }
    }
}
