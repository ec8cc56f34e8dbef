//! What `--status` of `ps` means: states on record, and healths that are found by a look.

use std::collections::BTreeSet;

use outlive::error::Error;
use outlive::lifecycle::health::Health;
use outlive::registry::ListItem;
use outlive::run::{State, StateName};
use outlive::time::Timestamp;

/// The word for a run that is not retried until a person unparks it.
const PARKED: &str = "parked";

/// The words that `--status` takes: states, then healths, then `parked`.
pub(super) fn status_words() -> impl Iterator<Item = &'static str> {
    StateName::ALL.into_iter().map(StateName::as_str).chain(Health::ALL.map(Health::as_str)).chain([PARKED])
}

/// What is meant by the words behind `--status`.
#[derive(Debug, Default)]
pub(super) struct StatusFilter {
    pub(super) states: BTreeSet<StateName>,
    pub(super) healths: Vec<Health>,
    pub(super) parked: bool,
    /// Runs that ended before this moment are left out.
    pub(super) ended_since: Option<Timestamp>,
}

impl StatusFilter {
    pub(super) fn parse(words: &[String]) -> Result<Self, Error> {
        let mut wanted = Self::default();
        for word in words {
            if word == PARKED {
                wanted.parked = true;
                continue;
            }
            match (word.parse(), Health::ALL.into_iter().find(|health| health.as_str() == word)) {
                (Ok(state), _) => _ = wanted.states.insert(state),
                (Err(_), Some(health)) => wanted.healths.push(health),
                (Err(unknown), None) => {
                    let healths = Health::ALL.map(Health::as_str).join(", ");
                    return Err(Error::Invalid(format!("{unknown}; nor is it a health: {healths}")));
                }
            }
        }
        Ok(wanted)
    }

    /// The states that runs may have on record to be worth a look.
    pub(super) fn to_look_at(&self) -> Option<BTreeSet<StateName>> {
        let by_health = (!self.healths.is_empty()).then_some(StateName::Running);
        let parked = self.parked.then_some(StateName::Suspended);
        let states: BTreeSet<StateName> = self.states.iter().copied().chain(by_health).chain(parked).collect();
        (!states.is_empty()).then_some(states)
    }

    pub(super) fn matches(&self, found: &ListItem) -> bool {
        let (state, health, ended) = match found {
            ListItem::RunSummary(brief) => (brief.state(), None, brief.end.as_ref().map(|end| end.at)),
            ListItem::RunStatus(seen) => (seen.state, seen.health, seen.run.ending().map(|ending| ending.at)),
        };
        // Of a run that is parked more than a summary is read.
        let is_parked = match found {
            ListItem::RunSummary(_) => false,
            ListItem::RunStatus(seen) => matches!(&seen.run.state, State::Suspended(suspended) if suspended.parked),
        };
        if ended.zip(self.ended_since).is_some_and(|(ended, since)| ended < since) {
            return false;
        }
        (self.healths.is_empty() && !self.parked)
            || self.states.contains(&state)
            || (self.parked && is_parked)
            || health.is_some_and(|health| self.healths.contains(&health))
    }
}
