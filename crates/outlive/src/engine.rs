//! The engine: what executes and cleans up in the background, over a registry.
//!
//! Workers claim runs and call handlers, maintenance reaps runs whose owners are gone, the supervisor has runs executed that
//! are due, and the sweeper deletes artifacts that no live or published run can own. Each loop has a step that never waits
//! but for the store: a thread repeats it, and the simulation polls it.

pub mod claims;
pub mod maintenance;
pub mod supervisor;
// What is deleted is in a bucket, or in a directory that is read as one.
#[cfg(feature = "object")]
pub mod sweeper;
pub mod worker;
