//! `outlive rerun`: repeats a run as a new one.

use std::fmt;

use clap::Args;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::index::SearchHit;
use outlive::run::{Run, Variables};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::detach::Starting;
use crate::exec::take_up;
use crate::lookup::{Elsewhere, Scope, elsewhere, gone};
use crate::operations::delegate::{delegate, foreign_name};
use crate::ui::plain;

/// Start a finished run again as a new, linked run
///
/// The new run has the command, directory and policy of the old one, which is not changed. It starts at once in the
/// background; a run that came from the queue is queued again. With the same --idempotency-key a second call returns
/// the run of the first. A run of cool-workflow is repeated by cool-workflow as a tracked run of the home registry,
/// where `[cool_workflow] command` of the home's configuration names the program; otherwise the command to type is
/// printed.
#[derive(Debug, Default, Args)]
pub struct Rerun {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub run: String,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
    /// Create at most one run for this key, however often this is called
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Also a run that has not ended
    #[arg(long)]
    pub force: bool,
    /// Only in this repository, or in every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
}

/// The run that repeats another.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Again {
    /// The new run, or the run that has cool-workflow make it; none where the command is to be typed.
    id: Option<RunId>,
    name: Option<String>,
    rerun_of: String,
    rerun_of_repo: Option<String>,
    origin: Option<RunId>,
    generation: Option<u32>,
    reason: Option<String>,
    /// This call made it.
    made: bool,
    /// The command of cool-workflow that repeats a run of its own.
    command: Option<String>,
}

impl Operate for Rerun {
    const NAME: &'static str = "rerun";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive run --name job -- true && outlive rerun job --reason 'new data'";
    type Output = Again;

    async fn operate(self, context: &Context) -> Result<Again, Error> {
        let found = match context.for_change(&self.run).await {
            Ok(registry) => registry.find(&self.run).await.map(|seen| (registry, seen.run.id)),
            Err(error) => Err(error),
        };
        let (registry, id) = match found {
            Ok(found) => found,
            Err(error) => {
                return match elsewhere(context, self.scope, &self.run, error).await? {
                    Elsewhere::Registry(context, run) => {
                        Box::pin(Self { run, scope: Scope::Repo, ..self }.operate(&context)).await
                    }
                    Elsewhere::Foreign(listed) => self.foreign(context, &listed).await,
                    Elsewhere::Gone(listed) => Err(gone(&listed)),
                };
            }
        };
        let environment = (!context.is_served()).then(|| Variables::without_session(std::env::vars_os()));
        let key = self.idempotency_key.as_deref();
        let (run, made) = registry.rerun(id, self.reason.clone(), key, self.force, environment).await?;
        if made && !run.spec.queued && run.spec.command.is_some() {
            let words = take_up::words(&registry, run.id, false, false);
            let started = Starting::begin(&words, &SigSet::empty()).and_then(Starting::wait);
            let started = started.map_err(|error| Error::Invalid(format!("its owner cannot be started: {error}")))?;
            // A worker that was free has claimed it: that is what was wanted.
            let is_claimed = started.id.is_some() || registry.glance(run.id).await?.run.epoch > run.epoch;
            if !is_claimed {
                let why = started.talk.unwrap_or_else(|| "its owner could not begin it".into());
                return Err(Error::Invalid(format!("run `{}` was made and waits: {why}", run.id)));
            }
        }
        Ok(Again::new(id, &run, made))
    }
}

impl Rerun {
    /// Has cool-workflow repeat a run of its own, where its command is configured.
    async fn foreign(&self, context: &Context, listed: &SearchHit) -> Result<Again, Error> {
        let reason = self.reason.as_deref().map(|reason| ["--reason", reason]);
        let words: Vec<&str> =
            ["run", "rerun", foreign_name(&listed.record)].into_iter().chain(reason.into_iter().flatten()).collect();
        let delegated = delegate(context, listed, &words, false).await?;
        Ok(Again {
            id: delegated.run,
            name: None,
            rerun_of: listed.record.run_id.clone(),
            rerun_of_repo: Some(listed.record.repo.clone()),
            origin: None,
            generation: None,
            reason: self.reason.clone(),
            made: delegated.run.is_some(),
            command: Some(delegated.command),
        })
    }
}

impl Again {
    fn new(of: RunId, run: &Run, made: bool) -> Self {
        let lineage = run.spec.lineage.as_ref();
        Self {
            id: Some(run.id),
            name: run.spec.name.clone(),
            rerun_of: of.to_string(),
            rerun_of_repo: None,
            origin: lineage.map(|lineage| lineage.origin),
            generation: lineage.map(|lineage| lineage.generation),
            reason: lineage.and_then(|lineage| lineage.reason.clone()),
            made,
            command: None,
        }
    }
}

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.id, &self.command) {
            (Some(id), Some(command)) => {
                writeln!(f, "{id} has cool-workflow repeat {}: {}", plain(&self.rerun_of), plain(command))?;
                writeln!(f, "next: `outlive logs {id}` shows what it says")
            }
            (Some(id), None) => {
                let made = if self.made { "repeats" } else { "was made earlier, and repeats" };
                writeln!(f, "{id} {made} {} (generation {})", self.rerun_of, self.generation.unwrap_or(1))?;
                writeln!(f, "next: `outlive wait {id}` waits for its end")
            }
            (None, command) => writeln!(f, "next: {}", command.as_deref().unwrap_or_default()),
        }
    }
}
