//! Lists for people: a summary of most runs, the status of those that must be observed.

use super::Registry;
use super::find::widened;
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::model::filter::Filter;
use crate::model::run::{Run, RunSummary};
use crate::store::{Cursor, Page};

/// A run in a list.
#[derive(Debug)]
pub enum ListItem {
    /// Its record alone shows its state.
    RunSummary(Box<RunSummary>),
    /// It had to be looked at, or more had to be read of it to find it.
    RunStatus(Box<RunStatus>),
}

impl Registry {
    /// A page of runs as they stand, as [`Registry::list`] finds them. The page may be shorter than it could be, and even
    /// empty, where another follows.
    #[doc(hidden)]
    pub async fn list_summaries(&self, filter: &Filter, page: &Page) -> Result<(Vec<ListItem>, Option<Cursor>), Error> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local
            && let Some((found, next)) = local.list_summaries(&widened(filter), page)?
        {
            return Ok((self.list_items(found, filter).await?, next));
        }
        let (seen, next) = self.list(filter, page).await?;
        Ok((seen.into_iter().map(|seen| ListItem::RunStatus(Box::new(seen))).collect(), next))
    }

    /// The items of these rows: of a run whose record does not show its state, the status.
    #[cfg(feature = "sqlite")]
    async fn list_items(
        &self,
        found: Vec<crate::store::sqlite::OnRecord>,
        filter: &Filter,
    ) -> Result<Vec<ListItem>, Error> {
        use crate::store::sqlite::OnRecord;
        let mut others: Vec<Run> = Vec::new();
        let mut places: Vec<Option<Box<RunSummary>>> = Vec::with_capacity(found.len());
        for run in found {
            match run {
                OnRecord::RunSummary(summary) => places.push(Some(summary)),
                OnRecord::Other(run) => {
                    others.push(*run);
                    places.push(None);
                }
            }
        }
        let seen = if others.is_empty() { Vec::new() } else { self.explain(self.see(others).await?).await? };
        let mut seen = seen.into_iter();
        let wanted = |seen: &RunStatus| filter.states.as_ref().is_none_or(|states| states.contains(&seen.state));
        let one = |place: Option<Box<RunSummary>>| match place {
            Some(summary) => Some(ListItem::RunSummary(summary)),
            None => seen.next().filter(wanted).map(|seen| ListItem::RunStatus(Box::new(seen))),
        };
        Ok(places.into_iter().filter_map(one).collect())
    }
}
