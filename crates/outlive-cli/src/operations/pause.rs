//! `outlive pause` and `unpause`: hold queued runs and their schedules back, and let them wait for their turn again.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::Action;
use outlive::run::{Run, State};
use outlive::time::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::operations::bulk::{Bulk, BulkFilter, SELECTING_OF_STATE, change_pending};
use crate::operations::queue::find_queued;
use crate::ui::plain;

/// Hold queued runs and their schedules back until they are unpaused
///
/// No worker executes a paused run. A schedule is paused with the run of its next slot, which its name means: slots that
/// pass meanwhile are not made up for. A run that is running already is not affected. With --kind, --name, --label, --since
/// or --until, the queued runs that match are counted, and paused with --yes. A thousand runs are one write.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive pause [OPTIONS] <RUNS>...\n       outlive pause [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Pause {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required_unless_present_any = SELECTING_OF_STATE)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// The reason, kept with the run and shown with it
    #[arg(long)]
    pub reason: Option<String>,
}

/// Let paused runs wait for their turn again
///
/// A run of a schedule waits for its next slot; any other run is executed when its turn comes. With --kind, --name,
/// --label, --since or --until, the paused runs that match are counted, and unpaused with --yes.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive unpause [OPTIONS] <RUNS>...\n       outlive unpause [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Unpause {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required_unless_present_any = SELECTING_OF_STATE)]
    pub runs: Vec<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
}

/// The runs that are held back or no longer.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Held {
    /// They are held back.
    paused: bool,
    runs: Vec<HeldRun>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
}

/// A run that is held back, or no longer.
#[derive(Debug, JsonSchema, Serialize)]
struct HeldRun {
    id: RunId,
    name: Option<String>,
    /// When it comes again, where it is of a schedule.
    schedule: Option<String>,
    /// Before when it is not executed; null where it is paused or due.
    not_before: Option<Timestamp>,
}

impl HeldRun {
    fn of(run: &Run) -> Self {
        let not_before = match &run.state {
            State::Pending(pending) if pending.paused.is_none() => pending.not_before,
            _ => None,
        };
        let schedule = run.spec.schedule.as_ref().map(ToString::to_string);
        Self { id: run.id, name: run.spec.name.clone(), schedule, not_before }
    }
}

impl Operate for Pause {
    const NAME: &'static str = "pause";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive pause nightly --reason holidays\noutlive pause --label tenant=acme\n\
                                    outlive pause nightly --json";
    type Output = Held;

    fn effect(&self) -> Effect {
        if self.filter.is_any() && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    fn exit_status(held: &Held) -> u8 {
        held.bulk.as_ref().map_or(0, Bulk::exit_status)
    }

    async fn operate(self, context: &Context) -> Result<Held, Error> {
        self.filter.check(&[], !self.runs.is_empty())?;
        if self.filter.is_any() {
            let how = ("paused", &Action::Pause { reason: None });
            let bulk =
                change_pending(context, (&self.filter, |run| run.paused.is_none()), how, async |registry, runs| {
                    registry.pause_each(runs, self.reason.clone()).await
                });
            return Ok(Held { paused: true, runs: Vec::new(), bulk: Some(bulk.await?) });
        }
        let mut runs = Vec::new();
        for (registry, run) in find_queued(context, &self.runs).await? {
            runs.push(HeldRun::of(&registry.pause(run.id, self.reason.clone()).await?));
        }
        Ok(Held { paused: true, runs, bulk: None })
    }
}

impl Operate for Unpause {
    const NAME: &'static str = "unpause";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive unpause nightly";
    type Output = Held;

    fn effect(&self) -> Effect {
        if self.filter.is_any() && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    fn exit_status(held: &Held) -> u8 {
        held.bulk.as_ref().map_or(0, Bulk::exit_status)
    }

    async fn operate(self, context: &Context) -> Result<Held, Error> {
        self.filter.check(&[], !self.runs.is_empty())?;
        if self.filter.is_any() {
            let how = ("unpaused", &Action::Unpause);
            let bulk =
                change_pending(context, (&self.filter, |run| run.paused.is_some()), how, async |registry, runs| {
                    registry.unpause_each(runs).await
                });
            return Ok(Held { paused: false, runs: Vec::new(), bulk: Some(bulk.await?) });
        }
        let mut runs = Vec::new();
        for (registry, run) in find_queued(context, &self.runs).await? {
            runs.push(HeldRun::of(&registry.unpause(run.id).await?));
        }
        Ok(Held { paused: false, runs, bulk: None })
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        for run in &self.runs {
            let name = run.name.as_deref().map(|name| format!(" {}", plain(name))).unwrap_or_default();
            match (self.paused, run.not_before) {
                (true, _) => writeln!(f, "{}{name} is paused; `outlive unpause {}` ends that", run.id, run.id)?,
                (false, Some(at)) => writeln!(f, "{}{name} waits until {}", run.id, at.local())?,
                (false, None) => writeln!(f, "{}{name} waits for its turn", run.id)?,
            }
        }
        Ok(())
    }
}
