//! `outlive rm`: deletes runs that have ended, with their logs.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::deletes_unnamed;
use outlive::lifecycle::health::RunStatus;
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::parse_duration;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate, deliver};
use crate::exec::hooks;
use crate::lookup::located::locate;
use crate::ui::plain;
use crate::ui::run_view::RunView;

/// Delete finished runs with their history and logs
///
/// Deletes the record, the history, the steps and the logs of each run; nothing brings them back. Without --yes it
/// only says what would be deleted. A run that has not ended, whose processes are alive or that another run waits for
/// is refused; if one of several named runs is refused, none is deleted. --older-than skips dead and interrupted runs
/// that are not archived, because they may be resumed; --status selects them. Artifacts stay: `outlive sweep` deletes
/// those. Only a registry in a directory of this machine deletes runs.
#[derive(Debug, Default, Args)]
pub struct Rm {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    pub runs: Vec<String>,
    /// Every run in this state (repeatable)
    #[arg(
        long = "status",
        visible_alias = "state",
        value_name = "STATE",
        conflicts_with = "runs",
        value_parser = PossibleValuesParser::new(StateName::ALL.map(StateName::as_str))
    )]
    pub status: Vec<String>,
    /// Every run that ended longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "runs")]
    pub older_than: Option<Duration>,
    /// Delete; without it, only print what would be deleted
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only print what would be deleted, which is also the default
    #[arg(long)]
    pub dry_run: bool,
}

/// The runs that were deleted, or would be.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Deleted {
    dry_run: bool,
    runs: Vec<DeletedRun>,
    /// Runs that were selected and cannot be deleted.
    kept: Vec<KeptRun>,
}

/// A run that was deleted, or would be.
#[derive(Debug, JsonSchema, Serialize)]
struct DeletedRun {
    id: RunId,
    title: String,
    state: StateName,
}

/// A run that was selected and cannot be deleted.
#[derive(Debug, JsonSchema, Serialize)]
struct KeptRun {
    id: RunId,
    reason: String,
}

impl Operate for Rm {
    const NAME: &'static str = "rm";
    const EFFECT: Effect = Effect::Destroy;
    const EXAMPLES: &'static str = "outlive rm --status succeeded --older-than 30d\n\
                                    outlive rm --older-than 90d --yes\n\
                                    outlive run --name done -- true && outlive rm done --yes";
    type Output = Deleted;

    fn effect(&self) -> Effect {
        if self.yes { Self::EFFECT } else { Effect::Read }
    }

    async fn operate(self, context: &Context) -> Result<Deleted, Error> {
        let mut deleted = Deleted { dry_run: !self.yes, runs: Vec::new(), kept: Vec::new() };
        if self.runs.is_empty() {
            self.delete_selected(context, &mut deleted).await?;
            return Ok(deleted);
        }
        let located = locate(context, &self.runs, self.effect()).await?;
        // All runs are checked before one is deleted.
        for (registry, seen) in located.each() {
            registry.check_delete(seen.run.id).await?;
        }
        for (done, (registry, seen)) in located.each().enumerate() {
            if deleted.runs.iter().any(|line| line.id == seen.run.id) {
                continue;
            }
            context.pass(done, located.runs.len())?;
            deleted.delete(registry, seen).await?;
        }
        Ok(deleted)
    }
}

impl Rm {
    async fn delete_selected(&self, context: &Context, deleted: &mut Deleted) -> Result<(), Error> {
        if self.status.is_empty() && self.older_than.is_none() {
            let which = "name the runs to delete, or say which with --status STATE or --older-than DURATION";
            return Err(Error::Invalid(which.into()));
        }
        let states = self.states()?;
        let opened = if self.yes { context.to_change().await? } else { context.existing().await? };
        let Some(registry) = opened else { return Ok(()) };
        registry.check_deletes()?;
        if self.yes {
            deliver(&registry).await?;
        }
        let now = registry.clock().now();
        let is_meant = |seen: &&RunStatus| {
            let is_old = |age| seen.run.ending().is_some_and(|ending| now.since(ending.at) > age);
            self.older_than.is_none_or(is_old) && (!self.status.is_empty() || deletes_unnamed(&seen.run))
        };
        // Steps are deleted with the runs that they are steps of.
        let found = registry.all(&Filter { is_step: Some(false), ..Filter::in_states(states) }).await?;
        for (done, seen) in found.iter().filter(is_meant).enumerate() {
            context.pass(done, found.len())?;
            match deleted.delete(&registry, seen).await {
                Err(error @ (Error::Refused { .. } | Error::Contended(_))) => {
                    deleted.kept.push(KeptRun { id: seen.run.id, reason: error.to_string() });
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn states(&self) -> Result<BTreeSet<StateName>, Error> {
        let states: Result<BTreeSet<StateName>, _> = self.status.iter().map(|state| state.parse()).collect();
        let states = states.map_err(|error| Error::Invalid(error.to_string()))?;
        if let Some(state) = states.iter().find(|state| !state.is_ended()) {
            return Err(Error::Invalid(format!("a run that is {state} has not ended, and cannot be deleted")));
        }
        let ended = || StateName::ALL.into_iter().filter(|state| state.is_ended()).collect();
        Ok(if states.is_empty() { ended() } else { states })
    }
}

impl Deleted {
    async fn delete(&mut self, registry: &Registry, seen: &RunStatus) -> Result<(), Error> {
        let id = seen.run.id;
        if self.dry_run {
            registry.check_delete(id).await?;
        } else {
            if seen.run.owner().is_some() {
                hooks::reap(registry, &mut Reaper::new(registry.worker()), Filter::of([id])).await?;
            }
            registry.delete(id).await?;
        }
        let title = RunView::unsigned(seen, registry).title();
        self.runs.push(DeletedRun { id, title, state: seen.state });
        Ok(())
    }
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.dry_run { "would be deleted" } else { "deleted" };
        for DeletedRun { id, title, state } in &self.runs {
            writeln!(f, "{id} {title} ({state}) {verb}")?;
        }
        for KeptRun { id, reason } in &self.kept {
            writeln!(f, "{id} is kept: {}", plain(reason))?;
        }
        match (self.runs.is_empty(), self.dry_run) {
            (true, _) => writeln!(f, "nothing to delete"),
            (false, true) => writeln!(f, "nothing was deleted; --yes deletes"),
            (false, false) => Ok(()),
        }
    }
}
