//! When the next run is due.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::pool::{CallError, PooledClient, with_retry};
use crate::model::filter::Filter;
use crate::store::Error;

impl PostgresStore {
    /// How long it is until the next pending run of the filter's kinds is due, by the server's clock.
    pub(super) async fn until_next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let kinds: Option<Vec<String>> = match (&filter.kind, &filter.kinds) {
            (Some(kind), _) => Some(vec![kind.clone()]),
            (None, Some(kinds)) => Some(kinds.iter().cloned().collect()),
            (None, None) => None,
        };
        let left = with_retry!(self.links(), |link| self.ask_next_due(&mut link, &kinds))?;
        Ok(left.map(|left| Duration::from_micros(left.unsigned_abs())))
    }

    async fn ask_next_due(
        &self,
        link: &mut PooledClient<'_>,
        kinds: &Option<Vec<String>>,
    ) -> Result<Option<i64>, CallError> {
        // The indexes have due times in order, of all runs and of each kind: one row of each is all that is read.
        // A kind is said as a range: said as an equality, the index of all runs would have the rest in order as well.
        let first = "SELECT due_at FROM @.waiting w
                     WHERE NOT ready AND due_at IS NOT NULL AND due_at > (SELECT @.clock())";
        let sql = self.sql(&match kinds {
            Some(_) => format!(
                "SELECT next.due_at - now.at FROM (SELECT @.clock() AS at) now, unnest($1::text[]) wanted(kind),
                 LATERAL ({first} AND w.kind >= wanted.kind AND w.kind <= wanted.kind ORDER BY w.kind, due_at LIMIT 1) next
                 ORDER BY next.due_at LIMIT 1"
            ),
            None => format!(
                "SELECT next.due_at - now.at FROM (SELECT @.clock() AS at) now,
                 LATERAL ({first} AND $1::text[] IS NULL ORDER BY due_at LIMIT 1) next"
            ),
        });
        let rows = link.read(&sql, &[(kinds, Type::TEXT_ARRAY)]).await?;
        Ok(rows.first().map(|row| row.get::<_, i64>(0).max(0)))
    }
}
