//! `outlive ps`: the runs of a registry, one a line.

mod others;
mod sorted;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use clap::builder::PossibleValuesParser;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::index::Kind;
use outlive::lifecycle::health::why_ended;
use outlive::logs::show_bytes;
use outlive::registry::{ListItem, Registry, SortedPage};
use outlive::run::{RunSummary, StateName, SummaryEnd};
use outlive::step::KIND;
use outlive::store::{Cursor, Order, Page};
use outlive::time::{Clock, SystemClock, Towards, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

use self::sorted::ListPlace;
use self::status::{StatusFilter, status_words};
use crate::call::{Context, Effect, Form, Operate};
use crate::exec::flags::parse_label;
use crate::lookup::index;
use crate::operations::listing::repo_name;
use crate::ui;
use crate::ui::run_view::{RunView, colour, in_milliseconds, percent_of, progress_of, quoted, short_ids};
use crate::ui::table::{Cell, Colour, Step, Table};
use crate::ui::typed::called;
use crate::ui::{Look, cut, plain, quote};

/// List running, waiting and unfinished runs of this registry
///
/// Dead and interrupted runs are listed for a week; after that --all or --status lists them. `ps` never writes: it
/// checks the processes itself, so that a run whose owner is gone is shown as dead at once.
#[derive(Debug, Default, Args)]
pub struct Ps {
    /// Also runs that have ended, and archived ones
    #[arg(short, long)]
    pub all: bool,
    /// Also the steps of runs
    #[arg(long)]
    pub steps: bool,
    /// Only runs in this state, or of this health: orphaned, late, stalled, overdue, unresponsive; or parked (repeatable)
    #[arg(long = "status", value_name = "STATE", value_parser = PossibleValuesParser::new(status_words()))]
    pub status: Vec<String>,
    /// Only runs of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only runs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only runs that bear this label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Only runs whose name, kind, labels or command contain this text, in any case
    #[arg(long)]
    pub text: Option<String>,
    /// Only runs that run on this host, or ran there last
    #[arg(long)]
    pub host: Option<String>,
    /// Only runs that this user made
    #[arg(long)]
    pub user: Option<String>,
    /// Made at or after this time: 2026-11-15T09:30:00+01:00, 2026-11-15, 2h (ago), today, yesterday
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Made before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Leave out archived runs
    #[arg(long)]
    pub unarchived: bool,
    /// By created, started, ended, duration, name, kind, state or priority; `-name`: the greatest first [default: -created]
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// At most this many, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
    /// Where the page begins: the `next` of the previous answer
    #[arg(long, value_name = "NEXT", allow_hyphen_values = true)]
    pub cursor: Option<String>,
    /// Runs of every repository that is known
    #[arg(short, long)]
    pub global: bool,
    /// Show all columns, memory and hosts included, and cut nothing
    #[arg(short, long)]
    pub wide: bool,
}

/// For how long a run that has ended needs attention.
const ATTENTION: &str = "1w";
/// The most runs of one answer.
const MOST: usize = 10_000;
/// How many of them are read at a time. More take no less time each, and memory that is not in a cache any more.
pub const AT_A_TIME: usize = 128;

/// A page of runs.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Runs {
    /// Where they are.
    pub registry: String,
    /// The runs, newest first unless `sort` asks for another order; for people their lines stand for them.
    pub runs: Vec<RunView>,
    /// Where the next page begins.
    pub next: Option<String>,
    /// The call for it.
    #[serde(skip)]
    more: Option<String>,
    #[serde(skip)]
    lines: Vec<PsRow>,
    #[serde(skip)]
    shown: PsStyle,
}

/// What is shown of a run in a list.
#[derive(Debug)]
struct PsRow {
    id: RunId,
    title: String,
    word: &'static str,
    colour: Option<Colour>,
    attempt: u32,
    duration: String,
    progress: String,
    percent: Option<u64>,
    /// The memory that it has, or the most that it had, in bytes.
    memory: Option<u64>,
    host: Option<String>,
    /// Its repository, where runs of several are listed.
    repo: Option<String>,
    reason: String,
    /// The runs that it waits for.
    waits_for: Vec<RunId>,
    awaits_resume: bool,
    /// `outlive resume --all` resumes it.
    resumes_unnamed: bool,
    next_step: Option<String>,
}

impl PsRow {
    fn of(run: &RunView) -> Self {
        Self {
            id: run.id,
            title: run.title(),
            word: run.word(),
            colour: run.colour(),
            attempt: run.attempt,
            duration: run.duration(),
            progress: run.progress(),
            percent: run.percent(),
            memory: run.memory_bytes.or(run.peak_memory_bytes),
            host: run.host.clone(),
            repo: None,
            reason: reason(run),
            waits_for: run.waits_for.clone(),
            awaits_resume: run.awaits_resume(),
            resumes_unnamed: run.awaits_resume() && run.resumes_unnamed,
            next_step: run.next_step(),
        }
    }

    /// The same of a run of which no more was read.
    fn of_brief(run: RunSummary) -> Self {
        let state = run.state();
        let title = match (run.name.or(run.step), &run.argv) {
            (Some(name), _) => plain(&name),
            (None, Some(argv)) => quoted(argv),
            (None, None) => plain(&run.kind),
        };
        let lasted = |end: &SummaryEnd| end.started_at.map(|at| in_milliseconds(end.at.since(at)));
        let archived = run.archived.then(|| "archived".to_owned());
        let why = run.end.as_ref().and_then(|end| why_ended(&end.how));
        let reason = archived.into_iter().chain(why.as_deref().map(plain));
        Self {
            id: run.id,
            title,
            word: if run.replays.is_some() { "replayed" } else { state.as_str() },
            colour: colour(state, None),
            attempt: run.attempt,
            duration: run.end.as_ref().and_then(lasted).unwrap_or_default(),
            progress: progress_of(run.done, run.total),
            percent: percent_of(run.done, run.total),
            memory: run.peak_memory_bytes,
            host: run.end.and_then(|end| end.host),
            repo: None,
            reason: reason.collect::<Vec<_>>().join("; "),
            waits_for: Vec::new(),
            awaits_resume: false,
            resumes_unnamed: false,
            next_step: None,
        }
    }
}

/// What a list of runs is shown as.
#[derive(Debug, Default)]
struct PsStyle {
    /// What to say where there is none.
    nothing: String,
    wide: bool,
    /// A host that is not this one.
    hosts_differ: bool,
}

impl Operate for Ps {
    const NAME: &'static str = "ps";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive ps\noutlive ps --all --status failed\n\
                                    outlive ps --status orphaned --status unresponsive\n\
                                    outlive ps --label team=search --json";
    type Output = Runs;

    fn is_beyond(&self) -> bool {
        self.global
    }

    async fn operate(self, context: &Context) -> Result<Runs, Error> {
        let mut wanted = StatusFilter::parse(&self.status)?;
        if !self.all && self.status.is_empty() {
            wanted.ended_since = parse_moment(ATTENTION, SystemClock.now(), Towards::Past).ok();
        }
        let filter = self.filter(wanted.to_look_at())?;
        let place = ListPlace::of(self.sort.as_deref(), self.cursor.as_deref())?;
        if self.limit == 0 || self.limit > MOST {
            return Err(Error::Invalid(format!("a page has 1 to {MOST} runs, not {}", self.limit)));
        }
        if self.global {
            let ListPlace::InTime(Page { order: Order::Newest, after, .. }) = place else {
                let why = "runs of every repository are listed newest first: leave out `--sort` or `--global`";
                return Err(Error::Invalid(why.into()));
            };
            return self.everywhere(context, &filter, after, &wanted).await;
        }
        let Some(registry) = context.existing().await? else {
            let place = context.place()?;
            let nothing = format!(
                "no registry yet at {}; the first `outlive run -- COMMAND` makes it, or `outlive init` one here{}",
                plain(&place),
                others::hint(context).await
            );
            let shown = PsStyle { nothing, ..PsStyle::default() };
            return Ok(Runs { registry: place, runs: Vec::new(), next: None, more: None, lines: Vec::new(), shown });
        };
        let (mut runs, mut lines) = (Vec::new(), Vec::new());
        let next = self
            .gather(&registry, &filter, place, &wanted, context.form(), |glimpse| match (glimpse, context.form()) {
                (ListItem::RunSummary(brief), _) => lines.push(PsRow::of_brief(*brief)),
                (ListItem::RunStatus(seen), Form::Text) => lines.push(PsRow::of(&RunView::unsigned(&seen, &registry))),
                (ListItem::RunStatus(seen), Form::Json) => runs.push(RunView::new(&seen, &registry)),
            })
            .await?;
        let here = &registry.me().host;
        let elsewhere = if lines.is_empty() && runs.is_empty() { others::hint(context).await } else { String::new() };
        let shown = PsStyle {
            nothing: self.nothing(&registry.shown()) + &elsewhere,
            wide: self.wide,
            hosts_differ: lines.iter().any(|line| line.host.as_ref().is_some_and(|host| **host != **here)),
        };
        let more = next.as_ref().map(|next| self.again(context, next));
        Ok(Runs { registry: registry.shown(), runs, next, more, lines, shown })
    }
}

impl Ps {
    /// The runs of every registry that is known, each as its own registry sees it. One that is away hides no other.
    async fn everywhere(
        &self,
        context: &Context,
        filter: &Filter,
        after: Option<Cursor>,
        wanted: &StatusFilter,
    ) -> Result<Runs, Error> {
        let mut found: Vec<(Cursor, RunView, Option<PsRow>)> = Vec::new();
        let mut cut_off = false;
        let here = outlive::host::home::home().unwrap_or_default().display().to_string();
        for known in index()?.sources()?.iter().filter(|known| known.address.kind == Kind::Outlive) {
            let opened = Context::new(Some(known.address.url.clone())).existing().await;
            let registry = match opened {
                Ok(Some(registry)) => registry,
                Ok(None) => continue,
                Err(error) => {
                    let (repo, error) = (plain(&known.address.repo()), plain(&error.to_string()));
                    crate::ui::talk(&format!("warning: {repo} is left out: {error}\n"));
                    continue;
                }
            };
            let repo = known.address.repo();
            let next = self
                .gather(&registry, filter, ListPlace::newest(after), wanted, Form::Json, |glimpse| {
                    let ListItem::RunStatus(seen) = glimpse else { return };
                    let mut view = match context.form() {
                        Form::Json => RunView::new(&seen, &registry),
                        Form::Text => RunView::unsigned(&seen, &registry),
                    };
                    view.repo = Some(repo.clone());
                    let reap = format!("outlive --registry {} reap", quote(known.address.shown().as_bytes()));
                    let next_step = view.next_step_with(&reap);
                    let line = PsRow { repo: Some(repo.clone()), next_step, ..PsRow::of(&view) };
                    found.push((Cursor::at(&seen.run), view, Some(line)));
                })
                .await?;
            cut_off |= next.is_some();
        }
        found.sort_by_key(|(place, ..)| std::cmp::Reverse((place.created_at, place.id)));
        cut_off |= found.len() > self.limit;
        found.truncate(self.limit);
        let next = found.last().filter(|_| cut_off).map(|(place, ..)| place.to_string());
        let shown = PsStyle { nothing: self.nothing(&here), wide: self.wide, hosts_differ: false };
        let more = next.as_ref().map(|next| self.again(context, next));
        let (mut runs, mut lines) = (Vec::new(), Vec::new());
        for (_, view, line) in found {
            match context.form() {
                Form::Json => runs.push(view),
                Form::Text => lines.extend(line),
            }
        }
        Ok(Runs { registry: here, runs, next, more, lines, shown })
    }

    /// Has `take` called with the runs that are wanted, and answers where the next page begins.
    async fn gather(
        &self,
        registry: &Registry,
        filter: &Filter,
        place: ListPlace,
        wanted: &StatusFilter,
        form: Form,
        take: impl FnMut(ListItem),
    ) -> Result<Option<String>, Error> {
        match place {
            ListPlace::InTime(page) => {
                let next = sorted::in_time(registry, filter, page, (self.limit, wanted, form), take).await?;
                Ok(next.map(|next| next.to_string()))
            }
            ListPlace::Sorted(sort, after) => {
                let page = SortedPage { sort, after, limit: self.limit };
                let next = sorted::by_value(registry, filter, &page, (wanted, form), take).await?;
                Ok(next.map(|next| next.to_string()))
            }
        }
    }

    fn filter(&self, states: Option<BTreeSet<StateName>>) -> Result<Filter, Error> {
        let attention = [StateName::Interrupted, StateName::Dead];
        let in_flight = [StateName::Pending, StateName::Running, StateName::Suspended];
        let usual = || (!self.all).then(|| in_flight.into_iter().chain(attention).collect());
        let mut labels = BTreeMap::new();
        for label in &self.labels {
            let (key, value) = parse_label(label)?;
            labels.insert(key, value);
        }
        let archived = if self.all && !self.unarchived { None } else { Some(false) };
        let moment = |text: &Option<String>| {
            let parsed = text.as_deref().map(|text| parse_moment(text, SystemClock.now(), Towards::Past)).transpose();
            parsed.map_err(|error| Error::Invalid(error.to_string()))
        };
        let (since, until, text) = (moment(&self.since)?, moment(&self.until)?, self.text.clone());
        let states = states.or_else(usual);
        let is_step = if self.steps || self.kind.as_deref() == Some(KIND) { None } else { Some(false) };
        let (name, kind) = (self.name.clone(), self.kind.clone());
        let (host, user) = (self.host.clone(), self.user.clone());
        Ok(Filter {
            states,
            name,
            kind,
            labels,
            archived,
            is_step,
            since,
            until,
            text,
            host,
            user,
            ..Filter::default()
        })
    }

    /// What to say where there is nothing to list.
    fn nothing(&self, registry: &str) -> String {
        let registry = plain(registry);
        let one = [&self.name, &self.kind, &self.text, &self.host, &self.user, &self.since, &self.until];
        let narrowed = one.iter().any(|one| one.is_some()) || !self.labels.is_empty() || !self.status.is_empty();
        match (narrowed || self.cursor.is_some(), self.all) {
            (true, true) => format!("no such runs in {registry}; `outlive ps --all` lists every run"),
            (true, false) => format!("no such runs in {registry}; add --all for those that have ended or are archived"),
            (false, true) => format!("no runs in {registry}; `outlive run -- COMMAND` starts one"),
            (false, false) => {
                format!("no runs in flight in {registry}; `outlive ps --all` also lists those that have ended")
            }
        }
    }

    /// This call again, for the page that begins at `next`.
    fn again(&self, context: &Context, next: &str) -> String {
        let mut words: Vec<String> = vec!["outlive".into()];
        words.extend(context.flags());
        words.push("ps".into());
        words.extend(self.all.then(|| "--all".into()));
        words.extend(self.steps.then(|| "--steps".into()));
        words.extend(self.wide.then(|| "--wide".into()));
        words.extend(self.global.then(|| "--global".into()));
        words.extend(self.unarchived.then(|| "--unarchived".into()));
        let status = self.status.iter().map(|word| ("--status", word));
        let labels = self.labels.iter().map(|word| ("--label", word));
        let named = [
            ("--name", &self.name),
            ("--kind", &self.kind),
            ("--text", &self.text),
            ("--host", &self.host),
            ("--user", &self.user),
            ("--since", &self.since),
            ("--until", &self.until),
            ("--sort", &self.sort),
        ];
        let one = named.into_iter().filter_map(|(flag, word)| Some((flag, word.as_ref()?)));
        // In one word each, so that a value that looks like a flag is none.
        words.extend(status.chain(one).chain(labels).map(|(flag, value)| format!("{flag}={value}")));
        words.extend(["--limit".into(), self.limit.to_string(), format!("--cursor={next}")]);
        ui::command_line(words.iter().map(String::as_bytes))
    }
}

/// What gives way first, as long as a reason would be cut.
const FIRST: [Step; 5] = [
    Step::LeaveOutEmpty("PROGRESS"),
    Step::Narrow("RUN", 24),
    Step::LeaveOut("ATTEMPT"),
    Step::Shorten("PROGRESS"),
    Step::Narrow("RUN", 16),
];

/// What gives way then, only as long as a reason would be cut too short to be of use.
const THEN: [Step; 5] = [
    Step::LeaveOut("HOST"),
    Step::Narrow("RUN", 12),
    Step::LeaveOut("PROGRESS"),
    Step::LeaveOut("TIME"),
    Step::Narrow("RUN", 8),
];

/// The longest name or command that is shown whole.
const LONGEST: usize = 32;

impl Runs {
    /// The list as it is to look.
    fn show(&self, look: Look) -> String {
        if self.lines.is_empty() {
            return format!("{}\n", self.shown.nothing);
        }
        let look = Look { width: if self.shown.wide { usize::MAX } else { look.width }, ..look };
        let host = self.shown.wide || self.shown.hosts_differ;
        let ids: Vec<RunId> = self.lines.iter().map(|line| line.id).collect();
        let ids = if self.shown.wide { ids.iter().map(ToString::to_string).collect() } else { short_ids(&ids) };
        let repo = self.lines.iter().any(|line| line.repo.is_some());
        let headings = ["ID", "REPO", "RUN", "STATE", "ATTEMPT", "TIME", "PROGRESS", "MEMORY", "HOST", "REASON"];
        let is_shown = |name: &&'static str| match *name {
            "MEMORY" => self.shown.wide,
            "HOST" => host,
            "REPO" => repo,
            _ => true,
        };
        let headings: Vec<&'static str> = headings.into_iter().filter(is_shown).collect();
        let hints = self.hints(&ids, repo);
        let rows = self.lines.iter().zip(ids).map(|(line, id)| {
            let title = if self.shown.wide { line.title.as_str().into() } else { cut(&line.title, LONGEST) };
            let memory = self.shown.wide.then(|| Cell::new(line.memory.map(show_bytes).unwrap_or_default()));
            let host = host.then(|| Cell::new(plain(line.host.as_deref().unwrap_or_default())));
            let repo = repo.then(|| Cell::new(plain(repo_name(line.repo.as_deref().unwrap_or_default()))));
            let rest = [
                Cell::new(title),
                Cell::new(line.word).coloured(line.colour),
                Cell::new(line.attempt.to_string()),
                Cell::new(line.duration.as_str()),
                progress(line, look),
            ];
            let place = memory.into_iter().chain(host);
            let reason = Cell::new(self.with_names(line));
            [Cell::new(id)].into_iter().chain(repo).chain(rest).chain(place).chain([reason])
        });
        let mut text = Table::new(&headings, rows).show(look, &FIRST, &THEN) + "\n";
        for hint in hints {
            text.push_str(&format!("next: {hint}\n"));
        }
        text.extend(self.more.iter().map(|more| format!("more: {more}\n")));
        text
    }
}

impl Runs {
    /// Why a run is in its state; runs that it waits for have the names that are listed, or short ids.
    fn with_names(&self, line: &PsRow) -> String {
        line.waits_for.iter().fold(line.reason.clone(), |reason, parent| {
            let listed = self.lines.iter().find(|other| other.id == *parent).map(|parent| parent.title.clone());
            reason.replace(&parent.to_string(), &listed.unwrap_or_else(|| short_ids(&[*parent]).concat()))
        })
    }

    /// What to type about these runs: one line for several that are resumed by one command.
    fn hints(&self, ids: &[String], several_registries: bool) -> Vec<String> {
        let lines = self.lines.iter().zip(ids).filter(|(line, _)| line.awaits_resume);
        // All is all of one registry, and not what a person stopped from a keyboard.
        let (unnamed, named): (Vec<_>, Vec<_>) =
            lines.partition(|(line, _)| line.resumes_unnamed && !several_registries);
        let is_shared = |line: &PsRow| {
            let of = if line.resumes_unnamed && !several_registries { &unnamed } else { &named };
            line.awaits_resume && of.len() > 1
        };
        let alone = self.lines.iter().zip(ids).filter(|(line, _)| !is_shared(line));
        let alone = alone.filter_map(|(line, id)| Some(line.next_step.as_ref()?.replace(&called(line.id), id)));
        let mut hints: Vec<String> = alone.collect::<BTreeSet<_>>().into_iter().collect();
        if unnamed.len() > 1 {
            let count = unnamed.len();
            hints.push(format!("`outlive resume --all` starts the next attempt of these {count} runs"));
        }
        if named.len() > 1 {
            let first: Vec<&str> = named.iter().take(NAMED).map(|(_, id)| id.as_str()).collect();
            let more = if named.len() > NAMED {
                format!(", {} more are resumed so", named.len() - NAMED)
            } else {
                String::new()
            };
            hints.push(format!("`outlive resume {}` starts the next attempt of each{more}", first.join(" ")));
        }
        hints
    }
}

/// How many runs one hint names.
const NAMED: usize = 8;

fn reason(run: &RunView) -> String {
    let archived = run.archived.then_some("archived");
    // Runs that it waits for are named by the list, which may have them.
    let reason = run.shown_reason(SystemClock.now(), |parent| Some(parent.to_string()));
    archived.map(str::to_owned).into_iter().chain(reason).collect::<Vec<_>>().join("; ")
}

/// How far a run is: for people a bar, where it says of how much.
fn progress(line: &PsRow, look: Look) -> Cell<'_> {
    const CELLS: u64 = 8;
    match line.percent {
        Some(percent) if look.on_terminal => {
            let full = percent * CELLS / 100;
            let bar: String = (0..CELLS).map(|cell| if cell < full { '█' } else { '░' }).collect();
            Cell::new(format!("{bar} {percent:>3}%")).or(format!("{percent}%"))
        }
        _ => Cell::new(line.progress.as_str()),
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show(Look::of_stdout()))
    }
}

#[cfg(test)]
mod tests;
