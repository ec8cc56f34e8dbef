//! Utilities that know nothing of runs or stores.

pub(crate) mod backoff;
pub(crate) mod files;
pub(crate) mod sync;
pub mod within;
