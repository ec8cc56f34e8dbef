//! The calls of the store trait, on a registry in a database.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::event_log;
use super::pool::{CallError, PooledClient, with_retry};
use super::reads::{self, Query, Table};
use super::{Feature, PostgresStore};
use crate::lifecycle::Start;
use crate::lifecycle::health::ProcessObserver;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, QueueHead, StateName};
use crate::model::time::Timestamp;
use crate::store::{
    Beat, BeatReply, Count, Cursor, Error, Listing, Order, Page, Record, Rule, RunCounts, Selection, Store,
    WorkerRecord, Write, WriteOutcome,
};

impl PostgresStore {
    /// The rows that a query finds, with their owners met.
    pub(super) async fn rows(&self, link: &mut PooledClient<'_>, query: &Query) -> Result<Vec<Row>, CallError> {
        let rows = link.read(&query.sql, &query.bound()).await?;
        self.meet(link, rows.iter().filter_map(reads::owned_by)).await?;
        Ok(rows)
    }

    pub(super) fn record(&self, row: &Row) -> Result<(Record, Timestamp), Error> {
        reads::record(row, self.owners())
    }

    /// The records of these runs.
    pub(super) async fn find(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        let filter = Filter::of(ids.iter().copied());
        let query = self.query(reads::select(&Table::ALL, &filter, Order::Oldest, None, ids.len()));
        let rows = with_retry!(self.links(), |link| self.rows(&mut link, &query))?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            match self.record(row) {
                // Among others it is left out, so that it does not hide them; asked for alone it is reported.
                Err(Error::Corrupt(_)) if ids.len() > 1 => {}
                record => found.push(record?.0),
            }
        }
        Ok(found)
    }

    /// What the statements that changed runs have counted.
    async fn all_counts(&self) -> Result<Vec<Count>, Error> {
        let sql = self.sql(match self.has(Feature::TransitionTables) {
            true => {
                "SELECT state, kind, evidence, sum(runs)::int8, sum(claims)::int8 FROM @.tally GROUP BY 1, 2, 3
                 HAVING sum(runs) > 0"
            }
            false => {
                "SELECT state, kind, NULL::text, count(*), sum(claims)::int8 FROM @.waiting GROUP BY 1, 2
                 UNION ALL SELECT state, kind, evidence, count(*), sum(claims)::int8 FROM @.ended GROUP BY 1, 2, 3"
            }
        });
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[]))?;
        let mut tally = RunCounts::default();
        for row in rows {
            let state = row.get::<_, &str>(0).parse::<StateName>();
            let state = state.map_err(|error| Error::Corrupt(format!("a count cannot be understood: {error}")))?;
            let (kind, evidence) = (row.get(1), row.get(2));
            let (runs, claims) = (row.get::<_, i64>(3).unsigned_abs(), row.get::<_, i64>(4).unsigned_abs());
            tally.extend(vec![Count { state, kind, evidence, runs, claims }]);
        }
        Ok(tally.counts())
    }

    async fn lines(&self, link: &mut PooledClient<'_>, id: RunId) -> Result<Vec<String>, CallError> {
        let tail = |table: Table| format!("SELECT 9223372036854775807, events FROM @.{} WHERE id = $1", table.name());
        let all: Vec<String> = Table::ALL.map(tail).into();
        let sql = self.sql(&format!(
            "SELECT part, body FROM @.event_log WHERE run = $1 UNION ALL {} ORDER BY 1",
            all.join(" UNION ALL ")
        ));
        let rows = link.read(&sql, &[(&id.as_uuid(), Type::UUID)]).await?;
        let parts: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        self.meet(link, parts.iter().flat_map(|part| event_log::owners(part))).await?;
        Ok(parts.iter().flat_map(|part| part.lines()).map(str::to_owned).collect())
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = self.find(ids).await?;
        if found.len() < ids.len() {
            let here: HashSet<RunId> = found.iter().map(|record| record.run.id).collect();
            let missing: Vec<RunId> = ids.iter().copied().filter(|id| !here.contains(id)).collect();
            found.extend(self.exported_runs(&missing).await?.into_iter().map(|exported| exported.record));
        }
        Ok(found)
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let limit = page.limit();
        let tables = Table::searched(filter);
        let (mut records, mut after) = (Vec::new(), page.after);
        while !tables.is_empty() {
            let query = self.query(reads::select(&tables, filter, page.order, after, limit + 1));
            let rows = with_retry!(self.links(), |link| self.rows(&mut link, &query))?;
            let last = rows.len() <= limit;
            for row in &rows {
                after = Some(reads::place(row));
                // One that cannot be understood hides no other.
                let Ok((record, _)) = self.record(row) else { continue };
                if filter.matches(&record.run) {
                    records.push(record);
                }
            }
            if last || records.len() > limit {
                break;
            }
        }
        let mut exported = self.exported_matching(filter).await?;
        exported.retain(|record| records.iter().all(|here| here.run.id != record.run.id));
        if !exported.is_empty() {
            records.extend(exported);
            records.sort_by_key(|record| Cursor::at(&record.run).sort_key(page.order));
            return Ok(Listing::of(records, page));
        }
        let next = page.cut(&mut records, |record| Cursor::at(&record.run));
        Ok(Listing { records, next })
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.commit_all(&writes).await
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        self.update_all(selection, rule).await
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.beat_once(beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.all_counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.all_workers().await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.until_next_due(filter).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.all_heads(filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.all_starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        let lines = with_retry!(self.links(), |link| self.lines(&mut link, id))?;
        if lines.is_empty() {
            return self.exported_events(id).await;
        }
        // One that cannot be understood hides no other.
        Ok(lines.iter().filter_map(|line| event_log::event(line, self.owners())).collect())
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        None
    }
}
