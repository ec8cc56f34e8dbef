//! `/metrics`: numbers for Prometheus. What the registry holds is counted at most every few seconds, whoever asks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::process::Evidence;
use outlive::registry::Glimpse;
use outlive::run::End;
use outlive::store::Page;
use outlive::time::{Clock, SystemClock};
use serde_json::{Value, json};

use super::Server;
use crate::operation::calls::Who;
use crate::operation::{Effect, Failure};
use crate::settings::Context;

/// How old what is told of the registry may be.
const FRESH: Duration = Duration::from_secs(10);
/// The most runs that are counted.
const COUNTED: usize = 1_000_000;
/// The upper ends, in seconds, by which durations of calls are told.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 30.0];

/// What is counted of calls.
#[derive(Default)]
pub struct Counters(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    calls: BTreeMap<(&'static str, &'static str), u64>,
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
    count: u64,
    /// What was told of the registry, and when.
    registry: Option<(Duration, Arc<str>)>,
}

impl Counters {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins.
    pub fn begin(&self) -> Duration {
        SystemClock.awake()
    }

    /// A call that began then has ended so.
    pub fn end(&self, operation: &'static str, code: &'static str, began: Duration) {
        let took = SystemClock.awake().saturating_sub(began).as_secs_f64();
        let mut counted = self.lock();
        *counted.calls.entry((operation, code)).or_default() += 1;
        if let Some(bucket) = BUCKETS.iter().position(|end| took <= *end) {
            counted.buckets[bucket] += 1;
        }
        counted.seconds += took;
        counted.count += 1;
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
    let lost = counted.calls.iter().filter(|((_, code), _)| *code == "lost").map(|(_, times)| times).sum();
    let help = "Writes refused because their attempt no longer owned the run.";
    metric(&mut text, "outlive_stale_writes_refused_total", "counter", help, &[(String::new(), count(lost))]);
    let name = "outlive_call_seconds";
    let _ = write!(text, "# HELP {name} How long calls took.\n# TYPE {name} histogram\n");
    let mut below = 0;
    for (end, times) in BUCKETS.iter().zip(counted.buckets) {
        below += times;
        let _ = writeln!(text, "{name}_bucket{{le=\"{end}\"}} {below}");
    }
    let (all, seconds) = (counted.count, counted.seconds);
    let _ = write!(text, "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {seconds}\n{name}_count {all}\n");
    let listeners = count(server.live.listeners() as u64);
    metric(&mut text, "outlive_listeners", "gauge", "Who listens to changes.", &[(String::new(), listeners)]);
    text
}

async fn of_registry(context: &Context) -> Result<String, Error> {
    let mut text = String::new();
    let Some(registry) = context.existing().await? else { return Ok(text) };
    let mut runs: BTreeMap<(&'static str, String), f64> = BTreeMap::new();
    let mut reaps: BTreeMap<String, f64> = BTreeMap::new();
    let (mut claims, mut counted) = (0.0, 0);
    let mut page = Page::default();
    loop {
        let (found, next) = registry.list_briefly(&Filter::default(), &page).await?;
        counted += found.len();
        for glimpse in found {
            let (state, kind, attempt, end) = match glimpse {
                Glimpse::Ended(brief) => (brief.how.name(), brief.kind.clone(), brief.attempt, Some(brief.how.clone())),
                Glimpse::Seen(seen) => {
                    let end = seen.run.ending().map(|ending| ending.how.clone());
                    (seen.state, seen.run.spec.kind.clone(), seen.run.attempt, end)
                }
            };
            *runs.entry((state.as_str(), kind)).or_default() += 1.0;
            claims += f64::from(attempt);
            if let Some(End::Dead(reap)) = end {
                *reaps.entry(word(&reap.evidence)).or_default() += 1.0;
            }
        }
        match next {
            Some(next) if counted < COUNTED => page = Page { after: Some(next), ..page },
            _ => break,
        }
    }
    let runs: Vec<_> =
        runs.into_iter().map(|((state, kind), count)| (labels(&[("state", state), ("kind", &kind)]), count)).collect();
    metric(&mut text, "outlive_runs", "gauge", "Runs of the registry.", &runs);
    metric(&mut text, "outlive_claims_total", "counter", "Attempts of all runs.", &[(String::new(), claims)]);
    let reaps: Vec<_> = reaps.into_iter().map(|(word, count)| (labels(&[("evidence", &word)]), count)).collect();
    metric(&mut text, "outlive_reaps", "gauge", "Runs whose last attempt was reaped.", &reaps);
    let workers = registry.store().workers().await?;
    let silent = workers.iter().map(|worker| worker.heard.silent_for.as_secs_f64());
    let help = "How long ago the worker was heard of that has been silent for longest.";
    let longest = [(String::new(), silent.fold(0.0, f64::max))];
    metric(&mut text, "outlive_beat_age_seconds", "gauge", help, &longest);
    let count = [(String::new(), workers.len() as f64)];
    metric(&mut text, "outlive_workers", "gauge", "Workers of the registry.", &count);
    Ok(text)
}

/// What a piece of evidence is called.
fn word(evidence: &Evidence) -> String {
    match json!(evidence) {
        Value::String(word) => word,
        Value::Object(fields) => fields.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}
