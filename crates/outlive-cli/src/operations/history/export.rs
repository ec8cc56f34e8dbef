//! `outlive history export`: old runs of a database become Parquet files.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::logs::show_bytes;
use outlive::store::postgres::{Export as PartExport, HistoryPart};
use outlive::time::{Timestamp, Towards, parse_duration, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::{counted, plain};

/// Move old runs of a PostgreSQL registry into Parquet files
///
/// History is exported a time at a time, as the database keeps it: a time whose runs have all ended is written to files,
/// which are read back before its tables are dropped. `show`, `why`, `result` and `search` find the runs afterwards from
/// every home that has exported to the location, or has it by --remember. Without --yes it only counts.
#[derive(Debug, Default, Args)]
pub struct Export {
    /// Where: s3://BUCKET/PREFIX or a directory [default: where history was exported to before]
    #[arg(long, value_name = "LOCATION")]
    pub to: Option<String>,
    /// Only runs made and ended before this time: 2026-11-01, 30d (ago)
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
    /// Only runs made and ended longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "before")]
    pub older_than: Option<Duration>,
    /// Replace files that an export left which did not end
    #[arg(long)]
    pub replace: bool,
    /// Export nothing: only have this home find what was exported there
    #[arg(long, requires = "to", conflicts_with = "yes")]
    pub remember: bool,
    /// Export and drop
    #[arg(long)]
    pub yes: bool,
}

/// What was exported, or would be.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportedHistory {
    dry_run: bool,
    /// Where the files are.
    location: Option<String>,
    /// How many runs were exported, or would be.
    runs: u64,
    /// The times that history is kept by, oldest first.
    parts: Vec<HistoryPart>,
    /// A time that could be exported was left.
    #[serde(skip)]
    failed: bool,
}

impl Export {
    fn until(&self, now: Timestamp) -> Result<Timestamp, Error> {
        if let Some(age) = self.older_than {
            let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
            return Ok(Timestamp::from_micros(now.as_micros().saturating_sub(micros)));
        }
        let before = self.before.as_deref().map(|text| parse_moment(text, now, Towards::Past)).transpose();
        // Unless a time is named, the clock of the server alone decides what is over.
        Ok(before.map_err(|error| Error::Invalid(error.to_string()))?.unwrap_or(Timestamp::from_micros(i64::MAX)))
    }
}

impl Operate for Export {
    const NAME: &'static str = "history export";
    const EFFECT: Effect = Effect::Destroy;
    const EXAMPLES: &'static str = "outlive history export --older-than 90d\n\
                                    outlive history export --older-than 90d --to s3://data/history --yes";
    type Output = ExportedHistory;

    fn effect(&self) -> Effect {
        match (self.remember, self.yes) {
            (true, _) => Effect::Local,
            (false, true) => Self::EFFECT,
            (false, false) => Effect::Read,
        }
    }

    async fn operate(self, context: &Context) -> Result<ExportedHistory, Error> {
        let registry = if self.yes { context.to_change().await? } else { context.existing().await? };
        let database = registry.as_ref().and_then(|registry| Some((registry, registry.database()?)));
        let Some((registry, database)) = database else {
            return Err(Error::Invalid(format!(
                "`{}` is no registry in PostgreSQL: only their history is exported",
                plain(&context.place()?)
            )));
        };
        let before = self.until(registry.clock().now())?;
        // A shell names a directory from where it is.
        let to = self.to.as_deref().map(|to| match Path::new(to).canonicalize() {
            Ok(path) if !context.is_served() => path.display().to_string(),
            _ => to.to_owned(),
        });
        let location = match (&to, self.yes) {
            (None, false) => registry.history_location(None, true).ok(),
            (to, _) => Some(registry.history_location(to.as_deref(), !context.is_served())?),
        };
        if let Some(location) = location.as_ref().filter(|_| self.remember) {
            registry.remember_history(location)?;
        }
        let mut parts = database.history_parts(before).await?;
        let is_meant = |part: &HistoryPart| part.left.is_none();
        let total: u64 = parts.iter().filter(|part| is_meant(part)).map(|part| part.runs).sum();
        let (mut done, mut failed) = (0, false);
        if let Some(location) = location.as_ref().filter(|_| self.yes) {
            for part in parts.iter_mut().filter(|part| is_meant(part)) {
                let export = PartExport { location, before, replace: self.replace };
                let runs = part.runs;
                let pass = |read: u64| context.pass((done + read) as usize, total as usize).map_err(|_| given_up());
                *part = database.export_part(part.clone(), &export, pass).await?;
                failed |= part.left.is_some();
                done += runs;
            }
        }
        let runs = parts.iter().filter(|part| is_meant(part)).map(|part| part.runs).sum();
        let location = location.map(|location| location.to_string());
        Ok(ExportedHistory { dry_run: !self.yes, location, runs, parts, failed })
    }

    fn exit_status(output: &ExportedHistory) -> u8 {
        u8::from(output.failed)
    }
}

fn given_up() -> outlive::store::Error {
    outlive::store::Error::Unavailable("the caller has gone away".into())
}

impl fmt::Display for ExportedHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let would = if self.dry_run { "would be " } else { "" };
        for part in &self.parts {
            let day = |at: Timestamp| at.to_string()[..10].to_owned();
            write!(f, "{} to {}: {}", day(part.since), day(part.until), counted(part.runs, "run"))?;
            match &part.left {
                Some(why) => writeln!(f, " left: {}", plain(why))?,
                None if self.dry_run => writeln!(f, " would be exported")?,
                None => writeln!(f, " exported, {} of {}", counted(part.files, "file"), show_bytes(part.bytes))?,
            }
        }
        let to = self.location.as_ref().map(|location| format!(" to {}", plain(location))).unwrap_or_default();
        writeln!(f, "{} {would}exported{to}", counted(self.runs, "run"))?;
        match (self.dry_run && self.runs > 0, &self.location) {
            (true, Some(_)) => writeln!(f, "next: the same call with --yes exports them and drops their tables"),
            (true, None) => writeln!(f, "next: the same call with --to LOCATION and --yes exports them"),
            (false, _) => Ok(()),
        }
    }
}
