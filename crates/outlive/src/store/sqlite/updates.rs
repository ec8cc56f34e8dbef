//! Updates: a rule applied to the runs of a selection.
//!
//! A claim is an update of runs that are due. It asks an index, and takes the write lock only for a run that it may get.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::workers::Moment;
use super::{OpenDirectory, SqliteStore, claims, rows};
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Run, StateName};
use crate::store::{Cursor, Error, Order, Record, Rule, Selection, Write, WriteOutcome};
use crate::util::sync::lock;

/// How many runs an update reads at a time, at most. It begins with as many as it wants, which mostly are enough.
const SCAN_STEP: usize = 256;

/// What became of a run that a rule was applied to.
enum Updated {
    Changed(Box<Record>),
    Unchanged,
    /// A key that it needs is busy.
    Busy,
}

/// The changes that the tries of one update have made: what an earlier try did to a database that was deleted may come
/// back with the files of the runs.
#[derive(Default)]
pub(super) struct Tried(Mutex<Vec<(RunId, Stamp)>>);

impl Tried {
    /// Applies a rule to the runs of a selection, inside a transaction.
    pub(super) fn update(
        &self,
        inner: &OpenDirectory,
        selection: &Selection,
        rule: Rule<'_>,
        now: &Moment,
    ) -> Result<Vec<Record>, Error> {
        let mut changed = Vec::new();
        for (id, stamp) in std::mem::take(&mut *lock(&self.0)) {
            changed.extend(inner.find(id, now)?.filter(|record| record.stamp == stamp));
        }
        lock(&self.0).extend(changed.iter().map(|record| (record.run.id, record.stamp)));
        let rest = Selection { limit: selection.limit.saturating_sub(changed.len()), ..selection.clone() };
        let noting = |run: &Run, now| {
            let change = rule(run, now)?;
            lock(&self.0).push((run.id, change.stamp));
            Some(change)
        };
        changed.extend(inner.update(&rest, &noting, now)?);
        Ok(changed)
    }
}

impl SqliteStore {
    /// Writes the end of a run and applies a rule to others in one transaction: one sync for both. Where the end is not
    /// written, no other run changes.
    pub(crate) fn commit_and_update(
        &self,
        write: &Write,
        selection: &Selection,
        rule: Rule<'_>,
    ) -> Result<(WriteOutcome, Vec<Record>), Error> {
        let tried = Tried::default();
        self.write(|inner, again| {
            let now = self.now();
            inner.transaction(true, |inner| {
                let written = recognised(inner.apply(write, &now)?, write, again);
                let changed = match &written {
                    WriteOutcome::Done(_) => tried.update(inner, selection, rule, &now)?,
                    _ => Vec::new(),
                };
                Ok((written, changed))
            })
        })
    }
}

/// What became of a write. With `again` the files of an earlier try may have been read into the database that took the place
/// of a deleted one.
pub(super) fn recognised(written: WriteOutcome, write: &Write, again: bool) -> WriteOutcome {
    match written {
        WriteOutcome::Conflict(Some(found)) if again && found.stamp == write.stamp => {
            WriteOutcome::Done(found.revision)
        }
        written => written,
    }
}

impl OpenDirectory {
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

    fn update(&self, selection: &Selection, rule: Rule<'_>, now: &Moment) -> Result<Vec<Record>, Error> {
        if is_claim(selection) {
            claims::mark_due(self.connection(), now.at)?;
        }
        let mut changed = Vec::new();
        if selection.limit == 0 {
            return Ok(changed);
        }
        self.visit_batches(selection, |record| {
            let updated = self.update_one(record, selection, rule, now)?;
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
    ) -> Result<Updated, Error> {
        let record = self.read(self.adopt(record)?, now)?;
        if !selection.takes(&record.run, now.at) {
            return Ok(Updated::Unchanged);
        }
        let Some(change) = rule(&record.run, now.at) else { return Ok(Updated::Unchanged) };
        let write = Write::change(&record, change.transition, change.stamp);
        Ok(match self.apply(&write, now)? {
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
