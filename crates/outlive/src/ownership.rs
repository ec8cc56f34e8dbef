//! Ownership: holding a run by heartbeats, writing its end, and taking it from an owner that is gone.
//!
//! Nothing here opens a registry. The registry puts these parts together with a store.

pub(crate) mod claims_in_flight;
pub(crate) mod commit;
pub(crate) mod deferred;
mod event_fd;
pub mod handle;
pub(crate) mod heartbeat;
mod held;
pub mod reaper;
pub mod spool;
pub mod step;
pub mod steps;

pub use self::held::Stop;
