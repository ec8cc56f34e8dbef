//! `outlive gc`: forgets what is gone.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::time::{Clock, SystemClock, Timestamp, parse_duration};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

use crate::operation::{Effect, Operate};
use crate::operations::plane::index;
use crate::settings::Context;
use crate::terminal::plain;

/// Have the index forget runs whose sources are gone
///
/// Only what the index knows of them is forgotten: no file of any run is touched, and nothing is forgotten of a repository
/// that is away.
#[derive(Debug, Default, Args)]
pub struct Gc {
    /// Only say what would be forgotten
    #[arg(long)]
    pub dry_run: bool,
    /// Only what has been gone for this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
}

/// What was forgotten.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Forgotten {
    dry_run: bool,
    runs: Vec<Gone>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Gone {
    repo: String,
    name: String,
}

impl Operate for Gc {
    const NAME: &'static str = "gc";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive gc --dry-run\noutlive registry refresh && outlive gc --older-than 30d";
    type Output = Forgotten;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Forgotten, Error> {
        let index = index()?;
        let age = self.older_than.unwrap_or_default();
        let now = SystemClock.now();
        let before =
            Timestamp::from_micros(now.as_micros().saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)));
        let gone = index.gone(before)?;
        if !self.dry_run && !gone.is_empty() {
            index.forget_gone(before)?;
        }
        let runs = gone.into_iter().map(|(repo, name)| Gone { repo, name }).collect();
        Ok(Forgotten { dry_run: self.dry_run, runs })
    }
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.dry_run { "would be forgotten" } else { "forgotten" };
        for gone in &self.runs {
            writeln!(f, "{}:{} {word}", plain(&gone.repo), plain(&gone.name))?;
        }
        if self.runs.is_empty() { writeln!(f, "nothing is gone") } else { Ok(()) }
    }
}
