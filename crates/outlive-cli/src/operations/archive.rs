//! `outlive archive` and `unarchive`: hide ended runs, and show them again. Nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::index::{Kind, Lifecycle, Query, SourceAddress};
use outlive::lifecycle::health::RunStatus;
use outlive::lifecycle::{ActionKind, Refusal};
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::{Clock, SystemClock, Timestamp, parse_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Form, Operate};
use crate::exec::hooks;
use crate::lookup::{Elsewhere, Scope, elsewhere, gone, index, narrowed};
use crate::operations::bulk::{BulkFilter, each_batch};
use crate::operations::listing::repo_name;
use crate::ui::plain;
use crate::ui::run_view::RunView;

/// Hide finished runs from lists
///
/// `outlive ps` no longer lists them; `outlive ps --all` does. Nothing is deleted, and `outlive unarchive` shows them
/// again. Runs whose owner is gone are marked dead first. With --status, --older-than, --kind, --name, --label, --since
/// or --until, the runs that match are listed, and archived with --yes; nothing is archived automatically unless the
/// configuration says so. The mark of a run of cool-workflow is kept in outlive's home: its repository is not changed,
/// and cool-workflow does not see the mark.
#[derive(Debug, Default, Args)]
pub struct Archive {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    pub runs: Vec<String>,
    /// Every run in this state (repeatable)
    #[arg(
        long = "status",
        visible_alias = "state",
        value_name = "STATE",
        conflicts_with = "runs",
        value_parser = PossibleValuesParser::new(Lifecycle::ALL.map(Lifecycle::as_str))
    )]
    pub status: Vec<String>,
    /// Every run that ended longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "runs")]
    pub older_than: Option<Duration>,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// Of a selection: the runs of the registry here, or of every one that is known [default: repo]
    #[arg(long, value_enum, conflicts_with = "runs")]
    pub scope: Option<Scope>,
    /// The reason, kept with the mark
    #[arg(long)]
    pub reason: Option<String>,
    /// Only print what would be archived, which is also the default of a selection
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// Show archived runs in lists again
#[derive(Debug, Default, Args)]
pub struct Unarchive {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Only in this repository, or in every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
    /// Only print what would be shown again
    #[arg(long)]
    pub dry_run: bool,
}

/// The runs whose mark was changed.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Marked {
    archived: bool,
    dry_run: bool,
    /// Their ids; of runs of cool-workflow REPOSITORY:ID.
    runs: Vec<String>,
    /// The title of each for people, where they are of several repositories: as it can be named anywhere.
    #[serde(skip)]
    titles: BTreeMap<String, String>,
    /// They were selected, not named.
    #[serde(skip)]
    is_selection: bool,
}

impl Operate for Archive {
    const NAME: &'static str = "archive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive archive --status dead --status interrupted\n\
                                    outlive archive --kind import --label tenant=acme --yes\n\
                                    outlive archive --older-than 30d --state succeeded --scope home --yes";
    type Output = Marked;

    fn effect(&self) -> Effect {
        if self.runs.is_empty() && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    fn is_beyond(&self) -> bool {
        self.scope == Some(Scope::Home)
    }

    async fn operate(mut self, context: &Context) -> Result<Marked, Error> {
        self.filter.check(&self.status, !self.runs.is_empty())?;
        self.dry_run |= self.runs.is_empty() && !self.filter.yes;
        let is_selection = self.runs.is_empty();
        let mut marked = Marked { archived: true, dry_run: self.dry_run, is_selection, ..Marked::default() };
        if !self.runs.is_empty() {
            let mark = Mark { archived: true, reason: self.reason.as_deref(), dry_run: self.dry_run };
            marked.runs = mark_named((context, Scope::Home), &self.runs, mark).await?;
            return Ok(marked);
        }
        if self.status.is_empty() && self.older_than.is_none() && !self.filter.is_any() {
            let which =
                "name the runs to archive, or say which with --status STATE, --older-than DURATION, --kind KIND …";
            return Err(Error::Invalid(which.into()));
        }
        let statuses: Result<BTreeSet<Lifecycle>, _> = self.status.iter().map(|state| state.parse()).collect();
        let statuses = statuses.map_err(|error| Error::Invalid(error.to_string()))?;
        if let Some(state) = statuses.iter().find(|state| !state.is_ended()) {
            return Err(Error::Invalid(format!("a run that is {state} has not ended, and cannot be archived")));
        }
        let is_meant = |state: &StateName| {
            state.is_ended() && (statuses.is_empty() || statuses.contains(&Lifecycle::from(*state)))
        };
        let states: BTreeSet<StateName> = StateName::ALL.into_iter().filter(is_meant).collect();
        // What a filter says of runs beside their state, no run of cool-workflow has.
        if !context.is_confined() && !self.filter.is_any() {
            marked.runs = self.mark_foreign(&statuses)?;
        }
        if self.scope != Some(Scope::Home) {
            let opened = if self.dry_run { context.existing().await? } else { context.to_change().await? };
            if let Some(registry) = opened.filter(|_| !states.is_empty()) {
                marked.runs.extend(self.mark_all(context, &registry, &states).await?.iter().map(ToString::to_string));
            }
            return Ok(marked);
        }
        if states.is_empty() {
            return Ok(marked);
        }
        for known in index()?.sources()?.iter().filter(|known| known.address.kind == Kind::Outlive) {
            let there = context.at(known.address.url.clone());
            let opened = if self.dry_run { there.existing().await } else { there.to_change().await };
            match opened {
                Ok(Some(registry)) => {
                    let runs = self.mark_all(context, &registry, &states).await?;
                    if context.form() == Form::Text {
                        marked.titles.extend(titles(&registry, &runs, &known.address.repo()).await?);
                    }
                    marked.runs.extend(runs.iter().map(ToString::to_string));
                }
                Ok(None) => {}
                Err(error) => {
                    let repo = plain(&known.address.repo());
                    crate::ui::talk(&format!("warning: {repo} is left alone: {}\n", plain(&error.to_string())));
                }
            }
        }
        Ok(marked)
    }
}

impl Archive {
    /// Marks every run of a registry that is selected and, where it is asked for, ended long enough ago.
    async fn mark_all(
        &self,
        context: &Context,
        registry: &Registry,
        states: &BTreeSet<StateName>,
    ) -> Result<Vec<RunId>, Error> {
        let filter = self.filter.filter(states.iter().copied(), registry.clock().now())?;
        let before = self.before(registry.clock().now());
        let mut marked = Vec::new();
        if let (Some(before), false) = (before, self.dry_run) {
            registry.deliver_spooled().await?;
            return registry.archive_all(filter, before, self.reason.clone()).await;
        }
        let is_old =
            |seen: &RunStatus| before.is_none_or(|before| seen.run.ending().is_some_and(|ending| ending.at < before));
        let mark = Mark { archived: true, reason: self.reason.as_deref(), dry_run: self.dry_run };
        each_batch((context, registry), &filter, async |mut seen| {
            seen.retain(is_old);
            marked.extend(mark_in(registry, seen, mark).await?);
            Ok(())
        })
        .await?;
        Ok(marked)
    }
}

impl Archive {
    /// Before when runs must have ended, where their age is asked for.
    fn before(&self, now: Timestamp) -> Option<Timestamp> {
        let age = i64::try_from(self.older_than?.as_micros()).unwrap_or(i64::MAX);
        Some(Timestamp::from_micros(now.as_micros().saturating_sub(age)))
    }

    /// Marks every run of cool-workflow that stands so and, where it is asked for, ended long enough ago.
    fn mark_foreign(&self, statuses: &BTreeSet<Lifecycle>) -> Result<Vec<String>, Error> {
        let ended = Lifecycle::ALL.into_iter().filter(|status| status.is_ended());
        let statuses = if statuses.is_empty() { ended.collect() } else { statuses.clone() };
        let scope = self.scope.unwrap_or(Scope::Repo);
        let repos = narrowed(scope)?.map(|repo| BTreeSet::from([repo]));
        let query = Query { statuses, repos, archived: Some(false), verify_all: true, ..Query::default() };
        let before = self.before(SystemClock.now());
        let index = index()?;
        let found: ForeignIds = index.fold(&query, |found: &mut ForeignIds, record| {
            let is_old = before.is_none_or(|before| record.ended_at.is_some_and(|at| at < before));
            if record.source == Kind::CoolWorkflow && is_old && record.lifecycle.is_ended() {
                found.entry(record.repo.clone()).or_default().push(record.run_id.clone());
            }
        })?;
        mark_runs_of(&found, Mark { archived: true, reason: self.reason.as_deref(), dry_run: self.dry_run })
    }
}

/// Ids of runs of cool-workflow, by repository.
type ForeignIds = BTreeMap<String, Vec<String>>;

/// How runs are to be marked.
#[derive(Clone, Copy)]
struct Mark<'a> {
    archived: bool,
    reason: Option<&'a str>,
    dry_run: bool,
}

/// Marks runs of cool-workflow, with one write for each repository. Answers with what each is called anywhere.
fn mark_runs_of(found: &ForeignIds, mark: Mark<'_>) -> Result<Vec<String>, Error> {
    let mut marked = Vec::new();
    for (repo, ids) in found {
        if !mark.dry_run {
            index()?.mark_archived(&SourceAddress::of_tree(Path::new(repo)), ids, mark.archived, mark.reason)?;
        }
        marked.extend(ids.iter().map(|id| format!("{repo}:{id}")));
    }
    Ok(marked)
}

impl Operate for Unarchive {
    const NAME: &'static str = "unarchive";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive run --name done -- true && outlive archive done && outlive unarchive done --dry-run";
    type Output = Marked;

    async fn operate(self, context: &Context) -> Result<Marked, Error> {
        let mark = Mark { archived: false, reason: None, dry_run: self.dry_run };
        let runs = mark_named((context, self.scope), &self.runs, mark).await?;
        Ok(Marked { dry_run: self.dry_run, runs, ..Marked::default() })
    }
}

/// The titles of runs of a repository, for people.
async fn titles(registry: &Registry, runs: &[RunId], repo: &str) -> Result<Vec<(String, String)>, Error> {
    // No run at all is not every run.
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let one = |seen: &RunStatus| {
        let title = RunView::unsigned(seen, registry).title();
        (seen.run.id.to_string(), format!("{}:{} {title}", plain(repo_name(repo)), seen.run.id))
    };
    Ok(registry.all(&Filter::of(runs.iter().copied())).await?.iter().map(one).collect())
}

/// A registry with runs that are to be marked.
struct MarkedRegistry {
    /// What to call there; none where that is what was called.
    there: Option<Box<Context>>,
    registry: Registry,
    found: Vec<RunStatus>,
}

/// Marks the runs that are named, wherever they are in the scope. All of them are looked up before any is marked: a
/// wrong name changes nothing.
async fn mark_named(
    (context, scope): (&Context, Scope),
    words: &[String],
    mark: Mark<'_>,
) -> Result<Vec<String>, Error> {
    let (mut places, mut foreign): (Vec<MarkedRegistry>, ForeignIds) = (Vec::new(), ForeignIds::new());
    let first = words.first().map_or("", String::as_str);
    let none_here = match context.for_report(first).await {
        Ok(registry) => {
            places.push(MarkedRegistry { there: None, registry, found: Vec::new() });
            None
        }
        Err(error) => Some(error),
    };
    for word in words {
        if find_in(context, &mut places, word).await? {
            continue;
        }
        let error = none_here.clone().unwrap_or_else(|| Error::NotFound(word.clone()));
        match elsewhere(context, scope, word, error).await? {
            Elsewhere::Registry(there, run) => {
                let registry = there.for_report(&run).await?;
                let found = vec![registry.find(&run).await?];
                found.iter().for_each(|seen| context.remember(&seen.run, word));
                places.push(MarkedRegistry { there: Some(there), registry, found });
            }
            Elsewhere::Foreign(listed) => {
                let record = &listed.record;
                if record.archived == mark.archived {
                    let is = if mark.archived { "archived already" } else { "not archived" };
                    return Err(Error::Invalid(format!("run `{}` is {is}", plain(&record.run_id))));
                }
                foreign.entry(record.repo.clone()).or_default().push(record.run_id.clone());
            }
            Elsewhere::Gone(listed) => return Err(gone(&listed)),
        }
    }
    let mut marked = mark_runs_of(&foreign, mark)?;
    for (done, place) in places.into_iter().filter(|place| !place.found.is_empty()).enumerate() {
        context.pass(done, words.len())?;
        marked.extend(mark_in(&place.registry, place.found, mark).await?.iter().map(ToString::to_string));
    }
    Ok(marked)
}

/// Looks for a run in the registries that are open: in the one here by any name, in another by its whole id alone.
async fn find_in(context: &Context, places: &mut [MarkedRegistry], word: &str) -> Result<bool, Error> {
    let id = word.rsplit(':').next().unwrap_or(word);
    let is_whole = id.parse::<RunId>().is_ok();
    for place in places.iter_mut().filter(|place| place.there.is_none() || is_whole) {
        let sought = if place.there.is_none() { word } else { id };
        match place.registry.find(sought).await {
            Ok(seen) => {
                context.remember(&seen.run, word);
                place.found.push(seen);
                return Ok(true);
            }
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Marks runs of one registry, in one write.
async fn mark_in(registry: &Registry, found: Vec<RunStatus>, mark: Mark<'_>) -> Result<Vec<RunId>, Error> {
    for seen in &found {
        let refusal = match (seen.state.is_ended(), seen.run.archived.is_some(), mark.archived) {
            (false, ..) => Refusal::WrongState { action: ActionKind::Archive, state: seen.state },
            (true, true, true) => Refusal::Archived,
            (true, false, false) => Refusal::NotArchived,
            _ => continue,
        };
        return Err(Error::Refused { run: seen.run.id, refusal });
    }
    let ids: BTreeSet<RunId> = found.iter().map(|seen| seen.run.id).collect();
    let ids: Vec<RunId> = ids.into_iter().collect();
    if mark.dry_run || ids.is_empty() {
        return Ok(ids);
    }
    registry.deliver_spooled().await?;
    let unrecorded: Vec<RunId> =
        found.iter().filter(|seen| seen.run.owner().is_some()).map(|seen| seen.run.id).collect();
    if !unrecorded.is_empty() {
        hooks::reap(registry, &mut Reaper::new(registry.worker()), Filter::of(unrecorded)).await?;
    }
    let marked = if mark.archived {
        registry.archive_each(&ids, mark.reason.map(Into::into)).await?
    } else {
        registry.unarchive_each(&ids).await?
    };
    if let ([one], []) = (&ids[..], &marked[..]) {
        // It was changed meanwhile: the rules say why it cannot be marked any more.
        if mark.archived {
            registry.archive(*one).await?;
        } else {
            registry.unarchive(*one).await?;
        }
        return Ok(ids);
    }
    Ok(marked)
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
            writeln!(f, "{} {word}", self.titles.get(id).map_or_else(|| plain(id), Clone::clone))?;
        }
        match (self.runs.len(), self.is_selection && self.dry_run) {
            (0, _) => writeln!(f, "nothing to archive"),
            (count, true) => writeln!(f, "{count} selected; nothing was archived; --yes archives"),
            _ => Ok(()),
        }
    }
}
