//! Marks: a run is marked before anything of it is deleted, and looked at again before every batch where it bears no mark.

use super::pass::{Pass, Subject};
use super::{Decision, Line, Reason, SweepProblem, over_since};
use crate::error::Error;
use crate::lifecycle::Action;
use crate::model::owner::{HostContext, Liveness};
use crate::model::run::Run;
use crate::store::{self, Record};

impl Pass<'_> {
    /// Whether a run is marked as being swept. What has changed since it was looked at speaks for it: a mark is put in place
    /// of the very record that was read.
    pub(super) async fn is_marked(&mut self, name: &str) -> Result<bool, store::Error> {
        let Some(subject) = self.subjects.get(name) else { return Ok(false) };
        let Some(Decision::Delete { reason, .. }) = &subject.decision else { return Ok(false) };
        let outcome = self.mark_or_look_again(subject, reason).await?;
        let there = match (&outcome, subject.run.foreign && !subject.is_marked) {
            // What another sweeper has deleted since it was listed is that sweeper's to report.
            (Ok(_), true) => Some(self.place.all_below(&self.tree_of(subject)).await?),
            _ => None,
        };
        let Some(subject) = self.subjects.get_mut(name) else { return Ok(false) };
        match outcome {
            Ok(marked) => {
                subject.is_marked = true;
                subject.record = marked.or(subject.record.take());
                subject.there = there.or(subject.there.take());
            }
            Err(why) => {
                subject.is_marked = false;
                subject.decision = Some(Decision::Keep(why));
            }
        }
        Ok(subject.is_marked)
    }

    async fn mark_or_look_again(
        &self,
        subject: &Subject,
        reason: &str,
    ) -> Result<Result<Option<Record>, Reason>, store::Error> {
        let theirs = Some(&subject.run).filter(|run| run.foreign).into_iter().chain(&subject.writers);
        if subject.run.foreign
            && !subject.is_marked
            && let Some(bucket) = self.registry.bucket()
            && let Some(other) = bucket.mark_sweep(subject.run.id, self.registry.me()).await?
        {
            return Ok(Err(Reason::Usual(format!("{other} sweeps it"))));
        }
        for run in theirs {
            if let Err(why) = self.look_again(run).await? {
                if let (true, Some(bucket)) = (subject.run.foreign, self.registry.bucket()) {
                    bucket.clear_sweep(subject.run.id).await?;
                }
                return Ok(Err(Reason::Usual(why)));
            }
        }
        if subject.run.foreign || subject.is_marked {
            return Ok(Ok(None));
        }
        Ok(self.mark(subject, reason).await.map(Some))
    }

    /// The record of another program bears no mark: it is read again before every batch.
    async fn look_again(&self, seen: &Run) -> Result<Result<(), String>, store::Error> {
        let Some(record) = self.registry.store().get(&[seen.id]).await?.pop() else {
            return Ok(Err("its record is gone".into()));
        };
        Ok(is_as_seen(&record.run, seen).and_then(|()| over_since(&record.run, self.now).map(drop)))
    }

    /// Marks a run as being swept, if it is as it was when it was looked at. Answers with the record that bears the mark.
    async fn mark(&self, subject: &Subject, reason: &str) -> Result<Record, Reason> {
        let seen = &subject.run;
        let before = seen.swept.as_ref().and_then(|swept| swept.process.as_ref());
        let gone = before.is_some_and(|process| matches!(process.probe(&HostContext::here()), Liveness::Dead(_)));
        let sweep = |_: &Run| Action::Sweep {
            seen: seen.swept.as_deref().cloned(),
            done: false,
            reason: reason.to_owned(),
            process: Some(self.machine.process.clone()),
            gone,
        };
        match self.registry.change_from(subject.record.clone(), seen.id, sweep).await {
            Ok((record, _)) => is_as_seen(&record.run, seen).map(|()| record).map_err(Reason::Usual),
            Err(error @ Error::Refused { .. }) => Err(Reason::Usual(error.to_string())),
            Err(error) => Err(Reason::Problem(error.to_string())),
        }
    }

    /// Says of each run that was swept what became of it.
    pub(super) async fn mark_done(&mut self) {
        for subject in self.subjects.values_mut().filter(|subject| subject.is_marked) {
            let Line { objects, bytes, left, .. } = &subject.line;
            let rest = if *left == 0 { String::new() } else { format!(", {left} are left") };
            let reason = format!("{objects} objects of {bytes} bytes deleted{rest}");
            let done = match (subject.run.foreign, self.registry.bucket()) {
                (true, Some(bucket)) => bucket.clear_sweep(subject.run.id).await.map_err(Error::Store),
                (true, None) => Ok(()),
                (false, _) => {
                    let marked = subject.record.take();
                    let seen = marked.as_ref().and_then(|record| record.run.swept.as_deref().cloned());
                    let action = |_: &Run| Action::Sweep {
                        seen: seen.clone(),
                        done: true,
                        reason: reason.clone(),
                        process: None,
                        gone: false,
                    };
                    self.registry.change_from(marked, subject.run.id, action).await.map(drop)
                }
            };
            let Err(error) = done else { continue };
            let what = subject.line.prefix.clone();
            self.problems.push(SweepProblem { what, why: format!("{reason}, which could not be recorded: {error}") });
            // A store that does not answer is not asked for the others either.
            if matches!(&error, Error::Store(error) if error.is_transient()) {
                return;
            }
        }
    }
}

/// Whether a run is as it was when it was decided on: a manifest that came meanwhile names what was not looked for, and
/// a later attempt has made what was not there.
fn is_as_seen(run: &Run, seen: &Run) -> Result<(), String> {
    if run.manifest_ref != seen.manifest_ref {
        Err("its manifest has changed".into())
    } else if run.epoch != seen.epoch {
        Err("it was resumed meanwhile".into())
    } else {
        Ok(())
    }
}
