//! `outlive reap`: puts deaths on record.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::health::Health;
use outlive::ownership::reaper::{Reaper, is_hung};
use outlive::run::StateName;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate, deliver};
use crate::exec::hooks;
use crate::ui::plain;
use crate::ui::run_view::with_names;

/// Mark runs whose owner process is gone as dead
///
/// The run's policy decides whether it becomes dead, failed or pending again. Runs whose owner is alive, and runs
/// with live processes, are listed and left alone. Any number of reapers may run at once; each run is reported once.
#[derive(Debug, Default, Args)]
pub struct Reap {
    /// Only print what would be reaped
    #[arg(long)]
    pub dry_run: bool,
}

/// What was found.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct ReapReport {
    dry_run: bool,
    /// Ended by this call, or, in a dry run, to be ended.
    reaped: Vec<ReapedRun>,
    /// Their owners are gone, but processes of theirs live on.
    orphaned: Vec<ReapedRun>,
    /// Their owners live, but are silent.
    unresponsive: Vec<ReapedRun>,
    /// Nothing is wrong with these.
    live: usize,
    /// Written by other programs, whose leases are over. Their records stay as they are.
    abandoned: usize,
}

#[derive(Debug, JsonSchema, Serialize)]
struct ReapedRun {
    id: RunId,
    state: StateName,
    reason: String,
}

impl Operate for Reap {
    const NAME: &'static str = "reap";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive reap --dry-run\noutlive reap";
    type Output = ReapReport;

    async fn operate(self, context: &Context) -> Result<ReapReport, Error> {
        let registry = if self.dry_run { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = registry else {
            return Ok(ReapReport { dry_run: self.dry_run, ..ReapReport::default() });
        };
        if self.dry_run {
            return look(&registry).await;
        }
        deliver(&registry).await?;
        let reaped = hooks::reap(&registry, &mut Reaper::new(registry.worker()), Filter::default()).await?;
        let line = |run: &outlive::run::Run, reason: String| ReapedRun { id: run.id, state: run.state.name(), reason };
        let mut found = ReapReport { live: reaped.live, abandoned: reaped.abandoned, ..ReapReport::default() };
        for run in &reaped.ended {
            let events = registry.events(run.id).await?;
            let evidence = events.iter().rev().find_map(|event| event.evidence.as_ref());
            found.reaped.push(line(run, evidence.map(ToString::to_string).unwrap_or_default()));
        }
        for (run, left) in &reaped.orphaned {
            found.orphaned.push(line(run, with_names(&format!("still alive: {left}"), left)));
        }
        for run in &reaped.unresponsive {
            let pid = run.owner().map_or(0, |owner| owner.identity.pid);
            found.unresponsive.push(line(run, format!("its owner, pid {pid}, lives")));
        }
        Ok(found)
    }
}

async fn look(registry: &outlive::registry::Registry) -> Result<ReapReport, Error> {
    let mut found = ReapReport { dry_run: true, ..ReapReport::default() };
    let filter = Filter::in_states([StateName::Running, StateName::Dead]);
    for seen in registry.all(&filter).await?.into_iter().filter(|seen| seen.run.owner().is_some()) {
        let line = ReapedRun {
            id: seen.run.id,
            state: seen.state,
            reason: with_names(seen.reason.as_deref().unwrap_or_default(), &seen.leftovers),
        };
        match (seen.state, seen.health) {
            (StateName::Dead, _) if seen.run.foreign => found.abandoned += 1,
            (StateName::Dead, _) => found.reaped.push(line),
            (_, Some(Health::Orphaned)) => found.orphaned.push(line),
            (_, Some(Health::Unresponsive)) if is_hung(&seen.run) => found.reaped.push(line),
            (_, Some(Health::Unresponsive)) => found.unresponsive.push(line),
            _ => found.live += 1,
        }
    }
    Ok(found)
}

impl fmt::Display for ReapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.reaped {
            let verb = if self.dry_run { "would be reaped" } else { line.state.as_str() };
            writeln!(f, "{} {verb}: {}", line.id, plain(&line.reason))?;
        }
        for (word, lines) in [("orphaned", &self.orphaned), ("unresponsive", &self.unresponsive)] {
            for line in lines {
                writeln!(
                    f,
                    "{} {word}, left alone: {}; `outlive cancel {}` ends it",
                    line.id,
                    plain(&line.reason),
                    line.id
                )?;
            }
        }
        let verb = if self.dry_run { "to reap" } else { "reaped" };
        let abandoned = match self.abandoned {
            0 => String::new(),
            count => format!(", {count} of other programs abandoned"),
        };
        writeln!(f, "{} {verb}, {} live{abandoned}", self.reaped.len(), self.live)
    }
}
