//! `outlive stats`: how long runs take, how often they fail, and how many there are over time.

pub mod live;

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::index::{IndexRecord, Lifecycle, SearchOrder};
use outlive::logs::show_bytes;
use outlive::time::{Clock, SystemClock, Timestamp, show_duration};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

use self::live::Live;
use crate::call::{Context, Effect, Operate};
use crate::lookup::index;
use crate::operations::listing::{ListFilter, from_place, to_place};
use crate::ui::run_view::moment;
use crate::ui::table::{Cell, Step, Table};
use crate::ui::{Look, plain};

/// Into how many parts a time is cut.
const PARTS: usize = 24;
/// What the bars of a plot are drawn with.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Summarise durations, failures, usage and throughput by kind or workflow
///
/// Covers every indexed run that matches. --limit is the number of kinds per page. With --live it tells instead what the
/// registry here has to do now: runs that wait and run by kind, the age of the oldest that could be claimed, and workers.
#[derive(Debug, Default, Args)]
pub struct Stats {
    /// What this registry has to do now, by kind: pending, oldest, running, ended; and its workers
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub wanted: ListFilter,
}

/// What became of many runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Numbers {
    /// What was believed: the index, without a look at the sources.
    verified: &'static str,
    since: Option<Timestamp>,
    until: Timestamp,
    /// How long each part of a plot is.
    part_ms: u64,
    kinds: Vec<Kind>,
    /// Where the next page of kinds begins.
    next: Option<String>,
    /// With --live: what the registry has to do now.
    live: Option<Live>,
    #[serde(skip)]
    more: Option<String>,
}

/// The runs of one kind.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Kind {
    kind: String,
    runs: u64,
    ended: u64,
    failed: u64,
    dead: u64,
    /// Of those that have ended.
    failure_rate: Option<f64>,
    death_rate: Option<f64>,
    p50_ms: Option<u64>,
    p95_ms: Option<u64>,
    p99_ms: Option<u64>,
    /// The processor time of their last attempts, in milliseconds.
    cpu_p50_ms: Option<u64>,
    cpu_p95_ms: Option<u64>,
    /// The most memory of their last attempts, in bytes.
    memory_p50_bytes: Option<u64>,
    memory_p95_bytes: Option<u64>,
    /// How many were made in each part of the time.
    throughput: Vec<u64>,
    #[serde(skip)]
    durations: Vec<u64>,
    #[serde(skip)]
    cpu: Vec<u64>,
    #[serde(skip)]
    memory: Vec<u64>,
    #[serde(skip)]
    made: Vec<i64>,
}

impl Kind {
    fn add(&mut self, record: &IndexRecord) {
        self.runs += 1;
        let stands = record.derived_lifecycle;
        self.ended += u64::from(stands.is_ended());
        self.failed += u64::from(stands == Lifecycle::Failed);
        self.dead += u64::from(stands == Lifecycle::Dead);
        self.durations.extend(record.duration_ms());
        self.cpu.extend(record.cpu_ms);
        self.memory.extend(record.peak_memory_bytes);
        self.made.push(record.made().as_micros());
    }

    fn settle(&mut self, kind: String, from: i64, part: i64) {
        self.kind = kind;
        [&mut self.durations, &mut self.cpu, &mut self.memory].into_iter().for_each(|values| values.sort_unstable());
        [self.cpu_p50_ms, self.cpu_p95_ms] = [50, 95].map(|percent| percentile(&self.cpu, percent));
        [self.memory_p50_bytes, self.memory_p95_bytes] = [50, 95].map(|percent| percentile(&self.memory, percent));
        [self.p50_ms, self.p95_ms, self.p99_ms] = [50, 95, 99].map(|percent| percentile(&self.durations, percent));
        let rate = |count: u64| (self.ended > 0).then(|| count as f64 / self.ended as f64);
        (self.failure_rate, self.death_rate) = (rate(self.failed), rate(self.dead));
        self.throughput = vec![0; PARTS];
        for made in &self.made {
            let place = usize::try_from((made - from) / part.max(1)).unwrap_or(0).min(PARTS - 1);
            self.throughput[place] += 1;
        }
    }
}

/// The least value that so many hundredths of all do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

impl Operate for Stats {
    const NAME: &'static str = "stats";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive registry refresh && outlive stats --since 30d\n\
                                    outlive stats --live";
    type Output = Numbers;

    fn is_beyond(&self) -> bool {
        !self.live
    }

    async fn operate(self, context: &Context) -> Result<Numbers, Error> {
        if self.live {
            return Numbers::live(context).await;
        }
        let behind = self.wanted.cursor.as_deref().map(from_place).transpose()?;
        let query = ListFilter { cursor: None, ..self.wanted.clone() }.query(None, SearchOrder::Oldest)?;
        let (kinds, first) =
            index()?.fold(&query, |(kinds, first): &mut (BTreeMap<String, Kind>, Option<Timestamp>), record| {
                let kind = [&record.kind, &record.app_id, &record.workflow_id].into_iter().flatten().next();
                first.get_or_insert_with(|| record.made());
                kinds.entry(kind.cloned().unwrap_or_default()).or_default().add(record);
            })?;
        let until = query.until.unwrap_or_else(|| SystemClock.now());
        let since = query.since.or(first);
        let from = since.unwrap_or(until).as_micros();
        let part = (until.as_micros().saturating_sub(from) / PARTS as i64).max(1);
        let settle = |(name, mut kind): (String, Kind)| {
            kind.settle(name, from, part);
            kind
        };
        let mut kinds = kinds.into_iter().filter(|(name, _)| behind.as_ref().is_none_or(|behind| name > behind));
        let page: Vec<Kind> = kinds.by_ref().take(self.wanted.limit).map(settle).collect();
        let next = kinds.next().and_then(|_| page.last()).map(|kind| to_place(&kind.kind));
        let more = next.as_deref().map(|next| self.wanted.again(Self::NAME, None, next));
        let part_ms = (part / 1_000).unsigned_abs();
        Ok(Numbers {
            verified: "runs that changed since they were indexed were read; of more than 20,000 runs, those of this repository alone",
            since,
            until,
            part_ms,
            kinds: page,
            next,
            live: None,
            more,
        })
    }
}

impl Numbers {
    /// What the registry here has to do now.
    async fn live(context: &Context) -> Result<Self, Error> {
        let registry = context.existing().await?;
        let registry = registry.ok_or(Error::NoRegistry { sought: None, place: context.place()? })?;
        let (verified, until) = ("what the registry has counted", registry.clock().now());
        let live = Some(Live::of(&registry).await?);
        Ok(Self { verified, since: None, until, part_ms: 0, kinds: Vec::new(), next: None, live, more: None })
    }
}

/// Small bars, one for each part of a time.
pub fn plot(counts: &[u64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| match count {
        0 => ' ',
        count => BARS[usize::try_from((count * 8).div_ceil(most)).unwrap_or(1).clamp(1, 8) - 1],
    };
    counts.iter().map(bar).collect()
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(live) = &self.live {
            return live.fmt(f);
        }
        if self.kinds.is_empty() {
            return writeln!(
                f,
                "no such runs are indexed\nnext: `outlive registry show` tells whether the index is up to date"
            );
        }
        let time = |ms: Option<u64>| ms.map_or_else(|| "-".into(), |ms| show_duration(Duration::from_millis(ms)));
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{:.1}%", rate * 100.0));
        let row = |kind: &Kind| {
            vec![
                Cell::new(plain(&kind.kind)),
                Cell::new(kind.runs.to_string()),
                Cell::new(rate(kind.failure_rate)),
                Cell::new(rate(kind.death_rate)),
                Cell::new(time(kind.p50_ms)),
                Cell::new(time(kind.p95_ms)),
                Cell::new(time(kind.p99_ms)),
                Cell::new(time(kind.cpu_p95_ms)),
                Cell::new(kind.memory_p95_bytes.map_or_else(|| "-".into(), show_bytes)),
                Cell::new(plot(&kind.throughput)),
            ]
        };
        let headings = ["KIND", "RUNS", "FAILED", "DIED", "P50", "P95", "P99", "CPU P95", "MEMORY P95", "OVER TIME"];
        let table = Table::new(&headings, self.kinds.iter().map(row));
        writeln!(f, "{}", table.show(Look::of_stdout(), &[Step::Narrow("KIND", 24)], &[]))?;
        let since =
            self.since.map_or_else(String::new, |since| format!("since {}, ", moment(since, SystemClock.now())));
        writeln!(f, "{since}{} a bar; as it is indexed", show_duration(Duration::from_millis(self.part_ms)))?;
        if let Some(more) = &self.more {
            writeln!(f, "more: {more}")?;
        }
        writeln!(f, "next: `outlive search --status failed` lists what failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!([50, 95, 99].map(|percent| percentile(&sorted, percent)), [Some(50), Some(95), Some(99)]);
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (Some(7), None));
    }

    #[test]
    fn the_highest_bar_is_full_and_nothing_is_empty() {
        assert_eq!(plot(&[0, 1, 4, 8]), " ▁▄█");
        assert_eq!(plot(&[0, 0]), "  ");
    }
}
