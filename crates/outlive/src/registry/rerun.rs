//! Repeating runs: one, or many in one write.

use std::collections::BTreeMap;

use super::{Enqueued, Registry};
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::lifecycle::{enqueued, rerun};
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Arg, Command, Run, Variables};
use crate::store::{self, Expect, Write, WriteOutcome};

/// How runs are repeated, for [`Registry::rerun`](crate::Registry::rerun): a new run with the spec of an ended one.
#[derive(Debug, Clone, Default)]
pub struct RerunOptions {
    /// The reason, kept with the new run.
    pub reason: Option<String>,
    /// Of several calls with the same key, the first makes the new run, and the others are answered with it.
    pub key: Option<String>,
    /// Also a run that has not ended.
    pub forced: bool,
    /// The environment of the new run, where that of the old one was not kept.
    #[doc(hidden)]
    pub environment: Option<Variables>,
    /// Arguments instead of those of the command, whose program stays the same.
    #[doc(hidden)]
    pub arguments: Option<Vec<Arg>>,
    /// Variables that are listed with the new run, in addition to those of the old one.
    pub variables: BTreeMap<String, String>,
}

impl Registry {
    /// Makes a run with the spec of another, linked to it; that one is left as it is. It waits to be claimed.
    pub async fn rerun(&self, id: RunId, how: &RerunOptions) -> Result<Enqueued, Error> {
        let seen = self.glance(id).await?;
        let derived = how.derived(&seen.run);
        if let Some(again) = derived
            && let Some(made) = self.store.get(&[again]).await?.pop()
        {
            return Ok(Enqueued::there(made.run));
        }
        let draft = self.draft_rerun(&seen, how)?;
        let (made, id) = (enqueued(&draft, &self.me), draft.id);
        match self.create(draft, vec![made]).await {
            Ok(record) => Ok(Enqueued::made(record.run)),
            Err(error) => match self.store.get(&[id]).await?.pop().filter(|_| derived.is_some()) {
                Some(made) => Ok(Enqueued::there(made.run)),
                None => Err(error),
            },
        }
    }

    /// Repeats many runs in one write. Answers for each with the new run and whether this call made it, or with why it
    /// was not repeated: one that cannot be does not keep the others from it.
    pub async fn rerun_each(
        &self,
        seen: &[RunStatus],
        how: &RerunOptions,
    ) -> Result<Vec<Result<Enqueued, Error>>, Error> {
        let drafts: Vec<Result<Run, Error>> = seen.iter().map(|seen| self.draft_rerun(seen, how)).collect();
        let write = |run: &Run| {
            let events = vec![enqueued(run, &self.me)];
            let stamp = Stamp::draw(&*self.entropy);
            Write { expect: Expect::Absent, run: run.clone(), events, ended: None, stamp }
        };
        let writes: Vec<Write> = drafts.iter().flatten().map(write).collect();
        let written = self.store.commit(writes).await;
        if written.as_ref().is_err_and(|error| !matches!(error, store::Error::Unknown(_))) {
            for run in drafts.iter().flatten() {
                let _ = self.forget_sealed(run.id);
            }
        }
        let mut written = written?.into_iter();
        let became = |draft: Result<Run, Error>| {
            let draft = draft?;
            match written.next() {
                Some(WriteOutcome::Done(_)) => Ok(Enqueued::made(draft)),
                Some(WriteOutcome::Conflict(Some(there))) => Ok(Enqueued::there(there.run)),
                Some(WriteOutcome::KeyBusy { key, holders, free_at }) => {
                    let _ = self.forget_sealed(draft.id);
                    Err(Error::KeyBusy { key, holders, free_at })
                }
                Some(WriteOutcome::Conflict(None)) | None => Err(Error::Contended(draft.id)),
            }
        };
        Ok(drafts.into_iter().map(became).collect())
    }

    /// The run that repeats another, not written yet.
    fn draft_rerun(&self, seen: &RunStatus, how: &RerunOptions) -> Result<Run, Error> {
        let (run, id) = (&seen.run, seen.run.id);
        let reason = how.reason.as_ref().map(|reason| self.redactor.text(reason));
        let lineage =
            rerun(run, seen.state, how.forced, reason).map_err(|refusal| Error::Refused { run: id, refusal })?;
        self.executable(run)?;
        let mut spec = (*run.spec).clone();
        if let Some(command) = &mut spec.command {
            command.argv = self.original_argv(run).ok_or_else(|| {
                Error::Invalid(format!(
                    "the words of the command of run `{id}` were not kept, so it cannot be repeated"
                ))
            })?;
            command.sealed = self.kept_environment(run).or_else(|| how.environment.clone());
            how.change(command);
            spec.withheld = None;
        } else if how.is_changed() {
            return Err(Error::Invalid(format!("run `{id}` has no command whose arguments could be changed")));
        }
        spec.lineage = Some(lineage);
        spec.created_by = self.me.clone();
        // What it waited for has ended, or it would not have begun.
        (spec.after, spec.not_before, spec.schedule) = (Vec::new(), None, None);
        // The trace that the other was made in is over.
        spec.traceparent = None;
        let now = self.clock.now();
        self.draft_as(how.derived(run).unwrap_or_else(|| RunId::draw(now, &*self.entropy)), spec, now)
    }
}

impl RerunOptions {
    /// Whether another command comes of it than the old run had.
    fn is_changed(&self) -> bool {
        self.arguments.is_some() || !self.variables.is_empty()
    }

    fn change(&self, command: &mut Command) {
        if let Some(arguments) = &self.arguments {
            command.argv.truncate(1);
            command.argv.extend(arguments.iter().cloned());
        }
        command.env.extend(self.variables.clone());
    }

    /// The id of the run that repeats `run` under the key, if there is one.
    fn derived(&self, run: &Run) -> Option<RunId> {
        let key = self.key.as_ref()?;
        Some(RunId::derived(run.created_at, format!("rerun {} {key}", run.id).as_bytes()))
    }
}
