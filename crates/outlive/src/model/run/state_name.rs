//! The words for the states of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The eight states by name, for filters, lists and comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(description = "The eight words for how a run stands."))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateName {
    /// Waiting to be claimed.
    Pending,
    /// Owned by a worker.
    Running,
    /// Waiting by design.
    Suspended,
    /// Its owner was asked to stop; can be resumed.
    Interrupted,
    /// Its owner was gone; can be resumed.
    Dead,
    /// Finished as it should. Final.
    Succeeded,
    /// Finished with an error. Final.
    Failed,
    /// Stopped by a cancel request. Final.
    Cancelled,
}

impl StateName {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Running,
        Self::Suspended,
        Self::Interrupted,
        Self::Dead,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Interrupted => "interrupted",
            Self::Dead => "dead",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether no further attempt follows by itself or by `resume`: succeeded, failed or cancelled.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Whether an attempt is over.
    pub fn is_ended(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Suspended)
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for StateName {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| UnknownState(text.chars().take(64).collect()))
    }
}

/// Text that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a state: pending, running, suspended, interrupted, dead, succeeded, failed or cancelled")]
pub struct UnknownState(String);
