//! Durable steps of a program: what one has returned is returned again by later attempts, and its work not done again.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::handle::{Persisted, RunHandle};
use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::{Outcome, Refusal, Report};
use crate::model::id::{RunId, Stamp};
use crate::model::run::{DOCUMENT_LIMIT, Run, Spec};
use crate::model::step::{Fingerprint, StepOutcome};
use crate::ownership::steps::{Attempt, Next, StepWriter, step_id, step_time};
use crate::secrets::masking;

/// Why a step has no result.
#[derive(Debug, thiserror::Error)]
pub enum StepError<E> {
    /// Its work failed. That is on record; a later attempt tries it again.
    #[error("{0}")]
    Work(E),
    /// The registry would not have it.
    #[error(transparent)]
    Registry(#[from] Error),
}

thread_local! {
    /// The step whose work this thread does.
    static WITHIN: Cell<Option<RunId>> = const { Cell::new(None) };
}

/// This thread does the work of a step, until this is dropped.
struct Within(Option<RunId>);

impl Within {
    fn step(id: RunId) -> Self {
        Self(WITHIN.replace(Some(id)))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.set(self.0);
    }
}

impl RunHandle {
    /// Does a part of the work once, however often the run is resumed.
    ///
    /// Where an earlier attempt has done the step `name` with the same `inputs`, and nothing that comes before it has
    /// changed since, what it returned is returned and `work` is not called. Otherwise `work` is called, and what it
    /// returns is kept as JSON, up to 1 MiB: as the checkpoint of the step's own run, with its success, in one write. A
    /// step that crashes is done again. `inputs` is whatever the result depends on; a name is used once an attempt.
    /// A step that `work` makes of the same run, on its own thread, is recorded as made inside this one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use outlive::{registry::Registry, run::Spec};
    /// # pollster::block_on(async {
    /// let registry = Registry::open("memory:").await?;
    /// let run = registry.start(Spec::new("report", registry.me().clone())).await?;
    /// let rows: u64 = run.step("fetch", "orders since May", || Ok::<_, std::io::Error>(1_250)).await.unwrap();
    /// assert_eq!(rows, 1_250);
    /// run.succeed().await?;
    /// # Ok::<_, outlive::error::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn step<T, E>(
        &self,
        name: &str,
        inputs: impl AsRef<[u8]>,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, StepError<E>>
    where
        T: Serialize + DeserializeOwned,
        E: Display,
    {
        let attempt = Attempt::read(&*self.store, self.id(), self.held.epoch).await?;
        let mut fingerprint = Fingerprint::of(self.id());
        fingerprint.part("inputs", inputs.as_ref());
        let fingerprint = fingerprint.finish();
        let mut next = attempt.next(name, &fingerprint)?;
        if let Next::Replay(original) = next {
            match answer(original) {
                Some(answer) => {
                    self.replayed(&attempt, name, fingerprint, original).await?;
                    return Ok(answer);
                }
                // It cannot be read as what is wanted by now, or was never on record.
                None => next = Next::Live { changed: true },
            }
        }
        let step = self.started(&attempt, self.step_spec(&attempt, name, fingerprint, &next)).await?;
        let within = Within::step(step.id());
        let done = work();
        drop(within);
        match done {
            Ok(answer) => step.keep(answer).await,
            Err(error) => {
                step.fail("error", error.to_string()).await?;
                Err(StepError::Work(error))
            }
        }
    }

    async fn replayed(&self, attempt: &Attempt, name: &str, fingerprint: String, original: &Run) -> Result<(), Error> {
        let spec = self.step_spec(attempt, name, fingerprint, &Next::Replay(original));
        let step = self.draft_step(attempt.run(), spec)?;
        self.making(&step).replay(attempt.run(), step, None).await.map(|_| ())
    }

    fn step_spec(&self, attempt: &Attempt, name: &str, fingerprint: String, next: &Next<'_>) -> Spec {
        attempt.spec(name, fingerprint, next, WITHIN.get(), self.keeping.me.clone())
    }

    async fn started(&self, attempt: &Attempt, spec: Spec) -> Result<Self, Error> {
        let _taking = self.keeping.take();
        let step = self.draft_step(attempt.run(), spec)?;
        let record = self.making(&step).start(attempt.run(), step).await?;
        let (keeping, store) = (self.keeping.clone(), self.store.clone());
        Ok(Self::new(record, None, keeping, store, self.worker.clone(), self.redactor.clone()))
    }

    fn making(&self, step: &Run) -> StepWriter<'_> {
        let owner = self.keeping.owner(step.spec.policy.lease);
        StepWriter { store: &*self.store, owner, me: &self.keeping.me, stamp: Stamp::draw(&*self.keeping.entropy) }
    }

    /// There is no command in it for others to execute, so it needs no signature.
    fn draft_step(&self, of: &Run, mut spec: Spec) -> Result<Run, Error> {
        spec.check().map_err(|error| Error::Invalid(error.to_string()))?;
        let id = step_id(of, spec.step.as_ref().map_or("", |step| &step.name));
        masking::draft(&self.redactor, None, || None, id, &mut spec, false);
        Ok(Run::new(id, Arc::new(spec), None, step_time(of, self.keeping.clock.now())))
    }

    /// Ends a step with what its work returned.
    async fn keep<T: Serialize, E>(self, answer: T) -> Result<T, StepError<E>> {
        let kept = serde_json::to_value(&answer).and_then(|answer| serde_json::to_value(StepOutcome::Answer(answer)));
        let kept = match kept.map(|kept| (kept.to_string().len(), kept)) {
            Ok((size, kept)) if size <= DOCUMENT_LIMIT => kept,
            Ok((size, _)) => {
                let refusal = Refusal::TooLarge { what: "result of a step", size, limit: DOCUMENT_LIMIT };
                let error = Error::Refused { run: self.id(), refusal };
                return Err(self.not_kept(error).await.into());
            }
            Err(error) => {
                let why = format!("the result of a step cannot be kept as JSON: {error}");
                return Err(self.not_kept(Error::Invalid(why)).await.into());
            }
        };
        let report = Report { checkpoint: Some(kept), ..Report::default() };
        let end = OwnerEnd::Finished(Outcome::SUCCEEDED);
        match self.end(Some(report), end, None).await? {
            Persisted::Committed | Persisted::Spooled => Ok(answer),
        }
    }

    /// A step whose result cannot be kept has failed: a later attempt would have nothing to return.
    async fn not_kept(self, error: Error) -> Error {
        self.fail("result", error.to_string()).await.err().unwrap_or(error)
    }
}

fn answer<T: DeserializeOwned>(original: &Run) -> Option<T> {
    let StepOutcome::Answer(answer) = StepOutcome::of(original)? else { return None };
    serde_json::from_value::<T>(answer).ok()
}
