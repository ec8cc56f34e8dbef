//! `outlive import`: runs of a table of another system become runs of this registry.

mod source;
mod task_run;

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::registry::{ForeignRun, Registry};
use schemars::JsonSchema;
use serde::Serialize;

use self::source::{Row, Source};
use self::task_run::{Mapped, Mapping};
use crate::call::{Context, Effect, Operate};
use crate::ui::plain;

/// How many runs are written at once.
const AT_ONCE: usize = 500;
/// How many rows that are left are named.
const NAMED: usize = 100;

/// Import the rows of a task_run table of a database
///
/// Rows that are DONE, FAILED or CANCELED become ended runs with their times and results, those that wait become queued
/// runs for a handler of their kind. A RUNNING row without an owner, or whose owner sends no heartbeats, becomes a
/// failed run; one whose owner is alive is left. Nothing is changed in the database. Without --yes it only counts; to
/// import again imports what is new.
#[derive(Debug, Args)]
pub struct Import {
    /// Where the rows are: postgres://USER@HOST/DATABASE, a file with a row of JSON a line, or - for the standard input
    #[arg(long, value_name = "URL|FILE|-")]
    pub from_sql: String,
    /// The table with a row for each run
    #[arg(long, value_name = "TABLE", default_value = "task_run")]
    pub table: String,
    /// The table with the last heartbeat of each owner
    #[arg(long, value_name = "TABLE", default_value = "replica_heartbeat")]
    pub replicas: String,
    /// The kind of the imported runs
    #[arg(long, value_name = "KIND", default_value = "task_run")]
    pub kind: String,
    /// Import them
    #[arg(long)]
    pub yes: bool,
}

/// What was imported, or would be.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Imported {
    dry_run: bool,
    /// How many rows were read.
    rows: u64,
    /// How many runs were made, or would be.
    made: u64,
    /// How many of the rows were imported before.
    there: u64,
    /// How many of those that were made, or would be, are in each state.
    states: BTreeMap<&'static str, u64>,
    /// How many rows were running with an owner that is unknown or gone. They are among those that failed.
    abandoned: u64,
    /// How many rows are left.
    left_count: u64,
    /// The first of them.
    left: Vec<Left>,
}

/// A row that is not imported.
#[derive(Debug, JsonSchema, Serialize)]
struct Left {
    /// The id of the row, or its number where it has none.
    row: String,
    reason: String,
}

/// A run that is to be written, and what is counted of it.
struct Ready {
    run: ForeignRun,
    state: &'static str,
    abandoned: bool,
}

impl Operate for Import {
    const NAME: &'static str = "import";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive import --from-sql /srv/task_run.jsonl\n\
                                    outlive import --from-sql - --kind migrate --yes --json < /srv/task_run.jsonl";
    type Output = Imported;

    async fn operate(self, context: &Context) -> Result<Imported, Error> {
        let mut source = Source::open(&self.from_sql, &self.table, &self.replicas)?;
        let registry = if self.yes { Some(context.registry().await?) } else { context.existing().await? };
        let mut imported = Imported { dry_run: !self.yes, ..Imported::default() };
        let mut mapping = Mapping::new(&self.table, &self.kind, registry.as_ref());
        let mut batch = Vec::new();
        while let Some(row) = source.next().await? {
            match row {
                Row::Replicas(replicas) => mapping.replicas = Some(replicas),
                Row::Run(text) => {
                    imported.rows += 1;
                    match mapping.map(&text, imported.rows) {
                        Mapped::Run { run, state, abandoned } => batch.push(Ready { run: *run, state, abandoned }),
                        Mapped::Left { row, reason } => imported.leave(row, reason),
                    }
                }
            }
            if batch.len() >= AT_ONCE {
                imported.write(registry.as_ref(), std::mem::take(&mut batch)).await?;
            }
        }
        imported.write(registry.as_ref(), batch).await?;
        Ok(imported)
    }

    fn exit_status(imported: &Imported) -> u8 {
        u8::from(!imported.dry_run && imported.left_count > 0)
    }
}

impl Imported {
    fn leave(&mut self, row: String, reason: String) {
        self.left_count += 1;
        if self.left.len() < NAMED {
            self.left.push(Left { row, reason });
        }
    }

    /// Writes a batch, or finds out what writing it would do.
    async fn write(&mut self, registry: Option<&Registry>, batch: Vec<Ready>) -> Result<(), Error> {
        let runs: Vec<ForeignRun> = batch.iter().map(|ready| ready.run.clone()).collect();
        let made: Vec<bool> = match registry {
            Some(registry) if !self.dry_run => registry.import(runs).await?,
            Some(registry) => {
                let ids: Vec<_> = runs.iter().map(ForeignRun::id).collect();
                let there = registry.store().get(&ids).await?;
                ids.iter().map(|id| there.iter().all(|record| record.run.id != *id)).collect()
            }
            None => vec![true; runs.len()],
        };
        for (ready, made) in batch.iter().zip(made) {
            if made {
                self.made += 1;
                *self.states.entry(ready.state).or_default() += 1;
                self.abandoned += u64::from(ready.abandoned);
            } else {
                self.there += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (would, rows) = (if self.dry_run { "would be " } else { "" }, self.rows);
        let states: Vec<String> = self.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        writeln!(f, "{} of {rows} rows {would}imported{states}", self.made)?;
        if self.abandoned > 0 {
            writeln!(f, "{} of them were running without an owner that is alive, and have failed", self.abandoned)?;
        }
        if self.there > 0 {
            writeln!(f, "{} were imported before", self.there)?;
        }
        for Left { row, reason } in &self.left {
            writeln!(f, "row {} is left: {}", plain(row), plain(reason))?;
        }
        match self.left_count.saturating_sub(self.left.len() as u64) {
            0 => {}
            more => writeln!(f, "and {more} more are left")?,
        }
        if self.dry_run && self.made > 0 { writeln!(f, "next: the same call with --yes imports them") } else { Ok(()) }
    }
}
