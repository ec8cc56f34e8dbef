//! What is searched for, and in which order it is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use super::fts::{MOST, TextQuery};
use super::record::{IndexRecord, Lifecycle};
use crate::error::Error;
use crate::model::hex::{hex, unhex};
use crate::model::time::Timestamp;

/// The most runs of one page.
pub const PAGE_LIMIT: usize = 10_000;

/// Conditions that a run must all meet, and how those that do are listed.
#[derive(Debug, Clone)]
pub struct Query {
    /// Each of these words is part of its text, in any case and any composition of its characters.
    pub text: Option<String>,
    /// It belongs to this app or workflow, in any case.
    pub app: Option<String>,
    /// It is of this kind.
    pub kind: Option<String>,
    /// It stands so, its marks included or left out.
    pub statuses: BTreeSet<Lifecycle>,
    /// It belongs to one of these repositories.
    pub repos: Option<BTreeSet<String>>,
    /// Made at or after.
    pub since: Option<Timestamp>,
    /// Made before.
    pub until: Option<Timestamp>,
    /// It bears all of these labels.
    pub labels: BTreeMap<String, String>,
    /// It is hidden, or is not.
    pub archived: Option<bool>,
    /// In this order.
    pub order: SearchOrder,
    /// Right behind this place.
    pub after: Option<SearchCursor>,
    /// So many of them are left out first.
    pub offset: usize,
    /// At most so many.
    pub limit: usize,
    /// All runs that match are counted, which takes as long as reading all of them.
    pub count_all: bool,
    /// Every run of every source on this machine is looked at first, however many there are.
    pub verify_all: bool,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            text: None,
            app: None,
            kind: None,
            statuses: BTreeSet::new(),
            repos: None,
            since: None,
            until: None,
            labels: BTreeMap::new(),
            archived: None,
            order: SearchOrder::Oldest,
            after: None,
            offset: 0,
            limit: 100,
            count_all: false,
            verify_all: false,
        }
    }
}

/// An order of runs: by when they were made, then by id, then by repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOrder {
    /// The first made first.
    Oldest,
    /// The last made first.
    Newest,
}

impl Query {
    /// Refuses a query that is too long to be answered as it is.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.text.as_deref().map_or(0, |text| text.split_whitespace().count()) {
            words if words > MOST => Err(Error::Invalid(format!("a search has at most {MOST} words, not {words}"))),
            _ => Ok(()),
        }
    }

    /// Whether a run is meant. The index may look at too many, and answers with those that match.
    pub fn matches(&self, record: &IndexRecord) -> bool {
        let made = record.made();
        let is_app = |app: &String| {
            [&record.app_id, &record.workflow_id].into_iter().flatten().any(|found| found.eq_ignore_ascii_case(app))
        };
        self.text.as_ref().is_none_or(|text| TextQuery::new(text).is_in(record))
            && self.app.as_ref().is_none_or(is_app)
            && self.kind.as_ref().is_none_or(|kind| record.kind.as_ref() == Some(kind))
            && (self.statuses.is_empty()
                || self.statuses.contains(&record.lifecycle)
                || self.statuses.contains(&record.derived_lifecycle))
            && self.repos.as_ref().is_none_or(|repos| repos.contains(&record.repo))
            && self.since.is_none_or(|since| made >= since)
            && self.until.is_none_or(|until| made < until)
            && self.labels.iter().all(|(label, value)| record.labels.get(label) == Some(value))
            && self.archived.is_none_or(|archived| record.archived == archived)
    }

    /// Whether a run comes behind the place where the last page ended.
    pub(super) fn is_behind(&self, record: &IndexRecord) -> bool {
        let Some(after) = &self.after else { return true };
        let key = (after.made, after.run_id.as_str(), after.repo.as_str());
        match self.order {
            SearchOrder::Oldest => record.sort_key() > key,
            SearchOrder::Newest => record.sort_key() < key,
        }
    }
}

/// A place in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchCursor {
    made: Timestamp,
    run_id: String,
    repo: String,
}

impl SearchCursor {
    /// The place of a run.
    pub fn at(record: &IndexRecord) -> Self {
        Self { made: record.made(), run_id: record.run_id.clone(), repo: record.repo.clone() }
    }

    pub(super) fn made(&self) -> Timestamp {
        self.made
    }
}

impl fmt::Display for SearchCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.made.as_micros(), hex(self.run_id.as_bytes()), hex(self.repo.as_bytes()))
    }
}

impl FromStr for SearchCursor {
    type Err = InvalidSearchCursor;

    fn from_str(text: &str) -> Result<Self, InvalidSearchCursor> {
        let name = |text: &str| String::from_utf8(unhex(text)?).ok();
        let parse = || {
            let mut parts = text.splitn(3, '.');
            let made = Timestamp::from_micros(parts.next()?.parse().ok()?);
            Some(Self { made, run_id: name(parts.next()?)?, repo: name(parts.next()?)? })
        };
        parse().ok_or_else(|| InvalidSearchCursor(text.chars().take(64).collect()))
    }
}

/// Text that is no place in a listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the `next` of an earlier page")]
pub struct InvalidSearchCursor(String);
