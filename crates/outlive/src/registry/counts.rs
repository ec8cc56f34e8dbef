//! Counting runs: what the store has counted, and what runs as it is seen.

use super::Registry;
use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::run::{Run, StateName};
use crate::store::{Count, Order, Page, Pages, RunCounts};

impl Registry {
    /// How many runs there are of each sort. Only those on record as running are read: one whose owner is gone is counted as
    /// dead.
    pub async fn counts(&self) -> Result<Vec<Count>, Error> {
        let mut tally = RunCounts::default();
        tally.extend(self.store.counts().await?);
        let running = Filter::in_states([StateName::Running]);
        let mut walk = Pages::from(running, Page { order: Order::Oldest, ..Page::default() });
        while let Some(records) = walk.next(&*self.store).await? {
            let runs: Vec<Run> = records.into_iter().map(|record| record.run).collect();
            for seen in self.see(runs).await? {
                tally.add_as(seen.state, &seen.run, None);
            }
        }
        Ok(tally.counts())
    }
}
