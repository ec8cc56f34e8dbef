//! What runs beside the user's work: the keeper, which beats, and the reaper, which finds who
//! does not, and the worker, which has handlers do what waits.

pub mod handle;
mod held;
pub(crate) mod keeper;
pub mod reaper;
pub mod step;
mod suspects;
mod wake;
pub mod worker;

pub use self::held::Stop;
