//! `outlive facets`: how runs divide by what they can be filtered by, and when they were made.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::run::StateName;
use outlive::step::KIND;
use outlive::time::{Timestamp, Towards, parse_moment, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::plain;

/// The most parts of the time.
const MOST: usize = 500;

/// Count runs by state, kind, host, user and time
///
/// Runs are counted without reading them, archived ones too. In a database or a bucket, hosts, users and times are those
/// of the newest 2,000 runs. Steps are left out.
#[derive(Debug, Args)]
pub struct Facets {
    /// Count over time from here on: a time, or how long ago
    #[arg(long, value_name = "TIME|DURATION", default_value = "1w")]
    pub since: String,
    /// Count over time until here
    #[arg(long, value_name = "TIME|DURATION")]
    pub until: Option<String>,
    /// Into how many parts the time is cut, 500 at the most
    #[arg(long, value_name = "N", default_value_t = 48)]
    pub parts: usize,
}

/// How the runs of a registry divide.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub struct Divided {
    registry: String,
    states: Vec<Facet>,
    kinds: Vec<Facet>,
    hosts: Vec<Facet>,
    users: Vec<Facet>,
    /// Hosts and users are those of all runs; else of the newest.
    all_read: bool,
    since: Timestamp,
    until: Timestamp,
    /// How long a part of the time is.
    part_ms: u64,
    /// How many runs were made in each part, by their state on record.
    over_time: Vec<Series>,
    /// All runs of that time were counted; else the newest.
    complete: bool,
}

/// How many runs have a value.
#[derive(Debug, JsonSchema, Serialize)]
struct Facet {
    value: String,
    runs: u64,
}

/// The runs of one state over time.
#[derive(Debug, JsonSchema, Serialize)]
struct Series {
    state: StateName,
    runs: Vec<u64>,
}

/// The counts, most first.
fn facets(counts: BTreeMap<String, u64>) -> Vec<Facet> {
    let mut facets: Vec<Facet> = counts.into_iter().map(|(value, runs)| Facet { value, runs }).collect();
    facets.sort_by(|one, other| other.runs.cmp(&one.runs).then_with(|| one.value.cmp(&other.value)));
    facets
}

impl Operate for Facets {
    const NAME: &'static str = "facets";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive facets\noutlive facets --since 1d --parts 24 --json";
    type Output = Divided;

    async fn operate(self, context: &Context) -> Result<Divided, Error> {
        if self.parts == 0 || self.parts > MOST {
            return Err(Error::Invalid(format!("a time has 1 to {MOST} parts, not {}", self.parts)));
        }
        let Some(registry) = context.existing().await? else {
            return Ok(Divided { registry: context.place()?, complete: true, all_read: true, ..Divided::default() });
        };
        let now = registry.clock().now();
        let moment =
            |text: &str| parse_moment(text, now, Towards::Past).map_err(|error| Error::Invalid(error.to_string()));
        let (since, until) = (moment(&self.since)?, self.until.as_deref().map(moment).transpose()?.unwrap_or(now));
        if since >= until {
            return Err(Error::Invalid(format!("no time passes from {since} until {until}")));
        }
        let (mut states, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        for count in registry.counts().await?.into_iter().filter(|count| count.kind != KIND) {
            *states.entry(count.state.as_str().to_owned()).or_default() += count.runs;
            *kinds.entry(count.kind).or_default() += count.runs;
        }
        let places = registry.users_and_hosts().await?;
        let histogram = registry.histogram(since, until, self.parts).await?;
        let part = until.since(since) / u32::try_from(self.parts).unwrap_or(1);
        Ok(Divided {
            registry: registry.shown(),
            states: facets(states),
            kinds: facets(kinds),
            hosts: facets(places.hosts),
            users: facets(places.users),
            all_read: places.complete,
            since,
            until,
            part_ms: u64::try_from(part.as_millis()).unwrap_or(u64::MAX),
            over_time: histogram.parts.into_iter().map(|(state, runs)| Series { state, runs }).collect(),
            complete: histogram.complete,
        })
    }
}

impl fmt::Display for Divided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, facets) in
            [("states", &self.states), ("kinds", &self.kinds), ("hosts", &self.hosts), ("users", &self.users)]
        {
            let shown: Vec<String> =
                facets.iter().map(|facet| format!("{} {}", plain(&facet.value), facet.runs)).collect();
            writeln!(f, "{what:<11}{}", if shown.is_empty() { "none".into() } else { shown.join(", ") })?;
        }
        for series in &self.over_time {
            writeln!(f, "{:<11} {}", series.state.as_str(), crate::operations::stats::plot(&series.runs))?;
        }
        writeln!(f, "since {}, {} a bar", self.since.local(), show_duration(Duration::from_millis(self.part_ms)))
    }
}
