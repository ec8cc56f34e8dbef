//! When runs were made, by whom and where they ran, counted by the index of their times: no record is read.

use std::collections::BTreeMap;

use rusqlite::params;

use super::SqliteStore;
use super::rows::cached;
use super::schema::from_sqlite;
use crate::model::run::StateName;
use crate::model::step;
use crate::model::time::Timestamp;
use crate::store::Error;

/// When runs were made that are no steps, and their states. They are counted outside of the database: it would sort them.
const MADE: &str = "SELECT state, created_at FROM runs WHERE created_at >= ?1 AND created_at < ?2 AND kind <> ?3";
/// By whom runs were made that are no steps, and where they ran last.
const MAKERS: &str = "SELECT user, host FROM runs WHERE kind <> ?1";

/// How many runs there are of each value.
pub(crate) type Counted = BTreeMap<String, u64>;

impl SqliteStore {
    /// How many runs of each state on record were made in each of `parts` equal parts of a time. Steps are left out.
    pub(crate) fn histogram(
        &self,
        since: Timestamp,
        until: Timestamp,
        parts: usize,
    ) -> Result<BTreeMap<StateName, Vec<u64>>, Error> {
        let (since, until) = (since.as_micros(), until.as_micros());
        let (length, count) = (i128::from((until - since).max(1)), parts as i128);
        self.look(|inner| {
            let mut statement = cached(inner.connection(), MADE)?;
            let mut rows = statement.query(params![since, until, step::KIND]).map_err(from_sqlite)?;
            let mut found: BTreeMap<StateName, Vec<u64>> = BTreeMap::new();
            while let Some(row) = rows.next().map_err(from_sqlite)? {
                let state = row.get_ref(0).ok().and_then(|state| state.as_str().ok()?.parse().ok());
                let (Some(state), Ok(made)) = (state, row.get::<_, i64>(1)) else { continue };
                let place = usize::try_from(i128::from(made - since) * count / length).unwrap_or(0);
                found.entry(state).or_insert_with(|| vec![0; parts])[place.min(parts - 1)] += 1;
            }
            Ok(found)
        })
    }

    /// How many runs each user made and how many ran last on each host, without steps.
    pub(crate) fn users_and_hosts(&self) -> Result<(Counted, Counted), Error> {
        self.look(|inner| {
            let mut statement = cached(inner.connection(), MAKERS)?;
            let mut rows = statement.query([step::KIND]).map_err(from_sqlite)?;
            let mut counted = [Counted::new(), Counted::new()];
            while let Some(row) = rows.next().map_err(from_sqlite)? {
                for (column, counts) in counted.iter_mut().enumerate() {
                    let Some(value) = row.get_ref(column).ok().and_then(|value| value.as_str().ok()) else { continue };
                    match counts.get_mut(value) {
                        Some(count) => *count += 1,
                        None => _ = counts.insert(value.to_owned(), 1),
                    }
                }
            }
            let [users, hosts] = counted;
            Ok((users, hosts))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::SystemClock;
    use crate::store::sqlite::Sharing;

    #[test]
    fn counts_over_time_read_one_index_and_sort_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let store = SqliteStore::create(&dir.path().join("r"), Sharing::Private, clock, entropy).unwrap();
        let inner = store.lock().unwrap();
        for sql in [MADE, MAKERS] {
            let mut statement = inner.connection().prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let values = vec!["0"; statement.parameter_count()];
            let steps = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
            let plan = steps.map(Result::unwrap).collect::<Vec<_>>().join("\n");
            assert!(plan.contains("USING COVERING INDEX runs_by_time") && !plan.contains("TEMP"), "{plan}");
        }
    }
}
