//! Where the queue begins: the oldest ready run of every kind, share and priority.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::due::kinds;
use super::pool::with_retry;
use crate::model::filter::Filter;
use crate::model::run::{QueueHead, Spec};
use crate::model::time::Timestamp;
use crate::store::Error;

impl PostgresStore {
    /// The heads of the queue of the filter's kinds. Each is found by one look into an index, behind the one before it.
    pub(super) async fn all_heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        let kinds = kinds(filter);
        let sql = self.sql(
            "WITH RECURSIVE plain AS (
                 (SELECT kind, priority, created_at, id FROM @.waiting WHERE ready AND share IS NULL
                  ORDER BY kind, priority, created_at, id LIMIT 1)
                 UNION ALL SELECT next.* FROM plain, LATERAL (
                     SELECT w.kind, w.priority, w.created_at, w.id FROM @.waiting w WHERE ready AND share IS NULL
                         AND (w.kind, w.priority) > (plain.kind, plain.priority)
                     ORDER BY w.kind, w.priority, w.created_at, w.id LIMIT 1) next),
             shared AS (
                 (SELECT share, kind, priority, created_at, id FROM @.waiting WHERE ready AND share IS NOT NULL
                  ORDER BY share, kind, priority, created_at, id LIMIT 1)
                 UNION ALL SELECT next.* FROM shared, LATERAL (
                     SELECT w.share, w.kind, w.priority, w.created_at, w.id FROM @.waiting w
                     WHERE ready AND share IS NOT NULL
                         AND (w.share, w.kind, w.priority) > (shared.share, shared.kind, shared.priority)
                     ORDER BY w.share, w.kind, w.priority, w.created_at, w.id LIMIT 1) next)
             SELECT kind, priority, created_at, NULL::text FROM plain WHERE $1::text[] IS NULL OR kind = ANY ($1)
             UNION ALL SELECT shared.kind, shared.priority, shared.created_at, spec.body
                 FROM shared, LATERAL (SELECT body FROM @.spec WHERE spec.id = shared.id) spec
                 WHERE $1::text[] IS NULL OR shared.kind = ANY ($1)",
        );
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&kinds, Type::TEXT_ARRAY)]))?;
        // A spec that cannot be understood hides no other.
        Ok(rows.iter().filter_map(head).collect())
    }
}

fn head(row: &Row) -> Option<QueueHead> {
    let share = match row.get::<_, Option<&str>>(3) {
        Some(spec) => Some(serde_json::from_str::<Spec>(spec).ok()?.share?),
        None => None,
    };
    let created_at = Timestamp::from_micros(row.get(2));
    Some(QueueHead { kind: row.get(0), share, priority: row.get(1), created_at })
}
