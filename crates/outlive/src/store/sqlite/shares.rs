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

/// The heads of the queue of the filter's kinds.
pub(super) fn heads(connection: &Connection, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
    if !has_column(connection)? {
        return Ok(Vec::new());
    }
    let is_meant = |kind: &str| {
        let is = |wanted: &String| wanted == kind;
        filter.kind.as_ref().is_none_or(is) && filter.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(is))
    };
    let mut heads = Vec::new();
    for tenant in tenants(connection)? {
        heads.extend(heads_of(connection, &tenant)?.into_iter().filter(|head| is_meant(&head.kind)));
    }
    Ok(heads)
}

/// Whether the database has the column of shares: one of an earlier format that is only read does not.
fn has_column(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('runs') WHERE name = 'share')";
    cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)
}

/// The tenants that have ready runs, and the empty one of runs without a share.
fn tenants(connection: &Connection) -> Result<Vec<String>, Error> {
    let sql = "SELECT share FROM runs WHERE ready = 1 AND share <> '' AND share > ?1 ORDER BY share LIMIT 1";
    let mut next = cached(connection, sql)?;
    let mut tenants = vec![String::new()];
    let mut last = String::new();
    while let Some(tenant) = next.query_row([&last], |row| row.get(0)).optional().map_err(from_sqlite)? {
        last = tenant;
        tenants.push(last.clone());
    }
    Ok(tenants)
}

/// The heads of one tenant's queue. Those without a share are found kind by kind.
fn heads_of(connection: &Connection, tenant: &str) -> Result<Vec<QueueHead>, Error> {
    let of_share = "SELECT kind, priority, min(created_at), body FROM runs
                    WHERE ready = 1 AND share <> '' AND share = ?1 GROUP BY kind, priority";
    if !tenant.is_empty() {
        let mut statement = cached(connection, of_share)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, String>(3)?));
        let rows = statement.query_map([tenant], read).map_err(from_sqlite)?;
        let found: Result<Vec<(String, i32, i64, String)>, _> = rows.collect();
        let head = |(kind, priority, created_at, body): (String, i32, i64, String)| {
            let share = serde_json::from_str::<Run>(&body).ok()?.spec.share.clone();
            Some(QueueHead { kind, share, priority, created_at: Timestamp::from_micros(created_at) })
        };
        return Ok(found.map_err(from_sqlite)?.into_iter().filter_map(head).collect());
    }
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
