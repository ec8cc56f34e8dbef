//! Lists in an order that no store keeps: by name, duration, state and the like.
//!
//! Every run that matches is read, summary by summary, and no more of them are kept than the page has. What it costs grows
//! with the runs that match, page by page, and so it has a limit. The order of creation has an index in every store:
//! [`Registry::list`] reads it, in both directions and without a limit.

use std::time::Duration;

use super::Registry;
use super::summary::ListItem;
use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::sort::{RunSort, SortCursor, SortField, SortPlace, SortValue};
use crate::model::time::Timestamp;
use crate::store::Page;

/// The most runs that are sorted. Where more match, the list is refused.
pub const SORTED: usize = 100_000;

/// A page of a sorted list.
#[derive(Debug, Clone)]
pub struct SortedPage {
    /// The order.
    pub sort: RunSort,
    /// Where the page begins; of the same order.
    pub after: Option<SortCursor>,
    /// At most this many.
    pub limit: usize,
}

impl Registry {
    /// The runs of a page that match as they are seen, and of which `is_wanted` is true, in order; and where the next page
    /// begins, if there is one. A run whose value stays as it is while pages are read is on exactly one of them.
    #[doc(hidden)]
    pub async fn list_sorted(
        &self,
        filter: &Filter,
        page: &SortedPage,
        is_wanted: impl Fn(&ListItem) -> bool,
    ) -> Result<(Vec<RunId>, Option<SortCursor>), Error> {
        let (sort, limit) = (page.sort, page.limit.max(1));
        let at = page.after.as_ref().map_or_else(|| self.clock().now(), |after| after.at);
        let mut first: Vec<SortPlace> = Vec::new();
        let (mut read, mut of_store) = (0, Page::default());
        loop {
            let (found, next) = self.list_summaries(filter, &of_store).await?;
            read += found.len();
            if read > SORTED {
                return Err(Error::Invalid(format!(
                    "more than {SORTED} runs match, too many to sort by {}; ask for fewer, such as those `--since 1d`",
                    sort.by.as_str()
                )));
            }
            let places = found.iter().filter(|item| is_wanted(item)).map(|item| place(item, sort.by, at));
            let is_behind =
                |place: &SortPlace| page.after.as_ref().is_none_or(|cursor| place.cmp_in(&cursor.after, sort).is_gt());
            first.extend(places.filter(is_behind));
            keep_first(&mut first, limit + 1, sort);
            let Some(next) = next else { break };
            of_store.after = Some(next);
        }
        first.sort_unstable_by(|one, other| one.cmp_in(other, sort));
        let has_more = first.len() > limit;
        first.truncate(limit);
        let last = first.last().filter(|_| has_more).cloned();
        let next = last.map(|after| SortCursor { sort, at, after });
        Ok((first.into_iter().map(|place| place.id).collect(), next))
    }
}

/// Leaves no more than the first `count` places, in any order.
fn keep_first(places: &mut Vec<SortPlace>, count: usize, sort: RunSort) {
    if places.len() > count {
        places.select_nth_unstable_by(count - 1, |one, other| one.cmp_in(other, sort));
        places.truncate(count);
    }
}

/// The place of a run in an order by `field`, as it was at a moment.
fn place(item: &ListItem, field: SortField, at: Timestamp) -> SortPlace {
    let (created_at, id) = match item {
        ListItem::RunSummary(run) => (run.created_at, run.id),
        ListItem::RunStatus(seen) => (seen.run.created_at, seen.run.id),
    };
    let moment = |moment: Timestamp| SortValue::Number(moment.as_micros());
    let (started, ended) = times(item);
    let value = match field {
        SortField::Created => Some(moment(created_at)),
        SortField::Started => started.map(moment),
        SortField::Ended => ended.map(moment),
        SortField::Duration => {
            duration(item, at).map(|lasted| SortValue::Number(lasted.as_micros().try_into().unwrap_or(i64::MAX)))
        }
        SortField::Priority => Some(SortValue::Number(match item {
            ListItem::RunSummary(run) => run.priority.into(),
            ListItem::RunStatus(seen) => seen.run.priority().into(),
        })),
        SortField::Name => match item {
            ListItem::RunSummary(run) => run.name.clone(),
            ListItem::RunStatus(seen) => seen.run.spec.name.clone(),
        }
        .map(SortValue::Text),
        SortField::Kind => Some(SortValue::Text(match item {
            ListItem::RunSummary(run) => run.kind.clone(),
            ListItem::RunStatus(seen) => seen.run.spec.kind.clone(),
        })),
        SortField::State => Some(SortValue::Text(match item {
            ListItem::RunSummary(run) => run.state().to_string(),
            ListItem::RunStatus(seen) => seen.state.to_string(),
        })),
    };
    SortPlace { value, created_at, id }
}

/// When the last attempt of a run was started, and when its end was recorded, as lists show them.
fn times(item: &ListItem) -> (Option<Timestamp>, Option<Timestamp>) {
    match item {
        ListItem::RunSummary(run) => {
            (run.end.as_ref().and_then(|end| end.started_at), run.end.as_ref().map(|end| end.at))
        }
        ListItem::RunStatus(seen) => (seen.started_at(), seen.ended_at()),
    }
}

/// How long the last attempt has taken until `at`. One that is begun later than that has taken no time.
fn duration(item: &ListItem, at: Timestamp) -> Option<Duration> {
    match item {
        ListItem::RunSummary(run) => run.end.as_ref().and_then(|end| Some(end.at.min(at).since(end.started_at?))),
        ListItem::RunStatus(seen) => seen.duration(at),
    }
}
