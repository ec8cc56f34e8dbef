//! What runs beside the user's work: the keeper, which beats, and the reaper, which finds who
//! does not, and the worker, which has handlers do what waits.

pub mod claims;
pub(crate) mod deliver;
pub mod handle;
mod held;
pub(crate) mod keeper;
pub mod maintenance;
pub mod reaper;
// What is deleted is in a bucket, or in a directory that is read as one.
pub mod step;
mod suspects;
#[cfg(feature = "object")]
pub mod sweeper;
mod wake;
pub mod worker;

pub use self::held::Stop;
