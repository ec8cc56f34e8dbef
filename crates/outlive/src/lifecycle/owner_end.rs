//! How an owner ends its run, as it says.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Action, Fence};
use crate::model::run::{Exit, Interruption};

/// How an owner says its work came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It did what it was to do.
    Succeeded {
        /// What it returned, if anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Arc<Value>>,
    },
    /// It did not.
    Failed {
        /// A class that a policy can name.
        error_type: String,
        /// For people.
        error_message: String,
        /// No further attempt would change it, whatever the policy says.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        permanent: bool,
    },
    /// It stopped because a cancel request asked it to.
    Cancelled,
}

impl Outcome {
    /// It did what it was to do, and returned nothing.
    pub const SUCCEEDED: Self = Self::Succeeded { result: None };

    /// It did not do what it was to do, and its policy says whether it is tried again.
    pub fn failed(error_type: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self::Failed { error_type: error_type.into(), error_message: error_message.into(), permanent: false }
    }
}

/// The ways in which an owner can end its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerEnd {
    /// The work came out so.
    Finished(Outcome),
    /// It was asked to stop and did.
    Interrupted(Interruption),
}

impl OwnerEnd {
    /// The action that records it, by the holder of the claim.
    pub fn action(&self, fence: Fence, exit: Option<Exit>) -> Action {
        match self.clone() {
            Self::Finished(outcome) => Action::Finish { fence, outcome, exit },
            Self::Interrupted(interruption) => Action::Interrupt { fence, interruption, exit },
        }
    }
}
