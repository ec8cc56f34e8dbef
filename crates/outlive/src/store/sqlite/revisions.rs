//! Which runs there are and how often each was written: what an index needs to know before it reads any.

use super::schema::from_sqlite;
use super::{SqliteStore, rows};
use crate::model::id::RunId;
use crate::model::step;
use crate::model::time::Timestamp;
use crate::store::{Error, Revision};

impl SqliteStore {
    /// Every run but the steps of others, with its revision, by id.
    pub(crate) fn revisions(&self) -> Result<Vec<(RunId, Revision)>, Error> {
        let mut found = self.look(|inner| {
            let mut statement = rows::cached(inner.connection(), "SELECT id, revision FROM runs WHERE kind <> ?1")?;
            let mut rows = statement.query([step::KIND]).map_err(from_sqlite)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().map_err(from_sqlite)? {
                let id = row.get_ref(0).ok().and_then(|id| id.as_str().ok()?.parse::<RunId>().ok());
                let revision = row.get::<_, i64>(1).ok().map(|revision| Revision(revision.unsigned_abs()));
                // The doctor reports a row that says neither.
                found.extend(id.zip(revision));
            }
            Ok(found)
        })?;
        found.sort_unstable_by_key(|(id, _)| *id);
        Ok(found)
    }

    /// Whether what was written since a moment is more than beats: a run was made, or no worker has beaten. How runs have changed
    /// while workers beat, only a look at each would tell.
    pub(crate) fn has_news(&self, since: Timestamp) -> Result<bool, Error> {
        const LOOKED_AT: i64 = 10_000;
        let sql =
            "SELECT EXISTS (SELECT 1 FROM (SELECT kind FROM runs WHERE created_at > ?1 LIMIT ?3) WHERE kind <> ?2)
                       OR NOT EXISTS (SELECT 1 FROM workers WHERE beat_at > ?1)";
        self.look(|inner| {
            let mut statement = rows::cached(inner.connection(), sql)?;
            let news = statement.query_row((since.as_micros(), step::KIND, LOOKED_AT), |row| row.get(0));
            news.map_err(from_sqlite)
        })
    }
}
