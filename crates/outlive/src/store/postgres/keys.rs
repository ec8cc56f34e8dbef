//! Keys: who holds what must not be held by too many.

use std::collections::BTreeSet;

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::link::{Fault, Link};
use super::reads::{self, Table};
use crate::filter::Filter;
use crate::id::RunId;
use crate::run::Run;
use crate::store::{Order, Record, Written};
use crate::transition::has_room;

impl PostgresStore {
    /// Takes turns for keys, in one order for all. Those of another registry of the database are others.
    pub(super) async fn lock_keys(&self, link: &mut Link<'_>, runs: impl Iterator<Item = &Run>) -> Result<(), Fault> {
        let names: BTreeSet<&str> = runs.flat_map(|run| run.held_keys()).map(|key| key.name.as_str()).collect();
        let names: Vec<String> = names.into_iter().map(|name| format!("outlive key {} {name}", self.id())).collect();
        let sql = "SELECT pg_advisory_xact_lock(key) FROM (
                       SELECT DISTINCT hashtextextended(name, 1) AS key FROM unnest($1) AS name ORDER BY 1
                   ) AS keys";
        link.then(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
        Ok(())
    }

    /// Why a run cannot have one of its keys, if so. Its keys are locked.
    pub(super) async fn busy_key(&self, link: &mut Link<'_>, run: &Run) -> Result<Option<Written>, Fault> {
        let names: Vec<&str> = run.held_keys().iter().map(|key| key.name.as_str()).collect();
        let sql = self.sql("SELECT name, run FROM @.held_key WHERE name = ANY($1)");
        let rows = link.then(&sql, &[(&names, Type::TEXT_ARRAY)]).await?;
        let held: Vec<(String, RunId)> = rows.iter().map(|row| (row.get(0), RunId::from_uuid(row.get(1)))).collect();
        let ids: Vec<RunId> = held.iter().map(|(_, holder)| *holder).filter(|holder| *holder != run.id).collect();
        let mut holders: Vec<Record> = Vec::new();
        if !ids.is_empty() {
            let query =
                self.query(reads::select(&[Table::Live], &Filter::of(ids.clone()), Order::Oldest, None, ids.len()));
            for row in self.rows(link, &query).await? {
                holders.push(self.record(&row)?.0);
            }
        }
        Ok(run.held_keys().iter().find_map(|key| {
            let holds = |id: RunId| held.iter().any(|(name, holder)| *name == key.name && *holder == id);
            if holds(run.id) {
                return None;
            }
            let theirs: Vec<&Run> =
                holders.iter().map(|record| &record.run).filter(|holder| holds(holder.id)).collect();
            let busy =
                || Written::KeyBusy { key: key.name.clone(), holders: theirs.iter().map(|holder| holder.id).collect() };
            (!has_room(key, &theirs)).then(busy)
        }))
    }

    /// Notes which keys are held and which are not any more, of runs that have just been written.
    pub(super) async fn move_keys(&self, link: &mut Link<'_>, written: &[&Run]) -> Result<(), Fault> {
        let is_free = |run: &&&Run| run.held_keys().is_empty() && !run.spec.keys.is_empty();
        let freed: Vec<Uuid> = written.iter().filter(is_free).map(|run| run.id.as_uuid()).collect();
        if !freed.is_empty() {
            let sql = self.sql("DELETE FROM @.held_key WHERE run = ANY($1)");
            link.then(&sql, &[(&freed, Type::UUID_ARRAY)]).await?;
        }
        let (mut names, mut runs) = (Vec::new(), Vec::new());
        for run in written {
            for key in run.held_keys() {
                names.push(key.name.as_str());
                runs.push(run.id.as_uuid());
            }
        }
        if !names.is_empty() {
            let sql = self.sql("INSERT INTO @.held_key SELECT * FROM unnest($1, $2) ON CONFLICT DO NOTHING");
            link.then(&sql, &[(&names, Type::TEXT_ARRAY), (&runs, Type::UUID_ARRAY)]).await?;
        }
        Ok(())
    }
}
