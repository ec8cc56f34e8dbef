//! An attempt of a run and the steps that there are of it: what is replayed, and what is done.

use crate::error::Error;
use crate::lifecycle::Refusal;
use crate::lifecycle::health::{OwnerStatus, judge};
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId};
use crate::model::run::{Actor, End, Run, Spec, Step};
use crate::model::step::{Fingerprint, KIND, StepOutcome};
use crate::store::{self, Page, Pages, Store};

/// An attempt of a run, with the steps of this attempt and of those before.
#[derive(Debug)]
pub struct Attempt {
    run: Run,
    past: Vec<PastStep>,
}

/// A step that there is.
#[derive(Debug, Clone)]
pub struct PastStep {
    /// The step's run.
    pub run: Run,
    /// No process works on it any more, whether or not that is on record.
    pub over: bool,
}

/// What is to be done about a step.
#[derive(Debug, PartialEq)]
pub enum Next<'a> {
    /// Nothing: this one did it, and nothing has changed since.
    Replay(&'a Run),
    /// It is to be done.
    Live {
        /// It was done before, with another fingerprint: whatever comes after it is done anew.
        changed: bool,
    },
}

impl PastStep {
    fn step(&self) -> Option<&Step> {
        self.run.spec.step.as_ref()
    }

    fn has_succeeded(&self) -> bool {
        self.run.ending().is_some_and(|ending| ending.how == End::Succeeded)
    }
}

impl Attempt {
    /// The attempt that presents `epoch`, if the run is still its own.
    pub(crate) async fn read(store: &dyn Store, id: RunId, epoch: Epoch) -> Result<Self, Error> {
        let found = store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        let run = found.run;
        if !run.is_current(epoch) {
            let refusal = Refusal::Lost { state: run.state.name(), epoch: run.epoch, claimed: epoch };
            return Err(Error::Refused { run: id, refusal });
        }
        let past = past(store, &run).await?;
        Ok(Self { run, past })
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// What is to be done about the step `name`.
    ///
    /// Only what was last done counts: an earlier result with the same fingerprint is not what its effects are by now. It
    /// is void if something that comes before it has changed since, be it in an attempt that never came to it.
    pub fn next(&self, name: &str, fingerprint: &str) -> Result<Next<'_>, Error> {
        let attempt = self.run.attempt;
        let of_name = |past: &&PastStep| past.step().is_some_and(|step| step.name == name);
        let number = |past: &PastStep| past.step().map_or(0, |step| step.attempt);
        if self.past.iter().filter(of_name).any(|past| number(past) == attempt) {
            return Err(used(&self.run, name));
        }
        let success =
            self.past.iter().filter(of_name).filter(|past| past.has_succeeded()).max_by_key(|past| number(past));
        let Some((success, step)) = success.and_then(|success| Some((success, success.step()?))) else {
            return Ok(Next::Live { changed: false });
        };
        let changed = step.fingerprint != fingerprint;
        let begun_since = self.past.iter().filter(of_name).any(|past| number(past) > step.attempt);
        let is_over = |past: &PastStep| past.over || number(past) < attempt;
        let void = self
            .past
            .iter()
            .any(|past| past.step().is_some_and(|it| it.changed && it.attempt > step.attempt) && is_over(past));
        let original = self.original(&success.run);
        match original.filter(|_| !changed && !begun_since && !void) {
            Some(original) => Ok(Next::Replay(original)),
            None => Ok(Next::Live { changed }),
        }
    }

    /// A digest of what the step `name` of this attempt has brought about, for a step that depends on it.
    pub fn result_of(&self, name: &str) -> Result<String, Error> {
        let is_it =
            |past: &&PastStep| past.step().is_some_and(|step| step.name == name && step.attempt == self.run.attempt);
        let invalid = |why: &str| {
            Error::Invalid(format!("the step `{name}` {why} in attempt {} of run `{}`", self.run.attempt, self.run.id))
        };
        let found = self.past.iter().find(is_it).ok_or_else(|| invalid("has not been come to"))?;
        if !found.has_succeeded() {
            return Err(invalid("has not succeeded"));
        }
        let mut digest = Fingerprint::of(self.run.id);
        let original = self.original(&found.run).unwrap_or(&found.run);
        let fingerprint = found.step().map(|step| step.fingerprint.as_str()).unwrap_or_default();
        digest.part("fingerprint", fingerprint.as_bytes());
        match StepOutcome::of(original) {
            Some(StepOutcome::Output { stdout, .. }) => digest.part("stdout", stdout.sha256.as_bytes()),
            Some(StepOutcome::Answer(answer)) => digest.part("answer", answer.to_string().as_bytes()),
            // The result is unknown: as good as another each time.
            None => digest.part("unknown", original.id.as_bytes()),
        }
        Ok(digest.finish())
    }

    /// The step that was done where `step` repeats it.
    fn original<'a>(&'a self, step: &'a Run) -> Option<&'a Run> {
        let replays = step.spec.step.as_ref().and_then(|step| step.replays);
        replays.map_or(Some(step), |id| self.past.iter().map(|past| &past.run).find(|run| run.id == id))
    }

    /// The spec of a step of this attempt. What is no step of this attempt, be it because a process was handed it by an
    /// earlier one, is not accepted as `parent`. Where a step stands says nothing of what its result depends on: it is no part of
    /// the fingerprint.
    pub fn spec(
        &self,
        name: &str,
        fingerprint: String,
        next: &Next<'_>,
        parent: Option<RunId>,
        created_by: Actor,
    ) -> Spec {
        let (changed, replays) = match next {
            Next::Replay(original) => (false, Some(original.id)),
            Next::Live { changed } => (*changed, None),
        };
        let (of, attempt) = (self.run.id, self.run.attempt);
        let is_here = |past: &PastStep| past.step().is_some_and(|step| step.attempt == attempt);
        let parent = parent.filter(|parent| self.past.iter().any(|past| past.run.id == *parent && is_here(past)));
        let step = Step { of, attempt, name: name.into(), fingerprint, changed, replays, parent };
        let mut spec = Spec::new(KIND, created_by);
        spec.policy.lease = self.run.spec.policy.lease;
        spec.step = Some(step);
        spec
    }
}

/// The refusal of a name that another step of the attempt has.
pub(super) fn used(run: &Run, name: &str) -> Error {
    let (attempt, id) = (run.attempt, run.id);
    Error::Invalid(format!(
        "the step `{name}` was already used in attempt {attempt} of run `{id}`: a step has a name of its own"
    ))
}

/// The steps of a run that there are.
async fn past(store: &dyn Store, run: &Run) -> Result<Vec<PastStep>, store::Error> {
    let mut walk = Pages::from(Filter::steps_of(run), Page::default());
    let mut steps: Vec<Run> = Vec::new();
    while let Some(records) = walk.next(store).await? {
        steps.extend(records.into_iter().map(|record| record.run));
    }
    let is_held =
        |step: &&Run| step.owner().is_some() && step.spec.step.as_ref().is_some_and(|step| step.attempt == run.attempt);
    let held: Vec<&Run> = steps.iter().filter(is_held).collect();
    let mut observations =
        if held.is_empty() { None } else { store.witness().map(|witness| witness.look(&held).into_iter()) };
    let gone: Vec<RunId> = held
        .iter()
        .filter(|step| {
            let observation = observations.as_mut().and_then(Iterator::next);
            let judgement = step.owner().map(|owner| judge(owner, observation.as_ref()));
            matches!(judgement, Some(OwnerStatus::Dead(_) | OwnerStatus::Orphaned { .. }))
        })
        .map(|step| step.id)
        .collect();
    let past = |run: Run| PastStep { over: run.ending().is_some() || gone.contains(&run.id), run };
    Ok(steps.into_iter().map(past).collect())
}
