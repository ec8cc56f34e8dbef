//! Keys: what runs share, and of which there is not enough for all at once.
//!
//! A lock, a limit, a unique key and a rate are one thing, held for different times. So one rule says whether there is
//! room, and one place of each store knows who has what.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Run;
use crate::model::time::{millis, show_duration};

/// A name that at most `limit` runs hold at a time. Push one to [`Spec::keys`](crate::Spec::keys) for a lock, a
/// limit, a rate, or a run that must be the only one of its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What is shared.
    pub name: String,
    /// How many may hold it.
    pub limit: u32,
    /// For how long.
    #[serde(default, skip_serializing_if = "Hold::is_default")]
    pub hold: Hold,
}

/// How long a run holds a [`Key`](crate::Key). The constructors of `Key` choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Hold {
    /// While it runs.
    #[default]
    Running,
    /// From when it is made until it has ended: meanwhile there is no other of its sort.
    Active,
    /// For so long after each of its starts, whatever becomes of it.
    Start {
        /// How long.
        #[serde(rename = "per_ms", with = "millis")]
        per: Duration,
    },
}

impl Hold {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Key {
    /// A lock: a key that one running run holds at a time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
    /// let registry = outlive::Registry::open("memory:").await?;
    /// let mut spec = registry.spec("migrate");
    /// spec.keys.push(outlive::Key::lock("tenant/acme"));
    /// registry.enqueue(spec).await?;
    /// # Ok(()) }) }
    /// ```
    pub fn lock(name: impl Into<String>) -> Self {
        Self::limit(name, 1)
    }

    /// A key that `limit` running runs may hold.
    pub fn limit(name: impl Into<String>, limit: u32) -> Self {
        Self { name: name.into(), limit, hold: Hold::Running }
    }

    /// A key that one run holds from when it is made until it has ended.
    pub fn unique(name: impl Into<String>) -> Self {
        Self { name: name.into(), limit: 1, hold: Hold::Active }
    }

    /// A key by which `limit` runs start within any time of that length.
    pub fn rate(name: impl Into<String>, limit: u32, per: Duration) -> Self {
        Self { name: name.into(), limit, hold: Hold::Start { per } }
    }

    /// Under what a store keeps who holds it: keys of the same name that are held for different times are different keys.
    /// No name has a tab in it.
    pub fn slot(&self) -> String {
        match self.hold {
            Hold::Running => self.name.clone(),
            Hold::Active => format!("{}\tunique", self.name),
            Hold::Start { .. } => format!("{}\trate", self.name),
        }
    }

    /// Whether it is one of a run that no other may have made meanwhile.
    pub fn is_unique(&self) -> bool {
        self.hold == Hold::Active
    }

    /// For how long a start counts, if it is starts that it counts.
    pub fn per(&self) -> Option<Duration> {
        match self.hold {
            Hold::Start { per } => Some(per),
            Hold::Running | Hold::Active => None,
        }
    }

    /// Whether a run that stands so holds it: it runs, or has not ended.
    pub(crate) fn is_held(&self, runs: bool, is_active: bool) -> bool {
        match self.hold {
            Hold::Running => runs,
            Hold::Active => is_active,
            Hold::Start { .. } => false,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.hold {
            Hold::Running => write!(f, "key `{}`", self.name),
            Hold::Active => write!(f, "unique key `{}`", self.name),
            Hold::Start { per } => write!(f, "rate `{}` of {} in {}", self.name, self.limit, show_duration(per)),
        }
    }
}

impl Run {
    /// The keys it holds as it stands. Those that count starts are held by no state.
    pub fn held_keys(&self) -> impl Iterator<Item = &Key> {
        let (runs, is_active) = (self.owner().is_some(), self.ending().is_none());
        self.spec.keys.iter().filter(move |key| key.is_held(runs, is_active))
    }

    /// Whether it holds that key, or one of its own like it.
    pub fn holds(&self, key: &Key) -> bool {
        self.held_keys().any(|held| held.slot() == key.slot())
    }

    /// The keys that count its starts.
    pub fn rates(&self) -> impl Iterator<Item = (&Key, Duration)> {
        self.spec.keys.iter().filter_map(|key| Some((key, key.per()?)))
    }
}
