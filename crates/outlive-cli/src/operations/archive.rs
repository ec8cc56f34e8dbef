//! `outlive archive` and `unarchive`: hide ended runs, and show them again. Nothing is deleted.

use std::collections::BTreeSet;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::health::Seen;
use outlive::id::RunId;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::runtime::reaper::Reaper;
use outlive::transition::Refusal;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::{Effect, Operate};
use crate::settings::Context;
use crate::workers::hooks;

/// Hide runs that have ended
///
/// `outlive ps` no longer lists them; `outlive ps --all` does. Nothing is deleted, and `outlive unarchive` shows them
/// again. The death of a run whose owner is gone is put on record first.
#[derive(Debug, Default, Args)]
pub struct Archive {
    /// Ids, beginnings of ids, names, @last, or @~2
    #[arg(required_unless_present = "status")]
    pub runs: Vec<String>,
    /// Every run in this state (repeatable)
    #[arg(long = "status", value_name = "STATE", conflicts_with = "runs")]
    pub status: Vec<String>,
    /// Only say what would be archived
    #[arg(long)]
    pub dry_run: bool,
}

/// Show runs again that were archived
#[derive(Debug, Default, Args)]
pub struct Unarchive {
    /// Ids, beginnings of ids, names, @last, or @~2
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Only say what would be shown again
    #[arg(long)]
    pub dry_run: bool,
}

/// The runs whose mark was changed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Marked {
    archived: bool,
    dry_run: bool,
    runs: Vec<RunId>,
}

impl Operate for Archive {
    const NAME: &'static str = "archive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive archive --status dead --status interrupted\n\
                                    outlive archive --status failed --dry-run";
    type Output = Marked;

    async fn operate(self, context: &Context) -> Result<Marked, Error> {
        let mut marked = Marked { archived: true, dry_run: self.dry_run, runs: Vec::new() };
        if self.status.is_empty() {
            let registry = context.for_report(self.runs.first().map_or("", String::as_str)).await?;
            let found = find(&registry, &self.runs).await?;
            marked.runs = mark(&registry, found, true, self.dry_run).await?;
            return Ok(marked);
        }
        let states: Result<BTreeSet<StateName>, _> = self.status.iter().map(|state| state.parse()).collect();
        let states = states.map_err(|error| Error::Invalid(error.to_string()))?;
        if let Some(state) = states.iter().find(|state| !state.is_ended()) {
            return Err(Error::Invalid(format!("a run that is {state} has not ended, and cannot be archived")));
        }
        if let Some(registry) = context.to_change().await? {
            // Steps are out of sight with the runs that they are steps of.
            let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(states) };
            marked.runs = mark(&registry, registry.all(&filter).await?, true, self.dry_run).await?;
        }
        Ok(marked)
    }
}

impl Operate for Unarchive {
    const NAME: &'static str = "unarchive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive run --name done -- true && outlive archive done && outlive unarchive done --dry-run";
    type Output = Marked;

    async fn operate(self, context: &Context) -> Result<Marked, Error> {
        let registry = context.for_report(self.runs.first().map_or("", String::as_str)).await?;
        let found = find(&registry, &self.runs).await?;
        let runs = mark(&registry, found, false, self.dry_run).await?;
        Ok(Marked { archived: false, dry_run: self.dry_run, runs })
    }
}

/// All of the runs are looked up before any is marked: a wrong name changes nothing.
async fn find(registry: &Registry, words: &[String]) -> Result<Vec<Seen>, Error> {
    let mut found = Vec::new();
    for word in words {
        found.push(registry.find(word).await?);
    }
    Ok(found)
}

async fn mark(registry: &Registry, found: Vec<Seen>, archive: bool, dry_run: bool) -> Result<Vec<RunId>, Error> {
    for seen in &found {
        let refusal = match (seen.state.is_ended(), seen.run.archived.is_some(), archive) {
            (false, ..) => Refusal::WrongState { action: "archive", state: seen.state },
            (true, true, true) => Refusal::Archived,
            (true, false, false) => Refusal::NotArchived,
            _ => continue,
        };
        return Err(Error::Refused { run: seen.run.id, refusal });
    }
    let mut ids: BTreeSet<RunId> = found.iter().map(|seen| seen.run.id).collect();
    if !dry_run {
        registry.deliver_spooled().await?;
        let unrecorded = found.iter().filter(|seen| seen.run.owner().is_some()).map(|seen| seen.run.id);
        hooks::reap(registry, &mut Reaper::new(registry.worker()), Filter::of(unrecorded)).await?;
        for id in ids.clone() {
            match registry.archive(id, archive).await {
                // Its policy has put it back to be tried again: the others are no less ended for that.
                Err(Error::Refused { refusal: Refusal::WrongState { .. }, .. }) if found.len() > 1 => {
                    ids.remove(&id);
                }
                marked => _ = marked?,
            }
        }
    }
    Ok(ids.into_iter().collect())
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match (self.archived, self.dry_run) {
            (true, false) => "archived",
            (true, true) => "would be archived",
            (false, false) => "shown again",
            (false, true) => "would be shown again",
        };
        self.runs.iter().try_for_each(|id| writeln!(f, "{id} {word}"))?;
        if self.runs.is_empty() { writeln!(f, "nothing to archive") } else { Ok(()) }
    }
}
