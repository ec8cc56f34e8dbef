//! Shares: whose turn at the workers a run counts as.
//!
//! Runs of one priority that have different shares are claimed in turn, each share as often as its weight says. A run
//! without a share belongs to the share of all runs without one, whose weight is 1.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::time::Timestamp;

/// The highest weight.
pub const HEAVIEST: u32 = 1_000;

/// The tenant that a run counts against, in [`Spec::share`](crate::Spec::share). For workers that serve tenants in
/// turn, however much each enqueues.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Share {
    /// The tenant, team or customer that the work is for.
    pub tenant: String,
    /// How many turns it has for one turn of a share of weight 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
}

fn one() -> u32 {
    1
}

fn is_one(weight: &u32) -> bool {
    *weight == 1
}

impl FromStr for Share {
    type Err = InvalidShare;

    /// Parses `TENANT` or `TENANT:WEIGHT`.
    fn from_str(text: &str) -> Result<Self, InvalidShare> {
        let (tenant, weight) = match text.rsplit_once(':') {
            Some((tenant, weight)) => (tenant, weight.parse().map_err(|_| InvalidShare(text.into()))?),
            None => (text, 1),
        };
        let is_known = !tenant.trim().is_empty() && (1..=HEAVIEST).contains(&weight);
        is_known.then(|| Self { tenant: tenant.into(), weight }).ok_or_else(|| InvalidShare(text.into()))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            1 => f.write_str(&self.tenant),
            weight => write!(f, "{}:{weight}", self.tenant),
        }
    }
}

/// Text that is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a share such as acme or acme:3, whose weight is 1 to {HEAVIEST}")]
pub struct InvalidShare(String);

/// The oldest due run of a kind, share and priority: where the queue of those runs begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueHead {
    /// The kind of the run.
    pub kind: String,
    /// Its share; none for a run without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Its priority.
    pub priority: i32,
    /// When it was made.
    pub created_at: Timestamp,
}

impl QueueHead {
    /// The tenant of its share; empty for a run without one.
    pub fn tenant(&self) -> &str {
        self.share.as_ref().map_or("", |share| &share.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_they_are_shown() {
        for text in ["acme", "acme:3", "a:b:7"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        assert_eq!("acme:1".parse::<Share>().unwrap().to_string(), "acme");
        for text in ["", ":3", "acme:", "acme:0", "acme:1001", "acme:x"] {
            text.parse::<Share>().unwrap_err();
        }
    }
}
