//! Keys of runs: who holds them, and what has started with them.

use super::{Inner, rows};
use crate::run::Run;
use crate::store::{Error, Write, Written};
use crate::time::Timestamp;
use crate::transition::{Start, has_room, starts_at};

impl Inner {
    /// The key that a change wants and others hold, if there is one.
    pub(super) fn busy_key(&self, before: Option<&Run>, after: &Run) -> Result<Option<Written>, Error> {
        for key in after.held_keys().filter(|key| !before.is_some_and(|before| before.holds(key))) {
            let mut holders = Vec::new();
            for id in rows::key_holders(self.connection(), &key.slot(), after.id)? {
                // One whose end only a file knows holds nothing any more.
                let record = rows::find(self.connection(), id)?.map(|record| self.adopt(record)).transpose()?;
                holders.extend(record.map(|record| record.run).filter(|run| run.holds(key)));
            }
            if !has_room(key, &holders.iter().collect::<Vec<_>>()) {
                return Ok(Some(Written::held(key, holders.iter().map(|run| run.id).collect())));
            }
        }
        Ok(None)
    }

    /// Counts a start with the rates of its run, or answers with the one that allows no more.
    pub(super) fn count_start(&self, write: &Write, now: Timestamp) -> Result<Option<Written>, Error> {
        let counted = write.counted();
        for (key, _) in &counted {
            if let Some(free_at) = starts_at(key, &rows::starts(self.connection(), key, now)?, now) {
                return Ok(Some(Written::not_before(key, free_at)));
            }
        }
        for (key, per) in counted {
            rows::note_start(self.connection(), key, &write.run, Start { at: now, until: now.after(per) })?;
        }
        Ok(None)
    }
}
