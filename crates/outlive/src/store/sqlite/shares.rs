//! Where the queue begins: the oldest ready run of every kind, share and priority.
//!
//! Each is found by one look into an index, behind the one before it. Nothing of the queue is read that is no head.

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::cached;
use super::schema::from_sqlite;
use crate::model::filter::Filter;
use crate::model::run::{QueueHead, Run};
use crate::model::time::Timestamp;
use crate::store::Error;

/// The head behind a tenant, a kind and a priority.
const NEXT_SHARED: &str = "SELECT share, kind, priority, created_at, body FROM runs INDEXED BY runs_ready_by_share_kind
                           WHERE ready = 1 AND share <> '' AND (share, kind, priority) > (?1, ?2, ?3)
                           ORDER BY share, kind, priority, created_at, id LIMIT 1";

/// The heads of the queue of the filter's kinds.
pub(super) fn heads(connection: &Connection, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
    if !has_index(connection)? {
        return Ok(Vec::new());
    }
    let is_meant = |head: &QueueHead| {
        let is = |wanted: &String| *wanted == head.kind;
        filter.kind.as_ref().is_none_or(is) && filter.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(is))
    };
    let mut heads = plain(connection)?;
    heads.extend(shared(connection)?);
    heads.retain(is_meant);
    Ok(heads)
}

/// Whether the database has the index of shares and kinds: one of an earlier format that is only read does not.
fn has_index(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'runs_ready_by_share_kind')";
    cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)
}

/// The heads of the runs without a share, kind by kind.
fn plain(connection: &Connection) -> Result<Vec<QueueHead>, Error> {
    let sql = "SELECT kind, priority, created_at FROM runs INDEXED BY runs_ready_by_kind
               WHERE ready = 1 AND share = '' AND (kind, priority) > (?1, ?2)
               ORDER BY kind, priority, created_at, id LIMIT 1";
    let mut next = cached(connection, sql)?;
    let mut heads: Vec<QueueHead> = Vec::new();
    loop {
        let after = heads.last().map_or((String::new(), i64::MIN), |head| (head.kind.clone(), head.priority.into()));
        let read = |row: &rusqlite::Row<'_>| {
            let created_at = Timestamp::from_micros(row.get(2)?);
            Ok(QueueHead { kind: row.get(0)?, share: None, priority: row.get(1)?, created_at })
        };
        match next.query_row(params![after.0, after.1], read).optional().map_err(from_sqlite)? {
            Some(head) => heads.push(head),
            None => return Ok(heads),
        }
    }
}

/// The heads of the runs with a share, tenant by tenant. One that cannot be understood hides no other.
fn shared(connection: &Connection) -> Result<Vec<QueueHead>, Error> {
    let mut next = cached(connection, NEXT_SHARED)?;
    let mut heads = Vec::new();
    let mut after = (String::new(), String::new(), i64::MIN);
    loop {
        let read = |row: &rusqlite::Row<'_>| {
            let place: (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((place, Timestamp::from_micros(row.get(3)?), row.get::<_, String>(4)?))
        };
        let found = next.query_row(params![after.0, after.1, after.2], read).optional().map_err(from_sqlite)?;
        let Some((place, created_at, body)) = found else { return Ok(heads) };
        if let (Ok(run), Ok(priority)) = (serde_json::from_str::<Run>(&body), i32::try_from(place.2)) {
            let (kind, share) = (place.1.clone(), run.spec.share.clone());
            heads.push(QueueHead { kind, share, priority, created_at });
        }
        after = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::schema::LAYOUT;

    #[test]
    fn heads_of_shares_are_searched_for_in_their_index() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(LAYOUT).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {NEXT_SHARED}")).unwrap();
        let steps = statement.query_map(params!["", "", 0], |row| row.get::<_, String>(3)).unwrap();
        let plan = steps.map(Result::unwrap).collect::<Vec<_>>().join("\n");
        let searched = "SEARCH runs USING INDEX runs_ready_by_share_kind ((share,kind,priority)>(?,?,?))";
        assert_eq!(plan, searched, "nothing is sorted, and what is no head is not read");
    }
}
