//! `outlive archive` and `unarchive`: hide ended runs, and show them again. Nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::health::Seen;
use outlive::id::RunId;
use outlive::index::Kind;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::runtime::reaper::Reaper;
use outlive::time::{Timestamp, parse_duration};
use outlive::transition::Refusal;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::{Effect, Form, Operate};
use crate::operations::plane::listing::repo_name;
use crate::operations::plane::{Elsewhere, Scope, elsewhere, gone, index, refuse_foreign};
use crate::run_view::RunView;
use crate::settings::Context;
use crate::terminal::plain;
use crate::workers::hooks;

/// Hide runs that have ended
///
/// `outlive ps` no longer lists them; `outlive ps --all` does. Nothing is deleted, and `outlive unarchive` shows them
/// again. The death of a run whose owner is gone is put on record first. With --older-than every run that ended longer ago
/// is hidden, in one write; nothing is hidden by itself unless the configuration says so.
#[derive(Debug, Default, Args)]
pub struct Archive {
    /// Ids, beginnings of ids, names, @last, @~2, or REPOSITORY:ID
    pub runs: Vec<String>,
    /// Every run in this state (repeatable)
    #[arg(long = "status", visible_alias = "state", value_name = "STATE", conflicts_with = "runs")]
    pub status: Vec<String>,
    /// Every run that ended longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "runs")]
    pub older_than: Option<Duration>,
    /// With --status or --older-than: the runs of the registry here, or of every one that is known [default: repo]
    #[arg(long, value_enum, conflicts_with = "runs")]
    pub scope: Option<Scope>,
    /// Only say what would be archived
    #[arg(long)]
    pub dry_run: bool,
}

/// Show runs again that were archived
#[derive(Debug, Default, Args)]
pub struct Unarchive {
    /// Ids, beginnings of ids, names, @last, @~2, or REPOSITORY:ID
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Only in the registry here, or in every repository that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
    /// Only say what would be shown again
    #[arg(long)]
    pub dry_run: bool,
}

/// The runs whose mark was changed.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Marked {
    archived: bool,
    dry_run: bool,
    runs: Vec<RunId>,
    /// What each is for people, where they are of several repositories: as it can be named anywhere.
    #[serde(skip)]
    told: BTreeMap<RunId, String>,
}

impl Operate for Archive {
    const NAME: &'static str = "archive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive archive --status dead --status interrupted\n\
                                    outlive archive --status failed --dry-run\n\
                                    outlive archive --older-than 30d --state succeeded --scope home";
    type Output = Marked;

    fn is_beyond(&self) -> bool {
        self.scope == Some(Scope::Home)
    }

    async fn operate(self, context: &Context) -> Result<Marked, Error> {
        let mut marked = Marked { archived: true, dry_run: self.dry_run, ..Marked::default() };
        if !self.runs.is_empty() {
            marked.runs = mark_named((context, Scope::Home), &self.runs, true, self.dry_run).await?;
            return Ok(marked);
        }
        if self.status.is_empty() && self.older_than.is_none() {
            let which = "name the runs to archive, or say which with --status STATE or --older-than DURATION";
            return Err(Error::Invalid(which.into()));
        }
        let states: Result<BTreeSet<StateName>, _> = self.status.iter().map(|state| state.parse()).collect();
        let states = states.map_err(|error| Error::Invalid(error.to_string()))?;
        if let Some(state) = states.iter().find(|state| !state.is_ended()) {
            return Err(Error::Invalid(format!("a run that is {state} has not ended, and cannot be archived")));
        }
        let ended = || StateName::ALL.into_iter().filter(|state| state.is_ended()).collect();
        let states = if states.is_empty() { ended() } else { states };
        if self.scope != Some(Scope::Home) {
            if let Some(registry) = context.to_change().await? {
                marked.runs = self.mark_all(context, &registry, &states).await?;
            }
            return Ok(marked);
        }
        for known in index()?.sources()?.iter().filter(|known| known.address.kind == Kind::Outlive) {
            match Context::new(Some(known.address.url.clone())).to_change().await {
                Ok(Some(registry)) => {
                    let runs = self.mark_all(context, &registry, &states).await?;
                    if context.form() == Form::Text {
                        marked.told.extend(told(&registry, &runs, &known.address.repo()).await?);
                    }
                    marked.runs.extend(runs);
                }
                Ok(None) => {}
                Err(error) => {
                    let repo = plain(&known.address.repo());
                    crate::cli::talk(&format!("outlive: {repo} is left alone: {}\n", plain(&error.to_string())));
                }
            }
        }
        Ok(marked)
    }
}

impl Archive {
    /// Marks every run of a registry that stands so and, where it is asked for, ended long enough ago.
    async fn mark_all(
        &self,
        context: &Context,
        registry: &Registry,
        states: &BTreeSet<StateName>,
    ) -> Result<Vec<RunId>, Error> {
        // Steps are out of sight with the runs that they are steps of.
        let filter =
            Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(states.iter().copied()) };
        let Some(age) = self.older_than else {
            return mark(context, registry, registry.all(&filter).await?, true, self.dry_run).await;
        };
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        let before = Timestamp::from_micros(registry.clock().now().as_micros().saturating_sub(age));
        if !self.dry_run {
            registry.deliver_spooled().await?;
            return registry.archive_all(filter, before).await;
        }
        let is_old = |seen: &&Seen| seen.run.ending().is_some_and(|ending| ending.at < before);
        Ok(registry.all(&filter).await?.iter().filter(is_old).map(|seen| seen.run.id).collect())
    }
}

impl Operate for Unarchive {
    const NAME: &'static str = "unarchive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive run --name done -- true && outlive archive done && outlive unarchive done --dry-run";
    type Output = Marked;

    async fn operate(self, context: &Context) -> Result<Marked, Error> {
        let runs = mark_named((context, self.scope), &self.runs, false, self.dry_run).await?;
        Ok(Marked { dry_run: self.dry_run, runs, ..Marked::default() })
    }
}

/// What runs of a repository are for people.
async fn told(registry: &Registry, runs: &[RunId], repo: &str) -> Result<Vec<(RunId, String)>, Error> {
    // No run at all is not every run.
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let one = |seen: &Seen| {
        let title = RunView::unsigned(seen, registry).title();
        (seen.run.id, format!("{}:{} {title}", plain(repo_name(repo)), seen.run.id))
    };
    Ok(registry.all(&Filter::of(runs.iter().copied())).await?.iter().map(one).collect())
}

/// Marks the runs that are named, wherever they are in the scope.
async fn mark_named(
    (context, scope): (&Context, Scope),
    words: &[String],
    archive: bool,
    dry_run: bool,
) -> Result<Vec<RunId>, Error> {
    let here = match context.for_report(words.first().map_or("", String::as_str)).await {
        Ok(registry) => find(&registry, words).await.map(|found| (registry, found)),
        Err(error) => Err(error),
    };
    let error = match here {
        Ok((registry, found)) => return mark(context, &registry, found, archive, dry_run).await,
        Err(error) if scope == Scope::Repo => return Err(error),
        Err(error) => error,
    };
    if words.len() > 1 {
        let mut marked = Vec::new();
        for word in words {
            let one = std::slice::from_ref(word);
            marked.extend(Box::pin(mark_named((context, scope), one, archive, dry_run)).await?);
        }
        return Ok(marked);
    }
    match elsewhere(context, &words[0], error).await? {
        Elsewhere::Registry(context, run) => {
            Box::pin(mark_named((&context, Scope::Repo), &[run], archive, dry_run)).await
        }
        Elsewhere::Foreign(listed) => {
            Err(refuse_foreign(&listed, if archive { "archive" } else { "archive --unarchive" }))
        }
        Elsewhere::Gone(listed) => Err(gone(&listed)),
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

async fn mark(
    context: &Context,
    registry: &Registry,
    found: Vec<Seen>,
    archive: bool,
    dry_run: bool,
) -> Result<Vec<RunId>, Error> {
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
        for (done, id) in ids.clone().into_iter().enumerate() {
            context.pass(done, found.len())?;
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
        for id in &self.runs {
            match self.told.get(id) {
                Some(told) => writeln!(f, "{told} {word}")?,
                None => writeln!(f, "{id} {word}")?,
            }
        }
        if self.runs.is_empty() { writeln!(f, "nothing to archive") } else { Ok(()) }
    }
}
