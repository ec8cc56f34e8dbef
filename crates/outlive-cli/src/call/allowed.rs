//! What agents may do: the permission that the starter of a server grants.

use clap::ValueEnum;

#[cfg(feature = "mcp")]
use crate::call::Effect;

/// What tools may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Allowed {
    /// Look
    Read,
    /// And change records: resume, archive, report
    Write,
    /// And stop runs
    Stop,
    /// And start and queue commands
    Execute,
    /// And delete for good
    Destroy,
}

impl Allowed {
    /// The word.
    #[cfg(feature = "mcp")]
    pub fn as_str(self) -> &'static str {
        self.effect().as_str()
    }

    /// The most that is allowed.
    #[cfg(feature = "mcp")]
    pub fn effect(self) -> Effect {
        match self {
            Self::Read => Effect::Read,
            Self::Write => Effect::Write,
            Self::Stop => Effect::Stop,
            Self::Execute => Effect::Execute,
            Self::Destroy => Effect::Destroy,
        }
    }
}
