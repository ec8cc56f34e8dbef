//! Lineage: what becomes of runs when their registry is copied, and when a copy takes the place of its original.

use std::path::Path;

use super::directory::{self, RegistryDirectory};
use super::{OpenDirectory, RegistryFinding, SqliteStore, rows, run_files, schema};
use crate::host::{file_id, worker_lock};
use crate::model::filter::Filter;
use crate::model::id::{Entropy, RunId, Stamp};
use crate::store::{Error, Order, Record, Revision};

impl SqliteStore {
    /// Makes a copy a registry of its own, as its first write would.
    pub(crate) fn fork_identity(&self) -> Result<(), Error> {
        self.writer().map(drop)
    }

    /// Gives the registry at `path` its name again, if the file that says it is lost or damaged: the name that its runs
    /// were recorded under. Locks that are the very ones that owners on record took prove that it is the original; a
    /// registry with runs in flight and none of their locks is taken for a copy, whose runs have no owner here.
    pub fn name_again(path: &Path, entropy: &dyn Entropy) -> Result<Option<RegistryFinding>, Error> {
        let Some((place, why)) = RegistryDirectory::nameless(path)? else { return Ok(None) };
        let (mut in_flight, mut has_locks, mut newest) = (false, false, None::<RunId>);
        run_files::visit(&place, |id, known| {
            newest = newest.max(Some(id));
            if let Ok(known) = known
                && let Some(owner) = known.record.run.owner()
            {
                let lock = file_id(&place.dir, &worker_lock(owner.worker)).map(|file| file.inode());
                in_flight = true;
                has_locks |= lock.is_some() && lock == owner.identity.lock_inode;
            }
            Ok(())
        })?;
        let drawn = Stamp::draw(entropy).to_string();
        let uuid = newest.and_then(|id| run_files::made_in(&place.dir, id)).unwrap_or_else(|| drawn.clone());
        place
            .name_again(&uuid, in_flight && !has_locks, &format!("registry.id.damaged-{drawn}"))
            .map_err(|error| directory::from_io("the registry cannot be given its name again", &error))?;
        let remedy = Some("it is written again, with the name that the runs were recorded under".into());
        Ok(Some(RegistryFinding { what: why, remedy, mended: true }))
    }
}

impl OpenDirectory {
    /// Marks the runs that came with the copy, then makes it a registry of its own.
    pub(super) fn fork_identity(&mut self, entropy: &dyn Entropy) -> Result<(), Error> {
        let failed = |error| directory::from_io("the copied registry cannot be made its own", &error);
        let _alone = schema::opening_lock(&self.place)?;
        // Another process may have done so since this one looked.
        self.place = RegistryDirectory::open(&self.place.path().map_err(failed)?)?;
        if !self.place.copied {
            return Ok(());
        }
        self.mark_copied(true, |record| !record.run.state.name().is_ended())?;
        self.place.become_original(entropy).map_err(failed)
    }

    /// Puts this registry in the place of the one that this process had open, whose directory is gone: `gone` names it,
    /// and what it stood for. A copy that bears its name is all that is left of it, and so is no copy any more; where
    /// it was taken for one, its runs are given back.
    pub(super) fn inherit(&mut self, gone: &[String], entropy: &dyn Entropy) -> Result<(), Error> {
        let failed =
            |error| directory::from_io("the registry cannot be put in the place of the one that is gone", &error);
        let stands = |place: &RegistryDirectory| !place.copied && gone.iter().all(|uuid| place.stands_for(uuid));
        if self.database.read_only || stands(&self.place) {
            return Ok(());
        }
        if self.place.copied && !gone.contains(&self.place.uuid) {
            // A copy of some other registry.
            self.fork_identity(entropy)?;
        }
        let _alone = schema::opening_lock(&self.place)?;
        self.place = RegistryDirectory::open(&self.place.path().map_err(failed)?)?;
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
