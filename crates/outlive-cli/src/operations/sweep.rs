//! `outlive sweep`: deletes what runs made and nobody needs.

use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::runtime::reaper::Reaper;
use outlive::runtime::sweeper::{GRACE, Report, Spare, UNSURE, sweep};
use outlive::time::parse_duration;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::{Effect, Operate};
use crate::settings::{Context, deliver};
use crate::terminal::plain;
use crate::workers::hooks;

/// Delete what runs made and nobody needs
///
/// Looks at the artifacts of every run that was started with --artifacts: of a run that failed or died without a manifest
/// all of them go, of one with a manifest the attempts that neither it nor the pointer `_CURRENT` names. Runs in flight, runs
/// that may go on, and whatever cannot be read are left alone and told. Nothing is deleted without --yes, and every flag
/// only spares more.
#[derive(Debug, Default, Args)]
pub struct Sweep {
    /// Delete; without it, only say what would be deleted
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only say what would be deleted, which is also the default
    #[arg(long)]
    pub dry_run: bool,
    /// Spare runs that ended less long ago [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub grace: Option<Duration>,
    /// Of each place, spare the last N runs that have ended
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_last: usize,
    /// Spare runs that ended less long ago than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Also delete the records of runs that ended this long ago and of which nothing is left; only in a bucket
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub forget_after: Option<Duration>,
    /// Spare all runs but this one: an id, the beginning of one, or a name (repeatable)
    #[arg(long = "run", value_name = "RUN")]
    pub runs: Vec<String>,
}

/// What was deleted, or would be.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Answer {
    #[serde(flatten)]
    report: Report,
}

impl Operate for Sweep {
    const NAME: &'static str = "sweep";
    const EFFECT: Effect = Effect::Destroy;
    const EXAMPLES: &'static str = "outlive sweep\noutlive sweep --older-than 7d --keep-last 3";
    type Output = Answer;

    fn effect(&self) -> Effect {
        if self.yes { Self::EFFECT } else { Effect::Read }
    }

    async fn operate(self, context: &Context) -> Result<Answer, Error> {
        let dry_run = !self.yes;
        let registry = if dry_run { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = registry else {
            return Ok(Answer { report: Report { dry_run, ..Report::default() } });
        };
        let mut spare = Spare { keep_last: self.keep_last, older_than: self.older_than, ..Spare::default() };
        spare.grace = self.grace.unwrap_or(GRACE);
        spare.unsure = UNSURE.min(spare.grace);
        spare.forget_after = self.forget_after;
        if spare.forget_after.is_some() && registry.bucket().is_none() {
            return Err(Error::Invalid(
                "--forget-after is for registries in a bucket; `outlive archive --older-than` puts runs of others away"
                    .into(),
            ));
        }
        for run in &self.runs {
            spare.only.insert(registry.find(run).await?.run.id);
        }
        if !dry_run {
            deliver(&registry).await?;
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), Default::default()).await?;
        }
        Ok(Answer { report: sweep(&registry, &spare, dry_run).await? })
    }

    fn exit_status(output: &Answer) -> u8 {
        u8::from(output.report.left > 0)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { dry_run, swept, kept, problems, objects, bytes, left, versioned, forgotten } = &self.report;
        let verb = if *dry_run { "would delete" } else { "deleted" };
        for line in swept {
            writeln!(
                f,
                "{} {verb} {} of {} below {}, {} stay: {}",
                line.id,
                count(line.objects, "object"),
                count(line.bytes, "byte"),
                plain(&line.prefix),
                line.kept,
                plain(&line.reason)
            )?;
        }
        for line in kept {
            let objects = count(line.kept, "object");
            writeln!(f, "{} keeps {objects} below {}: {}", line.id, plain(&line.prefix), plain(&line.reason))?;
        }
        for problem in problems {
            writeln!(f, "problem: {}: {}", plain(&problem.what), plain(&problem.why))?;
        }
        for run in forgotten {
            writeln!(f, "{run} {verb} its record: it ended long ago, and nothing is left of it")?;
        }
        for place in versioned {
            let place = plain(place);
            writeln!(
                f,
                "note: {place} keeps versions: what is deleted takes room until the bucket's own rules remove it"
            )?;
        }
        let (objects, bytes) = (count(*objects, "object"), count(*bytes, "byte"));
        let next = match (*dry_run, swept.is_empty(), *left) {
            (true, false, _) => "; `outlive sweep --yes` with the same flags deletes them".to_owned(),
            (_, _, 0) => String::new(),
            (_, _, left) => format!("; {left} could not be, and are left to the next sweep"),
        };
        writeln!(f, "{verb} {objects} of {bytes}{next}")
    }
}

/// So many of them, in words.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
