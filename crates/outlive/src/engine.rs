//! The engine: what executes and cleans up in the background, over a registry.
//!
//! Workers claim runs and call handlers, maintenance reaps owners that are gone, and the sweeper deletes artifacts that no
//! live or published run can own.

pub mod claims;
pub mod maintenance;
// What is deleted is in a bucket, or in a directory that is read as one.
#[cfg(feature = "object")]
pub mod sweeper;
pub mod worker;
