//! Corrupt rows: rows that could not be understood. They are left out, hide no others, and each is reported once.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::store::Error;
use crate::util::sync::lock;

type Tell = Box<dyn Fn(&str) + Send>;

/// What was found damaged, and whom to tell.
#[derive(Default)]
pub(super) struct Damage {
    noted: Mutex<(BTreeSet<String>, Option<Tell>)>,
}

impl Damage {
    pub(super) fn tell_to(&self, tell: Tell) {
        lock(&self.noted).1 = Some(tell);
    }

    /// Notes that the row of a run cannot be understood.
    pub(super) fn note(&self, id: &str, why: &Error) {
        let mut noted = lock(&self.noted);
        if noted.0.insert(id.into())
            && let Some(tell) = &noted.1
        {
            tell(&why.to_string());
        }
    }
}
