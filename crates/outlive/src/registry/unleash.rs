//! Runs that outlived both their owner and the process that they are tied to: their trees are ended.
//!
//! An owner ends its run with its leash. Where the owner is killed as well, the leash is on record with the attempt, and
//! a later observer that proves both to be gone does what the owner would have done. The request to cancel comes first,
//! so that no retry follows.

use std::time::Duration;

use super::{CancelOptions, Registry};
use crate::error::Error;
use crate::lifecycle::health::unleashed;
use crate::model::filter::Filter;
use crate::model::owner::HostContext;
use crate::model::run::{Run, StateName};
use crate::ownership::reaper::Reaped;
use crate::store::{Page, Pages};

/// How long the processes of such a run may take to end by themselves.
const GRACE: Duration = Duration::from_millis(400);

impl Registry {
    /// Ends those of these runs, with all their processes, whose owner is proven gone and with it the process that they
    /// are tied to. Only runs of this user are ended. Answers with those of which nothing is left.
    pub async fn end_unleashed(&self, among: Filter) -> Result<Vec<Run>, Error> {
        if self.store().witness().is_none() {
            // An owner that is gone by its lease alone proves nothing of its processes.
            return Ok(Vec::new());
        }
        let running = Filter { states: Some([StateName::Running].into()), ..among };
        let (here, mut tied, mut ended) = (HostContext::here(), Vec::new(), Vec::new());
        let mut walk = Pages::from(running, Page::default());
        while let Some(records) = walk.next(self.store()).await? {
            let runs = records.into_iter().map(|record| record.run);
            tied.extend(runs.filter(|run| run.leash().is_some() && !run.copied && self.executable(run).is_ok()));
        }
        for run in tied {
            let seen = match self.get(run.id).await {
                Err(Error::NotFound(_)) => continue,
                seen => seen?,
            };
            let Some(reason) = seen.run.leash().and_then(|leash| unleashed(&seen, leash.pid, &leash.probe(&here)))
            else {
                continue;
            };
            tracing::info!(run = %run.id, reason, "run ended with its leash");
            let how = CancelOptions { reason: Some(reason), grace: Some(GRACE), force: false };
            match self.cancel_and_end(run.id, &how).await {
                Ok(done) if done.is_done() => ended.push(done.run),
                // Another observer was there first, or a process cannot be killed yet.
                Ok(_) | Err(Error::Refused { .. } | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }

    /// Ends those of the runs that a pass of a reaper found orphaned whose leash is gone, too. They are then among the
    /// ended ones.
    #[doc(hidden)]
    pub async fn end_unleashed_of(&self, reaped: &mut Reaped) -> Result<(), Error> {
        let tied: Vec<_> =
            reaped.orphaned.iter().filter(|(run, _)| run.leash().is_some()).map(|(run, _)| run.id).collect();
        if tied.is_empty() {
            return Ok(());
        }
        let ended = self.end_unleashed(Filter::of(tied)).await?;
        reaped.orphaned.retain(|(run, _)| ended.iter().all(|ended| ended.id != run.id));
        reaped.ended.extend(ended);
        Ok(())
    }
}
