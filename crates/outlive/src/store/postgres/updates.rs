//! Updates: a rule applied to the runs of a selection, each locked while it is, those passed over that others hold.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::keys::{Grants, wants_keys};
use super::pool::{CallError, PooledClient, with_retry};
use super::reads::{self, Table};
use super::writes::next;
use super::{claim_range, due};
use crate::model::time::Timestamp;
use crate::store::{Cursor, Error, Order, Record, Rule, Selection, Write};

/// How many runs are locked at a time, at most.
const STEP: usize = 500;

impl PostgresStore {
    pub(super) async fn update_all(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        if selection.limit == 0 {
            return Ok(Vec::new());
        }
        if self.found_nothing().load(Ordering::Relaxed) && !self.may_find(selection).await? {
            return Ok(Vec::new());
        }
        let changed = with_retry!(self.links(), |link| self.update_once(&mut link, selection, rule));
        let is_idle = selection.due && changed.as_ref().is_ok_and(Vec::is_empty);
        self.found_nothing().store(is_idle, Ordering::Relaxed);
        self.note_own();
        self.note_moved(changed.as_ref().map_or(0, Vec::len));
        changed
    }

    /// Whether there is anything to claim. A worker that found nothing asks this much first, in one statement, and begins no
    /// transaction for nothing.
    async fn may_find(&self, selection: &Selection) -> Result<bool, Error> {
        if !selection.due || Table::searched(&selection.filter) != [Table::Waiting] {
            return Ok(true);
        }
        let query = self.query(due::anything(&selection.filter));
        let rows = with_retry!(self.links(), |link| link.read(&query.sql, &query.bound()))?;
        Ok(rows.first().is_none_or(|row| row.get(0)))
    }

    /// Locks runs step by step, then writes all that change at once: workers are locked last, and in one order.
    async fn update_once(
        &self,
        link: &mut PooledClient<'_>,
        selection: &Selection,
        rule: Rule<'_>,
    ) -> Result<Vec<Record>, CallError> {
        let tables = Table::searched(&selection.filter);
        let (mut begun, mut has_written) = (false, false);
        let (mut granted, mut after) = (Vec::new(), None);
        // Behind many that wait for a key there may be some that do not: the longer it takes, the more are looked at.
        let (mut grants, mut least) = (Grants::default(), 1);
        loop {
            let step = (selection.limit - granted.len()).max(least).min(STEP);
            least = STEP.min(least * 2);
            let (batch, now, next) = self
                .lock_some(
                    link,
                    &tables,
                    selection,
                    (after, step),
                    grants.passed_over(),
                    (&mut begun, &mut has_written),
                )
                .await?;
            let mut batch = batch.into_iter().filter(|record| selection.takes(&record.run, now));
            while granted.len() < selection.limit {
                let change = |record: Record| {
                    let write = changed_by(rule, &record, now)?;
                    (!grants.is_hopeless(&write)).then_some((record, write))
                };
                let some: Vec<(Record, Write)> =
                    batch.by_ref().filter_map(change).take(selection.limit - granted.len()).collect();
                if some.is_empty() {
                    break;
                }
                granted.extend(self.granted(link, &mut grants, some, rule).await?);
            }
            after = next;
            if after.is_none() || granted.len() >= selection.limit {
                break;
            }
        }
        if granted.is_empty() {
            if has_written {
                link.commit().await?
            } else {
                link.roll_back().await?
            }
            return Ok(Vec::new());
        }
        let done = self.write_granted(link, &granted).await?;
        let done_writes = granted.into_iter().enumerate().filter(|(index, _)| done.contains(index));
        Ok(done_writes
            .map(|(_, write)| Record { revision: next(write.expect), run: write.run, stamp: write.stamp })
            .collect())
    }

    /// Those of the changes that get the keys they want. A run that gets keys starts when they were free, not when it was
    /// found.
    async fn granted(
        &self,
        link: &mut PooledClient<'_>,
        grants: &mut Grants,
        some: Vec<(Record, Write)>,
        rule: Rule<'_>,
    ) -> Result<Vec<Write>, CallError> {
        let keyed: Vec<&Write> = some.iter().map(|(_, write)| write).filter(|write| wants_keys(write)).collect();
        if keyed.is_empty() {
            return Ok(some.into_iter().map(|(_, write)| write).collect());
        }
        let mut has_keys = self.grant(link, grants, &keyed).await?.into_iter();
        let write = |(record, write): (Record, Write)| {
            if !wants_keys(&write) {
                return Some(write);
            }
            has_keys.next().unwrap_or(false).then(|| changed_by(rule, &record, grants.now())).flatten()
        };
        Ok(some.into_iter().filter_map(write).collect())
    }

    /// Notes when owners were first missed of whom no beat is on record: from then on they have a full lease. A beat
    /// replaces the note.
    async fn note_missing(
        &self,
        link: &mut PooledClient<'_>,
        workers: BTreeSet<Uuid>,
        has_written: &mut bool,
    ) -> Result<(), CallError> {
        if workers.is_empty() {
            return Ok(());
        }
        let workers: Vec<Uuid> = workers.into_iter().collect();
        let sql = self.sql(
            "INSERT INTO @.worker (id, beat, beat_at, attention, room)
             SELECT w.id, 0, @.clock(), 0, @.room(NULL) FROM unnest($1) AS w (id) ON CONFLICT (id) DO NOTHING",
        );
        link.then(&sql, &[(&workers, Type::UUID_ARRAY)]).await?;
        *has_written = true;
        Ok(())
    }

    /// The next runs of the selection that are not locked, in order, the store's time, and where to go on, if anywhere.
    async fn lock_some(
        &self,
        link: &mut PooledClient<'_>,
        tables: &[Table],
        selection: &Selection,
        (after, step): (Option<Cursor>, usize),
        passed_over: Vec<String>,
        (begun, has_written): (&mut bool, &mut bool),
    ) -> Result<(Vec<Record>, Timestamp, Option<Cursor>), CallError> {
        let order = selection.order;
        let mut queries = Vec::new();
        // Those whose time has come since they were written.
        let makes_ready = !*begun && selection.due && tables.contains(&Table::Waiting);
        if makes_ready {
            queries.push(self.query(due::make_ready(selection)));
        }
        for (table, part) in claim_range::locked_parts(tables, selection) {
            let passed_over = if table == Table::Waiting { passed_over.clone() } else { Vec::new() };
            queries.push(self.query(claim_range::lock(table, selection, after, step, (part, passed_over))));
        }
        let mut found = if *begun { link.then_all(&queries).await? } else { link.begin_with_all(&queries).await? };
        *begun = true;
        if makes_ready {
            // They stay ready though none of them is claimed: none has to be made so again.
            *has_written |= found.remove(0).first().is_some_and(|row| row.get::<_, i64>(0) > 0);
        }
        let all = || found.iter().flatten();
        self.note_missing(link, all().filter_map(reads::missing_worker).collect(), has_written).await?;
        self.meet(link, all().filter_map(reads::owned_by)).await?;
        let (mut batch, mut now, mut horizon) = (Vec::new(), Timestamp::default(), None);
        for rows in &found {
            let mut last = None;
            for row in rows {
                last = Some(reads::place(row));
                // One that cannot be understood does not hide the others.
                let Ok((record, at)) = self.record(row) else { continue };
                now = at;
                batch.push(record);
            }
            // Behind the end of a full step there may be more of this table: what others have there comes later.
            if rows.len() == step {
                horizon = nearest(order, horizon, last);
            }
        }
        batch.sort_by_key(|record| Cursor::at(&record.run).sort_key(order));
        if let Some(horizon) = horizon {
            let end = horizon.sort_key(order);
            batch.retain(|record| Cursor::at(&record.run).sort_key(order) <= end);
        }
        Ok((batch, now, horizon))
    }
}

fn changed_by(rule: Rule<'_>, record: &Record, now: Timestamp) -> Option<Write> {
    rule(&record.run, now).map(|change| Write::change(record, change.transition, change.stamp))
}

fn nearest(order: Order, one: Option<Cursor>, other: Option<Cursor>) -> Option<Cursor> {
    [one, other].into_iter().flatten().min_by_key(|cursor| cursor.sort_key(order))
}
