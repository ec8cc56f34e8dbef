//! What this process knows of running runs: the stamps of the versions that it last wrote or was shown.
//!
//! An older state of a database may come back, from a backup or a replica that took over. What is written from then on
//! counts on from there, so that a revision may come twice with different content: an owner that goes by what it remembers
//! would write over what somebody else has made since. A stamp never comes twice.

use std::collections::HashMap;

use uuid::Uuid;

use crate::id::{RunId, Stamp};
use crate::run::Run;
use crate::store::{Expect, Revision, Write};

/// As many as are remembered. Whoever runs more than that at once is told apart by revisions alone.
const LIMIT: usize = 100_000;

#[derive(Default)]
pub(super) struct Known(HashMap<RunId, (Revision, Stamp)>);

impl Known {
    /// Takes down how a run stands on record.
    pub(super) fn note(&mut self, revision: Revision, run: &Run, stamp: Stamp) {
        if run.owner().is_none() {
            self.0.remove(&run.id);
            return;
        }
        if self.0.len() >= LIMIT {
            self.0.clear();
        }
        self.0.insert(run.id, (revision, stamp));
    }

    /// The stamp that what this write replaces must bear, if that is known.
    pub(super) fn stamp_of(&self, write: &Write) -> Option<Uuid> {
        let Expect::Revision(expected) = write.expect else { return None };
        let (revision, stamp) = self.0.get(&write.run.id)?;
        (*revision == expected).then(|| stamp.as_uuid())
    }
}
