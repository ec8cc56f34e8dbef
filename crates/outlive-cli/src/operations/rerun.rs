//! `outlive rerun`: repeats a run as a new one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use clap::Args;
use clap::builder::PossibleValuesParser;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::index::SearchHit;
use outlive::registry::{Registry, RerunOptions};
use outlive::run::{Run, StateName, Variables};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::detach::Starting;
use crate::exec::flags::RESERVED;
use crate::exec::take_up;
use crate::lookup::{Elsewhere, Scope, elsewhere, gone};
use crate::operations::bulk::{Bulk, BulkFilter, SELECTING, each_batch, states};
use crate::operations::delegate::{delegate, foreign_name};
use crate::ui::plain;

/// The states of runs that have ended.
const ENDED: [StateName; 5] =
    [StateName::Succeeded, StateName::Failed, StateName::Cancelled, StateName::Interrupted, StateName::Dead];

/// Start a finished run again as a new, linked run
///
/// The new run has the command, directory and policy of the old one, which is not changed. Words behind `--` replace
/// the arguments of the command, whose program stays the same, and --env sets variables. It starts at once in the
/// background; a run that came from the queue is queued again. With the same --idempotency-key a second call returns
/// the run of the first. A run of cool-workflow is repeated by cool-workflow as a tracked run of the home registry,
/// where `[cool_workflow] command` of the home's configuration names the program; otherwise the command to type is
/// printed.
///
/// With --status, --kind, --name, --label, --since or --until, the ended runs that match are counted, and repeated with
/// --yes, a thousand in one write. With an --idempotency-key each of them is repeated once, however often this is called.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive rerun [OPTIONS] <RUN> [-- <ARGS>...]\n       outlive rerun [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Rerun {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    #[arg(required_unless_present_any = SELECTING)]
    pub run: Option<String>,
    /// Select runs in this state (repeatable)
    #[arg(
        long = "status",
        visible_alias = "state",
        value_name = "STATE",
        value_parser = PossibleValuesParser::new(ENDED.map(StateName::as_str))
    )]
    pub status: Vec<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// Only count what would be repeated, which is also the default of a filter
    #[arg(long, conflicts_with_all = ["run", "yes"])]
    pub dry_run: bool,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
    /// Create at most one run for this key, however often this is called
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Also a run that has not ended
    #[arg(long)]
    pub force: bool,
    /// Set a variable, in addition to those that it had (repeatable)
    #[arg(long, value_name = "KEY=VALUE", requires = "run")]
    pub env: Vec<String>,
    /// Only in this repository, or in every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
    /// Arguments for the command, instead of those that it had
    #[arg(last = true, value_name = "ARGS", requires = "run")]
    pub args: Vec<OsString>,
}

/// The run that repeats another.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Again {
    /// The new run, or the run that has cool-workflow make it; none where the command is to be typed.
    id: Option<RunId>,
    name: Option<String>,
    rerun_of: Option<String>,
    rerun_of_repo: Option<String>,
    origin: Option<RunId>,
    generation: Option<u32>,
    reason: Option<String>,
    /// This call made it.
    made: bool,
    /// The command of cool-workflow that repeats a run of its own.
    command: Option<String>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
}

impl Operate for Rerun {
    const NAME: &'static str = "rerun";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive run --name job -- true && outlive rerun job --reason 'new data'\n\
                                    outlive run --name try -- sleep 9 && outlive rerun try --env SPEED=2 -- 1\n\
                                    outlive rerun --kind import --status failed --since 1d";
    type Output = Again;

    fn effect(&self) -> Effect {
        match self.run {
            None if !self.filter.yes => Effect::Read,
            // Other arguments are another command.
            _ if !self.args.is_empty() || !self.env.is_empty() => Effect::Execute,
            _ => Self::EFFECT,
        }
    }

    async fn operate(self, context: &Context) -> Result<Again, Error> {
        self.filter.check(&self.status, self.run.is_some())?;
        let Some(word) = self.run.clone() else {
            return Ok(Again { bulk: Some(self.in_bulk(context).await?), ..Again::default() });
        };
        let found = match context.for_change(&word).await {
            Ok(registry) => registry.find(&word).await.map(|seen| (registry, seen)),
            Err(error) => Err(error),
        };
        let (registry, id) = match found {
            Ok((registry, seen)) => {
                context.remember(&seen.run, &word);
                (registry, seen.run.id)
            }
            Err(error) => {
                return match elsewhere(context, self.scope, &word, error).await? {
                    Elsewhere::Registry(context, run) => {
                        Box::pin(Self { run: Some(run), scope: Scope::Repo, ..self }.operate(&context)).await
                    }
                    Elsewhere::Foreign(listed) => self.foreign(context, &listed).await,
                    Elsewhere::Gone(listed) => Err(gone(&listed)),
                };
            }
        };
        let again = registry.rerun(id, &self.options(context)?).await?;
        if again.made {
            begin(&registry, &again.run).await?;
        }
        Ok(Again::new(id, &again.run, again.made))
    }

    fn exit_status(again: &Again) -> u8 {
        again.bulk.as_ref().map_or(0, Bulk::exit_status)
    }
}

/// Starts the owner of a run that does not wait for a worker.
async fn begin(registry: &Registry, run: &Run) -> Result<(), Error> {
    if run.spec.queued || run.spec.command.is_none() {
        return Ok(());
    }
    let words = take_up::words(registry, run.id, false, false);
    let started = Starting::begin(&words, &SigSet::empty()).and_then(Starting::wait);
    let started = started.map_err(|error| Error::Invalid(format!("its owner cannot be started: {error}")))?;
    // A worker that was free has claimed it: that is what was wanted.
    if started.id.is_some() || registry.glance(run.id).await?.run.epoch > run.epoch {
        return Ok(());
    }
    let why = started.talk.unwrap_or_else(|| "its owner could not begin it".into());
    Err(Error::Invalid(format!("run `{}` was made and waits: {why}", run.id)))
}

impl Rerun {
    fn options(&self, context: &Context) -> Result<RerunOptions, Error> {
        let environment = (!context.is_served()).then(|| Variables::without_session(std::env::vars_os()));
        let (reason, key) = (self.reason.clone(), self.idempotency_key.clone());
        let arguments = self.args.iter().map(|word| word.as_os_str().into()).collect::<Vec<_>>();
        let arguments = Some(arguments).filter(|arguments| !arguments.is_empty());
        Ok(RerunOptions { reason, key, forced: self.force, environment, arguments, variables: self.variables()? })
    }

    /// The variables that `--env` sets.
    fn variables(&self) -> Result<BTreeMap<String, String>, Error> {
        let set = |word: &String| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() && !name.starts_with(RESERVED) => Ok((name.into(), value.into())),
            _ => Err(Error::Invalid(format!("`--env {word}` sets no variable: it is KEY=VALUE"))),
        };
        self.env.iter().map(set).collect()
    }

    /// Counts the runs that the filter selects, and repeats them where that is wanted.
    async fn in_bulk(&self, context: &Context) -> Result<Bulk, Error> {
        let is_dry = !self.filter.yes;
        let mut bulk = Bulk::new("repeated", is_dry);
        let opened = if is_dry { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = opened else { return Ok(bulk) };
        let now = registry.clock().now();
        let mut filter = self.filter.filter(states(&self.status, &ENDED)?, now)?;
        // What is made here may match too, and is not repeated again.
        filter.until = Some(filter.until.map_or(now, |until| until.min(now)));
        let how = self.options(context)?;
        each_batch((context, &registry), &filter, async |seen| {
            bulk.select(&seen);
            if is_dry {
                return Ok(());
            }
            for again in registry.rerun_each(&seen, &how).await? {
                let begun = match again {
                    Ok(again) if again.made => begin(&registry, &again.run).await.map(|()| 1),
                    // An earlier call with the same key has repeated it.
                    Ok(_) => Ok(0),
                    Err(error) => Err(error),
                };
                match begun {
                    Ok(made) => bulk.change(made),
                    Err(error) => bulk.leave(&error),
                }
            }
            Ok(())
        })
        .await?;
        Ok(bulk)
    }

    /// Has cool-workflow repeat a run of its own, where its command is configured.
    async fn foreign(&self, context: &Context, listed: &SearchHit) -> Result<Again, Error> {
        if !self.args.is_empty() || !self.env.is_empty() {
            return Err(Error::Invalid(
                "cool-workflow repeats a run as it was: its arguments cannot be changed".into(),
            ));
        }
        let reason = self.reason.as_deref().map(|reason| ["--reason", reason]);
        let words: Vec<&str> =
            ["run", "rerun", foreign_name(&listed.record)].into_iter().chain(reason.into_iter().flatten()).collect();
        let delegated = delegate(context, listed, &words, false).await?;
        Ok(Again {
            id: delegated.run,
            name: None,
            rerun_of: Some(listed.record.run_id.clone()),
            rerun_of_repo: Some(listed.record.repo.clone()),
            origin: None,
            generation: None,
            reason: self.reason.clone(),
            made: delegated.run.is_some(),
            command: Some(delegated.command),
            bulk: None,
        })
    }
}

impl Again {
    fn new(of: RunId, run: &Run, made: bool) -> Self {
        let lineage = run.spec.lineage.as_ref();
        Self {
            id: Some(run.id),
            name: run.spec.name.clone(),
            rerun_of: Some(of.to_string()),
            origin: lineage.map(|lineage| lineage.origin),
            generation: lineage.map(|lineage| lineage.generation),
            reason: lineage.and_then(|lineage| lineage.reason.clone()),
            made,
            ..Self::default()
        }
    }
}

impl fmt::Display for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        let rerun_of = plain(self.rerun_of.as_deref().unwrap_or_default());
        match (&self.id, &self.command) {
            (Some(id), Some(command)) => {
                writeln!(f, "{id} has cool-workflow repeat {rerun_of}: {}", plain(command))?;
                writeln!(f, "next: `outlive logs {id}` shows what it says")
            }
            (Some(id), None) => {
                let made = if self.made { "repeats" } else { "was made earlier, and repeats" };
                writeln!(f, "{id} {made} {rerun_of} (generation {})", self.generation.unwrap_or(1))?;
                writeln!(f, "next: `outlive wait {id}` waits for its end")
            }
            (None, command) => writeln!(f, "next: {}", command.as_deref().unwrap_or_default()),
        }
    }
}
