//! The registry, as the package `outlive` uses it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::{Epoch, RunId};
use outlive::lifecycle::Report;
use outlive::ownership::reaper::Reaper;
use outlive::ownership::steps::Next;
use outlive::registry::{CancelOptions, Registry};
use outlive::settings::Sweeps;
use outlive::step::{Fingerprint, StepOutcome};
use outlive::store::{Cursor, Page};
use pyo3::prelude::*;
use serde_json::Value;

use crate::blocking::{Unlocked, detached, end_limit, wait};
use crate::errors::{raise, refuse};
use crate::handle::Handle;
use crate::inputs::{CommandInput, ReportInput, SpecInput, duration, id, read};
use crate::views;

/// A registry that is open. In a forked child every call is refused.
#[pyclass(frozen, name = "Registry", module = "outlive._outlive")]
pub struct NativeRegistry {
    registry: Mutex<Option<Unlocked<Arc<Registry>>>>,
    url: String,
    shown: String,
}

/// A step that is to be done, or what an earlier attempt returned for it.
#[derive(IntoPyObject)]
enum Begun {
    Replayed(String),
    ToDo(Handle),
}

#[pymethods]
impl NativeRegistry {
    /// Opens the registry that is named, or found as the command finds it, with its configuration. What earlier processes
    /// could not record is delivered first.
    #[staticmethod]
    #[pyo3(signature = (named=None, create=true))]
    fn open(py: Python<'_>, named: Option<&str>, create: bool) -> PyResult<Self> {
        let registry = wait(py, async {
            if create { Registry::discover(named).await } else { Registry::discover_existing(named).await }
        })?;
        let (url, shown) = (registry.url().to_owned(), registry.shown());
        Ok(Self { registry: Mutex::new(Some(Unlocked::new(Arc::new(registry)))), url, shown })
    }

    /// Its URL, which may bear a password.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Its URL for people: without a password.
    #[getter]
    fn shown(&self) -> &str {
        &self.shown
    }

    /// Makes a run and owns it at once.
    #[pyo3(signature = (spec, command=None))]
    fn start(&self, py: Python<'_>, spec: &str, command: Option<CommandInput>) -> PyResult<Handle> {
        let registry = self.opened(py)?;
        let spec = read::<SpecInput>(py, spec)?.into_spec(&registry, command).map_err(|error| raise(py, &error))?;
        let handle = wait(py, registry.start(spec))?;
        py.detach(|| registry.subscribe_requests());
        Ok(handle.into())
    }

    /// Continues a run that is dead or interrupted with its next attempt, owned by this process.
    fn resume(&self, py: Python<'_>, run: &str) -> PyResult<Handle> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let handle = wait(py, async {
            // A run whose owner is gone is marked dead before it is resumed.
            Reaper::new(registry.worker()).pass_over(&**registry, Filter::of([run])).await?;
            registry.resume(run, outlive::ResumeOptions::default()).await
        })?;
        py.detach(|| registry.subscribe_requests());
        Ok(handle.into())
    }

    /// Continues a suspended run that is not of the queue, owned by this process.
    fn wake(&self, py: Python<'_>, run: &str) -> PyResult<Handle> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let handle = wait(py, registry.wake(run))?;
        py.detach(|| registry.subscribe_requests());
        Ok(handle.into())
    }

    /// Has a suspended run of the queue wait for its worker again.
    fn wake_queued(&self, py: Python<'_>, run: &str) -> PyResult<()> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        wait(py, registry.wake_queued(run)).map(|_| ())
    }

    /// Deletes artifacts that no run needs, or says what it would delete. What is spared is what `[sweep]` of the home's
    /// configuration says. Answers with the report, as JSON.
    fn sweep(&self, py: Python<'_>, dry_run: bool) -> PyResult<String> {
        let registry = self.opened(py)?;
        let report = wait(py, async {
            let sweeps = Sweeps::read()?;
            let registry = registry.again().naming_artifacts(sweeps.locations(registry.url())?);
            let spare = sweeps.spare();
            // Records are deleted in a bucket alone.
            let forget_after = spare.forget_after.filter(|_| registry.bucket().is_some());
            if !dry_run {
                Reaper::new(registry.worker()).pass(&registry).await?;
            }
            sweep(&registry, &SweepPolicy { dry_run, forget_after, ..spare }).await
        })?;
        Ok(serde_json::to_value(report).unwrap_or_default().to_string())
    }

    /// Makes a run that waits to be claimed. With a unique key, the answer may be the run that has it.
    fn enqueue(&self, py: Python<'_>, spec: &str) -> PyResult<(String, bool)> {
        let registry = self.opened(py)?;
        let spec = read::<SpecInput>(py, spec)?.into_queued_spec(&registry).map_err(|error| raise(py, &error))?;
        let enqueued = wait(py, registry.enqueue_once(spec))?;
        Ok((enqueued.run.id.to_string(), enqueued.made))
    }

    /// Takes waiting runs of these kinds.
    fn claim(&self, py: Python<'_>, kinds: BTreeSet<String>, limit: usize) -> PyResult<Vec<Handle>> {
        let registry = self.opened(py)?;
        let filter = Filter { kinds: Some(kinds), ..Filter::default() };
        let handles = wait(py, registry.claim(filter, limit))?;
        py.detach(|| registry.subscribe_requests());
        Ok(handles.into_iter().map(Handle::from).collect())
    }

    /// The run that `text` means, as JSON.
    fn find(&self, py: Python<'_>, text: &str) -> PyResult<String> {
        let registry = self.opened(py)?;
        let found = wait(py, async { registry.get(registry.find(text).await?.run.id).await })?;
        Ok(views::seen(&found).to_string())
    }

    /// A page of runs, as JSON, and where the next one begins.
    #[pyo3(signature = (filter, limit, cursor=None))]
    fn list(
        &self,
        py: Python<'_>,
        filter: &str,
        limit: usize,
        cursor: Option<&str>,
    ) -> PyResult<(String, Option<String>)> {
        let registry = self.opened(py)?;
        let filter = read::<Filter>(py, filter)?;
        let after = cursor.map(|cursor| id::<Cursor>(py, cursor)).transpose()?;
        let page = Page { after, limit, ..Page::default() };
        let (runs, next) = wait(py, registry.list(&filter, &page))?;
        let runs: Vec<Value> = runs.iter().map(views::seen).collect();
        Ok((Value::Array(runs).to_string(), next.map(|next| next.to_string())))
    }

    /// The URL of the object that has the record of a run, without credentials; none where the registry is no bucket.
    fn record_url(&self, py: Python<'_>, run: &str) -> PyResult<Option<String>> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        Ok(registry.bucket().map(|bucket| bucket.record_url(run)))
    }

    /// The event log of a run, as JSON.
    fn events(&self, py: Python<'_>, run: &str) -> PyResult<String> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let events = wait(py, registry.events(run))?;
        Ok(serde_json::to_value(events).unwrap_or_default().to_string())
    }

    /// Requests that a run be cancelled. Answers with the run as JSON.
    #[pyo3(signature = (run, reason=None, grace=None))]
    fn cancel(&self, py: Python<'_>, run: &str, reason: Option<String>, grace: Option<f64>) -> PyResult<String> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let grace = grace.map(|grace| duration("grace", grace)).transpose().map_err(|error| raise(py, &error))?;
        let how = CancelOptions { reason, grace, force: false };
        let seen = wait(py, async {
            registry.cancel_and_end(run, &how).await?;
            registry.get(run).await
        })?;
        Ok(views::seen(&seen).to_string())
    }

    /// Marks runs whose owner is gone as dead. Answers with their ids.
    fn reap(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let registry = self.opened(py)?;
        let reaped = wait(py, async { Reaper::new(registry.worker()).pass(&**registry).await })?;
        Ok(reaped.ended.iter().map(|run| run.id.to_string()).collect())
    }

    /// Hides an ended run, or shows it again.
    fn archive(&self, py: Python<'_>, run: &str, archived: bool) -> PyResult<()> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let marked = async { if archived { registry.archive(run).await } else { registry.unarchive(run).await } };
        wait(py, marked).map(|_| ())
    }

    /// Says something of a run on behalf of its owner, from a process that was handed the owner's epoch.
    fn report(&self, py: Python<'_>, run: &str, epoch: u64, report: &str) -> PyResult<()> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let report = Report::from(read::<ReportInput>(py, report)?);
        wait(py, registry.report(run, Epoch(epoch), report)).map(|_| ())
    }

    /// Whether the claim `epoch` still owns the run, and who requested to stop it and why; none without a request.
    #[allow(clippy::type_complexity, reason = "a tuple of Python")]
    fn claimed(
        &self,
        py: Python<'_>,
        run: &str,
        epoch: u64,
    ) -> PyResult<(bool, Option<(String, Option<String>)>, String)> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let run = wait(py, registry.glance(run))?.run;
        let cancel = run.cancel.as_ref().map(|request| (request.by.user.to_string(), request.reason.clone()));
        Ok((run.is_current(Epoch(epoch)), cancel, views::record(&run).to_string()))
    }

    /// Begins a step of a run: answers with what an earlier attempt returned, as JSON, or with the step to be done.
    #[pyo3(signature = (run, epoch, name, inputs, parent=None))]
    fn begin_step(
        &self,
        py: Python<'_>,
        run: &str,
        epoch: u64,
        name: &str,
        inputs: &[u8],
        parent: Option<&str>,
    ) -> PyResult<Begun> {
        let (registry, run) = (self.opened(py)?, id::<RunId>(py, run)?);
        let parent = parent.map(|parent| id::<RunId>(py, parent)).transpose()?;
        wait(py, begin_step(&registry, (run, Epoch(epoch)), name, inputs, parent))
    }

    /// Ends this process's work in the registry. Runs that are held go on.
    fn close(&self, py: Python<'_>) {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || {
            if let Some(registry) = registry.and_then(Unlocked::into_inner).and_then(Arc::into_inner) {
                registry.close_within(end_limit());
            }
        });
    }

    fn __repr__(&self) -> String {
        format!("<Registry {}>", self.shown)
    }
}

impl NativeRegistry {
    /// The registry, for as long as a call needs it: another thread may close it meanwhile.
    fn opened(&self, py: Python<'_>) -> PyResult<Unlocked<Arc<Registry>>> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = registry.as_ref().map(|registry| Unlocked::new(Arc::clone(registry)));
        drop(registry);
        let closed = || format!("the registry `{}` is closed", self.shown);
        opened.ok_or_else(|| refuse(py, &closed(), "open it again: `outlive.Registry(url)`"))
    }
}

async fn begin_step(
    registry: &Registry,
    (run, epoch): (RunId, Epoch),
    name: &str,
    inputs: &[u8],
    parent: Option<RunId>,
) -> Result<Begun, Error> {
    let attempt = registry.attempt(run, epoch).await?;
    let mut fingerprint = Fingerprint::of(run);
    fingerprint.part("inputs", inputs);
    let fingerprint = fingerprint.finish();
    let mut next = attempt.next(name, &fingerprint)?;
    if let Next::Replay(original) = next {
        match StepOutcome::of(original) {
            Some(StepOutcome::Answer(answer)) => {
                let spec = attempt.spec(name, fingerprint, &next, parent, registry.me().clone());
                registry.replay_step(&attempt, spec, original).await?;
                return Ok(Begun::Replayed(answer.to_string()));
            }
            // A command did it, or its result was never on record.
            _ => next = Next::Live { changed: true },
        }
    }
    let spec = attempt.spec(name, fingerprint, &next, parent, registry.me().clone());
    Ok(Begun::ToDo(registry.start_step(&attempt, spec).await?.into()))
}
