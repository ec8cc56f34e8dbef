//! Counts: how many runs there are of each sort, which a store knows without reading them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(any(feature = "object", feature = "sqlite"))]
use super::{Error, Page, Pages, Store};
#[cfg(any(feature = "object", feature = "sqlite"))]
use crate::model::filter::Filter;
use crate::model::run::{End, Run, State, StateName};

/// How many runs are alike in kind and state: a part of what [`Store::counts`](crate::store::Store::counts) answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Count {
    /// The state that all of them are in.
    pub state: StateName,
    /// The kind of all of them.
    pub kind: String,
    /// What proved that their owners were gone, as one word; none, unless they are dead.
    pub evidence: Option<String>,
    /// How many they are.
    pub runs: u64,
    /// How many attempts of theirs were claimed, all together.
    pub claims: u64,
}

/// How many attempts of a run were claimed: the one that waits to be is not among them.
pub(crate) fn claims(run: &Run) -> u32 {
    let has_begun = match &run.state {
        State::Pending(_) => false,
        State::Running(_) | State::Suspended(_) => true,
        State::Ended(ending) => ending.started_at.is_some(),
    };
    if has_begun { run.attempt } else { run.attempt.saturating_sub(1) }
}

/// What proved that the owner of a dead run was gone, as one word.
pub(crate) fn evidence(run: &Run) -> Option<String> {
    match run.ending().map(|ending| &ending.how) {
        Some(End::Dead(reap)) => Some(reap.evidence.word()),
        _ => None,
    }
}

/// Counts runs that are passed one after the other, each with its state.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct RunCounts(BTreeMap<(StateName, String, Option<String>), (u64, u64)>);

impl RunCounts {
    /// Counts one more run, as it is on record.
    pub fn add(&mut self, run: &Run) {
        self.add_as(run.state.name(), run, evidence(run));
    }

    /// Counts one more run as one in that state.
    pub fn add_as(&mut self, state: StateName, run: &Run, evidence: Option<String>) {
        let (runs, all) = self.0.entry((state, run.spec.kind.clone(), evidence)).or_default();
        *runs += 1;
        *all += u64::from(claims(run));
    }

    /// Adds what was counted elsewhere.
    pub fn extend(&mut self, counts: Vec<Count>) {
        for Count { state, kind, evidence, runs, claims } in counts {
            let (all, claimed) = self.0.entry((state, kind, evidence)).or_default();
            (*all, *claimed) = (*all + runs, *claimed + claims);
        }
    }

    /// What was counted, sorted.
    pub fn counts(self) -> Vec<Count> {
        let count = |((state, kind, evidence), (runs, claims))| Count { state, kind, evidence, runs, claims };
        self.0.into_iter().map(count).collect()
    }
}

/// Counts by reading, for a store that keeps no counts.
#[cfg(any(feature = "object", feature = "sqlite"))]
pub(crate) async fn read(store: &dyn Store) -> Result<Vec<Count>, Error> {
    let idle = StateName::ALL.into_iter().filter(|state| *state != StateName::Running);
    let mut walk = Pages::from(Filter::in_states(idle), Page::default());
    let mut tally = RunCounts::default();
    while let Some(records) = walk.next(store).await? {
        records.iter().for_each(|record| tally.add(&record.run));
    }
    Ok(tally.counts())
}
