//! `outlive queue`: runs that wait for a worker.

mod by_worker;
pub mod edit;
mod ensure;
pub mod entry;
mod list;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Command, ValueEnum};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::{ActionKind, Refusal};
use outlive::ownership::reaper::Reaper;
use outlive::registry::{CancelOptions, Cancellation, EXTERNAL_KIND, Enqueued, Parent, Planned, Registry};
use outlive::run::{InvalidShare, Key, Release, Run, Share, StateName};
use outlive::schedule::{Missed, Schedule};
use outlive::settings::QueueOrder;
use outlive::time::{Clock, SystemClock, Timestamp, Towards, parse_duration, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::by_worker::plain_call;
use self::ensure::ensure_worker;
use self::entry::{EntryFlags, EntryView, existing_home, home_registry};
pub use self::list::List;
use self::plan::read;
use crate::call::json_word::JsonWord;
use crate::call::{Context, Effect, Form, Operate};
use crate::exec::flags::SpecFlags;
use crate::exec::hooks;
use crate::lookup::serving::{WHEN_DUE, is_scheduled, is_served};
use crate::operations::bulk::{Bulk, BulkFilter, SELECTING_OF_STATE};
use crate::operations::wait::{Ended, Wait};
use crate::ui::run_view::RunView;
use crate::ui::{counted, talk};

/// Add a command to the queue, for `outlive work` or `outlive supervise`
///
/// A queued run needs no process. Lower priorities are executed first, equal ones in the order of their creation.
/// With --kind and no command it is for a handler of that kind, in a program that has a worker of the library.
/// With --app, --workflow or --run the entry is for an executor outside outlive: it is added to the home's queue of
/// all repositories, from which `outlive queue drain` leases it.
#[derive(Debug, Default, Args)]
pub struct Add {
    /// Lower is executed first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, help_heading = "Queue")]
    pub priority: i32,
    /// The tenant that it is for: runs of one priority are claimed in turn from every share, as often as its weight says
    #[arg(long, value_name = "TENANT[:WEIGHT]", value_parser = parse_share, help_heading = "Queue", hide_short_help = true)]
    pub share: Option<Share>,
    /// Not before this time, such as 18:00, or after this long
    ///
    /// A time such as 18:00, tomorrow or 2026-11-15T09:30:00Z, or a duration such as 90m.
    #[arg(long, value_name = "TIME|DURATION", help_heading = "Queue")]
    pub not_before: Option<String>,
    /// Only after this run has succeeded (repeatable)
    ///
    /// If that run fails or is cancelled, so does this one.
    #[arg(long, value_name = "RUN", help_heading = "Queue")]
    pub needs: Vec<String>,
    /// Only after this run has ended, however it did (repeatable)
    #[arg(long, value_name = "RUN", help_heading = "Queue", hide_short_help = true)]
    pub needs_any: Vec<String>,
    /// Repeat, with this long between two starts
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "cron", help_heading = "Queue")]
    pub every: Option<Duration>,
    /// Repeat by the calendar of this machine
    ///
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[arg(long, value_name = "EXPRESSION", help_heading = "Queue")]
    pub cron: Option<String>,
    /// What to do about times that passed while no worker was running [default: once]
    #[arg(long, value_enum, help_heading = "Queue", hide_short_help = true)]
    pub missed: Option<OnMissed>,
    /// Add the runs that this file describes, as JSON lines
    ///
    /// All of them or none. Each line has the fields of this call; their `needs` may name each other.
    #[arg(long, value_name = "FILE", conflicts_with = "argv", help_heading = "Queue")]
    pub file: Option<PathBuf>,
    /// Instead of a command, work for a handler of its kind: the input, as JSON, @FILE, or - for the standard input
    #[arg(long, value_name = "JSON|@FILE|-", value_parser = JsonWord::parse, conflicts_with = "argv", requires = "kind", help_heading = "Queue", hide_short_help = true)]
    pub input: Option<JsonWord>,
    /// Wait until it has ended, and exit with its exit status
    ///
    /// As `outlive wait` does; a worker must be running.
    #[arg(long, help_heading = "Queue")]
    pub wait: bool,
    /// Start a worker in the background where none serves it
    ///
    /// That worker ends when nothing waits for a worker alone.
    #[arg(long, help_heading = "Queue")]
    pub ensure_worker: bool,
    #[command(flatten)]
    pub entry: EntryFlags,
    #[command(flatten)]
    pub spec: SpecFlags,
    /// The line of the file that describes it.
    #[arg(skip)]
    line: Option<String>,
}

/// What becomes of times at which no worker ran.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OnMissed {
    /// It is executed once for all of them
    Once,
    /// It is executed once for each
    All,
    /// They are passed over
    Skip,
}

/// Show the queue position of a run
#[derive(Debug, Default, Args)]
pub struct Show {
    /// A run: id or unique prefix, name, @last, or @~2
    pub run: String,
}

/// Remove waiting runs from the queue
///
/// Only waiting runs; `outlive cancel` stops a running one. The schedule of a recurring run ends. With --all, --kind,
/// --name, --label, --since or --until, the runs that match are counted, and removed only with --yes.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive queue cancel [OPTIONS] <RUNS>...\n       outlive queue cancel [OPTIONS] --all [--yes]\n       outlive queue cancel [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Cancel {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required_unless_present_any = SELECTING_OF_STATE.into_iter().chain(["all"]))]
    pub runs: Vec<String>,
    /// All that wait: with --yes, else they are only listed
    #[arg(long, conflicts_with = "runs")]
    pub all: bool,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
    /// Only print what would be cancelled
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
}

/// Runs that were added.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Added {
    runs: Vec<Name>,
    /// How they ended, where that was waited for.
    ended: Option<Ended>,
    /// What the worker answered of the end, for people, and the status to end with.
    #[serde(skip)]
    answered: Option<(String, u8)>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Name {
    id: RunId,
    name: Option<String>,
    /// This call made it. Otherwise it is there already, with a unique key of the run that was to be added.
    made: bool,
}

/// How a run stands in the queue.
#[derive(Debug, JsonSchema, Serialize)]
pub struct QueuePosition {
    run: RunView,
    /// How many are executed before it, if it waits.
    ahead: Option<usize>,
    /// What it is about, where it is an entry of the queue of all repositories.
    entry: Option<EntryView>,
}

/// Runs that were taken out.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Taken {
    dry_run: bool,
    cancelled: Vec<RunId>,
    /// Those that were claimed meanwhile, or whose last attempt has live processes: they are asked to stop.
    requested: Vec<RunId>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
    /// `--all` was said without `--yes` or `--dry-run`.
    #[serde(skip)]
    is_asked: bool,
}

impl Add {
    /// Refuses what describes neither a command, nor work for a handler, nor an entry.
    fn check(&self) -> Result<(), Error> {
        self.entry.check()?;
        let is_for_handler = self.spec.kind.as_deref().is_some_and(|kind| kind != "command");
        if self.spec.argv.is_empty() && !self.entry.is_any() && !is_for_handler {
            return Err(Error::Invalid(
                "a queued run needs a command, or a kind that a handler does (`--kind`)".into(),
            ));
        }
        Ok(())
    }

    /// An error of a run that a file describes, with the line.
    fn in_line(&self, error: Error) -> Error {
        match (&self.line, error) {
            (Some(line), Error::Invalid(why)) => Error::Invalid(format!("{line}: {why}")),
            (_, error) => error,
        }
    }

    /// The run that is described.
    async fn planned(&self, registry: &Registry, context: &Context, names: &Names) -> Result<Planned, Error> {
        self.check()?;
        let mut spec = self.spec.spec(registry, context)?;
        if self.spec.argv.is_empty() {
            spec.command = None;
            spec.input = self.input.as_ref().map(JsonWord::read).transpose()?;
        }
        if self.entry.is_any() {
            spec = self.entry.entry(spec)?;
        }
        spec.priority = self.priority;
        spec.share = self.share.clone();
        spec.not_before = self.not_before.as_deref().map(|text| not_before(text, registry)).transpose()?;
        spec.schedule = self.schedule()?;
        if let (Some(schedule), None) = (&spec.schedule, spec.not_before) {
            // One that comes by the calendar waits for its first time; one that comes at equal distances begins at
            // once.
            let first = self.cron.as_ref().and_then(|_| schedule.next_after(registry.clock().now()));
            spec.not_before = first;
        }
        let mut after = Vec::new();
        for (words, release) in [(&self.needs, Release::Success), (&self.needs_any, Release::End)] {
            for word in words {
                after.push((names.find(registry, word).await?, release));
            }
        }
        Ok(Planned { spec, after })
    }

    fn schedule(&self) -> Result<Option<Schedule>, Error> {
        let missed = match self.missed {
            None | Some(OnMissed::Once) => Missed::Once,
            Some(OnMissed::All) => Missed::All,
            Some(OnMissed::Skip) => Missed::Skip,
        };
        let schedule = match (self.every, &self.cron) {
            (Some(every), _) => Some(Schedule::every(every, missed)),
            (None, Some(cron)) => Some(Schedule::cron(cron.clone(), missed)),
            (None, None) if self.missed.is_some() => {
                return Err(Error::Invalid("`--missed` goes with `--every` or `--cron`".into()));
            }
            (None, None) => None,
        };
        schedule.transpose().map_err(|error| Error::Invalid(error.to_string()))
    }
}

/// The places of the runs of a plan, by name.
#[derive(Debug, Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    async fn find(&self, registry: &Registry, word: &str) -> Result<Parent, Error> {
        match self.0.get(word) {
            Some(place) => Ok(Parent::Planned(*place)),
            None => Ok(Parent::Run(registry.find(word).await?.run.id)),
        }
    }
}

fn parse_share(text: &str) -> Result<Share, InvalidShare> {
    text.parse()
}

fn not_before(text: &str, registry: &Registry) -> Result<Timestamp, Error> {
    parse_moment(text, registry.clock().now(), Towards::Future).map_err(|error| Error::Invalid(error.to_string()))
}

impl Operate for Add {
    const NAME: &'static str = "queue add";
    const EFFECT: Effect = Effect::Execute;
    const EXAMPLES: &'static str = "outlive queue add --name build -- make\n\
                                    outlive queue add --needs build --lock db --unique migration -- ./migrate.sh\n\
                                    outlive queue add --cron '30 3 * * *' --name nightly -- ./backup.sh\n\
                                    outlive queue add --kind migrate --input '{\"tenant\": \"acme\"}'\n\
                                    outlive queue add --file jobs.jsonl";
    type Output = Added;

    /// The short help has no room for what is rarely said of a queued run.
    fn shape(command: Command) -> Command {
        const RARE: [&str; 5] = ["backoff", "ensure_worker", "env", "labels", "ready_http"];
        RARE.into_iter().fold(command, |command, rare| command.mut_arg(rare, |arg| arg.hide_short_help(true)))
    }

    fn is_beyond(&self) -> bool {
        self.entry.is_any()
    }

    fn effect(&self) -> Effect {
        // Files and variables are those of the process that executes this; a variable that is set reads none.
        let reads_file = self.file.is_some() || self.input.as_ref().is_some_and(JsonWord::is_local);
        if reads_file || self.spec.reads_environment() { Effect::Local } else { Self::EFFECT }
    }

    async fn operate(self, context: &Context) -> Result<Added, Error> {
        // What makes no sense makes no registry either.
        if self.file.is_none() {
            self.check()?;
        }
        if let Some(added) = by_worker::add(&self, context).await? {
            return Ok(added);
        }
        let of_home = if self.entry.is_any() { Some(home_registry(context)?) } else { None };
        let context = of_home.as_ref().unwrap_or(context);
        let registry = context.registry().await?;
        let (is_waited_for, ensures_worker) = (self.wait, self.ensure_worker);
        let added = match &self.file {
            Some(file) => read(file)?,
            None => vec![self],
        };
        let mut names = Names::default();
        for (place, name) in added.iter().enumerate().filter_map(|(place, add)| Some((place, add.spec.name.clone()?))) {
            if names.0.insert(name.clone(), place).is_some() {
                return Err(Error::Invalid(format!("two of the runs are called `{name}`")));
            }
        }
        if added.len() == 1 {
            // One alone cannot mean itself.
            names = Names::default();
        }
        let mut plan = Vec::new();
        for (done, add) in added.iter().enumerate() {
            context.progress().report(done, added.len());
            plan.push(add.planned(&registry, context, &names).await.map_err(|error| add.in_line(error))?);
        }
        let runs = enqueue(&registry, plan).await?;
        if ensures_worker {
            ensure_worker(&registry, &runs).await?;
        } else if context.form() == Form::Text && !context.is_served() && !is_waited_for {
            warn_of_unserved(&registry, &runs).await?;
        }
        let ended = if is_waited_for {
            let added = runs.iter().map(|added| (&registry, added.run.id)).collect();
            Some(Ended::of(context, added, false, None).await?)
        } else {
            None
        };
        let named = |added: Enqueued| Name { id: added.run.id, name: added.run.spec.name.clone(), made: added.made };
        Ok(Added { runs: runs.into_iter().map(named).collect(), ended, answered: None })
    }

    fn exit_status(added: &Added) -> u8 {
        let answered = added.answered.as_ref().map(|(_, status)| *status);
        answered.or(added.ended.as_ref().map(Wait::exit_status)).unwrap_or(0)
    }
}

/// Says that no worker or supervisor is there to execute a run when its time comes: a schedule would be missed silently.
async fn warn_of_unserved(registry: &Registry, runs: &[Enqueued]) -> Result<(), Error> {
    let Some(run) = runs.iter().map(|added| &added.run).find(|run| is_scheduled(run)) else { return Ok(()) };
    if !is_served(registry, run).await? {
        talk(&format!("warning: no worker or supervisor is there to execute it when it is due\nhint: {WHEN_DUE}\n"));
    }
    Ok(())
}

/// Adds what is planned. Where there is one like it already, and its owner is dead, that is recorded first: it
/// must not keep the living out.
async fn enqueue(registry: &Registry, plan: Vec<Planned>) -> Result<Vec<Enqueued>, Error> {
    let again = (plan.len() == 1 && plan[0].spec.keys.iter().any(Key::is_unique)).then(|| plan.clone());
    let runs = registry.enqueue_each(plan).await?;
    match (again, runs.as_slice()) {
        (Some(again), [Enqueued { run, made: false, .. }]) if run.owner().is_some() => {
            let reaped = hooks::reap(registry, &mut Reaper::new(registry.worker()), Filter::of([run.id])).await?;
            if reaped.ended.is_empty() { Ok(runs) } else { registry.enqueue_each(again).await }
        }
        _ => Ok(runs),
    }
}

impl Operate for Show {
    const NAME: &'static str = "queue show";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive queue show nightly";
    type Output = QueuePosition;

    async fn operate(self, context: &Context) -> Result<QueuePosition, Error> {
        let here = match context.for_lookup(&self.run).await {
            Ok(registry) => registry.find(&self.run).await.map(|seen| (registry, seen)),
            Err(error) => Err(error),
        };
        let (registry, seen) = match here {
            Ok(found) => found,
            // It may be an entry of the queue of all repositories.
            Err(error @ (Error::NotFound(_) | Error::NoRegistry { .. })) => {
                context.permit_beyond(Self::NAME).map_err(|_| error.clone())?;
                let registry = home_registry(context)?.existing().await.ok().flatten().ok_or_else(|| error.clone())?;
                let seen = registry.find(&self.run).await.map_err(|_| error)?;
                (registry, seen)
            }
            Err(error) => return Err(error),
        };
        let entry = EntryView::seen(&seen);
        let mut waiting = registry.waiting().await?;
        if entry.is_some() {
            // Entries and commands do not wait for each other.
            waiting.retain(|run| run.spec.kind == EXTERNAL_KIND);
            QueueOrder::read()?.sort(&mut waiting);
        }
        let ahead = waiting.iter().position(|run| run.id == seen.run.id);
        Ok(QueuePosition { run: RunView::new(&seen, &registry), ahead, entry })
    }
}

impl Operate for Cancel {
    const NAME: &'static str = "queue cancel";
    const EFFECT: Effect = Effect::Stop;
    const EXAMPLES: &'static str = "outlive queue cancel nightly\noutlive queue cancel --all\n\
                                    outlive queue cancel --label tenant=acme";
    type Output = Taken;

    fn effect(&self) -> Effect {
        if (self.filter.is_any() || self.all) && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    fn exit_status(taken: &Taken) -> u8 {
        taken.bulk.as_ref().map_or(0, Bulk::exit_status)
    }

    async fn operate(mut self, context: &Context) -> Result<Taken, Error> {
        let is_asked = self.all && !self.filter.yes && !self.dry_run;
        self.dry_run |= is_asked;
        let mut taken =
            Taken { is_asked, dry_run: self.dry_run, cancelled: Vec::new(), requested: Vec::new(), bulk: None };
        self.filter.check(&[], self.all || !self.runs.is_empty())?;
        if self.filter.is_any() {
            let (status, filter) = (vec![StateName::Pending.as_str().into()], self.filter.clone());
            let cancel = super::cancel::Cancel { status, filter, reason: self.reason, ..Default::default() };
            let bulk = Some(cancel.in_bulk(context).await?);
            return Ok(Taken { dry_run: !self.filter.yes, bulk, ..taken });
        }
        // All of them are looked up before any is cancelled: a wrong name changes nothing.
        let mut found = find_queued(context, &self.runs).await?;
        if let Some((_, run)) = found.iter().find(|(_, run)| run.state.name() != StateName::Pending) {
            let refusal = Refusal::WrongState { action: ActionKind::QueueCancel, state: run.state.name() };
            return Err(Error::Refused { run: run.id, refusal });
        }
        if self.all {
            let opened = if self.dry_run { context.existing().await? } else { context.to_change().await? };
            let Some(registry) = opened.map(Arc::new) else { return Ok(taken) };
            let waiting = registry.waiting().await?;
            let ids: Vec<RunId> = waiting.iter().map(|run| run.id).collect();
            if !self.dry_run {
                let done = registry.cancel_unbegun(&ids, self.reason.clone()).await?;
                taken.cancelled.extend(done.iter().map(|run| run.id));
            }
            let is_left = |run: &Run| !taken.cancelled.contains(&run.id);
            found = waiting.into_iter().filter(is_left).map(|run| (registry.clone(), run)).collect();
        }
        for (registry, run) in &found {
            if !self.dry_run {
                let how = CancelOptions { reason: self.reason.clone(), ..CancelOptions::default() };
                match registry.cancel_and_end(run.id, &how).await {
                    // It ended meanwhile.
                    Err(Error::Refused { .. }) if self.all => continue,
                    done if done.as_ref().is_ok_and(Cancellation::is_done) => {}
                    // It was claimed meanwhile, or processes of its last attempt live.
                    done => {
                        taken.requested.push(done?.run.id);
                        continue;
                    }
                }
            }
            taken.cancelled.push(run.id);
        }
        Ok(taken)
    }
}

/// Runs that are named, each with its registry: the one here, or that of the home, which has the queue of all
/// repositories.
pub async fn find_queued(context: &Context, words: &[String]) -> Result<Vec<(Arc<Registry>, Run)>, Error> {
    let Some(first) = words.first() else { return Ok(Vec::new()) };
    let here = context.for_change(first).await.map(Arc::new);
    let mut home = None;
    let mut found = Vec::new();
    for word in words {
        let error = match &here {
            Ok(registry) => match registry.find(word).await {
                Ok(seen) => {
                    context.remember(&seen.run, word);
                    found.push((registry.clone(), seen.run));
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error.clone(),
        };
        if !matches!(error, Error::NotFound(_) | Error::NoRegistry { .. }) || context.is_confined() {
            return Err(error);
        }
        if home.is_none() {
            home = existing_home(context).await?.map(Arc::new);
        }
        let Some(registry) = &home else { return Err(error) };
        let seen = registry.find(word).await.map_err(|_| error)?;
        found.push((registry.clone(), seen.run));
    }
    Ok(found)
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = |run: &Name| if run.made { "" } else { " is there already" };
        self.runs.iter().try_for_each(|run| writeln!(f, "{}{}", run.id, there(run)))?;
        self.answered.iter().try_for_each(|(line, _)| writeln!(f, "{line}"))?;
        self.ended.iter().try_for_each(|ended| ended.fmt(f))
    }
}

impl fmt::Display for QueuePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.run.shown_reason(SystemClock.now(), |_| None);
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let title = self.entry.as_ref().map_or_else(|| self.run.title(), EntryView::title);
        writeln!(f, "{} {title} {}{reason}", self.run.id, self.run.stands())?;
        match self.ahead {
            Some(0) => writeln!(f, "  it is the next"),
            Some(ahead) => writeln!(f, "  {ahead} are executed before it"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        let verb = if self.dry_run { "would be cancelled" } else { "cancelled" };
        self.cancelled.iter().try_for_each(|id| writeln!(f, "{id} {verb}"))?;
        let requested = "cancel requested; `outlive cancel --wait";
        self.requested.iter().try_for_each(|id| writeln!(f, "{id} {requested} {id}` waits until it has stopped"))?;
        let nothing = self.cancelled.is_empty() && self.requested.is_empty();
        match (nothing, self.is_asked) {
            (true, _) => writeln!(f, "nothing is queued"),
            (false, true) => {
                writeln!(f, "{} selected; nothing was cancelled, --yes cancels", counted(self.cancelled.len(), "run"))
            }
            (false, false) => Ok(()),
        }
    }
}
