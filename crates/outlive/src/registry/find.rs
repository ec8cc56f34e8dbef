//! Finding runs: page by page, all of them, or the one that a text names.

use std::collections::BTreeSet;

use super::Registry;
use crate::error::{Candidate, Error};
use crate::lifecycle::health::RunStatus;
use crate::model::filter::Filter;
use crate::model::run::{Run, StateName};
use crate::store::{Cursor, Page, Pages};

/// How many runs an ambiguous beginning lists.
const SHOWN: usize = 5;
/// How many bearers of a name are looked at together.
const BEARERS: usize = 16;

impl Registry {
    /// A page of runs as they stand. A state in the filter means the state that is seen: a running run whose owner is
    /// gone is found among the dead.
    pub async fn list(&self, filter: &Filter, page: &Page) -> Result<(Vec<RunStatus>, Option<Cursor>), Error> {
        let mut walk = Pages::from(widened(filter), page.clone());
        while let Some(records) = walk.next(self.store()).await? {
            let found = self.see_those(records.into_iter().map(|record| record.run).collect(), filter).await?;
            if !found.is_empty() {
                let found = self.explain(found).await?;
                return Ok((found, walk.place()));
            }
        }
        Ok((Vec::new(), None))
    }

    /// Every run that matches, as it stands, newest first.
    pub async fn all(&self, filter: &Filter) -> Result<Vec<RunStatus>, Error> {
        let mut walk = Pages::from(widened(filter), Page::default());
        let mut found = Vec::new();
        while let Some(records) = walk.next(self.store()).await? {
            found.extend(self.see_those(records.into_iter().map(|record| record.run).collect(), filter).await?);
        }
        self.explain(found).await
    }

    /// A page of the runs that match as they are seen, without what the waiting ones wait for, and where the next page
    /// begins, if there is one. A page may have fewer runs than were asked for.
    #[doc(hidden)]
    pub async fn batch(&self, filter: &Filter, page: &Page) -> Result<(Vec<RunStatus>, Option<Cursor>), Error> {
        let listing = self.store.list(&widened(filter), page).await?;
        let runs = listing.records.into_iter().map(|record| record.run).collect();
        Ok((self.see_those(runs, filter).await?, listing.next))
    }

    async fn see_those(&self, runs: Vec<Run>, filter: &Filter) -> Result<Vec<RunStatus>, Error> {
        let wanted = |seen: &RunStatus| filter.states.as_ref().is_none_or(|states| states.contains(&seen.state));
        Ok(self.see(runs).await?.into_iter().filter(wanted).collect())
    }

    /// The run that `text` means: an id, the beginning of one, a name (its newest bearer in flight, else its newest),
    /// `@last`, or `@~2` for the last but two.
    pub async fn find(&self, text: &str) -> Result<RunStatus, Error> {
        if let Ok(id) = text.parse() {
            let found = self.glance(id).await;
            #[cfg(feature = "postgres")]
            if matches!(found, Err(Error::NotFound(_)))
                && let Some(place) = self.exported_to(id).await?
            {
                return Err(Error::Exported { run: text.into(), place });
            }
            return found;
        }
        let back = match text.strip_prefix('@') {
            Some("last") => Some(0),
            Some(back) => back.strip_prefix('~').and_then(|back| back.parse::<usize>().ok()),
            None => None,
        };
        if let Some(back) = back {
            return self.nth_newest(text, back).await;
        }
        if let Some(bearer) = self.bearer(text).await? {
            return Ok(bearer);
        }
        self.begins_with(text).await
    }

    /// The run that `text` means to a caller that wants one in these states: of a name its newest bearer in one of them, else as
    /// [`Registry::find`].
    #[doc(hidden)]
    pub async fn find_preferring(
        &self,
        text: &str,
        states: impl IntoIterator<Item = StateName>,
    ) -> Result<RunStatus, Error> {
        let filter = Filter { name: Some(text.into()), archived: Some(false), ..Filter::in_states(states) };
        let (found, _) = self.list(&filter, &Page { limit: 1, ..Page::default() }).await?;
        match found.into_iter().next() {
            Some(bearer) => Ok(bearer),
            None => self.find(text).await,
        }
    }

    async fn bearer(&self, name: &str) -> Result<Option<RunStatus>, Error> {
        let of_name = Filter { name: Some(name.into()), ..Filter::default() };
        let in_flight = [StateName::Pending, StateName::Running, StateName::Suspended];
        for states in [Some(BTreeSet::from(in_flight)), None] {
            let page = Page { limit: BEARERS, ..Page::default() };
            let (found, _) = self.list(&Filter { states, ..of_name.clone() }, &page).await?;
            if let Some(newest) = found.into_iter().next() {
                return Ok(Some(newest));
            }
        }
        Ok(None)
    }

    async fn begins_with(&self, text: &str) -> Result<RunStatus, Error> {
        let is_prefix = text.len() >= 2 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f' | '-'));
        if !is_prefix {
            return Err(Error::NotFound(shorten(text)));
        }
        let page = Page { limit: SHOWN + 1, ..Page::default() };
        let of = |is_step| Filter { id_prefix: Some(text.into()), is_step: Some(is_step), ..Filter::default() };
        // The ids of steps begin like that of their run, which is meant as long as it can be.
        let (mut found, _) = self.list(&of(false), &page).await?;
        if found.is_empty() {
            (found, _) = self.list(&of(true), &page).await?;
        }
        match found.len() {
            0 => Err(Error::NotFound(shorten(text))),
            1 => Ok(found.remove(0)),
            several => {
                let now = self.clock().now();
                let candidates = found.iter().take(SHOWN).map(|seen| Candidate {
                    id: seen.run.id,
                    title: title(&seen.run),
                    state: seen.state,
                    age: now.since(seen.run.created_at),
                });
                Err(Error::Ambiguous { what: text.into(), candidates: candidates.collect(), more: several > SHOWN })
            }
        }
    }

    async fn nth_newest(&self, text: &str, mut back: usize) -> Result<RunStatus, Error> {
        // The last of a script's steps is hardly what was started last.
        let whole = Page::default();
        let page = Page { limit: whole.limit.min(back.saturating_add(1)), ..whole };
        let mut walk = Pages::from(Filter { is_step: Some(false), ..Filter::default() }, page);
        while let Some(records) = walk.next(self.store()).await? {
            if let Some(record) = records.get(back) {
                return self.glance(record.run.id).await;
            }
            back -= records.len();
        }
        Err(Error::NotFound(shorten(text)))
    }
}

/// The filter with what must be looked at: only a look tells whether a run that is running on record has ended.
pub(super) fn widened(filter: &Filter) -> Filter {
    let mut wide = filter.clone();
    let by_look = |states: &&mut BTreeSet<StateName>| states.iter().any(|state| state.is_ended());
    if let Some(states) = wide.states.as_mut().filter(by_look) {
        states.insert(StateName::Running);
    }
    wide
}

/// What people call a run: its name, else its command, else its kind.
fn title(run: &Run) -> String {
    let words = || {
        let words = run.spec.command.as_ref()?.argv.iter().map(ToString::to_string);
        Some(words.collect::<Vec<_>>().join(" "))
    };
    shorten(&run.spec.name.clone().or_else(words).unwrap_or_else(|| run.spec.kind.clone()))
}

fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().count() > LONGEST { text.chars().take(LONGEST).chain(['…']).collect() } else { text.into() }
}
