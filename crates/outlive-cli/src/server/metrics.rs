//! `/metrics`: numbers for Prometheus. What the registry holds is counted at most every few seconds, for all clients.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use outlive::error::{Code, Error};
use outlive::time::{Clock, SystemClock};

use super::Server;
use crate::call::calls::Who;
use crate::call::{Context, Effect, Failure};
use crate::operations::stats::live::oldest;

/// How old the counts of the registry may be.
const FRESH: Duration = Duration::from_secs(10);
/// The upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 30.0];

/// What is counted of what a server is asked for.
#[derive(Default)]
pub struct Counters(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    calls: BTreeMap<(&'static str, &'static str), u64>,
    call_seconds: Durations,
    beat_seconds: Durations,
    stale: u64,
    /// The last counts of the registry, and when they were made.
    registry: Option<(Duration, Arc<str>)>,
}

/// How long things took, by [`BUCKETS`].
#[derive(Default)]
struct Durations {
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
    count: u64,
}

impl Durations {
    fn add(&mut self, began: Duration) {
        let took = SystemClock.awake().saturating_sub(began).as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|end| took <= *end) {
            self.buckets[bucket] += 1;
        }
        self.seconds += took;
        self.count += 1;
    }

    fn tell(&self, text: &mut String, name: &str, help: &str) {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (end, times) in BUCKETS.iter().zip(self.buckets) {
            below += times;
            let _ = writeln!(text, "{name}_bucket{{le=\"{end}\"}} {below}");
        }
        let (all, seconds) = (self.count, self.seconds);
        let _ = write!(text, "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {seconds}\n{name}_count {all}\n");
    }
}

impl Counters {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins.
    pub fn begin(&self) -> Duration {
        SystemClock.awake()
    }

    /// A call that began then has ended, or failed so.
    pub fn end(&self, operation: &'static str, failed: Option<&Failure>, began: Duration) {
        let mut counted = self.lock();
        let code = failed.map_or("ok", |failure| failure.code.as_str());
        *counted.calls.entry((operation, code)).or_default() += 1;
        counted.stale += u64::from(failed.is_some_and(|failure| failure.code == Code::Lost));
        counted.call_seconds.add(began);
    }

    /// A beat that came then has been kept.
    pub fn kept_beat(&self, began: Duration) {
        self.lock().beat_seconds.add(began);
    }

    /// So many writes were refused because their attempt no longer owned the run.
    pub fn refused_stale(&self, writes: u64) {
        self.lock().stale += writes;
    }
}

/// All numbers.
pub async fn tell(State(server): State<Arc<Server>>) -> Result<Response, Failure> {
    let now = SystemClock.awake();
    let fresh = server.counters.lock().registry.clone().filter(|(at, _)| now.saturating_sub(*at) < FRESH);
    let registry = match fresh {
        Some((_, text)) => text,
        None => {
            let own = Who::own(Effect::Read);
            let count = |context: &Context| pollster::block_on(of_registry(context));
            let text: Arc<str> = server.calls.with(&own, count).await?.map_err(Failure::from)?.into();
            server.counters.lock().registry = Some((now, text.clone()));
            text
        }
    };
    let text = format!("{registry}{}", of_calls(&server));
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// One metric, with its help, its kind and a line for each of its values.
fn metric(text: &mut String, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
    // Text never refuses to grow.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn of_calls(server: &Server) -> String {
    let counted = server.counters.lock();
    let mut text = String::new();
    let count = |count: u64| count as f64;
    let calls: Vec<(String, f64)> = counted
        .calls
        .iter()
        .map(|((operation, code), times)| (labels(&[("operation", operation), ("code", code)]), count(*times)))
        .collect();
    metric(&mut text, "outlive_calls_total", "counter", "Calls answered by this server.", &calls);
    let help = "Writes refused by this server because their attempt no longer owned the run.";
    metric(&mut text, "outlive_stale_writes_refused_total", "counter", help, &[(String::new(), count(counted.stale))]);
    counted.call_seconds.tell(&mut text, "outlive_call_seconds", "How long calls took.");
    let help = "How long beats of runs and workers elsewhere took to be kept, once they were here.";
    counted.beat_seconds.tell(&mut text, "outlive_beat_seconds", help);
    let listeners = count(server.live.listeners() as u64);
    metric(&mut text, "outlive_listeners", "gauge", "Who listens to changes.", &[(String::new(), listeners)]);
    text
}

async fn of_registry(context: &Context) -> Result<String, Error> {
    let mut text = String::new();
    let Some(registry) = context.existing().await? else { return Ok(text) };
    let mut runs: BTreeMap<(&'static str, String), f64> = BTreeMap::new();
    let mut reaps: BTreeMap<String, f64> = BTreeMap::new();
    let mut claims = 0.0;
    for count in registry.counts().await? {
        *runs.entry((count.state.as_str(), count.kind)).or_default() += count.runs as f64;
        claims += count.claims as f64;
        if let Some(evidence) = count.evidence {
            *reaps.entry(evidence).or_default() += count.runs as f64;
        }
    }
    let runs: Vec<_> =
        runs.into_iter().map(|((state, kind), count)| (labels(&[("state", state), ("kind", &kind)]), count)).collect();
    metric(&mut text, "outlive_runs", "gauge", "Runs of the registry.", &runs);
    // No counter: runs are deleted, and with them goes what is known of their attempts.
    let help = "Attempts that were claimed, of the runs that the registry holds.";
    metric(&mut text, "outlive_claims", "gauge", help, &[(String::new(), claims)]);
    let reaps: Vec<_> = reaps.into_iter().map(|(word, count)| (labels(&[("evidence", &word)]), count)).collect();
    metric(&mut text, "outlive_reaps", "gauge", "Runs whose last attempt was reaped.", &reaps);
    let oldest = oldest(&registry).await?;
    let oldest: Vec<_> = oldest.iter().map(|(kind, age)| (labels(&[("kind", kind)]), age.as_secs_f64())).collect();
    let help = "How long ago the oldest run of a kind was created that could be claimed now.";
    metric(&mut text, "outlive_queue_oldest_seconds", "gauge", help, &oldest);
    let workers = registry.store().workers().await?;
    let slots: f64 = workers.iter().map(|worker| f64::from(worker.offer.slots)).sum();
    metric(
        &mut text,
        "outlive_slots",
        "gauge",
        "How many runs the workers execute at a time.",
        &[(String::new(), slots)],
    );
    let silent = workers.iter().map(|worker| worker.heard.silent_for.as_secs_f64());
    let help = "How long ago the worker was heard of that has been silent for longest.";
    let longest = [(String::new(), silent.fold(0.0, f64::max))];
    metric(&mut text, "outlive_beat_age_seconds", "gauge", help, &longest);
    let count = [(String::new(), workers.len() as f64)];
    metric(&mut text, "outlive_workers", "gauge", "Workers of the registry.", &count);
    Ok(text)
}
