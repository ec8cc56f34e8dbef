//! A log that was cut or taken away, with what was committed to it, and pages that are damaged: what the files of the
//! runs know is read back, or read instead.
//!
//! SQLite takes what is left of a log for all there ever was. Its length shows that it is not: it is never
//! empty once something was written, and has no half frames unless its last writer died.

use super::schema::{self, Database, from_sqlite};
use super::workers::Moment;
use super::{OpenDirectory, fill, rows, run_files};
use crate::model::id::Entropy;
use crate::store::Error;

impl OpenDirectory {
    /// The runs that their files know more of than the database does.
    pub(super) fn behind(&self) -> Result<Vec<run_files::FiledRun>, Error> {
        let mut behind = Vec::new();
        run_files::visit(&self.place, |id, known| {
            // The doctor reports what cannot be understood.
            let Ok(known) = known else { return Ok(()) };
            let is_behind = match rows::find(self.connection(), id) {
                Ok(Some(row)) => row.revision < known.record.revision && row.run.epoch <= known.record.run.epoch,
                found => found.is_ok(),
            };
            behind.extend(is_behind.then_some(known));
            Ok(())
        })?;
        Ok(behind)
    }

    /// Brings the database up to what the files know.
    pub(super) fn read_back(&mut self) -> Result<(), Error> {
        if self.behind()?.is_empty() {
            return Ok(());
        }
        self.transaction(true, |inner| {
            // Looked for again: another process may have done so meanwhile.
            for mut known in inner.behind()? {
                let (connection, id) = (inner.connection(), known.record.run.id);
                let before = rows::find(connection, id)?.map(|record| record.run);
                let recorded = rows::events(connection, id)?;
                known.events.retain(|event| !recorded.contains(event));
                rows::put_known(connection, before.as_ref(), &known)?;
            }
            Ok(())
        })
    }

    /// Leaves the database on disk alone, because of `trouble`, and reads what the files of the runs say instead.
    pub(super) fn salvage(&mut self, trouble: Error, now: &Moment, entropy: &dyn Entropy) -> Result<(), Error> {
        let salvaged = schema::salvage(&self.place, |connection| fill(connection, &self.place, now, entropy))?;
        // Still its inode: one that takes its place is opened.
        self.database = Database { inode: self.database.inode, ..salvaged };
        self.trouble = Some(trouble);
        Ok(())
    }

    /// What is wrong with the pages of the database, if anything is.
    pub(super) fn damaged_pages(&self) -> Result<Option<String>, Error> {
        match self.connection().query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)) {
            Ok(outcome) if outcome == "ok" => Ok(None),
            Ok(outcome) => Ok(Some(outcome)),
            Err(error) => match from_sqlite(error) {
                Error::Corrupt(what) => Ok(Some(what)),
                Error::Unknown(what) if schema::is_log_cut(&self.place) => Ok(Some(what)),
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lifecycle::{Action, apply};
    use crate::model::filter::Filter;
    use crate::model::id::SystemEntropy;
    use crate::model::run::{Run, StateName};
    use crate::model::time::{Clock, SystemClock};
    use crate::store::sqlite::{Sharing, SqliteStore};
    use crate::store::{Change, Expect, Order, Selection, Store, Write};
    use crate::testing::{pending, person, spec, stamp};

    /// Two who have the registry open, the second of whom takes its database for damaged.
    fn two(dir: &std::path::Path) -> [SqliteStore; 2] {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let open = || SqliteStore::create(&dir.join("r"), Sharing::Private, clock.clone(), entropy.clone()).unwrap();
        let stores = [open(), open()];
        let trouble = Error::Corrupt("taken for damaged".into());
        stores[1].lock().unwrap().salvage(trouble, &stores[1].now(), &SystemEntropy).unwrap();
        stores
    }

    fn add(store: &SqliteStore) -> Run {
        let run = pending(spec("job"), SystemClock.now(), &SystemEntropy);
        let (added, stamp) = (run.clone(), stamp(&SystemEntropy));
        let write = Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp };
        pollster::block_on(store.commit(vec![write])).unwrap();
        added
    }

    #[test]
    fn a_salvaged_read_is_repeated_when_the_database_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let [sound, troubled] = two(dir.path());
        let added = add(&sound);
        assert_eq!(pollster::block_on(troubled.get(&[added.id])).unwrap().len(), 1);
        assert!(troubled.trouble().is_none());
    }

    #[test]
    fn a_claim_after_trouble_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let [sound, _] = two(dir.path());
        add(&sound);
        let trouble = Error::Corrupt("taken for damaged".into());
        sound.lock().unwrap().salvage(trouble, &sound.now(), &SystemEntropy).unwrap();
        let filter = Filter::in_states([StateName::Pending]);
        let selection = Selection { filter, order: Order::Claim, limit: 1, due: true };
        let cancel = |run: &Run, now| {
            let asked = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
            let transition = apply(run, &asked, &person("ada"), now).ok()?;
            Some(Change { transition, stamp: stamp(&SystemEntropy) })
        };
        assert_eq!(pollster::block_on(sound.update(&selection, &cancel)).unwrap().len(), 1);
    }
}
