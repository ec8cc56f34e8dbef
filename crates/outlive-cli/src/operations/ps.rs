use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::run::StateName;
use outlive::store::{Cursor, PAGE_LIMIT, Page};
use serde::{Deserialize, Serialize};

use crate::operation::{Effect, Operate};
use crate::run_view::{RunView, short_ids};
use crate::settings::Context;
use crate::terminal;

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
    /// Only runs in this state (repeatable)
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
}

/// A page of runs.
#[derive(Debug, Serialize)]
pub struct Runs {
    /// The runs, newest first.
    pub runs: Vec<RunView>,
    /// Where the next page begins.
    pub next: Option<String>,
    #[serde(skip)]
    all: bool,
}

impl Operate for Ps {
    const NAME: &'static str = "ps";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str =
        "outlive ps\noutlive ps --all --status failed\noutlive ps --label team=search --json";
    type Output = Runs;

    async fn operate(self, context: &Context) -> Result<Runs, Error> {
        let filter = self.filter()?;
        let after = self.after.as_deref().map(str::parse::<Cursor>).transpose();
        let after = after.map_err(|error| Error::Invalid(error.to_string()))?;
        if self.limit == 0 || self.limit > PAGE_LIMIT {
            return Err(Error::Invalid(format!("a page has 1 to {PAGE_LIMIT} runs, not {}", self.limit)));
        }
        let Some(registry) = context.existing().await? else {
            return Ok(Runs { runs: Vec::new(), next: None, all: self.all });
        };
        let page = Page { after, limit: self.limit, ..Page::default() };
        let (seen, next) = registry.list(&filter, &page).await?;
        let runs = seen.iter().map(|seen| RunView::new(seen, &registry)).collect();
        Ok(Runs { runs, next: next.map(|next| next.to_string()), all: self.all })
    }
}

impl Ps {
    fn filter(&self) -> Result<Filter, Error> {
        let states: Result<Vec<StateName>, _> = self.status.iter().map(|state| state.parse()).collect();
        let states = states.map_err(|error| Error::Invalid(error.to_string()))?;
        let states = match (states.is_empty(), self.all) {
            (false, _) => Some(states.into_iter().collect()),
            (true, true) => None,
            (true, false) => {
                let in_flight = [StateName::Pending, StateName::Running, StateName::Suspended];
                Some(in_flight.into_iter().chain([StateName::Interrupted, StateName::Dead]).collect())
            }
        };
        let mut labels = BTreeMap::new();
        for label in &self.label {
            let (key, value) = parse_label(label)?;
            labels.insert(key, value);
        }
        let archived = if self.all { None } else { Some(false) };
        Ok(Filter { states, name: self.name.clone(), kind: self.kind.clone(), labels, archived, ..Filter::default() })
    }
}

/// `KEY=VALUE`.
pub fn parse_label(text: &str) -> Result<(String, String), Error> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| Error::Invalid(format!("`{text}` is not a label such as team=search")))?;
    Ok((key.into(), value.into()))
}

impl fmt::Display for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            let hint = if self.all {
                "`outlive run -- COMMAND` starts one"
            } else {
                "`outlive ps --all` also lists those that have ended"
            };
            return writeln!(f, "no runs; {hint}");
        }
        let ids = short_ids(&self.runs.iter().map(|run| run.id).collect::<Vec<_>>());
        let rows: Vec<Vec<String>> = self
            .runs
            .iter()
            .zip(ids)
            .map(|(run, id)| {
                let reason = terminal::plain(run.reason.as_deref().unwrap_or_default());
                vec![
                    id,
                    terminal::cut(&run.title(), 32),
                    run.word().into(),
                    run.attempt.to_string(),
                    run.duration(),
                    run.progress(),
                    reason,
                ]
            })
            .collect();
        let headings = ["ID", "RUN", "STATE", "ATTEMPT", "TIME", "PROGRESS", "REASON"];
        writeln!(f, "{}", terminal::table(&headings, &rows, terminal::width()))?;
        for step in self.runs.iter().filter_map(RunView::next_step).collect::<std::collections::BTreeSet<_>>() {
            writeln!(f, "next: {step}")?;
        }
        if let Some(next) = &self.next {
            writeln!(f, "more: `outlive ps --after {next}`")?;
        }
        Ok(())
    }
}
