//! Changes of many runs at once: each batch is one conditional write, and the lifecycle decides about every run of it.

use std::time::Duration;

use super::{Registry, ResumeOptions};
use crate::error::Error;
use crate::lifecycle::{Action, QueueEdit, apply};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::owner::LiveProcesses;
use crate::model::run::{Run, StateName};
use crate::model::time::Timestamp;
use crate::store::{Change, Order, Selection};

/// The most runs that are put away in one write.
const MOST: usize = 100_000;

impl Registry {
    /// Hides an ended run from lists.
    pub async fn archive(&self, id: RunId) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Archive { reason: None }).await?.0.run)
    }

    /// Shows an archived run in lists again.
    pub async fn unarchive(&self, id: RunId) -> Result<Run, Error> {
        Ok(self.change(id, |_| Action::Unarchive).await?.0.run)
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

    /// Hides these runs from lists, in one write. Answers with those that were changed.
    pub async fn archive_each(&self, runs: &[RunId], reason: Option<String>) -> Result<Vec<RunId>, Error> {
        let action = Action::Archive { reason: self.redacted(reason) };
        Ok(ids(&self.change_these(runs, |_| Some(action.clone())).await?))
    }

    /// Shows these runs in lists again, in one write. Answers with those that were changed.
    pub async fn unarchive_each(&self, runs: &[RunId]) -> Result<Vec<RunId>, Error> {
        Ok(ids(&self.change_these(runs, |_| Some(Action::Unarchive)).await?))
    }

    /// Cancels those of these runs that wait for their first attempt, in one write, and answers with them: they have no
    /// processes that could live on.
    pub async fn cancel_unbegun(&self, runs: &[RunId], reason: Option<String>) -> Result<Vec<Run>, Error> {
        let action =
            Action::RequestCancel { reason: self.redacted(reason), grace: None, live: LiveProcesses::default() };
        let is_unbegun = |run: &Run| run.state.name() == StateName::Pending && run.attempt <= 1;
        self.change_these(runs, |run| is_unbegun(run).then(|| action.clone())).await
    }

    /// Requests, in one write, that those of these runs be cancelled that have an owner and were not asked before. Answers
    /// with them: their owners stop them.
    pub async fn request_cancel_each(
        &self,
        runs: &[RunId],
        reason: Option<String>,
        grace: Option<Duration>,
    ) -> Result<Vec<Run>, Error> {
        let action = Action::RequestCancel { reason: self.redacted(reason), grace, live: LiveProcesses::default() };
        let is_asked = |run: &Run| run.owner().is_some() && run.cancel.is_none();
        self.change_these(runs, |run| is_asked(run).then(|| action.clone())).await
    }

    /// Has those of these runs wait for their next attempt that may have one and came from a queue, in one write. Answers
    /// with them.
    pub async fn requeue_each(&self, runs: &[RunId], how: ResumeOptions) -> Result<Vec<Run>, Error> {
        let action = Action::Resume { failed_too: how.failed_too, leftovers: LiveProcesses::default(), owner: None };
        self.change_these(runs, |run| run.spec.queued.then(|| action.clone())).await
    }

    /// Holds those of these runs back that may be paused, in one write. Answers with them.
    pub async fn pause_each(&self, runs: &[RunId], reason: Option<String>) -> Result<Vec<Run>, Error> {
        let action = Action::Pause { reason: self.redacted(reason) };
        self.change_these(runs, |_| Some(action.clone())).await
    }

    /// Lets those of these runs that are paused wait for their turn again, in one write. Answers with them.
    pub async fn unpause_each(&self, runs: &[RunId]) -> Result<Vec<Run>, Error> {
        self.change_these(runs, |_| Some(Action::Unpause)).await
    }

    /// Changes when those of these runs are claimed that may be edited, in one write. Answers with them.
    #[doc(hidden)]
    pub async fn edit_each(&self, runs: &[RunId], edit: QueueEdit) -> Result<Vec<Run>, Error> {
        self.change_these(runs, |_| Some(Action::Edit(edit))).await
    }

    pub(super) fn redacted(&self, reason: Option<String>) -> Option<String> {
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
