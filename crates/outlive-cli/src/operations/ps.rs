//! `outlive ps`: the runs of a registry, one a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::health::{Health, Seen};
use outlive::id::RunId;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::steps::KIND;
use outlive::store::{Cursor, PAGE_LIMIT, Page};
use serde::{Deserialize, Serialize};

use crate::operation::{Effect, Operate};
use crate::run_view::{RunView, short_ids};
use crate::settings::Context;
use crate::terminal::table::{Cell, Step, Table};
use crate::terminal::{self, Look, cut, plain};

/// List runs: those in flight and those that need attention, or all
///
/// Reading never writes. A run whose owner is gone is shown as dead from the moment it is true, whether or not anybody
/// has put that on record.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ps {
    /// Also runs that have ended, and archived ones
    #[arg(short, long)]
    pub all: bool,
    /// Also the steps of runs
    #[arg(long)]
    pub steps: bool,
    /// Only runs in this state, or of this health: orphaned, late, stalled, overdue, unresponsive (repeatable)
    #[arg(long = "status", value_name = "STATE")]
    pub status: Vec<String>,
    /// Only runs of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only runs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only runs that bear this label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub label: Vec<String>,
    /// At most this many
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
    /// The page behind an earlier one: its `next`
    #[arg(long, value_name = "NEXT")]
    pub after: Option<String>,
    /// Show all columns, hosts included, and cut nothing
    #[arg(short, long)]
    pub wide: bool,
}

/// A page of runs.
#[derive(Debug, Serialize)]
pub struct Runs {
    /// Where they are.
    pub registry: String,
    /// The runs, newest first.
    pub runs: Vec<RunView>,
    /// Where the next page begins.
    pub next: Option<String>,
    /// The call for it.
    #[serde(skip)]
    more: Option<String>,
    #[serde(skip)]
    shown: Shown,
}

/// What a list of runs is shown as.
#[derive(Debug, Default)]
struct Shown {
    /// What to say where there is none.
    nothing: String,
    wide: bool,
    /// Somebody's host is not this one.
    hosts_differ: bool,
}

/// What is meant by the words behind `--status`.
#[derive(Debug, Default)]
struct Wanted {
    states: BTreeSet<StateName>,
    healths: Vec<Health>,
}

impl Wanted {
    fn parse(words: &[String]) -> Result<Self, Error> {
        let mut wanted = Self::default();
        for word in words {
            match (word.parse(), Health::ALL.into_iter().find(|health| health.as_str() == word)) {
                (Ok(state), _) => _ = wanted.states.insert(state),
                (Err(_), Some(health)) => wanted.healths.push(health),
                (Err(unknown), None) => {
                    let healths = Health::ALL.map(Health::as_str).join(", ");
                    return Err(Error::Invalid(format!("{unknown}; nor is it a health: {healths}")));
                }
            }
        }
        Ok(wanted)
    }

    /// The states that runs may have on record to be worth a look.
    fn to_look_at(&self) -> Option<BTreeSet<StateName>> {
        let by_health = (!self.healths.is_empty()).then_some(StateName::Running);
        let states: BTreeSet<StateName> = self.states.iter().copied().chain(by_health).collect();
        (!states.is_empty()).then_some(states)
    }

    fn matches(&self, seen: &Seen) -> bool {
        self.healths.is_empty()
            || self.states.contains(&seen.state)
            || seen.health.is_some_and(|health| self.healths.contains(&health))
    }
}

impl Operate for Ps {
    const NAME: &'static str = "ps";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive ps\noutlive ps --all --status failed\n\
                                    outlive ps --status orphaned --status unresponsive\n\
                                    outlive ps --label team=search --json";
    type Output = Runs;

    async fn operate(self, context: &Context) -> Result<Runs, Error> {
        let wanted = Wanted::parse(&self.status)?;
        let filter = self.filter(wanted.to_look_at())?;
        let after = self.after.as_deref().map(str::parse::<Cursor>).transpose();
        let after = after.map_err(|error| Error::Invalid(error.to_string()))?;
        if self.limit == 0 || self.limit > PAGE_LIMIT {
            return Err(Error::Invalid(format!("a page has 1 to {PAGE_LIMIT} runs, not {}", self.limit)));
        }
        let Some(registry) = context.existing().await? else {
            let place = context.place()?;
            let nothing = format!(
                "no registry yet at {}; the first `outlive run -- COMMAND` makes it, or `outlive init` one here",
                plain(&place)
            );
            let shown = Shown { nothing, ..Shown::default() };
            return Ok(Runs { registry: place, runs: Vec::new(), next: None, more: None, shown });
        };
        let (seen, next) = self.gather(&registry, &filter, after, &wanted).await?;
        let runs: Vec<RunView> = seen.into_iter().map(|seen| RunView::new(&seen, &registry)).collect();
        let here = &registry.me().host;
        let shown = Shown {
            nothing: self.nothing(&registry.shown()),
            wide: self.wide,
            hosts_differ: runs.iter().any(|run| run.host.as_ref().is_some_and(|host| host != here)),
        };
        let more = next.as_ref().map(|next| self.again(context, &next.to_string()));
        Ok(Runs { registry: registry.shown(), runs, next: next.map(|next| next.to_string()), more, shown })
    }
}

impl Ps {
    /// A page of the runs that are wanted. Health is seen only by looking, so several pages may have to be read for one.
    async fn gather(
        &self,
        registry: &Registry,
        filter: &Filter,
        after: Option<Cursor>,
        wanted: &Wanted,
    ) -> Result<(Vec<Seen>, Option<Cursor>), Error> {
        let mut found: Vec<Seen> = Vec::new();
        let mut page = Page { after, limit: self.limit, ..Page::default() };
        loop {
            let (seen, next) = registry.list(filter, &page).await?;
            found.extend(seen.into_iter().filter(|seen| wanted.matches(seen)));
            if found.len() > self.limit {
                found.truncate(self.limit);
                let next = found.last().map(|seen| Cursor::at(&seen.run));
                return Ok((found, next));
            }
            match next {
                Some(next) if !wanted.healths.is_empty() && found.len() < self.limit => page.after = Some(next),
                next => return Ok((found, next)),
            }
        }
    }

    fn filter(&self, states: Option<BTreeSet<StateName>>) -> Result<Filter, Error> {
        let attention = [StateName::Interrupted, StateName::Dead];
        let in_flight = [StateName::Pending, StateName::Running, StateName::Suspended];
        let usual = || (!self.all).then(|| in_flight.into_iter().chain(attention).collect());
        let mut labels = BTreeMap::new();
        for label in &self.label {
            let (key, value) = parse_label(label)?;
            labels.insert(key, value);
        }
        let archived = if self.all { None } else { Some(false) };
        let states = states.or_else(usual);
        let is_step = if self.steps || self.kind.as_deref() == Some(KIND) { None } else { Some(false) };
        let (name, kind) = (self.name.clone(), self.kind.clone());
        Ok(Filter { states, name, kind, labels, archived, is_step, ..Filter::default() })
    }

    /// What to say where there is nothing to list.
    fn nothing(&self, registry: &str) -> String {
        let registry = plain(registry);
        let narrowed = self.name.is_some() || self.kind.is_some() || !self.label.is_empty() || !self.status.is_empty();
        match (narrowed || self.after.is_some(), self.all) {
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
        let status = self.status.iter().map(|word| ("--status", word));
        let labels = self.label.iter().map(|word| ("--label", word));
        let one = self.name.iter().map(|word| ("--name", word)).chain(self.kind.iter().map(|word| ("--kind", word)));
        // In one word each, so that a value that looks like a flag is none.
        words.extend(status.chain(one).chain(labels).map(|(flag, value)| format!("{flag}={value}")));
        words.extend(["--limit".into(), self.limit.to_string(), format!("--after={next}")]);
        terminal::command_line(words.iter().map(String::as_bytes))
    }
}

/// `KEY=VALUE`.
pub fn parse_label(text: &str) -> Result<(String, String), Error> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| Error::Invalid(format!("`{text}` is not a label such as team=search")))?;
    Ok((key.into(), value.into()))
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
        if self.runs.is_empty() {
            return format!("{}\n", self.shown.nothing);
        }
        let look = Look { width: if self.shown.wide { usize::MAX } else { look.width }, ..look };
        let host = self.shown.wide || self.shown.hosts_differ;
        let ids: Vec<RunId> = self.runs.iter().map(|run| run.id).collect();
        let ids = if self.shown.wide { ids.iter().map(ToString::to_string).collect() } else { short_ids(&ids) };
        let headings = ["ID", "RUN", "STATE", "ATTEMPT", "TIME", "PROGRESS", "HOST", "REASON"];
        let headings: Vec<&'static str> = headings.into_iter().filter(|name| host || *name != "HOST").collect();
        let rows = self.runs.iter().zip(ids).map(|(run, id)| {
            let title = run.title();
            let title = if self.shown.wide { title } else { cut(&title, LONGEST) };
            let host = host.then(|| Cell::new(plain(run.host.as_deref().unwrap_or_default())));
            [
                Cell::new(id),
                Cell::new(title),
                Cell::new(run.word()).coloured(run.colour()),
                Cell::new(run.attempt.to_string()),
                Cell::new(run.duration()),
                progress(run, look),
            ]
            .into_iter()
            .chain(host)
            .chain([Cell::new(reason(run))])
            .collect()
        });
        let mut text = Table::new(&headings, rows.collect()).show(look, &FIRST, &THEN) + "\n";
        let resumable = self.runs.iter().filter(|run| run.awaits_resume()).count();
        let alone = |run: &&RunView| resumable < 2 || !run.awaits_resume();
        for step in self.runs.iter().filter(alone).filter_map(RunView::next_step).collect::<BTreeSet<_>>() {
            text.push_str(&format!("next: {step}\n"));
        }
        if resumable > 1 {
            text.push_str(&format!("next: `outlive resume --all` starts the next attempt of these {resumable} runs\n"));
        }
        text.extend(self.more.iter().map(|more| format!("more: {more}\n")));
        text
    }
}

fn reason(run: &RunView) -> String {
    let archived = run.archived.then_some("archived");
    archived.map(str::to_owned).into_iter().chain(run.reason.as_deref().map(plain)).collect::<Vec<_>>().join("; ")
}

/// How far a run is: for people a bar, where it says of how much.
fn progress(run: &RunView, look: Look) -> Cell {
    const CELLS: u64 = 8;
    match run.percent() {
        Some(percent) if look.on_terminal => {
            let full = percent * CELLS / 100;
            let bar: String = (0..CELLS).map(|cell| if cell < full { '█' } else { '░' }).collect();
            Cell::new(format!("{bar} {percent:>3}%")).or(format!("{percent}%"))
        }
        _ => Cell::new(run.progress()),
    }
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show(Look::of_stdout()))
    }
}

#[cfg(test)]
mod tests;
