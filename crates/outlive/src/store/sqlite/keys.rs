//! Keys of runs: who holds them, and what has started with them.

use super::workers::Moment;
use super::{OpenDirectory, rows};
use crate::lifecycle::{Start, has_room, starts_at};
use crate::model::run::Run;
use crate::model::time::Timestamp;
use crate::store::{Error, Record, Write, WriteOutcome};

impl OpenDirectory {
    /// The key that a change wants and others hold, if there is one.
    pub(super) fn busy_key(&self, before: Option<&Run>, after: &Run) -> Result<Option<WriteOutcome>, Error> {
        self.busy_key_by(before, after, |record| self.adopt(record))
    }

    /// Whether a write would get the keys that it takes, found out without writing.
    pub(super) fn has_keys_for(&self, before: &Run, write: &Write, now: &Moment) -> Result<bool, Error> {
        let busy = self.busy_key_by(Some(before), &write.run, |record| self.read(record, now))?;
        Ok(busy.is_none() && self.used_up(write, now.at)?.is_none())
    }

    fn busy_key_by(
        &self,
        before: Option<&Run>,
        after: &Run,
        with_filed_end: impl Fn(Record) -> Result<Record, Error>,
    ) -> Result<Option<WriteOutcome>, Error> {
        for key in after.held_keys().filter(|key| !before.is_some_and(|before| before.holds(key))) {
            let mut holders = Vec::new();
            for id in rows::key_holders(self.connection(), &key.slot(), after.id)? {
                // One whose end only a file knows holds nothing any more.
                let record = rows::find(self.connection(), id)?.map(&with_filed_end).transpose()?;
                holders.extend(record.map(|record| record.run).filter(|run| run.holds(key)));
            }
            if !has_room(key, &holders.iter().collect::<Vec<_>>()) {
                return Ok(Some(WriteOutcome::held(key, holders.iter().map(|run| run.id).collect())));
            }
        }
        Ok(None)
    }

    /// Counts a start with the rates of its run, or answers with the one that allows no more.
    pub(super) fn count_start(&self, write: &Write, now: Timestamp) -> Result<Option<WriteOutcome>, Error> {
        let used_up = self.used_up(write, now)?;
        for (key, per) in write.counted().into_iter().filter(|_| used_up.is_none()) {
            rows::note_start(self.connection(), key, &write.run, Start { at: now, until: now.after(per) })?;
        }
        Ok(used_up)
    }

    /// The rate that allows no further start, if there is one.
    fn used_up(&self, write: &Write, now: Timestamp) -> Result<Option<WriteOutcome>, Error> {
        for (key, _) in &write.counted() {
            if let Some(free_at) = starts_at(key, &rows::starts(self.connection(), key, now)?, now) {
                return Ok(Some(WriteOutcome::not_before(key, free_at)));
            }
        }
        Ok(None)
    }
}
