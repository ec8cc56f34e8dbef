//! The places of the sources that were called, where a test has to know that it missed none.

use crate::util::sync::lock;
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Mutex;

static CALLED: Mutex<BTreeSet<(&str, u32)>> = Mutex::new(BTreeSet::new());

/// Notes that this place was called.
pub fn note(place: &'static Location<'static>) {
    lock(&CALLED).insert((place.file(), place.line()));
}

/// The files and lines that this process has called so far.
pub fn all() -> BTreeSet<(&'static str, u32)> {
    lock(&CALLED).clone()
}
