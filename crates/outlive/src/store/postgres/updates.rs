//! Updates: a rule applied to the runs of a selection, each locked while it is, those passed over that others hold.

use std::collections::HashSet;

use super::PostgresStore;
use super::keys::BusyKeys;
use super::link::{Fault, Link, on_link};
use super::reads::{self, Table};
use super::writes::next;
use crate::store::{Cursor, Error, Order, Record, Rule, Selection, Write};
use crate::time::Timestamp;

/// How many runs are locked at a time, at most.
const STEP: usize = 500;

impl PostgresStore {
    pub(super) async fn update_all(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        if selection.limit == 0 {
            return Ok(Vec::new());
        }
        let changed = on_link!(self.links(), |link| self.update_once(&mut link, selection, rule));
        self.note_own();
        self.note_moved(changed.as_ref().map_or(0, Vec::len));
        changed
    }

    async fn update_once(
        &self,
        link: &mut Link<'_>,
        selection: &Selection,
        rule: Rule<'_>,
    ) -> Result<Vec<Record>, Fault> {
        let tables = Table::searched(&selection.filter);
        let mut begun = false;
        let (mut changed, mut after) = (Vec::new(), None);
        // Behind many that wait for a key there may be some that do not: the longer it takes, the more are looked at.
        let (mut busy, mut least) = (BusyKeys::default(), 1);
        loop {
            let step = (selection.limit - changed.len()).max(least).min(STEP);
            least = STEP.min(least * 2);
            let (batch, now, next) = self.lock_some(link, &tables, selection, after, step, &mut begun).await?;
            let mut batch = batch.into_iter();
            while batch.len() > 0 && changed.len() < selection.limit {
                let mut wanted: Vec<Write> = Vec::new();
                while changed.len() + wanted.len() < selection.limit
                    && let Some(record) = batch.next()
                {
                    if !selection.takes(&record.run, now) {
                        continue;
                    }
                    if let Some(change) = rule(&record.run, now) {
                        let write = Write::change(&record, change.transition, change.stamp);
                        wanted.extend(busy.found(&write).is_none().then_some(write));
                    }
                }
                let is_over = batch.len() == 0 && next.is_none();
                let is_last = is_over || changed.len() + wanted.len() >= selection.limit;
                let is_plain = wanted.iter().all(|write| write.run.spec.keys.is_empty());
                let ends = is_last && is_plain && !wanted.is_empty();
                changed.extend(self.write_changes(link, wanted, ends, &mut busy).await?);
                if ends {
                    return Ok(changed);
                }
            }
            after = next;
            if after.is_none() || changed.len() >= selection.limit {
                break;
            }
        }
        if changed.is_empty() {
            link.roll_back().await?;
        } else {
            link.commit().await?;
        }
        Ok(changed)
    }

    /// Writes what the rule has changed, and ends the transaction with it if it is to end.
    async fn write_changes(
        &self,
        link: &mut Link<'_>,
        writes: Vec<Write>,
        ends: bool,
        busy: &mut BusyKeys,
    ) -> Result<Vec<Record>, Fault> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let done: HashSet<usize> =
            if ends { self.write_last(link, &writes).await? } else { self.write_within(link, &writes, busy).await? };
        let told = writes.into_iter().enumerate().filter(|(index, _)| done.contains(index));
        Ok(told.map(|(_, write)| Record { revision: next(write.expect), run: write.run, stamp: write.stamp }).collect())
    }

    /// The next runs of the selection that nobody else holds, in order, the store's time, and where to go on, if anywhere.
    async fn lock_some(
        &self,
        link: &mut Link<'_>,
        tables: &[Table],
        selection: &Selection,
        after: Option<Cursor>,
        step: usize,
        begun: &mut bool,
    ) -> Result<(Vec<Record>, Timestamp, Option<Cursor>), Fault> {
        let (order, due) = (selection.order, selection.due);
        // Those whose time has come since they were written.
        let ready = self.sql("UPDATE @.waiting SET ready = true WHERE NOT ready AND due_at <= @.clock()");
        let before = Some(ready.as_str()).filter(|_| due && tables.contains(&Table::Waiting));
        let (mut batch, mut now, mut horizon) = (Vec::new(), Timestamp::default(), None);
        for table in tables {
            let query = self.query(reads::lock(*table, &selection.filter, due, order, after, step));
            let rows = if *begun {
                link.then(&query.sql, &query.bound()).await?
            } else {
                link.begin_with(before, &query.sql, &query.bound()).await?
            };
            *begun = true;
            self.meet(link, rows.iter().filter_map(reads::owned_by)).await?;
            let mut last = None;
            for row in &rows {
                last = Some(reads::place(row));
                // One that cannot be understood keeps nobody from the others.
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

fn nearest(order: Order, one: Option<Cursor>, other: Option<Cursor>) -> Option<Cursor> {
    [one, other].into_iter().flatten().min_by_key(|cursor| cursor.sort_key(order))
}
