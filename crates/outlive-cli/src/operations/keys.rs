//! `outlive keys`: what runs share, who holds it and who waits for it.

use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::registry::KeyUse;
use outlive::run::{Hold, Key, Run, StateName};
use outlive::time::{Timestamp, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::table::{Cell, Colour, Step, Table};
use crate::ui::{Look, plain};

/// List keys with the runs that hold them and the runs that wait
///
/// A key is a lock, a limit, a unique key or a rate of runs that have not ended. Holders are named before waiters, and
/// waiters in the order in which they are claimed.
#[derive(Debug, Default, Args)]
pub struct Keys {
    /// Only keys of this name
    pub name: Option<String>,
}

/// The keys of a registry.
#[derive(Debug, JsonSchema, Serialize)]
pub struct InUse {
    registry: String,
    keys: Vec<KeyView>,
    /// All runs that have not ended were looked at; else the first 20,000.
    complete: bool,
    /// The only key that was asked for.
    #[serde(skip)]
    sought: Option<String>,
}

/// A key, as every surface shows it.
#[derive(Debug, JsonSchema, Serialize)]
pub struct KeyView {
    name: String,
    /// `lock`, `limit`, `unique` or `rate`.
    kind: &'static str,
    /// How many runs may hold it; of a rate, how many may start within `per_ms`.
    limit: u32,
    per_ms: Option<u64>,
    /// One more run could hold it. Of a rate this is not known here.
    free: bool,
    holders: Vec<RunRef>,
    waiters: Vec<RunRef>,
}

/// A run that another is about.
#[derive(Debug, JsonSchema, Serialize)]
pub struct RunRef {
    pub id: RunId,
    pub name: Option<String>,
    pub kind: String,
    pub state: StateName,
    pub host: Option<String>,
    pub created_at: Timestamp,
}

impl RunRef {
    /// What another run says of this one.
    pub fn of(run: &Run) -> Self {
        Self {
            id: run.id,
            name: run.spec.name.clone(),
            kind: run.spec.kind.clone(),
            state: run.state.name(),
            host: run.last_host().map(Into::into),
            created_at: run.created_at,
        }
    }

    /// What people call it.
    pub fn title(&self) -> String {
        self.name.as_deref().map_or_else(|| self.id.to_string(), plain)
    }
}

impl KeyView {
    /// What is known of a key.
    pub fn of(used: &KeyUse) -> Self {
        let Key { name, limit, hold } = &used.key;
        let millis = |per: Duration| u64::try_from(per.as_millis()).unwrap_or(u64::MAX);
        let (kind, per_ms) = match hold {
            Hold::Running if *limit == 1 => ("lock", None),
            Hold::Active => ("unique", None),
            Hold::Start { per } => ("rate", Some(millis(*per))),
            _ => ("limit", None),
        };
        Self {
            name: name.clone(),
            kind,
            limit: *limit,
            per_ms,
            free: used.has_room(),
            holders: used.holders.iter().map(RunRef::of).collect(),
            waiters: used.waiters.iter().map(RunRef::of).collect(),
        }
    }

    /// Its sort, for people.
    fn sort(&self) -> String {
        match (self.kind, self.per_ms) {
            ("limit", _) => format!("limit {}", self.limit),
            ("rate", Some(ms)) => format!("rate {}/{}", self.limit, show_duration(Duration::from_millis(ms))),
            (kind, _) => kind.into(),
        }
    }
}

impl Operate for Keys {
    const NAME: &'static str = "keys";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive keys\noutlive keys gpu --json";
    type Output = InUse;

    async fn operate(self, context: &Context) -> Result<InUse, Error> {
        let Some(registry) = context.existing().await? else {
            return Ok(InUse { registry: context.place()?, keys: Vec::new(), complete: true, sought: self.name });
        };
        let (keys, complete) = registry.keys_in_use().await?;
        let wanted = |used: &&KeyUse| self.name.as_ref().is_none_or(|name| *name == used.key.name);
        let keys = keys.iter().filter(wanted).map(KeyView::of).collect();
        Ok(InUse { registry: registry.shown(), keys, complete, sought: self.name })
    }
}

/// The names of runs, the first few of many.
fn names(runs: &[RunRef]) -> String {
    const NAMED: usize = 4;
    let mut names: Vec<String> = runs.iter().take(NAMED).map(RunRef::title).collect();
    if runs.len() > NAMED {
        names.push(format!("{} more", runs.len() - NAMED));
    }
    names.join(", ")
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys.is_empty() {
            let registry = plain(&self.registry);
            return match &self.sought {
                Some(key) => writeln!(f, "key `{}` is neither held nor waited for in {registry}", plain(key)),
                None => writeln!(f, "no key is held or waited for in {registry}"),
            };
        }
        let row = |key: &KeyView| {
            let colour = (!key.free && !key.waiters.is_empty()).then_some(Colour::Doubtful);
            vec![
                Cell::new(plain(&key.name)),
                Cell::new(key.sort()),
                Cell::new(names(&key.holders)).coloured(colour),
                Cell::new(names(&key.waiters)),
            ]
        };
        let table = Table::new(&["KEY", "SORT", "HELD BY", "WAITING"], self.keys.iter().map(row));
        writeln!(f, "{}", table.show(Look::of_stdout(), &[Step::Narrow("KEY", 24)], &[]))?;
        if self.complete { Ok(()) } else { writeln!(f, "only the first 20,000 runs were looked at") }
    }
}
