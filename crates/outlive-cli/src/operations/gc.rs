//! `outlive gc`: forgets what is gone.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::time::{Clock, SystemClock, Timestamp, parse_duration};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

use crate::call::{Context, Effect, Operate};
use crate::lookup::{Scope, index, narrowed};
use crate::ui::plain;

/// How many runs are named.
const NAMED: usize = 100;

/// Remove runs of deleted repositories from the index
///
/// Only index entries are removed: no file of any run is touched, and entries of a repository that cannot be reached
/// are kept.
#[derive(Debug, Default, Args)]
pub struct Gc {
    /// Only print what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Only what has been gone for this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Runs of this repository, or of every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
}

/// What was forgotten.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Forgotten {
    dry_run: bool,
    /// How many.
    count: usize,
    /// The first of them.
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
    const EXAMPLES: &'static str =
        "outlive gc --dry-run\noutlive registry refresh && outlive gc --older-than 30d --scope repo";
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
        let repo = narrowed(self.scope)?;
        let (count, first) = index.gone((before, repo.as_deref()), NAMED)?;
        let is_over = self.dry_run || count == 0;
        let count = if is_over { count } else { index.forget_gone(before, repo.as_deref())? };
        let runs = first.into_iter().map(|(repo, name)| Gone { repo, name }).collect();
        Ok(Forgotten { dry_run: self.dry_run, count, runs })
    }
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.dry_run { "would be forgotten" } else { "forgotten" };
        for gone in &self.runs {
            writeln!(f, "{}:{} {word}", plain(&gone.repo), plain(&gone.name))?;
        }
        match self.count.saturating_sub(self.runs.len()) {
            0 if self.runs.is_empty() => writeln!(f, "nothing is gone"),
            0 => Ok(()),
            more => writeln!(f, "and {more} more {word}"),
        }
    }
}
