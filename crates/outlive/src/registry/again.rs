//! Repeating runs, and putting many away at once.

use super::Registry;
use crate::error::Error;
use crate::filter::Filter;
use crate::id::{RunId, Stamp};
use crate::run::Run;
use crate::store::{Change, Order, Selection};
use crate::time::Timestamp;
use crate::transition::{Action, apply, enqueued, rerun};

/// The most runs that are put away in one write.
const MOST: usize = 100_000;

impl Registry {
    /// Makes a run with the spec of another, linked to it; that one is left as it is. It waits to be claimed. With a key,
    /// whoever comes second is answered with the run of the first; the answer says whether this call made it.
    pub async fn rerun(
        &self,
        id: RunId,
        reason: Option<String>,
        key: Option<&str>,
        forced: bool,
    ) -> Result<(Run, bool), Error> {
        let seen = self.glance(id).await?;
        let run = &seen.run;
        let reason = reason.map(|reason| self.redactor.text(&reason));
        let derived = key.map(|key| RunId::derived(run.created_at, format!("rerun {id} {key}").as_bytes()));
        if let Some(again) = derived
            && let Some(made) = self.store.get(&[again]).await?.pop()
        {
            return Ok((made.run, false));
        }
        let lineage = rerun(run, seen.state, forced, reason).map_err(|refusal| Error::Refused { run: id, refusal })?;
        self.executable(run)?;
        let mut spec = (*run.spec).clone();
        if let Some(command) = &mut spec.command {
            command.argv = self.original_argv(run).ok_or_else(|| {
                Error::Invalid(format!(
                    "the words of the command of run `{id}` were not kept, so it cannot be repeated"
                ))
            })?;
            spec.withheld = None;
        }
        spec.lineage = Some(lineage);
        spec.created_by = self.me.clone();
        // What it waited for has ended, or it would not have begun.
        (spec.after, spec.not_before, spec.schedule) = (Vec::new(), None, None);
        let now = self.clock.now();
        let draft = self.draft_as(derived.unwrap_or_else(|| RunId::draw(now, &*self.entropy)), spec, now)?;
        let (made, id) = (enqueued(&draft, &self.me), draft.id);
        match self.create(draft, vec![made]).await {
            Ok(record) => Ok((record.run, true)),
            Err(error) => match self.store.get(&[id]).await?.pop().filter(|_| derived.is_some()) {
                Some(made) => Ok((made.run, false)),
                None => Err(error),
            },
        }
    }

    /// Hides every run that matches and ended before a moment, in one write. Answers with which.
    pub async fn archive_all(&self, filter: Filter, before: Timestamp) -> Result<Vec<RunId>, Error> {
        let filter = Filter { archived: Some(false), ..filter };
        let rule = |run: &Run, now| {
            run.ending().filter(|ending| ending.at < before)?;
            let transition = apply(run, &Action::Archive, &self.me, now).ok()?;
            Some(Change { transition, stamp: Stamp::draw(&*self.entropy) })
        };
        let selection = Selection { filter, order: Order::Oldest, limit: MOST, due: false };
        Ok(self.store.update(&selection, &rule).await?.iter().map(|record| record.run.id).collect())
    }
}
