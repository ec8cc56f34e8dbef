//! `outlive sweep`: deletes artifacts that no run needs.

use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::engine::sweeper::{SweepPolicy, SweepReport, sweep};
use outlive::error::Error;
use outlive::ownership::reaper::Reaper;
use outlive::settings::Sweeps;
use outlive::time::{parse_duration, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate, deliver};
use crate::exec::hooks;
use crate::ui::{counted, plain};

/// Delete artifacts that no run needs
///
/// Considers the artifacts of every run started with --artifacts. Without a manifest, all artifacts of a failed or
/// dead run are deleted. With a manifest, every attempt (or object, where the layout has no attempts) that neither
/// the manifest nor the pointer `_CURRENT` references is deleted. Running runs, runs that may be resumed and
/// everything that cannot be read are kept and listed. Nothing is deleted without --yes. `[sweep]` of
/// `$OUTLIVE_HOME/config.toml` says what is kept; flags can only keep more.
///
/// A record may only have artifacts deleted below the prefix of a registry in a bucket, below a location that
/// `[sweep.artifacts]` of `$OUTLIVE_HOME/config.toml` names for the registry, or where your own signature covers the
/// run and its location. Other runs are kept and listed. Exits with 1 where there are problems, or objects that could
/// not be deleted.
#[derive(Debug, Default, Args)]
pub struct Sweep {
    /// Delete; without it, only print what would be deleted
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Only print what would be deleted, which is also the default
    #[arg(long)]
    pub dry_run: bool,
    /// Spare runs that ended less long ago; no less than `[sweep] grace` says, which is 1h where it is unset
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub grace: Option<Duration>,
    /// Of each place, spare the last N runs that have ended; no fewer than `[sweep] keep_last` says
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_last: usize,
    /// Spare runs that ended less long ago than this; no less than `[sweep] older_than` says
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// In a bucket, keep the records of runs that ended less long ago, where `[sweep] forget_after` has records deleted
    /// of which nothing is left; no less than it says
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
    report: SweepReport,
}

impl Sweep {
    /// What is spared: what the policy of the home says, and whatever the flags say beyond it.
    fn spare(&self, policy: &SweepPolicy) -> Result<SweepPolicy, Error> {
        let home = "`[sweep]` of `$OUTLIVE_HOME/config.toml`";
        let less = |flag: &str, said: String, least: String| {
            Err(Error::Invalid(format!(
                "{flag} {said} would spare less than {least}, which is the least here; only {home} can say less"
            )))
        };
        if let Some(grace) = self.grace.filter(|grace| *grace < policy.grace) {
            return less("--grace", show_duration(grace), show_duration(policy.grace));
        }
        if let (Some(older), Some(least)) = (self.older_than, policy.older_than)
            && older < least
        {
            return less("--older-than", show_duration(older), show_duration(least));
        }
        match (self.forget_after, policy.forget_after) {
            (Some(_), None) => {
                return Err(Error::Invalid(format!(
                    "records are kept: --forget-after keeps them longer than `forget_after` in {home} says, which says nothing"
                )));
            }
            (Some(after), Some(least)) if after < least => {
                return less("--forget-after", show_duration(after), show_duration(least));
            }
            _ => {}
        }
        Ok(policy.and(&SweepPolicy {
            grace: self.grace.unwrap_or_default(),
            keep_last: self.keep_last,
            older_than: self.older_than,
            forget_after: self.forget_after.or(policy.forget_after),
            unsure: Duration::ZERO,
            ..SweepPolicy::default()
        }))
    }
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
            return Ok(Answer { report: SweepReport { dry_run, ..SweepReport::default() } });
        };
        let sweeps = Sweeps::read()?;
        let mut spare = self.spare(&sweeps.spare())?;
        let locations = sweeps.locations(registry.url())?;
        let registry = registry.naming_artifacts(locations);
        if spare.forget_after.is_some() && registry.bucket().is_none() {
            if self.forget_after.is_some() {
                return Err(Error::Invalid(
                    "--forget-after is for registries in a bucket; `outlive archive --older-than` puts runs of others away"
                        .into(),
                ));
            }
            spare.forget_after = None;
        }
        for run in &self.runs {
            spare.only.insert(registry.find(run).await?.run.id);
        }
        if !dry_run {
            deliver(&registry).await?;
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), Default::default()).await?;
        }
        Ok(Answer { report: sweep(&registry, &SweepPolicy { dry_run, ..spare }).await? })
    }

    fn exit_status(output: &Answer) -> u8 {
        u8::from(output.report.left > 0 || !output.report.problems.is_empty())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SweepReport { dry_run, swept, kept, problems, objects, bytes, left, versioned, forgotten } = &self.report;
        let verb = if *dry_run { "would delete" } else { "deleted" };
        for line in swept {
            writeln!(
                f,
                "{} {verb} {} of {} below {}, {} stay: {}",
                line.id,
                counted(line.objects, "object"),
                counted(line.bytes, "byte"),
                plain(&line.prefix),
                line.kept,
                plain(&line.reason)
            )?;
        }
        for line in kept {
            let objects = counted(line.kept, "object");
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
        let (objects, bytes) = (counted(*objects, "object"), counted(*bytes, "byte"));
        let next = match (*dry_run, swept.is_empty(), *left) {
            (true, false, _) => "; `outlive sweep --yes` with the same flags deletes them".to_owned(),
            (_, _, 0) => String::new(),
            (_, _, left) => format!("; {left} could not be, and are left to the next sweep"),
        };
        writeln!(f, "{verb} {objects} of {bytes}{next}")
    }
}
