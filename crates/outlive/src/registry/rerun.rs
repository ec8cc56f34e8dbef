//! Repeating runs, and putting many away at once.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::{Action, apply, enqueued, rerun};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::owner::LiveProcesses;
use crate::model::run::{Run, StateName, Variables};
use crate::model::time::Timestamp;
use crate::store::{Change, Order, Selection};

/// The most runs that are put away in one write.
const MOST: usize = 100_000;

impl Registry {
    /// Makes a run with the spec of another, linked to it; that one is left as it is. It waits to be claimed. With a key,
    /// the second caller is answered with the run of the first; the answer says whether this call made it. Where the
    /// environment of the other was not kept, it has `environment`.
    pub async fn rerun(
        &self,
        id: RunId,
        reason: Option<String>,
        key: Option<&str>,
        forced: bool,
        environment: Option<Variables>,
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
            command.sealed = self.kept_environment(run).or(environment);
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
    pub async fn archive_all(
        &self,
        filter: Filter,
        before: Timestamp,
        reason: Option<String>,
    ) -> Result<Vec<RunId>, Error> {
        let filter = Filter { archived: Some(false), ..filter };
        let action = Action::Archive { reason: self.redacted(reason) };
        let is_old = |run: &Run| run.ending().is_some_and(|ending| ending.at < before);
        Ok(ids(&self.change_each(filter, |run| is_old(run).then(|| action.clone())).await?))
    }

    /// Hides these runs, or shows them again, in one write. Answers with those that were changed.
    pub async fn archive_each(
        &self,
        runs: &[RunId],
        archived: bool,
        reason: Option<String>,
    ) -> Result<Vec<RunId>, Error> {
        let action = if archived { Action::Archive { reason: self.redacted(reason) } } else { Action::Unarchive };
        Ok(ids(&self.change_these(runs, |_| Some(action.clone())).await?))
    }

    /// Cancels those of these runs that wait for their first attempt, in one write, and answers with them: they have no
    /// processes that could live on.
    pub async fn cancel_unbegun(&self, runs: &[RunId], reason: Option<String>) -> Result<Vec<Run>, Error> {
        let action =
            Action::RequestCancel { reason: self.redacted(reason), grace: None, live: LiveProcesses::default() };
        let is_unbegun = |run: &Run| run.state.name() == StateName::Pending && run.attempt <= 1;
        self.change_these(runs, |run| is_unbegun(run).then(|| action.clone())).await
    }

    fn redacted(&self, reason: Option<String>) -> Option<String> {
        reason.map(|reason| self.redactor.text(&reason))
    }

    async fn change_these(
        &self,
        runs: &[RunId],
        action: impl Fn(&Run) -> Option<Action> + Send + Sync,
    ) -> Result<Vec<Run>, Error> {
        // No run at all is not every run.
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        self.change_each(Filter::of(runs.iter().copied()), action).await
    }

    /// Applies an action to every run that matches and allows it, in one write. Answers with those that were changed.
    async fn change_each(
        &self,
        filter: Filter,
        action: impl Fn(&Run) -> Option<Action> + Send + Sync,
    ) -> Result<Vec<Run>, Error> {
        let rule = |run: &Run, now| {
            let transition = apply(run, &action(run)?, &self.me, now).ok()?;
            Some(Change { transition, stamp: Stamp::draw(&*self.entropy) })
        };
        let selection = Selection { filter, order: Order::Oldest, limit: MOST, due: false };
        Ok(self.store.update(&selection, &rule).await?.into_iter().map(|record| record.run).collect())
    }
}

fn ids(runs: &[Run]) -> Vec<RunId> {
    runs.iter().map(|run| run.id).collect()
}
