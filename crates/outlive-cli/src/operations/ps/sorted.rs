//! In which order `ps` lists runs, and how it reads them so.

use std::fmt::Display;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::registry::{ListItem, Registry, SortedPage};
use outlive::sort::{RunSort, SortCursor, SortField};
use outlive::store::{Cursor, Order, Page};

use super::AT_A_TIME;
use super::status::StatusFilter;
use crate::call::Form;

/// Where a page begins, in its order.
#[derive(Debug)]
pub(super) enum ListPlace {
    /// In the order of creation, which every store has an index of.
    InTime(Page),
    /// In an order for which all that match are read.
    Sorted(RunSort, Option<SortCursor>),
}

impl ListPlace {
    pub(super) fn newest(after: Option<Cursor>) -> Self {
        Self::InTime(Page { after, ..Page::default() })
    }

    /// What `--sort` and `--cursor` say.
    pub(super) fn of(sort: Option<&str>, after: Option<&str>) -> Result<Self, Error> {
        let Some(sort) = sort else { return Ok(Self::newest(read(after)?)) };
        let sort: RunSort = sort.parse().map_err(invalid)?;
        if sort.by == SortField::Created {
            let order = if sort.descending { Order::Newest } else { Order::Oldest };
            return Ok(Self::InTime(Page { after: read(after)?, order, ..Page::default() }));
        }
        let after: Option<SortCursor> = read(after)?;
        if let Some(other) = after.as_ref().filter(|after| after.sort != sort) {
            let why = format!("this `--cursor` is of a list in the order of `{}`, not of `{sort}`", other.sort);
            return Err(Error::Invalid(why));
        }
        Ok(Self::Sorted(sort, after))
    }
}

fn read<C: std::str::FromStr<Err: Display>>(after: Option<&str>) -> Result<Option<C>, Error> {
    after.map(str::parse).transpose().map_err(invalid)
}

fn invalid(error: impl Display) -> Error {
    Error::Invalid(error.to_string())
}

/// Has `take` called with the wanted runs of a page, in the order of creation. Health is seen only by looking, so more may
/// have to be read than are taken.
pub(super) async fn in_time(
    registry: &Registry,
    filter: &Filter,
    page: Page,
    (mut left, wanted, form): (usize, &StatusFilter, Form),
    mut take: impl FnMut(ListItem),
) -> Result<Option<Cursor>, Error> {
    let mut page = Page { limit: left.min(AT_A_TIME), ..page };
    loop {
        let (found, next) = batch(registry, filter, &page, form).await?;
        for found in found.into_iter().filter(|found| wanted.matches(found)) {
            left -= 1;
            take(found);
        }
        match next {
            Some(next) if left > 0 => page = Page { after: Some(next), limit: left.min(AT_A_TIME), ..page },
            next => return Ok(next),
        }
    }
}

/// Has `take` called with the wanted runs of a page, in an order by a value. A run that was deleted meanwhile is left out.
pub(super) async fn by_value(
    registry: &Registry,
    filter: &Filter,
    page: &SortedPage,
    (wanted, form): (&StatusFilter, Form),
    mut take: impl FnMut(ListItem),
) -> Result<Option<SortCursor>, Error> {
    let (ids, next) = registry.list_sorted(filter, page, |item| wanted.matches(item)).await?;
    for ids in ids.chunks(AT_A_TIME) {
        let those = Filter::of(ids.iter().copied());
        let (mut found, mut page) = (Vec::with_capacity(ids.len()), Page { limit: ids.len(), ..Page::default() });
        loop {
            let (read, next) = batch(registry, &those, &page, form).await?;
            found.extend(read);
            let Some(next) = next else { break };
            page.after = Some(next);
        }
        found.sort_by_key(|item| ids.iter().position(|id| *id == id_of(item)));
        found.into_iter().for_each(&mut take);
    }
    Ok(next)
}

fn id_of(item: &ListItem) -> RunId {
    match item {
        ListItem::RunSummary(run) => run.id,
        ListItem::RunStatus(seen) => seen.run.id,
    }
}

async fn batch(
    registry: &Registry,
    filter: &Filter,
    page: &Page,
    form: Form,
) -> Result<(Vec<ListItem>, Option<Cursor>), Error> {
    match form {
        Form::Text => registry.list_summaries(filter, page).await,
        Form::Json => {
            let (seen, next) = registry.list(filter, page).await?;
            Ok((seen.into_iter().map(|seen| ListItem::RunStatus(Box::new(seen))).collect(), next))
        }
    }
}
