//! Which runs there are and how often each was written: what an index needs to know before it reads any.

use super::schema::from_sqlite;
use super::{SqliteStore, rows};
use crate::id::RunId;
use crate::steps;
use crate::store::{Error, Revision};

impl SqliteStore {
    /// Every run but the steps of others, with its revision, by id.
    pub(crate) fn revisions(&self) -> Result<Vec<(RunId, Revision)>, Error> {
        let mut found = self.look(|inner| {
            let mut statement = rows::cached(inner.connection(), "SELECT id, revision FROM runs WHERE kind <> ?1")?;
            let mut rows = statement.query([steps::KIND]).map_err(from_sqlite)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().map_err(from_sqlite)? {
                let id = row.get_ref(0).ok().and_then(|id| id.as_str().ok()?.parse::<RunId>().ok());
                let revision = row.get::<_, i64>(1).ok().map(|revision| Revision(revision.unsigned_abs()));
                // A row that says neither is told by the doctor.
                found.extend(id.zip(revision));
            }
            Ok(found)
        })?;
        found.sort_unstable_by_key(|(id, _)| *id);
        Ok(found)
    }
}
