//! Who may have a key, and what counts as a start.

use serde::{Deserialize, Serialize};

use crate::model::run::{Event, Key, Run, StateName};
use crate::model::time::Timestamp;

/// Whether a key has room for one more holder. All holders, and the run that wants it, must be content: the
/// smallest of their limits counts.
pub fn has_room(wanted: &Key, holders: &[&Run]) -> bool {
    let slot = wanted.slot();
    let theirs = holders.iter().flat_map(|run| &run.spec.keys).filter(|key| key.slot() == slot);
    let limit = theirs.map(|key| key.limit).chain([wanted.limit]).min().unwrap_or(0);
    holders.len() < limit as usize
}

/// A start that a rate counts, for as long as the rate of its run said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// When it was, by the store's clock.
    pub at: Timestamp,
    /// It counts before this.
    pub until: Timestamp,
}

impl Start {
    /// Whether it counts. One that has not been yet was dated by a clock that was ahead.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.at <= now && now < self.until
    }
}

/// When a rate lets one more start, after those starts; none if it does at once.
pub fn starts_at(wanted: &Key, starts: &[Start], now: Timestamp) -> Option<Timestamp> {
    let mut ends: Vec<Timestamp> = starts.iter().filter(|start| start.counts(now)).map(|start| start.until).collect();
    ends.sort();
    // As many of them must be over as are too many with one more.
    ends.len().checked_sub(wanted.limit as usize).and_then(|over| ends.get(over).copied())
}

/// Whether an event tells of an attempt that starts, or goes on after it was suspended.
pub fn is_start(event: &Event) -> bool {
    event.to == StateName::Running && event.from != Some(StateName::Running)
}

/// The keys that a run newly holds by a change that began with `event`, and those that it no longer does. Without an
/// event it is unknown how it stood, and it holds all of them newly.
pub(crate) fn moved_keys<'a>(run: &'a Run, event: Option<&Event>) -> (Vec<&'a Key>, Vec<&'a Key>) {
    let before = event.and_then(|event| event.from);
    let (ran, was_active) = (before == Some(StateName::Running), before.is_some_and(|before| !before.is_ended()));
    let held = |key: &&Key| key.is_held(run.owner().is_some(), run.ending().is_none());
    let was_held = |key: &&Key| key.is_held(ran, was_active);
    let all = || run.spec.keys.iter();
    (
        all().filter(|key| held(key) && !was_held(key)).collect(),
        all().filter(|key| was_held(key) && !held(key)).collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_counts_starts_in_its_time_and_says_when_the_next_may() {
        let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
        let start = |second: i64, per: i64| Start { at: at(second), until: at(second + per) };
        let rate = Key::rate("api", 2, Duration::from_secs(60));
        assert_eq!(starts_at(&rate, &[], at(100)), None);
        assert_eq!(starts_at(&rate, &[start(90, 60)], at(100)), None);
        assert_eq!(starts_at(&rate, &[start(95, 60), start(90, 60)], at(100)), Some(at(150)));
        // Three where two may: the second must be over as well.
        assert_eq!(starts_at(&rate, &[start(95, 60), start(90, 60), start(91, 60)], at(100)), Some(at(151)));
        assert_eq!(starts_at(&rate, &[start(95, 60), start(40, 60)], at(100)), None, "the end of its time is over");
        assert_eq!(starts_at(&rate, &[start(95, 60), start(4_000, 60)], at(100)), None, "a clock was ahead");
    }
}
