//! What holders have said and the heartbeat thread writes for them: progress, and what attempts have used.

use std::sync::Arc;
use std::time::Duration;

use super::WorkerState;
use crate::lifecycle::{Action, Report, apply, note_usage};
use crate::model::id::Stamp;
use crate::model::run::{Event, Run};
use crate::ownership::held::Held;
use crate::store::{self, Expect, Record, Store, Write, WriteOutcome};
use crate::util::sync::lock;

/// How often a write is tried where others change the run meanwhile.
const TRIES: usize = 3;

impl WorkerState {
    /// Has the thread write progress when that is due.
    pub(crate) fn ask_for_progress(&self) {
        self.wake.call();
    }

    /// How long it is until progress is to be written; none where none waits.
    pub(super) fn progress_due_in(&self) -> Option<Duration> {
        let (held, now) = (self.keep().held.clone(), self.clock.awake());
        held.values().filter_map(|held| held.progress_due_in(now)).min()
    }

    /// Writes the progress that waits of every run. What cannot be written waits for the next beat.
    pub(super) async fn write_progress(&self, store: &dyn Store) -> Result<(), store::Error> {
        let held = self.keep().held.clone();
        for held in held.values() {
            let Some(progress) = held.unwritten_progress() else { continue };
            let report = Report { progress: Some(progress.clone()), ..Report::default() };
            let action = Action::Report { fence: self.fence(held.epoch), report };
            let noted = |run: &Run| held.noted(run, &self.fence(held.epoch)).into_owned();
            let change = |run: &Run| {
                let reported = apply(&noted(run), &action, &self.me, self.clock.now()).ok()?;
                Some((reported.run, vec![reported.event]))
            };
            self.write_for(store, held, change).await?;
            held.note_written(&progress, self.clock.awake());
        }
        Ok(())
    }

    /// Writes what attempts have used, of those of which there is something to say. It is said seldom, with a beat, and is
    /// no event.
    pub(super) async fn write_usage(&self, store: &dyn Store) -> Result<(), store::Error> {
        let held = self.keep().held.clone();
        for held in held.values() {
            let Some(usage) = held.due_usage(self.clock.since_boot()) else { continue };
            let fence = self.fence(held.epoch);
            self.write_for(store, held, |run| Some((note_usage(run, &fence, &usage).ok()?, Vec::new()))).await?;
            held.note_usage_written(&usage, self.clock.since_boot());
        }
        Ok(())
    }

    /// Writes what `change` makes of a run, unless the rules refuse it: then the reply of the heartbeat says that the run
    /// is no longer its own.
    async fn write_for(
        &self,
        store: &dyn Store,
        held: &Arc<Held>,
        change: impl Fn(&Run) -> Option<(Run, Vec<Event>)>,
    ) -> Result<(), store::Error> {
        let mut record = Some(held.record());
        for _ in 0..TRIES {
            let Some(current) = record.take() else { break };
            let Some((run, events)) = change(&current.run) else { break };
            let (expect, stamp) = (Expect::Revision(current.revision), Stamp::draw(&*self.entropy));
            let write = Write { expect, run: run.clone(), events, ended: None, stamp };
            match store.commit(vec![write]).await?.pop() {
                Some(WriteOutcome::Done(revision)) => *lock(&held.record) = Record { run, revision, stamp },
                Some(WriteOutcome::Conflict(found)) => record = found.map(|found| *found),
                _ => {}
            }
        }
        Ok(())
    }
}
