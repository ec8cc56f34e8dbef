//! `outlive show`: everything about one run.

mod steps;
mod waits;

use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use outlive::error::{Code, Error};
use outlive::id::RunId;
use outlive::index::SearchHit;
use outlive::logs::{Stream, show_bytes};
use outlive::run::{Run, UsagePoint};
use outlive::time::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use self::steps::{StepView, tell};
use self::waits::Wait;
use crate::call::codes;
use crate::call::{Context, Effect, Operate};
use crate::lookup::{Elsewhere, Scope, after_gone, elsewhere};
use crate::operations::delegate::{foreign_command, foreign_name};
use crate::operations::keys::KeyView;
use crate::operations::listing::{counts, status};
use crate::ui::run_view::{RunView, moment};
use crate::ui::{plain, quote};

/// Show the details of one run and what to do next
///
/// The run is looked up in this registry, then in this repository, then in every known repository.
#[derive(Debug, Args)]
pub struct Show {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    #[arg(default_value = "@last")]
    pub run: String,
    /// Only in this repository, or in every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
    /// Also what its attempt has used over time, as points
    #[arg(long)]
    pub points: bool,
}

/// One run, of whichever source.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ShownRun {
    /// Of a registry of ours.
    Own(Box<Shown>),
    /// Of a source that is only read.
    Foreign(Box<Foreign>),
}

/// A run as the index and its source tell of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Foreign {
    /// Its source has it. Where not, this is the last that was known.
    found: bool,
    #[serde(flatten)]
    listed: SearchHit,
    next: String,
}

/// One run.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    run: RunView,
    /// What a pending run waits for.
    waits: Vec<Wait>,
    /// The keys of a run that has not ended, with the runs that hold them and those that wait for them.
    key_use: Vec<KeyView>,
    checkpoint_bytes: Option<usize>,
    /// What its handler is given, unless that is longer than 4 KiB.
    input: Option<Value>,
    input_bytes: Option<usize>,
    /// What it has returned, unless that is longer than 4 KiB: `outlive result` prints it whole.
    result: Option<Value>,
    result_bytes: Option<usize>,
    /// The time between two points of what the attempt has used, in milliseconds.
    usage_every_ms: Option<u64>,
    /// With --points, what the attempt has used over time: milliseconds since it began, processor time in milliseconds,
    /// memory in bytes, bytes read, bytes written and the number of processes, at most 120 times.
    usage_points: Vec<UsagePoint>,
    /// The span of a distributed trace that it belongs to, as W3C Trace Context writes it.
    traceparent: Option<String>,
    artifacts: Vec<String>,
    manifest_ref: Option<String>,
    /// The location below which its artifacts are, where it names one.
    artifacts_below: Option<String>,
    /// Until when its owner's lease lasts, while it runs.
    lease_until: Option<Timestamp>,
    /// What its attempts have written, as far as it was kept.
    logs: Vec<Log>,
    /// Its steps, in all of its attempts, in the order in which they were made.
    steps: Vec<StepView>,
    #[serde(skip)]
    now: Timestamp,
}

/// A file that keeps what an attempt has written.
#[derive(Debug, JsonSchema, Serialize)]
struct Log {
    attempt: u32,
    path: PathBuf,
    bytes: u64,
}

impl Operate for Show {
    const NAME: &'static str = "show";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str =
        "outlive show train\noutlive show @last --json\noutlive show @last --points --json | jq .usage_points";
    type Output = ShownRun;

    async fn operate(self, context: &Context) -> Result<ShownRun, Error> {
        let error = match self.own(context).await {
            Ok(shown) => return Ok(ShownRun::Own(Box::new(shown))),
            Err(error) => error,
        };
        match elsewhere(context, self.scope, &self.run, error).await? {
            Elsewhere::Registry(context, run) => {
                Self { run, ..self }.own(&context).await.map(|shown| ShownRun::Own(Box::new(shown)))
            }
            Elsewhere::Foreign(listed) => {
                let next = foreign_command(&listed, &["run", "show", foreign_name(&listed.record)])?;
                Ok(ShownRun::Foreign(Box::new(Foreign { found: true, listed: *listed, next })))
            }
            Elsewhere::Gone(listed) => {
                let next = after_gone(&listed)?;
                Ok(ShownRun::Foreign(Box::new(Foreign { found: false, listed: *listed, next })))
            }
        }
    }

    fn exit_status(output: &ShownRun) -> u8 {
        match output {
            ShownRun::Foreign(foreign) if !foreign.found => codes::status(Code::NotFound).exit,
            ShownRun::Own(_) | ShownRun::Foreign(_) => 0,
        }
    }
}

impl Show {
    async fn own(&self, context: &Context) -> Result<Shown, Error> {
        let registry = context.for_lookup(&self.run).await?;
        let seen = registry.get(registry.find(&self.run).await?.run.id).await?;
        context.remember(&seen.run, &self.run);
        let run = &seen.run;
        let steps = registry.steps_of(run).await?;
        let keys = waits::keys(&registry, run).await?;
        Ok(Shown {
            run: RunView::new(&seen, &registry),
            waits: waits::waits(&registry, run, &keys).await?,
            key_use: waits::shown(&keys),
            checkpoint_bytes: run.checkpoint.as_ref().map(|checkpoint| checkpoint.to_string().len()),
            input: run.spec.input.as_ref().filter(|input| bytes(input) <= SHOWN).cloned(),
            input_bytes: run.spec.input.as_ref().map(bytes),
            result: run.result.as_deref().filter(|result| bytes(result) <= SHOWN).cloned(),
            result_bytes: run.result.as_deref().map(bytes),
            usage_every_ms: run.usage.as_ref().map(|usage| usage.every_ms),
            usage_points: match &run.usage {
                Some(usage) if self.points => usage.points.clone(),
                _ => Vec::new(),
            },
            traceparent: run.spec.traceparent.as_ref().map(ToString::to_string),
            artifacts: run.artifacts.clone(),
            manifest_ref: run.manifest_ref.clone(),
            artifacts_below: run.spec.output.as_ref().map(|output| match output.tree(run.id) {
                Ok(tree) => format!("{}/{tree}", output.prefix.trim_end_matches('/')),
                Err(_) => output.prefix.clone(),
            }),
            lease_until: run.owner().map(|owner| owner.heard.at.after(owner.lease.lasts())),
            logs: registry.logs().map(|place| logs(&place.path(run.id), run)).unwrap_or_default(),
            steps: steps.iter().map(|step| RunView::new(step, &registry).into()).collect(),
            now: registry.clock().now(),
        })
    }
}

/// The longest input or result that is shown, in bytes.
const SHOWN: usize = 4 << 10;

fn bytes(value: &Value) -> usize {
    value.to_string().len()
}

/// An input or a result, or how long it is where it is too long to be shown.
fn shown(value: Option<&Value>, bytes: Option<usize>) -> Option<String> {
    match (value, bytes) {
        (Some(value), _) => Some(plain(&value.to_string())),
        (None, bytes) => bytes.map(|bytes| show_bytes(bytes as u64)),
    }
}

/// The files that keep what the attempts of a run have written.
fn logs(dir: &Path, run: &Run) -> Vec<Log> {
    let mut logs = Vec::new();
    for attempt in 1..=run.attempt {
        for stream in Stream::BOTH {
            let path = dir.join(format!("{attempt:04}.{}", stream.as_str()));
            if let Some(found) = path.symlink_metadata().ok().filter(Metadata::is_file) {
                // What was dropped from the middle of a long log takes no room, and is not kept.
                let kept = found.len().min(found.blocks().saturating_mul(512));
                logs.push(Log { attempt, bytes: kept, path });
            }
        }
    }
    logs
}

impl fmt::Display for ShownRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(shown) => shown.fmt(f),
            Self::Foreign(foreign) => foreign.fmt(f),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = &self.listed.record;
        let mut line = |label: &str, value: Option<String>| match value {
            Some(value) if !value.is_empty() => writeln!(f, "{label:<11}{}", plain(&value)),
            _ => Ok(()),
        };
        let reason = self.listed.freshness_reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        line("run", Some(record.run_id.clone()))?;
        line("title", Some(record.title.clone()))?;
        line("source", Some(format!("{} in {}", record.source, record.repo)))?;
        line("app", record.app_id.clone())?;
        line("workflow", record.workflow_id.clone())?;
        line("lifecycle", Some(status(&self.listed)))?;
        line("stage", record.loop_stage.clone())?;
        line("freshness", Some(format!("{}{reason}", self.listed.freshness)))?;
        line("counts", Some(counts(&self.listed)))?;
        line("inputs", Some(record.inputs_digest.clone()))?;
        line("repeats", record.provenance.as_ref().and_then(|provenance| provenance.rerun_of.clone()))?;
        line("made", Some(record.created_at.clone()))?;
        line("changed", Some(record.updated_at.clone()))?;
        line("file", record.state_path.clone())?;
        line("next", Some(self.next.clone()))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.run;
        let moment = |at: Timestamp| moment(at, self.now);
        let mut line = |label: &str, value: Option<String>| match value {
            Some(value) if !value.is_empty() => writeln!(f, "{label:<11}{value}"),
            _ => Ok(()),
        };
        line("run", Some(run.id.to_string()))?;
        line("name", run.name.as_deref().map(plain))?;
        line("kind", Some(plain(&run.kind)))?;
        let of = run.step_of.map(|of| format!(" of run {of}, attempt {}", run.step_attempt.unwrap_or(1)));
        let step = run.step.as_ref().map(|step| format!("{}{}", plain(step), of.unwrap_or_default()));
        line("step", step)?;
        line("inside", run.step_parent.map(|parent| parent.to_string()))?;
        line("replays", run.replays.map(|original| original.to_string()))?;
        line("command", run.command_line.clone())?;
        line("in", run.cwd.as_deref().map(|cwd| quote(cwd.as_bytes()).into_owned()))?;
        let labels = run.labels.iter().map(|(key, value)| plain(&format!("{key}={value}")));
        line("schedule", run.schedule.as_deref().map(plain))?;
        line("labels", Some(labels.collect::<Vec<_>>().join(" ")))?;
        line("state", Some(format!("{}{}", run.word(), if run.archived { ", archived" } else { "" })))?;
        let parent = |id: RunId| self.waits.iter().find_map(|wait| wait.title(id));
        line("reason", run.shown_reason(self.now, parent))?;
        line("attempt", Some(format!("{} (epoch {})", run.attempt, run.epoch)))?;
        let percent = run.percent().map(|percent| format!(" ({percent}%)")).unwrap_or_default();
        let message = run.progress_message.as_deref().map(|message| format!(" {}", plain(message)));
        line("progress", Some(format!("{}{percent}{}", run.progress(), message.unwrap_or_default())))?;
        line("checkpoint", self.checkpoint_bytes.map(|bytes| show_bytes(bytes as u64)))?;
        line("input", shown(self.input.as_ref(), self.input_bytes))?;
        line("result", shown(self.result.as_ref(), self.result_bytes))?;
        line("trace", self.traceparent.clone())?;
        for artifact in &self.artifacts {
            line("artifact", Some(plain(artifact)))?;
        }
        line("below", self.artifacts_below.as_deref().map(plain))?;
        line("manifest", self.manifest_ref.as_deref().map(plain))?;
        for log in &self.logs {
            let path = quote(log.path.as_os_str().as_bytes());
            line("log", Some(format!("{path} ({}, attempt {})", show_bytes(log.bytes), log.attempt)))?;
        }
        let host = plain(run.host.as_deref().unwrap_or("?"));
        let process = run.owner_pid.map_or_else(|| "not recorded".into(), |pid| format!("pid {pid} on {host}"));
        line("owner", run.owner.map(|_| process))?;
        line("last beat", run.last_beat_at.map(moment))?;
        line("lease end", self.lease_until.map(moment))?;
        line("made", Some(format!("{} by {}", moment(run.created_at), plain(&run.created_by))))?;
        line("started", run.started_at.map(moment))?;
        line("ready", run.ready_at.map(moment).or_else(|| run.ready.map(|_| "not yet".into())))?;
        line("url", run.url.clone())?;
        line("leash", run.leash.as_ref().map(|leash| format!("pid {}", leash.pid)))?;
        let asked_by = run.cancel_requested_by.as_deref().map(plain).unwrap_or_default();
        line("cancel", run.cancel_requested_at.map(|at| format!("requested {} by {asked_by}", moment(at))))?;
        line("ended", run.ended_at.map(moment))?;
        line("took", Some(run.duration()))?;
        line("used", run.used())?;
        line("exit", run.exit())?;
        let alive =
            run.leftover_pids.iter().zip(&run.leftover_names).map(|(pid, name)| format!("{pid} ({})", plain(name)));
        let alive = if run.state.is_ended() { alive.collect::<Vec<_>>().join(", ") } else { String::new() };
        line("alive", Some(alive).filter(|alive| !alive.is_empty()).map(|alive| format!("pid {alive}")))?;
        line("error", run.error_type.as_deref().map(plain))?;
        let untrusted = || {
            let (id, maker) = (run.id, plain(&run.created_by));
            format!("untrusted: made by {maker}; `outlive trust {id} --yes` allows it to be executed")
        };
        line("trust", (run.trusted == Some(false) && run.command.is_some()).then(untrusted))?;
        line("next", run.next_step())?;
        tell(&self.steps, f)
    }
}
