//! Secrets: what is masked before it is stored, what is sealed in the user's home, and which specs are trusted.

pub(crate) mod argv_vault;
pub(crate) mod environment;
pub(crate) mod masking;
pub mod trust;
