//! The places of the sources that were called, where a test has to know that it missed none.

use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

static CALLED: Mutex<BTreeSet<(&str, u32)>> = Mutex::new(BTreeSet::new());

/// Notes that this place was called.
pub fn note(place: &'static Location<'static>) {
    CALLED.lock().unwrap_or_else(PoisonError::into_inner).insert((place.file(), place.line()));
}

/// The files and lines that this process has called so far.
pub fn all() -> BTreeSet<(&'static str, u32)> {
    CALLED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
