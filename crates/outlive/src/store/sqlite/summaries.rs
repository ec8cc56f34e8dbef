//! Lists that read no more of most runs than a line shows.

use super::SqliteStore;
use super::rows::{self, Listed};
use crate::model::filter::Filter;
use crate::model::run::{Run, RunSummary, StateName};
use crate::store::{Cursor, Error, Page};

/// A run in a list, as it is on record.
pub(crate) enum OnRecord {
    RunSummary(Box<RunSummary>),
    Other(Box<Run>),
}

/// A page of them, and where the next one begins.
type Listing = (Vec<OnRecord>, Option<Cursor>);

impl SqliteStore {
    /// A page of runs, as [`crate::store::Store::list`] would find them. None where only the whole record tells whether a
    /// run is meant, or how it stands: in a copied registry what has not ended belongs to another.
    pub(crate) fn list_summaries(&self, filter: &Filter, page: &Page) -> Result<Option<Listing>, Error> {
        let is_in_summary = filter.labels.is_empty() && filter.owner.is_none() && filter.text.is_none();
        let is_in_summary = is_in_summary && filter.host.is_none() && filter.user.is_none();
        if !is_in_summary || filter.step_of.is_some() || self.lock()?.place.copied {
            return Ok(None);
        }
        let limit = page.limit();
        let mut wide = filter.clone();
        if let Some(states) = &mut wide.states {
            // An end that only a file knows makes a running row match as ended.
            states.insert(StateName::Running);
        }
        let (mut found, mut places) = self.look(|inner| {
            let (mut found, mut places, now) = (Vec::with_capacity(limit + 1), Vec::new(), self.now());
            let damaged = |damaged: rows::Damaged| inner.damage.note(&damaged.id, &damaged.why);
            rows::scan_briefly(inner.connection(), &wide, page.order, page.after, damaged, |listed| {
                match listed {
                    Listed::RunSummary(summary) if inner.half_deleted.contains(&summary.id) => {}
                    Listed::Other(record) if inner.half_deleted.contains(&record.run.id) => {}
                    Listed::RunSummary(summary) => {
                        if filter.states.as_ref().is_none_or(|states| states.contains(&summary.state())) {
                            places.push(summary.place());
                            found.push(OnRecord::RunSummary(summary));
                        }
                    }
                    Listed::Other(record) => {
                        let record = inner.read(*record, &now)?;
                        if filter.matches(&record.run) {
                            places.push(Cursor::at(&record.run));
                            found.push(OnRecord::Other(Box::new(record.run)));
                        }
                    }
                }
                Ok(found.len() <= limit)
            })?;
            Ok((found, places))
        })?;
        let next = page.cut(&mut places, |place| *place);
        found.truncate(places.len());
        Ok(Some((found, next)))
    }
}
