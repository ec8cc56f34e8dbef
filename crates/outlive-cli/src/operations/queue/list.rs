//! `outlive queue list`: a page of what is queued, in the order in which it is executed, and why it waits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::index::{PeerEntry, Problem, peer_queue};
use outlive::lifecycle::health::RunStatus;
use outlive::registry::{EXTERNAL_KIND, Registry};
use outlive::run::StateName;
use outlive::settings::QueueOrder;
use outlive::store::{Cursor, Order, Page};
use outlive::time::{Clock, SystemClock};
use schemars::JsonSchema;
use serde::Serialize;

use super::entry::{EntryView, home_registry};
use crate::call::{Context, Effect, Form, Operate};
use crate::lookup::serving::{WHEN_DUE, for_handler, is_scheduled, is_served};
use crate::operations::ps::AT_A_TIME;
use crate::ui::run_view::{RunView, short_ids};
use crate::ui::table::{Cell, Step, Table};
use crate::ui::{Look, command_line, plain};

/// The most of one answer.
const MOST: usize = 10_000;

/// List queued runs in execution order, and why each waits
///
/// Running runs come first. After the queued runs come the entries of the queue of all repositories, and on the first
/// page those of cool-workflow's own queue.
#[derive(Debug, Args)]
pub struct List {
    /// Only entries about this repository
    #[arg(long, value_name = "PATH")]
    pub repo: Option<PathBuf>,
    /// Only this state: pending, running, suspended, dead, or a status of cool-workflow such as drained (repeatable)
    #[arg(long = "status", value_name = "STATUS")]
    pub status: Vec<String>,
    /// At most this many, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
    /// Where the page begins: the `next` of the previous answer
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
}

impl Default for List {
    fn default() -> Self {
        Self { repo: None, status: Vec::new(), limit: 100, cursor: None }
    }
}

/// A page of what waits and what runs.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Queued {
    /// In the order in which they are executed.
    waiting: Vec<RunView>,
    running: Vec<RunView>,
    /// The queue of all repositories: what waits in the order in which it is handed out, then what is.
    entries: Vec<EntryView>,
    /// The queue of cool-workflow, in the order in which it hands them out. Only on the first page.
    peer_entries: Vec<PeerEntry>,
    /// What is wrong with the file of that queue.
    peer_problem: Option<Problem>,
    /// Where the next page begins.
    next: Option<String>,
    /// The call for it.
    #[serde(skip)]
    more: Option<String>,
    /// A command waits for its time, and no worker or supervisor is there to execute it then.
    #[serde(skip)]
    is_unserved: bool,
}

/// The parts of a queue, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueuePart {
    Running,
    Waiting,
    WaitingEntries,
    HandedOut,
}

impl QueuePart {
    const ALL: [Self; 4] = [Self::Running, Self::Waiting, Self::WaitingEntries, Self::HandedOut];

    fn letter(self) -> char {
        match self {
            Self::Running => 'r',
            Self::Waiting => 'w',
            Self::WaitingEntries => 'e',
            Self::HandedOut => 'h',
        }
    }

    fn filter(self) -> Filter {
        match self {
            Self::Running => Filter::in_states([StateName::Running]),
            Self::Waiting | Self::WaitingEntries => Filter::in_states([StateName::Pending]),
            Self::HandedOut => Filter::in_states([StateName::Running, StateName::Dead, StateName::Suspended]),
        }
    }

    fn has(self, seen: &RunStatus, repo: Option<&str>) -> bool {
        let spec = &seen.run.spec;
        match self {
            Self::Running => spec.queued && spec.kind != EXTERNAL_KIND,
            Self::Waiting => spec.kind != EXTERNAL_KIND,
            Self::WaitingEntries | Self::HandedOut => {
                let is_about = |entry: EntryView| repo.is_none() || entry.repo.as_deref() == repo;
                EntryView::seen(seen).is_some_and(is_about)
            }
        }
    }
}

/// Where a page begins: behind a run of a part, or with the part.
struct QueueCursor {
    part: QueuePart,
    after: Option<Cursor>,
}

impl fmt::Display for QueueCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.part.letter())?;
        self.after.map_or(Ok(()), |after| write!(f, ".{after}"))
    }
}

impl FromStr for QueueCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (letter, after) = text.split_once('.').map_or((text, None), |(letter, after)| (letter, Some(after)));
        let part = QueuePart::ALL.into_iter().find(|part| part.letter().to_string() == letter);
        let after = after.map(str::parse).transpose();
        match (part, after) {
            (Some(part), Ok(after)) => Ok(Self { part, after }),
            _ => Err(Error::Invalid(format!("`{}` is not the `next` of an earlier page", plain(text)))),
        }
    }
}

impl Operate for List {
    const NAME: &'static str = "queue list";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive queue list\noutlive queue list --json";
    type Output = Queued;

    async fn operate(self, context: &Context) -> Result<Queued, Error> {
        if self.limit == 0 || self.limit > MOST {
            return Err(Error::Invalid(format!("a page has 1 to {MOST} runs, not {}", self.limit)));
        }
        let first =
            self.cursor.as_deref().map_or(Ok(QueueCursor { part: QueuePart::Running, after: None }), str::parse)?;
        let canonical = |repo: &PathBuf| repo.canonicalize().unwrap_or_else(|_| repo.clone()).display().to_string();
        let repo = self.repo.as_ref().map(canonical);
        let here = context.existing().await?;
        let home = match context.permit_beyond(Self::NAME) {
            Ok(()) => entries_registry(context).await?,
            Err(_) => None,
        };
        let mut page = Queued::default();
        if self.cursor.is_none() && context.permit_beyond(Self::NAME).is_ok() {
            match peer_queue() {
                Ok(entries) => page.peer_entries = entries,
                Err(problem) => page.peer_problem = Some(problem),
            }
            let is_about = |entry: &PeerEntry| repo.is_none() || entry.repo == repo;
            let is_so = |entry: &PeerEntry| self.status.is_empty() || self.status.contains(&entry.status);
            page.peer_entries.retain(|entry| is_about(entry) && is_so(entry));
        }
        let mut left = self.limit;
        let mut scheduled = None;
        for part in QueuePart::ALL.into_iter().skip_while(|part| *part != first.part) {
            let is_entry = matches!(part, QueuePart::WaitingEntries | QueuePart::HandedOut);
            let Some(registry) = (if is_entry { &home } else { &here }) else { continue };
            let after = first.after.filter(|_| part == first.part);
            let view = match context.form() {
                Form::Text => RunView::unsigned,
                Form::Json => RunView::new,
            };
            let order = if is_entry { QueueOrder::read()?.into() } else { Order::Claim };
            let place = (part, order, after);
            let next = take(registry, place, &mut left, (repo.as_deref(), &self.status), |seen| match part {
                QueuePart::Running => page.running.push(view(&seen, registry)),
                QueuePart::Waiting => {
                    if is_scheduled(&seen.run) {
                        scheduled.get_or_insert_with(|| seen.run.clone());
                    }
                    page.waiting.push(view(&seen, registry));
                }
                QueuePart::WaitingEntries | QueuePart::HandedOut => {
                    page.entries.extend(EntryView::seen(&seen));
                }
            });
            if let Some(next) = next.await? {
                let next = next.to_string();
                (page.more, page.next) = (Some(self.again(&next)), Some(next));
                break;
            }
        }
        if let (Form::Text, Some(registry), Some(run)) = (context.form(), &here, &scheduled) {
            page.is_unserved = !is_served(registry, run).await?;
        }
        Ok(page)
    }
}

impl List {
    /// This call again, for the page that begins at `next`.
    fn again(&self, next: &str) -> String {
        let repo = self.repo.as_ref().map(|repo| format!("--repo={}", repo.display()));
        let statuses = self.status.iter().map(|status| format!("--status={status}"));
        let words = ["outlive".into(), "queue".into(), "list".into()].into_iter().chain(repo).chain(statuses);
        let words: Vec<String> = words.chain([format!("--limit={}", self.limit), format!("--cursor={next}")]).collect();
        command_line(words.iter().map(String::as_bytes))
    }
}

/// The registry with the queue of all repositories, if there is one.
async fn entries_registry(context: &Context) -> Result<Option<Registry>, Error> {
    match home_registry(context)?.existing().await {
        Err(Error::NoRegistry { .. }) => Ok(None),
        opened => opened,
    }
}

/// Hands over up to `left` runs of a part of the queue, and answers where the next begin, if there are any.
async fn take(
    registry: &Registry,
    (part, order, mut after): (QueuePart, Order, Option<Cursor>),
    left: &mut usize,
    (repo, statuses): (Option<&str>, &[String]),
    mut keep: impl FnMut(RunStatus),
) -> Result<Option<QueueCursor>, Error> {
    let mut last = after;
    loop {
        let page = Page { after, limit: (*left + 1).min(AT_A_TIME), order };
        let (found, next) = registry.list(&part.filter(), &page).await?;
        let is_so =
            |seen: &RunStatus| statuses.is_empty() || statuses.iter().any(|status| status == seen.state.as_str());
        for seen in found.into_iter().filter(|seen| part.has(seen, repo) && is_so(seen)) {
            if *left == 0 {
                return Ok(Some(QueueCursor { part, after: last }));
            }
            last = Some(Cursor::at(&seen.run));
            *left -= 1;
            keep(seen);
        }
        match next {
            Some(next) => after = Some(next),
            None => return Ok(None),
        }
    }
}

impl fmt::Display for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Problem { what, reason }) = &self.peer_problem {
            writeln!(f, "problem: {}: {}", plain(what), plain(reason))?;
        }
        let is_empty = self.waiting.is_empty() && self.running.is_empty() && self.entries.is_empty();
        if is_empty && self.peer_entries.is_empty() {
            return writeln!(f, "nothing is queued");
        }
        if !self.waiting.is_empty() || !self.running.is_empty() {
            self.tell_commands(f)?;
        }
        self.tell_entries(f)?;
        self.tell_peer_entries(f)?;
        self.more.as_ref().map_or(Ok(()), |more| writeln!(f, "more: {more}"))
    }
}

impl Queued {
    fn tell_entries(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.entries.is_empty() {
            return Ok(());
        }
        let ids = short_ids(&self.entries.iter().map(|entry| entry.id).collect::<Vec<_>>());
        let row = |(entry, id): (&EntryView, &String)| {
            let cells = [id.clone(), entry.state.to_string(), entry.priority.to_string(), entry.attempt.to_string()];
            let reason = entry.reason.as_deref().map(plain).unwrap_or_default();
            cells.into_iter().chain([entry.title(), reason]).map(Cell::new).collect::<Vec<_>>()
        };
        let rows = self.entries.iter().zip(&ids).map(row);
        let table = Table::new(&["ENTRY", "STATE", "PRIORITY", "ATTEMPT", "ABOUT", "REASON"], rows);
        let steps = [Step::LeaveOut("PRIORITY"), Step::LeaveOut("ATTEMPT"), Step::Narrow("ABOUT", 24)];
        writeln!(f, "{}", table.show(Look::of_stdout(), &steps, &[]))?;
        writeln!(f, "next: `outlive queue drain` hands out what is due")
    }

    fn tell_peer_entries(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.peer_entries.is_empty() {
            return Ok(());
        }
        let row = |entry: &PeerEntry| {
            let parts = [("app", &entry.app), ("workflow", &entry.workflow), ("run", &entry.run), ("in", &entry.repo)];
            let about =
                parts.into_iter().filter_map(|(word, value)| Some(format!("{word} {}", plain(value.as_ref()?))));
            let note = entry.note.iter().map(|note| format!("({})", plain(note)));
            let about = about.chain(note).collect::<Vec<_>>().join(" ");
            [plain(&entry.id), plain(&entry.status), entry.priority.to_string(), about]
                .map(Cell::new)
                .into_iter()
                .collect::<Vec<_>>()
        };
        let table = Table::new(&["COOL-WORKFLOW", "STATUS", "PRIORITY", "ABOUT"], self.peer_entries.iter().map(row));
        let steps = [Step::LeaveOut("PRIORITY"), Step::Narrow("ABOUT", 24)];
        writeln!(f, "{}", table.show(Look::of_stdout(), &steps, &[]))?;
        writeln!(f, "next: `cw queue drain` hands out those of cool-workflow")
    }

    fn tell_commands(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<&RunView> = self.running.iter().chain(&self.waiting).collect();
        let ids = short_ids(&runs.iter().map(|run| run.id).collect::<Vec<_>>());
        let now = SystemClock.now();
        let title = |id: RunId| runs.iter().find(|run| run.id == id).map(|run| run.title());
        let row = |(run, id): (&&RunView, &String)| {
            let reason = run.shown_reason(now, title).unwrap_or_default();
            vec![
                Cell::new(id.clone()),
                Cell::new(run.title()),
                Cell::new(run.word()).coloured(run.colour()),
                Cell::new(run.priority.to_string()),
                Cell::new(reason),
            ]
        };
        let rows = runs.iter().zip(&ids).map(row);
        let table = Table::new(&["ID", "RUN", "STATE", "PRIORITY", "REASON"], rows);
        let steps = [Step::LeaveOut("PRIORITY"), Step::Narrow("RUN", 24)];
        writeln!(f, "{}", table.show(Look::of_stdout(), &steps, &[]))?;
        let (commands, handled): (Vec<&RunView>, Vec<&RunView>) =
            self.waiting.iter().filter(|run| run.reason.is_none()).partition(|run| run.command.is_some());
        if self.running.is_empty() && !commands.is_empty() {
            writeln!(f, "next: `outlive work --drain` executes what is due; `outlive supervise` stays")?;
        } else if self.is_unserved {
            writeln!(f, "next: {WHEN_DUE}")?;
        }
        if let Some(run) = handled.first() {
            writeln!(f, "note: {}", for_handler(&plain(&run.kind)))?;
        }
        Ok(())
    }
}
