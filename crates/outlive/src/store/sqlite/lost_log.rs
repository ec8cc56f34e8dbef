//! A log that somebody cut or took away, with what was committed to it: what the files of the runs know is read back.
//!
//! SQLite takes what is left of a log for all there ever was. That it is not can be told by its length: it is never
//! empty once something was written, and has no half frames unless its last writer died.

use super::{Inner, rows, run_files};
use crate::store::Error;

impl Inner {
    /// The runs that their files know more of than the database does.
    pub(super) fn behind(&self) -> Result<Vec<run_files::Known>, Error> {
        let mut behind = Vec::new();
        run_files::visit(&self.place, |id, known| {
            // What cannot be understood is told by the doctor.
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
            // Looked for again: somebody else may have done so meanwhile.
            for mut known in inner.behind()? {
                let (connection, id) = (inner.connection(), known.record.run.id);
                let before = rows::find(connection, id)?.map(|record| record.run);
                let told = rows::events(connection, id)?;
                known.events.retain(|event| !told.contains(event));
                rows::put_known(connection, before.as_ref(), &known)?;
            }
            Ok(())
        })
    }
}
