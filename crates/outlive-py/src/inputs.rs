//! What Python asks for, read from JSON: specs, reports and filters. An unknown field is refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use outlive::discovery;
use outlive::error::Error;
use outlive::lifecycle::Report;
use outlive::policy::{Lease, OrphanPolicy, Policy};
use outlive::registry::Registry;
use outlive::run::{Command, Key, Output, Progress, Spec, TraceParent, Variables};
use outlive::time::parse_duration;
use pyo3::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::{invalid, raise, refuse};

/// A run that is to be made. Durations are in seconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecInput {
    name: Option<String>,
    kind: String,
    /// What its handler is given; JSON's null is none.
    input: Option<Value>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    keys: Vec<KeyInput>,
    lease: Option<f64>,
    beat: Option<f64>,
    timeout: Option<f64>,
    stall_after: Option<f64>,
    max_attempts: Option<u32>,
    resume_on: Option<Vec<ResumeOn>>,
    backoff: Option<f64>,
    output: Option<Output>,
    /// The span that it belongs to; where none is given, that of the environment.
    traceparent: Option<TraceParent>,
}

/// After what a run is tried again by itself.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum ResumeOn {
    Crash,
    Interrupt,
    Failure,
    /// After nothing, and not by `outlive resume --all` either.
    Never,
}

/// A key: by default a lock.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyInput {
    name: String,
    #[serde(default = "one")]
    limit: u32,
    #[serde(default)]
    unique: bool,
    per: Option<f64>,
}

fn one() -> u32 {
    1
}

/// A command that a later attempt executes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct CommandInput {
    argv: Vec<OsString>,
    cwd: OsString,
    /// Variables that every attempt is given.
    env: BTreeMap<String, String>,
}

impl SpecInput {
    /// The spec of a run that waits for a worker. Where it says how many attempts may fail, it is retried as
    /// [`Policy::with_retries`] has it; else as the configuration of its kind says.
    pub fn into_queued_spec(self, registry: &Registry) -> Result<Spec, Error> {
        let max_attempts = self.max_attempts;
        let mut spec = self.into_spec(registry, None)?;
        match max_attempts {
            Some(1) => spec.policy.retry.on_failure = false,
            Some(attempts) => spec.policy = spec.policy.with_retries(attempts),
            None => {}
        }
        Ok(spec)
    }

    /// The spec, with the command that resumes it and the environment of this process for that command.
    pub fn into_spec(self, registry: &Registry, command: Option<CommandInput>) -> Result<Spec, Error> {
        let mut spec = registry.spec(self.kind.clone());
        spec.name.clone_from(&self.name);
        spec.labels.clone_from(&self.labels);
        spec.input.clone_from(&self.input);
        spec.priority = self.priority;
        spec.keys = self.keys.iter().map(KeyInput::key).collect::<Result<_, _>>()?;
        self.set_policy(&mut spec.policy)?;
        spec.output = self.output;
        spec.traceparent = self.traceparent.or_else(discovery::own_trace_parent);
        spec.command = command.map(|command| {
            let argv = command.argv.iter().map(|word| word.as_os_str().into()).collect();
            let mut command = Command { env: command.env, ..Command::new(argv, command.cwd.as_os_str().into()) };
            command.sealed = Some(Variables::without_session(std::env::vars_os()));
            command
        });
        Ok(spec)
    }

    /// Changes what the caller asks for; the rest stays as the configuration has it.
    fn set_policy(&self, policy: &mut Policy) -> Result<(), Error> {
        if self.lease.is_some() || self.beat.is_some() {
            let lasts = self.lease.map(|lease| duration("lease", lease)).transpose()?;
            let beat = self.beat.map(|beat| duration("beat", beat)).transpose()?;
            let lasts = lasts.unwrap_or_else(|| policy.lease.lasts().max(beat.unwrap_or_default().saturating_mul(3)));
            let beat = beat.unwrap_or_else(|| policy.lease.beat().min(lasts / 3));
            policy.lease = Lease::new(beat, lasts).map_err(|error| Error::Invalid(error.to_string()))?;
        }
        if let Some(timeout) = self.timeout {
            policy.limits.timeout = Some(duration("timeout", timeout)?);
        }
        if let Some(after) = self.stall_after {
            policy.limits.stall_after = Some(duration("stall_after", after)?);
        }
        if let Some(resume_on) = &self.resume_on {
            set_resume_on(policy, resume_on)?;
        }
        policy.retry.max_attempts = self.max_attempts.unwrap_or(policy.retry.max_attempts);
        if let Some(backoff) = self.backoff {
            policy.retry.backoff = duration("backoff", backoff)?;
        }
        Ok(())
    }
}

fn set_resume_on(policy: &mut Policy, resume_on: &[ResumeOn]) -> Result<(), Error> {
    let resumes = |when| resume_on.contains(&when);
    if resumes(ResumeOn::Never) && resume_on.len() > 1 {
        return Err(Error::Invalid("`resume_on` has \"never\", which goes with nothing else".into()));
    }
    policy.orphans = if resumes(ResumeOn::Crash) { OrphanPolicy::Requeue } else { OrphanPolicy::Dead };
    let retry = &mut policy.retry;
    retry.on_failure = resumes(ResumeOn::Failure);
    retry.on_interrupt = resumes(ResumeOn::Interrupt);
    retry.never = resumes(ResumeOn::Never);
    Ok(())
}

impl KeyInput {
    fn key(&self) -> Result<Key, Error> {
        Ok(match self.per {
            Some(per) => Key::rate(&self.name, self.limit, duration("per", per)?),
            None if self.unique => Key::unique(&self.name),
            None => Key::limit(&self.name, self.limit),
        })
    }
}

/// What is said of a run in flight.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportInput {
    progress: Option<Progress>,
    /// Wrapped in a list, so that a checkpoint of `null` is told from none.
    checkpoint: Option<[Value; 1]>,
    artifact: Option<String>,
    manifest_ref: Option<String>,
}

impl From<ReportInput> for Report {
    fn from(input: ReportInput) -> Self {
        let ReportInput { progress, checkpoint, artifact, manifest_ref } = input;
        let checkpoint = checkpoint.map(|[checkpoint]| checkpoint);
        Self { progress, checkpoint, artifact, manifest_ref, ..Self::default() }
    }
}

/// Reads JSON that the package wrote.
pub fn read<T: DeserializeOwned>(py: Python<'_>, json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| invalid(py, error.to_string()))
}

/// An id that a caller gave.
pub fn id<T: std::str::FromStr<Err: std::fmt::Display>>(py: Python<'_>, text: &str) -> PyResult<T> {
    let hint = "give an id, a name, or what `Registry.find` answered";
    text.parse().map_err(|error: T::Err| refuse(py, &error.to_string(), hint))
}

pub fn duration(what: &str, seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::Invalid(format!("`{what}` is {seconds}, which is no number of seconds")))
}

/// The run that this process belongs to by its environment, and the epoch of the claim.
#[pyfunction]
pub fn inside(py: Python<'_>) -> PyResult<Option<(String, u64)>> {
    let own = || Ok(discovery::own_run()?.zip(discovery::own_epoch()?));
    let own = own().map_err(|error: Error| raise(py, &error))?;
    Ok(own.map(|(run, epoch)| (run.to_string(), epoch.0)))
}

/// The seconds of a duration as people write it: `90s`, `1h30m`, `7d`.
#[pyfunction]
pub fn seconds(py: Python<'_>, text: &str) -> PyResult<f64> {
    parse_duration(text).map(|duration| duration.as_secs_f64()).map_err(|error| invalid(py, error.to_string()))
}
