//! `outlive resume`: goes on with runs that did not come to their end, and `outlive unpark`.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::index::{Kind, NextSteps, SearchHit};
use outlive::lifecycle::health::{Health, RunStatus};
use outlive::lifecycle::{Action, Refusal, apply, resumes_unnamed};
use outlive::owner::LiveProcesses;
use outlive::ownership::reaper::Reaper;
use outlive::registry::{Registry, ResumeOptions};
use outlive::run::{State, StateName};
use outlive::store::Page;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Form, Operate, deliver};
use crate::exec::detach::Starting;
use crate::exec::own::{Job, changed_program};
use crate::exec::{hooks, take_up};
use crate::lookup::{Elsewhere, Scope, elsewhere, gone, index};
use crate::operations::bulk::{Bulk, BulkFilter, each_batch, states};
use crate::operations::delegate::{delegate, foreign_name};
use crate::operations::queue::find_queued;
use crate::ui::plain;
use crate::ui::typed::called;

/// How many next tasks of a run of cool-workflow are named, where the call says nothing else.
const TASKS: usize = 5;
/// The states of runs that can be resumed.
const RESUMABLE: [StateName; 3] = [StateName::Dead, StateName::Interrupted, StateName::Failed];
/// How long processes of an earlier attempt may take to end before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// Resume dead or interrupted runs from their last checkpoint
///
/// Each run continues as its next attempt, in the background: its command is executed again in its directory, with
/// the last checkpoint in OUTLIVE_CHECKPOINT. With --all, or without a RUN, every resumable run is resumed, except
/// runs that were cancelled, runs stopped with Ctrl-C and runs with `--resume-on never`. Concurrent calls resume each
/// run once. A queued run that its handler suspended, such as for an approval, waits for a worker again, which
/// continues its attempt.
///
/// With --status, --kind, --name, --label, --since or --until, the runs that match are counted, and resumed with --yes:
/// runs that came from the queue wait for a worker again, a thousand in one write; others continue in the background.
///
/// For a run of cool-workflow, the next tasks and the commands that continue it are printed and nothing is changed.
/// With --drive or --once cool-workflow continues it as a tracked run of the home registry, where `[cool_workflow]
/// command` of the home's configuration names the program.
#[derive(Debug, Default, Clone, Args)]
#[command(
    override_usage = "outlive resume [OPTIONS] [RUNS]...\n       outlive resume [OPTIONS] --all\n       outlive resume [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Resume {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    pub runs: Vec<String>,
    /// Every run that can be resumed
    #[arg(long, conflicts_with = "runs")]
    pub all: bool,
    /// Also runs that failed
    #[arg(long)]
    pub failed: bool,
    /// Select runs in this state (repeatable)
    #[arg(
        long = "status",
        visible_alias = "state",
        value_name = "STATE",
        value_parser = PossibleValuesParser::new(RESUMABLE.map(StateName::as_str))
    )]
    pub status: Vec<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// Terminate live processes of the earlier attempt first
    #[arg(long)]
    pub end_leftovers: bool,
    /// In the registry here, or in every one that is known [default: home for a RUN, repo without one]
    #[arg(long, value_enum)]
    pub scope: Option<Scope>,
    /// Have cool-workflow continue a run of its own, until it is over or blocked
    #[arg(long, conflicts_with = "all")]
    pub drive: bool,
    /// Have cool-workflow take one step with a run of its own
    #[arg(long, conflicts_with = "all", hide_short_help = true)]
    pub once: bool,
    /// With --drive or --once: reuse results of steps whose inputs have not changed
    #[arg(long, hide_short_help = true)]
    pub incremental: bool,
    /// How many next tasks of a run of cool-workflow are named
    #[arg(short = 'n', long, value_name = "TASKS", hide_short_help = true)]
    pub limit: Option<usize>,
    /// Only print what would be resumed
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// Allow parked runs to be retried
///
/// A run whose owners died again and again is parked until a person looks at it. Unparking resets its count of reaps.
#[derive(Debug, Default, Args)]
pub struct Unpark {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required = true)]
    pub runs: Vec<String>,
}

/// What was resumed.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Resumed {
    dry_run: bool,
    resumed: Vec<ResumedRun>,
    /// Those that were not, and why.
    left: Vec<Left>,
    /// What to do next with runs of cool-workflow.
    foreign: Vec<Foreign>,
    /// What to type for runs of sources that are only read.
    commands: Vec<String>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
    /// There are failed runs, which only `--failed` resumes.
    #[serde(skip)]
    leaves_failed: bool,
}

/// A run of cool-workflow, and what to do next with it.
#[derive(Debug, JsonSchema, Serialize)]
struct Foreign {
    #[serde(flatten)]
    steps: NextSteps,
    /// The run of the home registry that has cool-workflow continue it.
    delegated: Option<RunId>,
}

impl Resumed {
    fn absorb(&mut self, other: Self) {
        self.resumed.extend(other.resumed);
        self.left.extend(other.left);
        self.foreign.extend(other.foreign);
        self.commands.extend(other.commands);
        self.leaves_failed |= other.leaves_failed;
        if let Some(bulk) = other.bulk {
            self.bulk.get_or_insert_default().absorb(bulk);
        }
    }
}

#[derive(Debug, JsonSchema, Serialize)]
struct ResumedRun {
    id: RunId,
    name: Option<String>,
    attempt: u32,
    /// What is not as it was when the run was made.
    warning: Option<String>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Left {
    id: RunId,
    name: Option<String>,
    reason: String,
}

impl Operate for Resume {
    const NAME: &'static str = "resume";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive resume train\noutlive resume --all --dry-run\noutlive resume train --end-leftovers\n\
         outlive resume --all --scope home --dry-run\noutlive resume --kind import --status dead --since 1d";
    type Output = Resumed;

    fn effect(&self) -> Effect {
        if self.is_bulk() && !self.filter.yes {
            Effect::Read
        } else if self.end_leftovers {
            Effect::Stop
        } else {
            Self::EFFECT
        }
    }

    async fn operate(self, context: &Context) -> Result<Resumed, Error> {
        self.filter.check(&self.status, self.all || !self.runs.is_empty())?;
        if self.runs.is_empty() && self.scope == Some(Scope::Home) {
            return self.everywhere(context).await;
        }
        let error = match self.here(context).await {
            Err(error @ (Error::NotFound(_) | Error::NoRegistry { .. })) if !self.runs.is_empty() => error,
            done => return done,
        };
        if self.runs.len() > 1 {
            return self.one_by_one(context).await;
        }
        match elsewhere(context, self.scope.unwrap_or_default(), &self.runs[0], error).await? {
            Elsewhere::Registry(context, run) => Self { runs: vec![run], ..self }.here(&context).await,
            Elsewhere::Foreign(listed) => self.foreign(context, &listed).await,
            Elsewhere::Gone(listed) => Err(gone(&listed)),
        }
    }

    fn is_beyond(&self) -> bool {
        self.scope == Some(Scope::Home)
    }

    fn exit_status(resumed: &Resumed) -> u8 {
        let left = u8::from(!resumed.left.is_empty());
        resumed.bulk.as_ref().map_or(left, Bulk::exit_status)
    }
}

impl Resume {
    /// Whatever can be resumed of every registry that is known. One that is away keeps no other from it.
    async fn everywhere(&self, context: &Context) -> Result<Resumed, Error> {
        let mut all = Resumed { dry_run: self.dry_run, ..Resumed::default() };
        for known in index()?.sources()?.iter().filter(|known| known.address.kind == Kind::Outlive) {
            match self.here(&context.at(known.address.url.clone())).await {
                Ok(done) => all.absorb(done),
                Err(error) => {
                    let repo = plain(&known.address.repo());
                    crate::ui::talk(&format!("warning: {repo} is left alone: {}\n", plain(&error.to_string())));
                }
            }
        }
        Ok(all)
    }

    /// Whether cool-workflow is to continue runs of its own.
    fn drives(&self) -> bool {
        self.drive || self.once
    }

    /// What to do next with a run of cool-workflow.
    async fn foreign(&self, context: &Context, listed: &SearchHit) -> Result<Resumed, Error> {
        let record = &listed.record;
        let unreadable = |reason| Error::Unreadable { run: record.run_id.clone(), repo: record.repo.clone(), reason };
        let steps = NextSteps::of(record, self.limit.unwrap_or(TASKS).max(1)).map_err(unreadable)?;
        let mut resumed = Resumed { dry_run: self.dry_run, ..Resumed::default() };
        let mut delegated = None;
        if self.drives() {
            let how = if self.once { "--once" } else { "--drive" };
            let words = ["run", "resume", foreign_name(record), how].into_iter();
            let words: Vec<&str> = words.chain(self.incremental.then_some("--incremental")).collect();
            let done = delegate(context, listed, &words, self.dry_run).await?;
            delegated = done.run;
            resumed.commands.extend(Some(done.command).filter(|_| delegated.is_none()));
        }
        resumed.foreign.push(Foreign { steps, delegated });
        Ok(resumed)
    }

    /// Runs of several registries: each where it is.
    async fn one_by_one(self, context: &Context) -> Result<Resumed, Error> {
        let mut all = Resumed { dry_run: self.dry_run, ..Resumed::default() };
        for run in self.runs.clone() {
            let one = Self { runs: vec![run], ..self.clone() };
            all.absorb(Box::pin(one.operate(context)).await?);
        }
        Ok(all)
    }

    async fn here(&self, context: &Context) -> Result<Resumed, Error> {
        let mut resumed = Resumed { dry_run: self.dry_run, ..Resumed::default() };
        if self.is_bulk() {
            let bulk = Some(self.in_bulk(context).await?);
            return Ok(Resumed { dry_run: !self.filter.yes, bulk, ..resumed });
        }
        let registry = if self.dry_run { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = registry else {
            return match self.runs.first() {
                Some(run) => context.for_lookup(run).await.map(|_| resumed),
                None => Ok(resumed),
            };
        };
        let named = self.named(context, &registry).await?;
        if self.drives() || self.incremental {
            let why = "`--drive`, `--once` and `--incremental` are for runs of cool-workflow; `outlive resume` executes its own";
            return Err(Error::Invalid(why.into()));
        }
        if !self.dry_run {
            deliver(&registry).await?;
            let filter = if named.is_empty() { Filter::default() } else { Filter::of(named.iter().copied()) };
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), filter).await?;
        }
        let mut candidates = Vec::new();
        for id in &named {
            candidates.push(registry.get(*id).await?);
        }
        if named.is_empty() {
            candidates = registry.all(&self.candidates()).await?;
            candidates.retain(|seen| seen.state != StateName::Running || seen.health == Some(Health::Orphaned));
            resumed.leaves_failed = !self.failed && context.form() == Form::Text && has_failed(&registry).await?;
        }
        for (done, seen) in candidates.iter().enumerate() {
            context.pass(done, candidates.len())?;
            match self.resume(&registry, seen, !named.is_empty()) {
                Ok(Some(line)) => resumed.resumed.push(line),
                Ok(None) => {}
                Err(error) if named.len() == 1 => return Err(error),
                Err(error) => resumed.left.push(Left {
                    id: seen.run.id,
                    name: seen.run.spec.name.clone(),
                    reason: error.to_string(),
                }),
            }
        }
        Ok(resumed)
    }

    /// Whether runs are selected by a filter.
    fn is_bulk(&self) -> bool {
        self.filter.is_any() || !self.status.is_empty()
    }

    /// Counts the runs that the filter selects, and resumes them where that is wanted.
    async fn in_bulk(&self, context: &Context) -> Result<Bulk, Error> {
        let is_dry = !self.filter.yes;
        let mut bulk = Bulk::new("resumed", is_dry);
        let opened = if is_dry { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = opened else { return Ok(bulk) };
        let failed = self.failed || self.status.iter().any(|state| state == StateName::Failed.as_str());
        let usual = if failed { &RESUMABLE[..] } else { &RESUMABLE[..2] };
        if !is_dry {
            deliver(&registry).await?;
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), Filter::default()).await?;
        }
        let how = Self { failed, end_leftovers: self.end_leftovers, ..Self::default() };
        let filter = self.filter.filter(states(&self.status, usual)?, registry.clock().now())?;
        each_batch((context, &registry), &filter, async |mut seen| {
            seen.retain(|seen| !self.status.is_empty() || resumes_unnamed(&seen.run));
            bulk.select(&seen);
            if is_dry {
                return Ok(());
            }
            let queued = seen.iter().filter(|seen| seen.run.spec.queued).map(|seen| seen.run.id);
            let again = ResumeOptions { failed_too: failed };
            let waiting = registry.requeue_each(&queued.collect::<Vec<RunId>>(), again).await?;
            bulk.change(waiting.len());
            let waiting: BTreeSet<RunId> = waiting.iter().map(|run| run.id).collect();
            for seen in seen.iter().filter(|seen| !waiting.contains(&seen.run.id)) {
                let done = if seen.run.spec.queued { how.check(&registry, seen) } else { Ok(()) };
                match done.and_then(|()| how.resume(&registry, seen, true)) {
                    Ok(line) => bulk.change(line.into_iter().count()),
                    Err(error) => bulk.leave(&error),
                }
            }
            Ok(())
        })
        .await?;
        Ok(bulk)
    }

    /// The runs that are named, each once.
    async fn named(&self, context: &Context, registry: &Registry) -> Result<Vec<RunId>, Error> {
        let mut named = Vec::new();
        for word in &self.runs {
            let failed = self.failed.then_some(StateName::Failed);
            let states = [StateName::Dead, StateName::Interrupted].into_iter().chain(failed);
            let seen = registry.find_preferring(word, states).await?;
            context.remember(&seen.run, word);
            let id = seen.run.id;
            if !named.contains(&id) {
                named.push(id);
            }
        }
        Ok(named)
    }

    /// What may be resumed where no run is named.
    fn candidates(&self) -> Filter {
        let failed = self.failed.then_some(StateName::Failed);
        let states = [StateName::Dead, StateName::Interrupted, StateName::Running].into_iter().chain(failed);
        // Steps go on with the runs that they are steps of.
        Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(states) }
    }

    /// Has a run go on in a process of its own. Nothing where it is not one for this call.
    fn resume(&self, registry: &Registry, seen: &RunStatus, is_named: bool) -> Result<Option<ResumedRun>, Error> {
        let run = &seen.run;
        if !is_named && !resumes_unnamed(run) {
            return Ok(None);
        }
        let waits = matches!(run.state, State::Pending(_));
        let alive = seen.state == StateName::Running && seen.health != Some(Health::Orphaned);
        if is_named && (alive || seen.state == StateName::Succeeded) {
            // Nothing to do: it goes on already, or has come to its end.
            return Ok(None);
        }
        if run.spec.queued && matches!(run.state, State::Suspended(_)) {
            return self.wake(registry, seen).map(Some);
        }
        // What would be refused later is refused before anything is ended or started.
        Job::of(registry, run, false)?;
        self.check(registry, seen)?;
        let attempt = if waits { run.attempt } else { run.attempt + 1 };
        let line = ResumedRun { id: run.id, name: run.spec.name.clone(), attempt, warning: changed_program(run) };
        if self.dry_run {
            return Ok(Some(line));
        }
        if self.end_leftovers {
            registry.end_tree(run, GRACE);
            // What was orphaned is dead now.
            pollster::block_on(hooks::reap(registry, &mut Reaper::new(registry.worker()), Filter::of([run.id])))?;
        }
        let words = take_up::words(registry, run.id, self.failed, false);
        let started = Starting::begin(&words, &SigSet::empty()).and_then(Starting::wait);
        let started = started.map_err(|error| Error::Invalid(format!("its owner cannot be started: {error}")))?;
        if started.id.is_some() {
            return Ok(Some(line));
        }
        // Another process was faster and has resumed it, which was wanted.
        let now = pollster::block_on(registry.get(run.id))?;
        let is_taken = now.run.epoch > run.epoch && now.state == StateName::Running;
        if is_taken && !is_named {
            return Ok(None);
        }
        self.check(registry, &now)?;
        Err(Error::Invalid(started.talk.unwrap_or_else(|| "its owner could not resume it".into())))
    }

    /// Has a suspended run wait for a worker again, which continues its attempt.
    fn wake(&self, registry: &Registry, seen: &RunStatus) -> Result<ResumedRun, Error> {
        let run = &seen.run;
        if self.dry_run {
            let refused = |refusal| Error::Refused { run: run.id, refusal };
            apply(run, &Action::Wake { owner: None }, registry.me(), registry.clock().now()).map_err(refused)?;
        } else {
            pollster::block_on(registry.wake_queued(run.id))?;
        }
        Ok(ResumedRun { id: run.id, name: run.spec.name.clone(), attempt: run.attempt, warning: None })
    }

    /// Whether the rules would let it be resumed.
    fn check(&self, registry: &Registry, seen: &RunStatus) -> Result<(), Error> {
        let leftovers = if self.end_leftovers { LiveProcesses::default() } else { seen.leftovers.clone() };
        let refused = |refusal| Err(Error::Refused { run: seen.run.id, refusal });
        match &seen.run.state {
            State::Pending(_) if self.end_leftovers => Ok(()),
            State::Pending(_) => match registry.left_behind(&seen.run) {
                nothing if nothing.is_empty() => Ok(()),
                leftovers => refused(Refusal::LeftoversAlive(leftovers)),
            },
            // Its death is put on record first.
            State::Running(_) if leftovers.is_empty() => Ok(()),
            State::Running(_) => refused(Refusal::LeftoversAlive(leftovers)),
            _ => {
                let action = Action::Resume { failed_too: self.failed, leftovers, owner: None };
                apply(&seen.run, &action, registry.me(), registry.clock().now()).map_or_else(refused, |_| Ok(()))
            }
        }
    }
}

/// Whether a run has failed and is not archived.
async fn has_failed(registry: &Registry) -> Result<bool, Error> {
    let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states([StateName::Failed]) };
    let mut page = Page::default();
    loop {
        // A page may hold none of them and be followed by others.
        let (failed, next) = registry.batch(&filter, &page).await?;
        match next {
            _ if !failed.is_empty() => return Ok(true),
            Some(next) => page.after = Some(next),
            None => return Ok(false),
        }
    }
}

impl Operate for Unpark {
    const NAME: &'static str = "unpark";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive why train; outlive unpark train";
    type Output = Unparked;

    async fn operate(self, context: &Context) -> Result<Unparked, Error> {
        let mut runs = Vec::new();
        for (registry, run) in find_queued(context, &self.runs).await? {
            runs.push(registry.unpark(run.id).await?.id);
        }
        Ok(Unparked { runs })
    }
}

/// The runs that wait again.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Unparked {
    runs: Vec<RunId>,
}

impl fmt::Display for Unparked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.runs.iter().try_for_each(|id| {
            writeln!(f, "{id} waits for its next attempt: `outlive resume {}` begins it", called(*id))
        })
    }
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        let title = |id: &RunId, name: &Option<String>| {
            name.as_ref().map_or_else(|| id.to_string(), |name| format!("{id} {}", plain(name)))
        };
        let verb = if self.dry_run { "would be resumed" } else { "resumed" };
        for line in &self.resumed {
            writeln!(f, "{} {verb}, attempt {}", title(&line.id, &line.name), line.attempt)?;
            if let Some(warning) = &line.warning {
                writeln!(f, "  note: {warning}")?;
            }
        }
        for left in &self.left {
            writeln!(f, "{} left alone: {}", title(&left.id, &left.name), plain(&left.reason))?;
        }
        self.foreign.iter().try_for_each(|foreign| foreign.fmt(f))?;
        for command in &self.commands {
            writeln!(f, "next: {command}")?;
        }
        if self.resumed.is_empty() && self.left.is_empty() && self.foreign.is_empty() {
            writeln!(f, "nothing to resume")?;
        }
        match self.leaves_failed {
            true => writeln!(f, "next: `outlive resume --all --failed` also resumes runs that failed"),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = &self.steps;
        let (run, repo, stands) = (plain(&steps.run_id), plain(&steps.repo), steps.lifecycle);
        writeln!(f, "{run} of cool-workflow in {repo} is {stands}")?;
        let word = |value: &Option<serde_json::Value>| match value {
            Some(serde_json::Value::String(text)) => plain(text),
            Some(other) => plain(&other.to_string()),
            None => "?".into(),
        };
        for task in &steps.next_tasks {
            writeln!(f, "  task {} {}", word(&task.id), word(&task.status))?;
        }
        if let Some(run) = self.delegated {
            return writeln!(f, "{run} has cool-workflow continue it; `outlive logs {run}` shows what it says");
        }
        for action in &steps.next_actions {
            writeln!(f, "next: {} ({})", plain(&action.command), plain(&action.reason))?;
        }
        Ok(())
    }
}
