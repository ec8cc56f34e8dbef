//! Processes that work for a registry: those that execute its queue, and the one that looks after all of it.

pub mod socket;
pub mod supervise;
pub mod work;
