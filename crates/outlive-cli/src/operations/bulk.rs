//! Bulk: the filter by which a verb selects runs instead of naming them, and its counted outcome.
//!
//! A selection is dry unless the caller says `--yes`. It is walked page by page, and what a verb changes of a page is one
//! conditional write: a selection of any size holds no transaction open for longer than a page takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::health::RunStatus;
use outlive::lifecycle::{Action, apply};
use outlive::registry::Registry;
use outlive::run::{Pending, Run, State, StateName};
use outlive::store::{Order, Page};
use outlive::time::{Timestamp, Towards, parse_moment};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::Context;
use crate::exec::flags::parse_label;
use crate::ui::plain;

/// How many runs are read, and changed by one write.
const BATCH: usize = 1_000;

/// Which runs a call selects, beside their state.
#[derive(Debug, Default, Clone, Args)]
pub struct BulkFilter {
    /// Select runs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Select runs of this name
    #[arg(long)]
    pub name: Option<String>,
    /// Select runs that bear this label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Select runs created at or after this time, or this long ago
    #[arg(long, value_name = "TIME|DURATION")]
    pub since: Option<String>,
    /// Select runs created before this time, or longer ago than this
    #[arg(long, value_name = "TIME|DURATION")]
    pub until: Option<String>,
    /// Do it; without it, a call that selects runs by a filter only counts them
    #[arg(long)]
    pub yes: bool,
}

/// The arguments that select runs where none is named.
pub const SELECTING: [&str; 6] = ["status", "kind", "name", "labels", "since", "until"];
/// Those of a verb that changes runs of one state.
pub const SELECTING_OF_STATE: [&str; 5] = ["kind", "name", "labels", "since", "until"];

impl BulkFilter {
    /// Whether it says anything of the runs that are meant.
    pub fn is_any(&self) -> bool {
        let Self { kind, name, labels, since, until, .. } = self;
        kind.is_some() || name.is_some() || !labels.is_empty() || since.is_some() || until.is_some()
    }

    /// Refuses a call that both names runs and selects some.
    pub fn check(&self, statuses: &[String], names_runs: bool) -> Result<(), Error> {
        match names_runs && (self.is_any() || !statuses.is_empty()) {
            true => Err(Error::Invalid("name the runs, or select them by a filter; not both".into())),
            false => Ok(()),
        }
    }

    /// The runs in these states that it selects. Steps go with the runs that they are steps of.
    pub fn filter(&self, states: impl IntoIterator<Item = StateName>, now: Timestamp) -> Result<Filter, Error> {
        let labels: Result<BTreeMap<_, _>, Error> = self.labels.iter().map(|label| parse_label(label)).collect();
        let moment = |text: &Option<String>| {
            let parse = |text: &String| parse_moment(text, now, Towards::Past);
            text.as_ref().map(parse).transpose().map_err(|error| Error::Invalid(error.to_string()))
        };
        Ok(Filter {
            kind: self.kind.clone(),
            name: self.name.clone(),
            labels: labels?,
            since: moment(&self.since)?,
            until: moment(&self.until)?,
            archived: Some(false),
            is_step: Some(false),
            ..Filter::in_states(states)
        })
    }
}

/// The states that `--status` names; `usual` where it names none.
pub fn states(words: &[String], usual: &[StateName]) -> Result<BTreeSet<StateName>, Error> {
    let named: Result<BTreeSet<StateName>, _> = words.iter().map(|word| word.parse()).collect();
    let named = named.map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(if named.is_empty() { usual.iter().copied().collect() } else { named })
}

/// Calls `change` with the runs that match, a page at a time, oldest first.
pub async fn each_batch(
    (context, registry): (&Context, &Registry),
    filter: &Filter,
    mut change: impl AsyncFnMut(Vec<RunStatus>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut page = Page { after: None, limit: BATCH, order: Order::Oldest };
    let mut done = 0;
    loop {
        let (seen, next) = registry.batch(filter, &page).await?;
        done += seen.len();
        if !seen.is_empty() {
            change(seen).await?;
        }
        let Some(next) = next else { return Ok(()) };
        context.pass(done, done + BATCH)?;
        page.after = Some(next);
    }
}

/// Counts the pending runs that the filter selects and that are meant and, where the caller said so, has `change` change
/// them, a page in one write. `action` is what it does to each, and tells why a run was left alone.
pub async fn change_pending(
    context: &Context,
    (selected, is_meant): (&BulkFilter, fn(&Pending) -> bool),
    (done, action): (&'static str, &Action),
    change: impl AsyncFn(&Registry, &[RunId]) -> Result<Vec<Run>, Error>,
) -> Result<Bulk, Error> {
    let mut bulk = Bulk::new(done, !selected.yes);
    let opened = if selected.yes { context.to_change().await? } else { context.existing().await? };
    let Some(registry) = opened else { return Ok(bulk) };
    let filter = selected.filter([StateName::Pending], registry.clock().now())?;
    each_batch((context, &registry), &filter, async |mut seen| {
        seen.retain(|seen| matches!(&seen.run.state, State::Pending(pending) if is_meant(pending)));
        bulk.select(&seen);
        if !selected.yes {
            return Ok(());
        }
        let ids: Vec<RunId> = seen.iter().map(|seen| seen.run.id).collect();
        let changed: BTreeSet<RunId> = change(&registry, &ids).await?.iter().map(|run| run.id).collect();
        bulk.change(changed.len());
        for RunStatus { run, .. } in seen.iter().filter(|seen| !changed.contains(&seen.run.id)) {
            let refused = apply(run, action, &run.spec.created_by, registry.clock().now()).err();
            bulk.leave(&match refused {
                Some(refusal) => Error::Refused { run: run.id, refusal },
                None => Error::Contended(run.id),
            });
        }
        Ok(())
    })
    .await?;
    Ok(bulk)
}

/// What became of the runs that a filter selected, counted.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Bulk {
    /// Nothing was changed.
    dry_run: bool,
    /// How many runs were selected.
    selected: u64,
    /// How many of them were in each state.
    states: BTreeMap<String, u64>,
    /// How many were changed.
    changed: u64,
    /// How many were asked to stop, and have not stopped yet.
    requested: u64,
    /// How many were left alone, by the reason.
    left: BTreeMap<String, u64>,
    /// What is done to a run, for people: `cancelled`.
    #[serde(skip)]
    done: &'static str,
}

impl Bulk {
    /// Nothing yet, of a verb that leaves runs `done`.
    pub fn new(done: &'static str, dry_run: bool) -> Self {
        Self { dry_run, done, ..Self::default() }
    }

    /// Notes that these runs were selected.
    pub fn select(&mut self, seen: &[RunStatus]) {
        for seen in seen {
            self.selected += 1;
            *self.states.entry(seen.state.to_string()).or_default() += 1;
        }
    }

    /// Notes that so many were changed.
    pub fn change(&mut self, runs: usize) {
        self.changed += runs as u64;
    }

    /// Notes that so many were asked to stop.
    pub fn request(&mut self, runs: usize) {
        self.requested += runs as u64;
    }

    /// Notes that a run was left alone, and why.
    pub fn leave(&mut self, error: &Error) {
        let reason = match error {
            // The reason is counted: it must not name the run.
            Error::Refused { refusal, .. } => refusal.to_string(),
            Error::Contended(_) => "it was changed meanwhile".into(),
            error => error.to_string(),
        };
        *self.left.entry(reason).or_default() += 1;
    }

    /// Adds what became of runs of another registry.
    pub fn absorb(&mut self, other: Self) {
        self.selected += other.selected;
        self.changed += other.changed;
        self.requested += other.requested;
        let add = |all: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>| {
            more.into_iter().for_each(|(word, runs)| *all.entry(word).or_default() += runs);
        };
        add(&mut self.states, other.states);
        add(&mut self.left, other.left);
        (self.dry_run, self.done) = (other.dry_run, other.done);
    }

    /// The exit status: 1 where a selected run was left alone.
    pub fn exit_status(&self) -> u8 {
        u8::from(!self.left.is_empty())
    }
}

impl fmt::Display for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<String> = self.states.iter().map(|(state, runs)| format!("{runs} {state}")).collect();
        match (self.selected, states.is_empty()) {
            (0, _) | (_, true) => return writeln!(f, "no run is selected"),
            (selected, _) => writeln!(f, "{selected} selected: {}", states.join(", "))?,
        }
        if self.dry_run {
            return writeln!(f, "nothing was changed; with --yes they are {}", self.done);
        }
        if self.changed > 0 || self.requested == 0 {
            writeln!(f, "{} {}", self.changed, self.done)?;
        }
        if self.requested > 0 {
            writeln!(f, "{} asked to stop", self.requested)?;
        }
        self.left.iter().try_for_each(|(reason, runs)| writeln!(f, "{runs} left alone: {}", plain(reason)))
    }
}
