//! `outlive queue edit`: changes when queued runs are claimed.

use std::fmt;

use clap::{ArgGroup, Args, Command};
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::{Action, Due, QueueEdit};
use outlive::run::{Run, State};
use outlive::time::{Clock, SystemClock, Timestamp, Towards, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

use super::find_queued;
use crate::call::{Context, Effect, Operate};
use crate::operations::bulk::{Bulk, BulkFilter, SELECTING_OF_STATE, change_pending};
use crate::ui::plain;

/// Change the priority or start time of queued runs
///
/// What a run does never changes: `outlive rerun` makes a new run with other arguments. A new priority also holds for later
/// attempts of the run; of a schedule it is that of the next run alone. With --kind, --name, --label, --since or --until,
/// the runs that match are counted, and edited with --yes. A thousand runs are one write.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive queue edit <RUNS>... <--priority N|--not-before TIME>\n       outlive queue edit --kind KIND|--label KEY=VALUE|... [--yes] <--priority N|--not-before TIME>"
)]
pub struct Edit {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required_unless_present_any = SELECTING_OF_STATE)]
    pub runs: Vec<String>,
    /// Lower is executed first
    #[arg(long, allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Not before this time, or after this long, such as 90m; `now` when its turn comes
    #[arg(long, value_name = "TIME|DURATION|now")]
    pub not_before: Option<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
}

/// The runs that were edited.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Edited {
    runs: Vec<EditedRun>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
}

/// A run with its place in the queue.
#[derive(Debug, JsonSchema, Serialize)]
struct EditedRun {
    id: RunId,
    name: Option<String>,
    priority: i32,
    /// The time before which it is not executed; null where there is none, and while it is paused.
    not_before: Option<Timestamp>,
}

impl From<Run> for EditedRun {
    fn from(run: Run) -> Self {
        let not_before = match &run.state {
            State::Pending(pending) if pending.paused.is_none() => pending.not_before,
            _ => None,
        };
        Self { id: run.id, priority: run.priority(), name: run.spec.name.clone(), not_before }
    }
}

impl Edit {
    /// The change that the flags describe, at this time.
    fn edit(&self, now: Timestamp) -> Result<QueueEdit, Error> {
        let due = |text: &String| match text.as_str() {
            "now" => Ok(Due::Now),
            text => parse_moment(text, now, Towards::Future).map(Due::At),
        };
        let due = self.not_before.as_ref().map(due).transpose();
        Ok(QueueEdit { priority: self.priority, due: due.map_err(|error| Error::Invalid(error.to_string()))? })
    }
}

impl Operate for Edit {
    const NAME: &'static str = "queue edit";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive queue edit nightly --priority -5\n\
                                    outlive queue edit nightly --not-before 18:00\n\
                                    outlive queue edit nightly --not-before now --json\n\
                                    outlive queue edit --label tenant=acme --priority 10";
    type Output = Edited;

    fn effect(&self) -> Effect {
        if self.filter.is_any() && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    fn shape(command: Command) -> Command {
        let change = ArgGroup::new("change").args(["priority", "not_before"]).required(true).multiple(true);
        command.group(change)
    }

    fn exit_status(edited: &Edited) -> u8 {
        edited.bulk.as_ref().map_or(0, Bulk::exit_status)
    }

    async fn operate(self, context: &Context) -> Result<Edited, Error> {
        self.filter.check(&[], !self.runs.is_empty())?;
        let edit = self.edit(SystemClock.now())?;
        if self.filter.is_any() {
            let how = ("edited", &Action::Edit(edit));
            let bulk = change_pending(context, (&self.filter, |_| true), how, async |registry, runs| {
                registry.edit_each(runs, edit).await
            });
            return Ok(Edited { runs: Vec::new(), bulk: Some(bulk.await?) });
        }
        let mut runs = Vec::new();
        for (registry, run) in find_queued(context, &self.runs).await? {
            runs.push(registry.edit(run.id, edit).await?.into());
        }
        Ok(Edited { runs, bulk: None })
    }
}

impl fmt::Display for Edited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        for run in &self.runs {
            let name = run.name.as_deref().map(|name| format!(" {}", plain(name))).unwrap_or_default();
            write!(f, "{}{name} has priority {}", run.id, run.priority)?;
            match run.not_before {
                Some(at) => writeln!(f, ", not before {}", at.local())?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
