//! Lineage: what becomes of runs when their registry is copied, and when a copy takes the place of its original.

use super::place::{self, Place};
use super::{Inner, rows, run_files, schema};
use crate::filter::Filter;
use crate::id::Entropy;
use crate::store::{Error, Order, Record, Revision};

impl Inner {
    /// Marks the runs that came with the copy, then makes it a registry of its own.
    pub(super) fn part_from_original(&mut self, entropy: &dyn Entropy) -> Result<(), Error> {
        let failed = |error| place::from_io("the copied registry cannot be made its own", &error);
        let _alone = schema::opening_lock(&self.place)?;
        // Somebody else may have done so since this process looked.
        self.place = Place::open(&self.place.path().map_err(failed)?)?;
        if !self.place.copied {
            return Ok(());
        }
        self.mark_copied(true, |record| !record.run.state.name().is_ended())?;
        self.place.become_original(entropy).map_err(failed)
    }

    /// Puts this registry in the place of the one that this process had open, whose directory is gone: `gone` names it,
    /// and what it stood for. A copy that bears its name is all that is left of it, and so is no copy any more; where
    /// somebody took it for one, its runs are given back.
    pub(super) fn inherit(&mut self, gone: &[String], entropy: &dyn Entropy) -> Result<(), Error> {
        let failed = |error| place::from_io("the registry cannot be put in the place of the one that is gone", &error);
        let stands = |place: &Place| !place.copied && gone.iter().all(|uuid| place.stands_for(uuid));
        if self.database.read_only || stands(&self.place) {
            return Ok(());
        }
        if self.place.copied && !gone.contains(&self.place.uuid) {
            // A copy of some other registry.
            self.part_from_original(entropy)?;
        }
        let _alone = schema::opening_lock(&self.place)?;
        self.place = Place::open(&self.place.path().map_err(failed)?)?;
        if stands(&self.place) {
            return Ok(());
        }
        if !self.place.copied {
            let dir = self.place.dir.try_clone().map_err(failed)?;
            self.mark_copied(false, |record| {
                record.run.copied && run_files::made_in(&dir, record.run.id).is_some_and(|uuid| gone.contains(&uuid))
            })?;
        }
        self.place.inherit(gone).map_err(failed)
    }

    fn mark_copied(&mut self, copied: bool, which: impl Fn(&Record) -> bool) -> Result<(), Error> {
        self.transaction(true, |inner| {
            let mut marked = Vec::new();
            inner.scan(&Filter::default(), Order::Oldest, None, |record| {
                marked.extend(which(&record).then_some(record));
                Ok(true)
            })?;
            for mut record in marked {
                record.run.copied = copied;
                record.revision = Revision(record.revision.0 + 1);
                rows::put(inner.connection(), &record, &[])?;
            }
            Ok(())
        })
    }
}
