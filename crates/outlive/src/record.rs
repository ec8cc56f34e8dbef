//! The parts of a run's record that programs read and seldom name: what the states of a [`Run`](crate::Run) hold, who owns it,
//! and how its attempts ended.

pub use crate::model::id::Stamp;
pub use crate::model::owner::{Identity, LiveProcesses};
pub use crate::model::run::{
    Archived, Exit, GaveUp, InvalidOutput, LastHeartbeat, Lineage, Owner, Pending, Reap, Running, Suspended,
};
pub use crate::model::schedule::{InvalidSchedule, Missed, Rhythm, Schedule};
pub use crate::redact::InvalidPattern;
pub use crate::secrets::trust::Denied;
