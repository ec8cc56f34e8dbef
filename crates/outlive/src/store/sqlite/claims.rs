//! What a claim asks the database for: which pending runs may be claimed, and when the next of them is due.
//!
//! The columns `ready`, `due_at` and `keyset` repeat what a run says, so that a claim reads the runs that it may get and no
//! others. They may let too much through and never too little: the rule of the claim has the last word.

use rusqlite::{Connection, OptionalExtension, params};
use sha2::{Digest, Sha256};

use super::rows::cached;
use super::schema::from_sqlite;
use crate::model::filter::Filter;
use crate::model::hex::hex;
use crate::model::run::{Key, Run, State};
use crate::model::time::Timestamp;
use crate::store::Error;

/// Whether a run may be claimed at once, and when it is due by the clock. A run that is not pending has neither; one that
/// waits for other runs is not ready and has no due time.
pub(super) fn readiness(run: &Run) -> (Option<bool>, Option<Timestamp>) {
    let State::Pending(pending) = &run.state else { return (None, None) };
    let due_at = pending.not_before.filter(|_| pending.waits_for.is_empty());
    (Some(pending.waits_for.is_empty() && due_at.is_none()), due_at)
}

/// A digest of the keys that a start of the run takes or counts; empty without any. Of runs with the same keyset either all
/// get their keys at a moment or none does.
pub(super) fn keyset(run: &Run) -> String {
    let mut keys: Vec<&Key> = run.spec.keys.iter().filter(|key| !key.is_unique()).collect();
    if keys.is_empty() {
        return String::new();
    }
    keys.sort_by_key(|key| key.slot());
    let text: Vec<String> = keys.iter().map(|key| format!("{}\t{}\t{:?}", key.slot(), key.limit, key.per())).collect();
    hex(&Sha256::digest(text.join("\n"))[..16])
}

/// Whether the database has these columns: one of an earlier format that is only read does not.
pub(super) fn has_columns(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('runs') WHERE name = 'ready')";
    cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)
}

/// Whether the time of a run has come that is not marked as ready.
pub(super) fn has_due(connection: &Connection, now: Timestamp) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM runs WHERE ready = 0 AND due_at <= ?1)";
    cached(connection, sql)?.query_row([now.as_micros()], |row| row.get(0)).map_err(from_sqlite)
}

/// Marks the runs as ready whose time has come.
pub(super) fn mark_due(connection: &Connection, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE runs SET ready = 1 WHERE ready = 0 AND due_at <= ?1";
    cached(connection, sql)?.execute([now.as_micros()]).map(|_| ()).map_err(from_sqlite)
}

/// Whether any run waits for the end of another.
pub(super) fn has_dependents(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM runs WHERE ready = 0 AND due_at IS NULL)";
    cached(connection, sql)?.query_row([], |row| row.get(0)).map_err(from_sqlite)
}

/// The first due time after `now` of the pending runs that may match.
pub(super) fn next_due(connection: &Connection, filter: &Filter, now: Timestamp) -> Result<Option<Timestamp>, Error> {
    let first = |kind: Option<&String>| {
        let sql = "SELECT due_at FROM runs WHERE ready = 0 AND due_at > ?1 AND (?2 IS NULL OR kind = ?2)
                   ORDER BY due_at LIMIT 1";
        let found = cached(connection, sql)?.query_row(params![now.as_micros(), kind], |row| row.get::<_, i64>(0));
        found.optional().map(|at| at.map(Timestamp::from_micros)).map_err(from_sqlite)
    };
    let kinds = filter.kind.iter().chain(filter.kinds.iter().flatten());
    let mut next: Option<Timestamp> = None;
    let mut any_kind = true;
    for kind in kinds {
        any_kind = false;
        next = next.into_iter().chain(first(Some(kind))?).min();
    }
    if any_kind { first(None) } else { Ok(next) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::SystemClock;
    use crate::store::Order;
    use crate::store::sqlite::query::Query;
    use crate::store::sqlite::{Sharing, SqliteStore};

    fn plan(store: &SqliteStore, query: Query) -> String {
        let inner = store.lock().unwrap();
        let mut statement = inner.connection().prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql)).unwrap();
        let steps = statement.query_map(rusqlite::params_from_iter(query.values), |row| row.get::<_, String>(3));
        steps.unwrap().map(Result::unwrap).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn t7_03_claims_of_a_kind_read_the_index_of_that_kind() {
        let dir = tempfile::tempdir().unwrap();
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let store = SqliteStore::create(&dir.path().join("r"), Sharing::Private, clock, entropy).unwrap();
        let busy: BTreeSet<String> = ["a".to_owned()].into();
        let kinds = |kinds: &[&str]| Some(kinds.iter().map(|kind| (*kind).to_owned()).collect());
        let any = Filter { share: Some(String::new()), ..Filter::default() };
        let one = Filter { kind: Some("a".into()), ..any.clone() };
        let two = Filter { kinds: kinds(&["a", "b"]), ..any.clone() };
        let shared = Filter { share: Some("acme".into()), priority: Some(0), ..Filter::default() };
        let of_kind = Filter { kind: Some("a".into()), ..shared.clone() };
        let drained = Filter { share: None, ..any.clone() };
        let by_index: [(Filter, &[&str]); 7] = [
            (any, &["runs_ready"]),
            (one.clone(), &["runs_ready_by_kind"]),
            (two, &["runs_ready_by_kind"]),
            (shared, &["runs_ready_by_share"]),
            (of_kind, &["runs_ready_by_share_kind"]),
            (drained, &["runs_ready", "runs_shared"]),
            (Filter { share: None, ..one }, &["runs_ready_by_kind", "runs_shared_by_kind"]),
        ];
        for (filter, indexes) in by_index {
            let plan = plan(&store, Query::ready("id, body", &filter, None, &busy).unwrap());
            let uses = |index: &&str| plan.split_whitespace().any(|word| word == *index);
            assert!(indexes.iter().all(uses) && !plan.contains("TEMP B-TREE"), "{indexes:?}: {plan}");
        }
        let waits = Filter { waits: Some(true), ..Filter::in_states([crate::model::run::StateName::Pending]) };
        let query = Query::of(store.lock().unwrap().connection(), "id, body", &waits, Order::Claim, None);
        let plan = plan(&store, query.unwrap().unwrap());
        assert!(plan.contains("INDEX runs_unready"), "{plan}");
    }
}
