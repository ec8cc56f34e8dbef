//! `outlive rerun`: repeats a run as a new one.

use std::fmt;

use clap::Args;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::index::Listed;
use outlive::run::Run;
use schemars::JsonSchema;
use serde::Serialize;

use crate::launcher::detach::Starting;
use crate::launcher::take_up;
use crate::operation::{Effect, Operate};
use crate::operations::plane::{Elsewhere, Scope, elsewhere, foreign_command, gone};
use crate::settings::Context;

/// Repeat a run that is over as a new run, linked to it
///
/// The new run has the command, directory and promises of the old one, which is left as it is. It begins at once, in the
/// background; one that came from the queue waits there. With the same --idempotency-key a second call answers with the run
/// that the first one made. Of a run of cool-workflow it says what to type.
#[derive(Debug, Default, Args)]
pub struct Rerun {
    /// An id, the beginning of one, a name, @last, @~2, or REPOSITORY:ID
    pub run: String,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
    /// Make it once, however often this is called with the same key
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Also a run that is not over
    #[arg(long)]
    pub force: bool,
    /// Only in the registry here, or in every repository that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
}

/// The run that repeats another.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Again {
    /// The new run; none where its source is only read.
    id: Option<RunId>,
    name: Option<String>,
    rerun_of: String,
    rerun_of_repo: Option<String>,
    origin: Option<RunId>,
    generation: Option<u32>,
    reason: Option<String>,
    /// This call made it.
    made: bool,
    /// What to type where outlive cannot do it.
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
            Err(error) if self.scope == Scope::Repo => return Err(error),
            Err(error) => {
                return match elsewhere(context, &self.run, error).await? {
                    Elsewhere::Registry(context, run) => {
                        Box::pin(Self { run, scope: Scope::Repo, ..self }.operate(&context)).await
                    }
                    Elsewhere::Foreign(listed) => Ok(self.foreign(&listed)),
                    Elsewhere::Gone(listed) => Err(gone(&listed)),
                };
            }
        };
        let (run, made) = registry.rerun(id, self.reason.clone(), self.idempotency_key.as_deref(), self.force).await?;
        if made && !run.spec.queued && run.spec.command.is_some() {
            let words = take_up::words(&registry, run.id, false, false);
            let started = Starting::begin(&words, &SigSet::empty()).and_then(Starting::wait);
            let started = started.map_err(|error| Error::Invalid(format!("its owner cannot be started: {error}")))?;
            if started.id.is_none() {
                let why = started.talk.unwrap_or_else(|| "its owner could not begin it".into());
                return Err(Error::Invalid(format!("run `{}` was made and waits: {why}", run.id)));
            }
        }
        Ok(Again::new(id, &run, made))
    }
}

impl Rerun {
    fn foreign(&self, listed: &Listed) -> Again {
        Again {
            id: None,
            name: None,
            rerun_of: listed.record.run_id.clone(),
            rerun_of_repo: Some(listed.record.repo.clone()),
            origin: None,
            generation: None,
            reason: self.reason.clone(),
            made: false,
            command: Some(foreign_command(listed, "rerun", self.reason.as_deref())),
        }
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
            (Some(id), _) => {
                let made = if self.made { "repeats" } else { "was made earlier, and repeats" };
                writeln!(f, "{id} {made} {} (generation {})", self.rerun_of, self.generation.unwrap_or(1))?;
                writeln!(f, "next: `outlive wait {id}` waits for its end")
            }
            (None, command) => writeln!(f, "next: {}", command.as_deref().unwrap_or_default()),
        }
    }
}
