//! When runs were made, counted by the index of their times.

use std::collections::BTreeMap;

use rusqlite::params;

use super::SqliteStore;
use super::rows::cached;
use super::schema::from_sqlite;
use crate::model::run::StateName;
use crate::model::step;
use crate::model::time::Timestamp;
use crate::store::Error;

impl SqliteStore {
    /// How many runs of each state on record were made in each of `parts` equal parts of a time. Steps are left out.
    pub(crate) fn histogram(
        &self,
        since: Timestamp,
        until: Timestamp,
        parts: usize,
    ) -> Result<BTreeMap<StateName, Vec<u64>>, Error> {
        let (since, until) = (since.as_micros(), until.as_micros());
        self.look(|inner| {
            let sql = "SELECT state, (created_at - ?1) * ?3 / (?2 - ?1), count(*) FROM runs \
                       WHERE created_at >= ?1 AND created_at < ?2 AND kind <> ?4 GROUP BY 1, 2";
            let mut statement = cached(inner.connection(), sql)?;
            let count = i64::try_from(parts).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![since, until, count, step::KIND]).map_err(from_sqlite)?;
            let mut found: BTreeMap<StateName, Vec<u64>> = BTreeMap::new();
            while let Some(row) = rows.next().map_err(from_sqlite)? {
                let (state, place, runs): (String, i64, i64) = (
                    row.get(0).map_err(from_sqlite)?,
                    row.get(1).map_err(from_sqlite)?,
                    row.get(2).map_err(from_sqlite)?,
                );
                let (Ok(state), Ok(place)) = (state.parse(), usize::try_from(place)) else { continue };
                found.entry(state).or_insert_with(|| vec![0; parts])[place.min(parts - 1)] += runs.unsigned_abs();
            }
            Ok(found)
        })
    }
}
