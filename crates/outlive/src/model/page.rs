//! Pages of a listing: where one begins, how long it is, and in which order runs come.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::id::RunId;
use super::run::Run;
use super::time::Timestamp;

/// The most runs of one page, which a [`Page`] is cut to.
pub const PAGE_LIMIT: usize = 1_000;

/// Where a page begins, and how long it may be, for [`Registry::list`](crate::Registry::list) and [`Store::list`](crate::store::Store::list).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// Right behind this run.
    pub after: Option<Cursor>,
    /// At most this many, and never more than [`PAGE_LIMIT`].
    pub limit: usize,
    /// In this order.
    pub order: Order,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: None, limit: PAGE_LIMIT, order: Order::Newest }
    }
}

impl Page {
    /// How many runs it may hold.
    pub(crate) fn limit(&self) -> usize {
        self.limit.clamp(1, PAGE_LIMIT)
    }

    /// Cuts what was found to the page. The cursor is that of the last run on it, where more was found.
    pub(crate) fn cut<T>(&self, found: &mut Vec<T>, cursor: impl Fn(&T) -> Cursor) -> Option<Cursor> {
        let has_more = found.len() > self.limit();
        found.truncate(self.limit());
        found.last().filter(|_| has_more).map(cursor)
    }
}

/// The order of a listing, for [`Page`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The latest made first.
    Newest,
    /// The first made first.
    Oldest,
    /// As they are claimed: priority, then time, then id.
    Claim,
}

/// A place in a listing, from one page to the next: pass it back in [`Page`] as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The run's priority.
    pub priority: i32,
    /// When the run was made.
    pub created_at: Timestamp,
    /// The run.
    pub id: RunId,
}

impl Cursor {
    /// The place of `run`.
    pub fn at(run: &Run) -> Self {
        Self { priority: run.priority(), created_at: run.created_at, id: run.id }
    }

    /// A key that sorts as `order` does.
    pub(crate) fn sort_key(&self, order: Order) -> (i64, i128, u128) {
        let id = self.id.as_uuid().as_u128();
        let at = i128::from(self.created_at.as_micros());
        match order {
            Order::Newest => (0, -at, !id),
            Order::Oldest => (0, at, id),
            Order::Claim => (i64::from(self.priority), at, id),
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.priority, self.created_at.as_micros(), self.id)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parse = || {
            let mut parts = text.splitn(3, '.');
            let priority = parts.next()?.parse().ok()?;
            let created_at = Timestamp::from_micros(parts.next()?.parse().ok()?);
            Some(Self { priority, created_at, id: parts.next()?.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidCursor(text.chars().take(64).collect()))
    }
}

/// The failure to read a [`Cursor`] from text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the `next` of an earlier page")]
pub struct InvalidCursor(String);
