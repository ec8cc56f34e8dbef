//! The model: what a run is. Plain values without I/O, which every layer above shares.

pub mod filter;
pub(crate) mod hex;
pub mod id;
pub mod owner;
pub mod page;
pub mod policy;
pub mod run;
pub mod schedule;
pub mod signal;
pub mod sort;
pub mod step;
pub mod time;
