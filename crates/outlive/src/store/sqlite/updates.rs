//! Updates: a rule applied to the runs of a selection.
//!
//! A claim is an update of runs that are due. It asks an index, and takes the write lock only for a run that it may get.

use std::collections::BTreeSet;

use super::workers::Moment;
use super::{Inner, claims, rows, settle};
use crate::model::run::StateName;
use crate::store::{Cursor, Error, Order, Record, Rule, Selection, Write, WriteOutcome};

/// How many runs an update reads at a time, at most. It begins with as many as it wants, which mostly are enough.
const SCAN_STEP: usize = 256;

/// What became of a run that a rule was applied to.
enum Updated {
    Changed(Box<Record>),
    Unchanged,
    /// A key that it needs is busy.
    Busy,
}

impl Inner {
    /// Whether an update may change anything, found out without the write lock.
    pub(super) fn may_update(&self, selection: &Selection, rule: Rule<'_>, now: &Moment) -> Result<bool, Error> {
        // What is shown instead of a database in trouble does not say; and a writer may be rid of the trouble.
        if self.trouble.is_some() {
            return Ok(true);
        }
        if !is_claim(selection) {
            let mut any = false;
            self.scan(&selection.filter, selection.order, None, |_| {
                any = true;
                Ok(false)
            })?;
            return Ok(any);
        }
        if claims::has_due(self.connection(), now.at)? {
            return Ok(true);
        }
        let mut may = false;
        self.visit_batches(selection, |record| {
            let record = self.read(record, now)?;
            if !selection.takes(&record.run, now.at) {
                return Ok(Visited::Next);
            }
            let Some(change) = rule(&record.run, now.at) else { return Ok(Visited::Next) };
            let write = Write::change(&record, change.transition, change.stamp);
            may = self.has_keys_for(&record.run, &write, now)?;
            Ok(if may { Visited::Enough } else { Visited::Busy })
        })?;
        Ok(may)
    }

    pub(super) fn update(&mut self, selection: &Selection, rule: Rule<'_>, now: &Moment) -> Result<Vec<Record>, Error> {
        let mut named = 0;
        let done = self.transaction(true, |inner| {
            if is_claim(selection) {
                claims::mark_due(inner.connection(), now.at)?;
            }
            let mut changed = Vec::new();
            if selection.limit == 0 {
                return Ok(changed);
            }
            inner.visit_batches(selection, |record| {
                let updated = inner.update_one(record, selection, rule, now, &mut named)?;
                Ok(match updated {
                    Updated::Busy => Visited::Busy,
                    Updated::Unchanged => Visited::Next,
                    Updated::Changed(record) => {
                        changed.push(*record);
                        if changed.len() < selection.limit { Visited::Next } else { Visited::Enough }
                    }
                })
            })?;
            Ok(changed)
        });
        settle(done, named)
    }

    /// Visits the runs of a selection batch by batch, so that what is visited may be written. Of a claim, runs that need
    /// the same keys as one whose keys are busy are skipped.
    fn visit_batches(
        &self,
        selection: &Selection,
        mut visit: impl FnMut(Record) -> Result<Visited, Error>,
    ) -> Result<(), Error> {
        let is_claim = is_claim(selection);
        let mut busy = BTreeSet::new();
        let (mut after, mut step) = (None, selection.limit.clamp(1, SCAN_STEP));
        loop {
            let mut batch = Vec::new();
            let collect = |record| {
                batch.push(record);
                Ok(batch.len() < step)
            };
            if is_claim {
                let damaged = |damaged: rows::Damaged| self.damage.note(&damaged.id, &damaged.why);
                rows::scan_ready(self.connection(), &selection.filter, after, &busy, damaged, collect)?;
            } else {
                self.scan(&selection.filter, selection.order, after, collect)?;
            }
            after = batch.last().map(|record| Cursor::at(&record.run));
            let is_last = batch.len() < step;
            step = (step * 4).min(SCAN_STEP);
            for record in batch {
                let keyset = if is_claim { claims::keyset(&record.run) } else { String::new() };
                if !keyset.is_empty() && busy.contains(&keyset) {
                    continue;
                }
                match visit(record)? {
                    Visited::Next => {}
                    Visited::Enough => return Ok(()),
                    Visited::Busy if keyset.is_empty() => {}
                    Visited::Busy => {
                        busy.insert(keyset);
                    }
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn update_one(
        &self,
        record: Record,
        selection: &Selection,
        rule: Rule<'_>,
        now: &Moment,
        named: &mut usize,
    ) -> Result<Updated, Error> {
        let record = self.read(self.adopt(record)?, now)?;
        if !selection.takes(&record.run, now.at) {
            return Ok(Updated::Unchanged);
        }
        let Some(change) = rule(&record.run, now.at) else { return Ok(Updated::Unchanged) };
        let write = Write::change(&record, change.transition, change.stamp);
        Ok(match self.apply(&write, now, named)? {
            WriteOutcome::Done(_) => {
                self.find(write.run.id, now)?.map_or(Updated::Unchanged, |record| Updated::Changed(Box::new(record)))
            }
            WriteOutcome::Conflict(_) => Updated::Unchanged,
            WriteOutcome::KeyBusy { .. } => Updated::Busy,
        })
    }
}

/// What a visit of a run came to.
enum Visited {
    Next,
    Enough,
    /// A key that the run needs is busy.
    Busy,
}

/// Whether an update takes pending runs that are due, in claim order: the index of ready runs has them.
fn is_claim(selection: &Selection) -> bool {
    let Selection { filter, order, due, .. } = selection;
    let is_narrow = filter.ids.is_some() || filter.name.is_some() || filter.owner.is_some();
    let is_pending = filter.states.as_ref().is_some_and(|states| states.iter().eq([&StateName::Pending]));
    *due && *order == Order::Claim && is_pending && !is_narrow
}
