//! Runs whose time comes: when the next is due, those that have become due, and whether anything can be claimed.
//!
//! Each statement reads one range of an index for each kind. A kind is compared together with the column behind it: as an
//! equality it would be a constant to the planner, which could then take another index, and a due time compared by itself
//! would have the whole of a kind read past it.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::pool::{CallError, PooledClient, with_retry};
use super::reads::{Query, Value};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::store::{Error, Selection};

/// How many runs that have become due one claim makes ready, of all kinds together, where it wants no more of one. A million
/// at once would take longer than a statement may, and be undone each time.
const MADE_READY: usize = 1_000;

/// The kinds that a filter selects; any where there are none.
pub(super) fn kinds(filter: &Filter) -> Option<Vec<String>> {
    match (&filter.kind, &filter.kinds) {
        (Some(kind), _) => Some(vec![kind.clone()]),
        (None, Some(kinds)) => Some(kinds.iter().cloned().collect()),
        (None, None) => None,
    }
}

/// Makes runs ready whose time has come since they were written, the longest due first. Answers with how many.
pub(super) fn make_ready(selection: &Selection) -> Query {
    let due = "NOT w.ready AND w.due_at IS NOT NULL AND w.due_at <= (SELECT @.clock())";
    let most = |kinds: usize| {
        let most = selection.limit.max(MADE_READY / kinds.max(1)).max(1);
        Value::Long(i64::try_from(most).unwrap_or(i64::MAX))
    };
    let (found, values) = match (&selection.filter.ids, kinds(&selection.filter)) {
        (Some(ids), _) => (
            format!("SELECT w.id FROM @.waiting w WHERE w.id = ANY($1) AND {due} FOR UPDATE SKIP LOCKED"),
            vec![Value::Ids(ids.iter().map(RunId::as_uuid).collect())],
        ),
        (None, Some(kinds)) => (
            format!(
                "SELECT found.id FROM unnest($1::text[]) wanted(kind), LATERAL (
                     SELECT w.id FROM @.waiting w WHERE NOT w.ready AND w.due_at IS NOT NULL AND {OF_KIND}
                     ORDER BY w.kind, w.due_at LIMIT $2 FOR UPDATE SKIP LOCKED) found"
            ),
            vec![Value::Texts(kinds.clone()), most(kinds.len())],
        ),
        (None, None) => (
            format!("SELECT w.id FROM @.waiting w WHERE {due} ORDER BY w.due_at LIMIT $1 FOR UPDATE SKIP LOCKED"),
            vec![most(1)],
        ),
    };
    let sql = format!(
        "WITH made AS (UPDATE @.waiting SET ready = true WHERE id = ANY (ARRAY({found})) RETURNING id)
         SELECT count(*) FROM made"
    );
    Query { sql, values }
}

/// Due runs of a kind, as a range of one index.
const OF_KIND: &str = "w.kind >= wanted.kind AND (w.kind, w.due_at) <= (wanted.kind, (SELECT @.clock()))";

/// Whether anything of the filter's kinds can be claimed: ready without a share, ready with one, or due.
pub(super) fn anything(filter: &Filter) -> Query {
    let Some(kinds) = kinds(filter) else {
        let sql = "SELECT EXISTS (SELECT 1 FROM @.waiting WHERE ready AND share IS NULL)
                       OR EXISTS (SELECT 1 FROM @.waiting WHERE ready AND share IS NOT NULL)
                       OR EXISTS (SELECT 1 FROM @.waiting WHERE NOT ready AND due_at <= (SELECT @.clock()))";
        return Query { sql: sql.into(), values: Vec::new() };
    };
    let any = |part: &str, behind: &str| {
        format!(
            "EXISTS (SELECT 1 FROM unnest($1::text[]) wanted(kind), LATERAL (
                 SELECT 1 FROM @.waiting w WHERE {part} ORDER BY w.kind, {behind} LIMIT 1) found)"
        )
    };
    let ready = |share: &str| {
        let part = format!("w.ready AND w.share IS {share} AND w.kind >= wanted.kind AND w.kind <= wanted.kind");
        any(&part, "w.priority, w.created_at, w.id")
    };
    let due = any(&format!("NOT w.ready AND w.due_at IS NOT NULL AND {OF_KIND}"), "w.due_at");
    let sql = format!("SELECT {} OR {} OR {due}", ready("NULL"), ready("NOT NULL"));
    Query { sql, values: vec![Value::Texts(kinds)] }
}

impl PostgresStore {
    /// How long it is until the next pending run of the filter's kinds is due, by the server's clock.
    pub(super) async fn until_next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let kinds = kinds(filter);
        let left = with_retry!(self.links(), |link| self.ask_next_due(&mut link, &kinds))?;
        Ok(left.map(|left| Duration::from_micros(left.unsigned_abs())))
    }

    async fn ask_next_due(
        &self,
        link: &mut PooledClient<'_>,
        kinds: &Option<Vec<String>>,
    ) -> Result<Option<i64>, CallError> {
        // The indexes have due times in order, of all runs and of each kind: one row of each is all that is read.
        let first = "SELECT due_at FROM @.waiting w WHERE NOT ready AND due_at IS NOT NULL";
        let sql = self.sql(&match kinds {
            Some(_) => format!(
                "SELECT next.due_at - now.at FROM (SELECT @.clock() AS at) now, unnest($1::text[]) wanted(kind),
                 LATERAL ({first} AND (w.kind, w.due_at) > (wanted.kind, (SELECT @.clock())) AND w.kind <= wanted.kind
                          ORDER BY w.kind, due_at LIMIT 1) next
                 ORDER BY next.due_at LIMIT 1"
            ),
            None => format!(
                "SELECT next.due_at - now.at FROM (SELECT @.clock() AS at) now,
                 LATERAL ({first} AND due_at > (SELECT @.clock()) AND $1::text[] IS NULL ORDER BY due_at LIMIT 1) next"
            ),
        });
        let rows = link.read(&sql, &[(kinds, Type::TEXT_ARRAY)]).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).max(0)))
    }
}
