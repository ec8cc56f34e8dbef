//! Orders of a listing by what it shows: a field, up or down, and a place in such an order.
//!
//! No store keeps these orders. [`crate::Registry::list_sorted`] reads every run that matches and keeps the first of them,
//! and so the place of a run is a value by itself: it needs nothing that changes while pages are read.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use super::id::RunId;
use super::time::Timestamp;

/// What a listing is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortField {
    /// When the run was made.
    Created,
    /// When its attempt was started.
    Started,
    /// When it ended.
    Ended,
    /// How long its attempt has run.
    Duration,
    /// Its name.
    Name,
    /// Its kind.
    Kind,
    /// The word for its state.
    State,
    /// Its priority: the lowest number is claimed first.
    Priority,
}

impl SortField {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Started,
        Self::Ended,
        Self::Duration,
        Self::Name,
        Self::Kind,
        Self::State,
        Self::Priority,
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Started => "started",
            Self::Ended => "ended",
            Self::Duration => "duration",
            Self::Name => "name",
            Self::Kind => "kind",
            Self::State => "state",
            Self::Priority => "priority",
        }
    }
}

/// An order by one field. Runs without a value come last both ways, and runs of one value newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSort {
    /// By what.
    pub by: SortField,
    /// The greatest first.
    pub descending: bool,
}

impl fmt::Display for RunSort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.descending { "-" } else { "" }, self.by.as_str())
    }
}

impl FromStr for RunSort {
    type Err = InvalidSort;

    fn from_str(text: &str) -> Result<Self, InvalidSort> {
        let (descending, word) = text.strip_prefix('-').map_or((false, text), |word| (true, word));
        let by = SortField::ALL.into_iter().find(|by| by.as_str() == word);
        by.map(|by| Self { by, descending }).ok_or_else(|| InvalidSort(text.chars().take(64).collect()))
    }
}

/// Text that is no order of a listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no order: use one of {fields}, with `-` before it for the greatest first", fields = fields())]
pub struct InvalidSort(String);

fn fields() -> String {
    SortField::ALL.map(SortField::as_str).join(", ")
}

/// What a run is sorted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SortValue {
    /// A time or a duration in microseconds, or a priority.
    Number(i64),
    /// A word, compared by its bytes.
    Text(String),
}

/// The place of a run in an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortPlace {
    /// What the run is sorted by; none where it has no such thing.
    pub value: Option<SortValue>,
    /// When the run was made.
    pub created_at: Timestamp,
    /// The run.
    pub id: RunId,
}

impl SortPlace {
    /// How two places compare in an order.
    pub fn cmp_in(&self, other: &Self, sort: RunSort) -> Ordering {
        let by_value = match (&self.value, &other.value) {
            (Some(one), Some(other)) if sort.descending => other.cmp(one),
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        };
        by_value.then_with(|| (other.created_at, other.id).cmp(&(self.created_at, self.id)))
    }
}

/// Where a page of a sorted listing begins: right behind a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortCursor {
    /// The order.
    pub sort: RunSort,
    /// When the first page was read. Durations are those of this moment on every page, so that none overtakes the cursor.
    pub at: Timestamp,
    /// The last run of the page before.
    pub after: SortPlace,
}

impl fmt::Display for SortCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SortPlace { value, created_at, id } = &self.after;
        write!(f, "{}.{}.{}.{id}.", self.sort, self.at.as_micros(), created_at.as_micros())?;
        match value {
            None => Ok(()),
            Some(SortValue::Number(number)) => write!(f, "n{number}"),
            Some(SortValue::Text(text)) => write!(f, "t{text}"),
        }
    }
}

impl FromStr for SortCursor {
    type Err = InvalidSortCursor;

    fn from_str(text: &str) -> Result<Self, InvalidSortCursor> {
        let parse = || {
            let mut parts = text.splitn(5, '.');
            let sort = parts.next()?.parse().ok()?;
            let at = Timestamp::from_micros(parts.next()?.parse().ok()?);
            let created_at = Timestamp::from_micros(parts.next()?.parse().ok()?);
            let id = parts.next()?.parse().ok()?;
            let value = parts.next()?;
            let value = match (value.strip_prefix('n'), value.strip_prefix('t')) {
                (Some(number), _) => Some(SortValue::Number(number.parse().ok()?)),
                (None, Some(text)) => Some(SortValue::Text(text.to_owned())),
                (None, None) => value.is_empty().then_some(None)?,
            };
            Some(Self { sort, at, after: SortPlace { value, created_at, id } })
        };
        parse().ok_or_else(|| InvalidSortCursor(text.chars().take(64).collect()))
    }
}

/// Text that is no place in a sorted listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the `next` of an earlier page in this order")]
pub struct InvalidSortCursor(String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;

    fn place(value: Option<SortValue>, created_at: i64) -> SortPlace {
        let created_at = Timestamp::from_micros(created_at);
        SortPlace { value, created_at, id: RunId::draw(created_at, &SystemEntropy) }
    }

    #[test]
    fn sort_cursor_is_read_back_whatever_its_value_contains() {
        let sort: RunSort = "-name".parse().unwrap();
        let values = [None, Some(SortValue::Number(-7)), Some(SortValue::Text("a.b n1 é".into()))];
        for value in values.into_iter().chain([Some(SortValue::Text(String::new()))]) {
            let cursor = SortCursor { sort, at: Timestamp::from_micros(9), after: place(value, 5) };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for wrong in
            ["", "0.5.01a1e1d5-0001-7f4e-980e-58a2015d54aa", "-name.9.5.01a1e1d5-0001-7f4e-980e-58a2015d54aa.x"]
        {
            assert!(wrong.parse::<SortCursor>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn runs_without_a_value_come_last_both_ways() {
        let number = |value| Some(SortValue::Number(value));
        // Of one value the newest is first.
        for (word, expected) in [("duration", [4, 2, 3, 1]), ("-duration", [3, 4, 2, 1])] {
            let sort: RunSort = word.parse().unwrap();
            assert_eq!(sort.to_string(), word);
            let mut all = [place(None, 1), place(number(5), 2), place(number(7), 3), place(number(5), 4)];
            all.sort_by(|one, other| one.cmp_in(other, sort));
            assert_eq!(all.map(|one| one.created_at.as_micros()), expected, "{word}");
        }
        assert!("size".parse::<RunSort>().unwrap_err().to_string().contains("created, started"));
    }
}
