//! What runs beside the user's work: the keeper, which beats, and the reaper, which finds who does not.

pub mod handle;
mod held;
pub(crate) mod keeper;
pub mod reaper;
pub mod step;
mod suspects;
mod wake;

pub use self::held::Stop;
