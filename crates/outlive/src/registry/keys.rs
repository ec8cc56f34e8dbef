//! Who holds what is shared, and who waits for it.

use std::collections::BTreeMap;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::has_room;
use crate::model::filter::Filter;
use crate::model::run::{Hold, Key, Run, State, StateName};
use crate::store::{Order, Page, Pages};

/// A key with the runs that hold it and those that want it.
#[derive(Debug, Clone)]
pub struct KeyUse {
    /// The key.
    pub key: Key,
    /// The runs that hold it. Of a rate they are none: it counts starts.
    pub holders: Vec<Run>,
    /// The pending runs that want it, in the order in which they are claimed.
    pub waiters: Vec<Run>,
}

impl KeyUse {
    /// Whether one more run could hold it.
    pub fn has_room(&self) -> bool {
        has_room(&self.key, &self.holders.iter().collect::<Vec<_>>())
    }
}

/// The most runs that are looked at for keys.
const MOST: usize = 20_000;

impl Registry {
    /// The keys of the runs that have not ended, by name. Answers also whether all runs were looked at.
    #[doc(hidden)]
    pub async fn keys_in_use(&self) -> Result<(Vec<KeyUse>, bool), Error> {
        let active = [StateName::Running, StateName::Suspended, StateName::Pending];
        let mut walk = Pages::from(Filter::in_states(active), Page { order: Order::Claim, ..Page::default() });
        let mut keys: BTreeMap<String, KeyUse> = BTreeMap::new();
        let mut looked = 0;
        while looked < MOST
            && let Some(records) = walk.next(self.store()).await?
        {
            looked += records.len();
            for run in records.into_iter().map(|record| record.run) {
                for key in &run.spec.keys {
                    let new = || KeyUse { key: key.clone(), holders: Vec::new(), waiters: Vec::new() };
                    let used = keys.entry(key.slot()).or_insert_with(new);
                    if run.holds(key) {
                        used.holders.push(run.clone());
                    } else if matches!(run.state, State::Pending(_)) && key.hold != Hold::Active {
                        used.waiters.push(run.clone());
                    }
                }
            }
        }
        Ok((keys.into_values().collect(), looked < MOST))
    }
}
