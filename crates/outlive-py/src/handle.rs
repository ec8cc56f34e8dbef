//! The handle of a run that this process owns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outlive::error::Error;
use outlive::lifecycle::OwnerEnd;
use outlive::lifecycle::{Outcome, Report};
use outlive::ownership::Stop;
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::run::{Exit, Interruption, Progress};
use outlive::step::StepOutcome;
use pyo3::prelude::*;
use serde_json::Value;

use crate::blocking::{Unlocked, call, detached, end_limit, wait};
use crate::errors::{invalid, raise, refuse};
use crate::inputs::{ReportInput, read};
use crate::stop::Announcement;
use crate::views;

/// A run that this process owns. Beats go on in threads of the library until it is ended.
#[pyclass(frozen, module = "outlive._outlive")]
pub struct Handle {
    handle: Unlocked<Arc<RunHandle>>,
    /// A thread has ended it, or is ending it. No other may.
    ended: AtomicBool,
    announcement: Mutex<Option<Announcement>>,
}

impl From<RunHandle> for Handle {
    fn from(handle: RunHandle) -> Self {
        Self { handle: Unlocked::new(Arc::new(handle)), ended: AtomicBool::new(false), announcement: Mutex::default() }
    }
}

#[pymethods]
impl Handle {
    /// The id of the run.
    #[getter]
    fn id(&self) -> String {
        self.handle.id().to_string()
    }

    /// The claim: the worker and its epoch.
    #[getter]
    fn fence(&self) -> (String, u64) {
        let fence = self.handle.fence();
        (fence.worker.to_string(), fence.epoch.0)
    }

    /// The run as it was last read or written here, as JSON.
    fn record(&self, py: Python<'_>) -> String {
        py.detach(|| views::record(&self.handle.run()).to_string())
    }

    /// Why the work should stop, with who asked and the reason; none while it should not.
    fn stop(&self, py: Python<'_>) -> Option<(&'static str, Option<String>, Option<String>)> {
        Some(match py.detach(|| self.handle.stop_requested())? {
            Stop::Cancelled(request) => ("cancelled", Some(request.by.user.to_string()), request.reason),
            Stop::TimedOut => ("timed_out", None, None),
            Stop::LeaseOver => ("lease_over", None, None),
            _ => ("lost", None, None),
        })
    }

    /// A descriptor that is readable from the first reason to stop on. Asking for it makes the caller responsible for
    /// ending the run at its timeout.
    fn stop_descriptor(&self, py: Python<'_>) -> PyResult<i32> {
        // The library has one callback a run, so it is installed once. The lock is never taken with the interpreter's.
        let number = py.detach(|| {
            let mut announcement = self.announcement.lock().unwrap_or_else(PoisonError::into_inner);
            let made = match announcement.take() {
                Some(made) => made,
                None => Announcement::of(&self.handle)?,
            };
            Ok::<_, std::io::Error>(announcement.insert(made).number())
        });
        let hint = "raise the limit of open files: `ulimit -n`";
        number.map_err(|error| refuse(py, &format!("no descriptor to announce a stop: {error}"), hint))
    }

    /// Makes the descriptor readable, for threads that wait for a reason to stop which the library does not know.
    fn announce(&self, py: Python<'_>) {
        py.detach(|| {
            if let Some(announcement) = &*self.announcement.lock().unwrap_or_else(PoisonError::into_inner) {
                announcement.end();
            }
        });
    }

    /// Says how far the work is. Returns at once; written at most once a second.
    #[pyo3(signature = (done=None, total=None, message=None, data=None))]
    fn progress(
        &self,
        py: Python<'_>,
        done: Option<u64>,
        total: Option<u64>,
        message: Option<String>,
        data: Option<&str>,
    ) -> PyResult<()> {
        let data = data.map(|data| read(py, data)).transpose()?;
        let progress = Progress { done, total, message, data };
        call(py, || self.handle.post_progress(progress))
    }

    /// Says something of the run. Durable when this returns.
    fn report(&self, py: Python<'_>, report: &str) -> PyResult<()> {
        let report = Report::from(read::<ReportInput>(py, report)?);
        wait(py, self.handle.report(report))
    }

    /// Ends the run, once. Answers whether it is on record `now` or will be `later`.
    #[pyo3(signature = (how, error_type="", message="", signal=None, code=None, report=None, result=None))]
    #[allow(clippy::too_many_arguments, reason = "each is a named argument in Python")]
    fn end(
        &self,
        py: Python<'_>,
        how: &str,
        error_type: &str,
        message: &str,
        signal: Option<i32>,
        code: Option<i32>,
        report: Option<&str>,
        result: Option<&str>,
    ) -> PyResult<&'static str> {
        let report = report.map(|report| read::<ReportInput>(py, report)).transpose()?.map(Report::from);
        let result = result.map(|result| read::<Value>(py, result)).transpose()?.map(Arc::new);
        let failed = || Outcome::failed(error_type, message);
        let end = match how {
            "succeeded" => OwnerEnd::Finished(Outcome::Succeeded { result }),
            "failed" => OwnerEnd::Finished(failed()),
            "cancelled" => OwnerEnd::Finished(Outcome::Cancelled),
            "interrupted" => OwnerEnd::Interrupted(Interruption { signal, reason: message.into() }),
            _ => return Err(invalid(py, format!("`{how}` is no outcome of a run"))),
        };
        let exit = code.map(Exit::Code).or(signal.map(Exit::Signal));
        self.end_once(py, || self.handle.end_within(end_limit(), report, end, exit))
    }

    /// Ends a step with what its work returned, as JSON.
    fn keep(&self, py: Python<'_>, answer: &str) -> PyResult<&'static str> {
        let answer = StepOutcome::Answer(read(py, answer)?);
        let kept = serde_json::to_value(answer).map_err(|error| invalid(py, error.to_string()))?;
        let report = Report { checkpoint: Some(kept), ..Report::default() };
        let end = OwnerEnd::Finished(Outcome::SUCCEEDED);
        self.end_once(py, || pollster::block_on(self.handle.end(Some(report), end, None)))
    }

    /// Suspends the run until it is woken.
    fn suspend(&self, py: Python<'_>, reason: String) -> PyResult<&'static str> {
        self.end_once(py, || pollster::block_on(self.handle.suspend(reason)).map(|()| Persisted::Committed))
    }

    /// Whether it was ended here.
    #[getter]
    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn __repr__(&self) -> String {
        format!("<Handle of run {}>", self.handle.id())
    }
}

impl Handle {
    fn end_once(
        &self,
        py: Python<'_>,
        end: impl FnOnce() -> Result<Persisted, Error> + Send,
    ) -> PyResult<&'static str> {
        if self.ended.swap(true, Ordering::SeqCst) {
            let why = format!("run `{}` was ended here already", self.handle.id());
            return Err(refuse(py, &why, "a run is ended once; start another, or resume it"));
        }
        let ended = detached(py, || {
            let ended = end();
            if let Some(announcement) = &*self.announcement.lock().unwrap_or_else(PoisonError::into_inner) {
                announcement.end();
            }
            ended
        });
        match ended {
            Ok(Persisted::Committed) => Ok("now"),
            Ok(_) => Ok("later"),
            Err(error) => {
                // What the library still holds can be ended again.
                self.ended.store(!self.handle.is_open(), Ordering::SeqCst);
                Err(raise(py, &error))
            }
        }
    }
}
