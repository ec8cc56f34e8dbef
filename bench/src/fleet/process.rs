//! outlive as one of the programs that are measured beside each other: `outlive-bench fleet-process URL VERB …`.
//!
//! The verbs are those of the programs in `bench/peers-fleet`. `drain N` makes N jobs and does them, `fill N` makes them,
//! `add N MS` makes them one by one with a pause in between, `work SLOTS` does what comes, `hold SLOTS [fast]` never ends
//! what it has begun, `lock SLOTS` does runs that take their time. `handle N blocking|async|info` makes N jobs and does them
//! with handlers of that sort, the last with events and spans at `info`. `own RUNS WORKERS` is ours alone: several workers
//! that own many runs and beat for them.

use std::time::Duration;

use outlive::engine::worker::{Failed, Job, Worker, WorkerBuilder, WorkerTiming};
use outlive::policy::OrphanPolicy;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::scratch::Outcome;
use crate::time::{measure, now_micros};

/// The slots of a worker that is to do as much as it can.
const SLOTS: usize = 500;
/// From so many slots on a worker that stands by prefetches as well: it is to do much, and not to begin soon.
const MANY: usize = 100;
/// How many jobs are made at once.
const BATCH: usize = 500;
pub const KIND: &str = "bench";
/// The kind of runs that take their time, and how long each takes.
pub const LOCKED: &str = "locked";
pub const LOCKED_FOR: Duration = Duration::from_millis(200);

/// Does what the words after `fleet-process` ask for.
pub fn main(words: &[String]) -> Outcome<bool> {
    let [url, verb, rest @ ..] = words else { return Err("a process of the fleet is told a URL and a verb".into()) };
    let number = |place: usize| -> Outcome<usize> { Ok(rest.get(place).ok_or("a number is missing")?.parse()?) };
    let times =
        if rest.last().is_some_and(|word| word == "fast") { WorkerTiming::fast() } else { WorkerTiming::default() };
    match verb.as_str() {
        "drain" => drain(url, number(0)?)?,
        "handle" => handle(url, number(0)?, rest.get(1).map_or("async", String::as_str))?,
        "fill" => fill(&open(url)?, number(0)?)?,
        "add" => add(url, number(0)?, Duration::from_millis(number(1)? as u64))?,
        "work" => stand_by(|runtime| {
            let slots = number(0)?;
            let prefetch = if slots < MANY { 0 } else { SLOTS - MANY };
            let worker = Worker::builder(open(url)?).concurrency(slots).prefetch(prefetch).times(times);
            Ok(worker.runtime(runtime).handle(KIND, |job: Job<Marked>| async move { tell(&job) }))
        })?,
        "hold" => stand_by(|runtime| {
            let worker = Worker::builder(open(url)?).concurrency(number(0)?).times(times).runtime(runtime);
            Ok(worker.handle(KIND, |job: Job<Marked>| async move {
                tell(&job)?;
                std::future::pending::<Result<(), Failed>>().await
            }))
        })?,
        "lock" => stand_by(|runtime| {
            let worker = Worker::builder(open(url)?).concurrency(number(0)?).runtime(runtime);
            Ok(worker.handle(LOCKED, |_: Job| async {
                tokio::time::sleep(LOCKED_FOR).await;
                Ok::<_, Failed>(())
            }))
        })?,
        "own" => own(url, number(0)?, number(1)?)?,
        _ => return Err(format!("a process of the fleet cannot `{verb}`").into()),
    }
    Ok(true)
}

fn open(url: &str) -> Outcome<Registry> {
    Ok(pollster::block_on(Registry::open(url))?)
}

/// What tells a job from others: a number, or when it was made. The programs of the peers pass the same.
#[derive(Serialize, Deserialize)]
pub struct Marked {
    pub mark: u64,
}

/// A job with a mark.
pub fn spec(mark: u64) -> Spec {
    let spec = Spec::new(KIND, person("ada"));
    Spec { input: Some(serde_json::json!({ "mark": mark })), ..spec }
}

/// The runtime of the handlers. The program of each peer has one, too.
fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_time().build()?)
}

fn fill(registry: &Registry, jobs: usize) -> Outcome<()> {
    for start in (0..jobs).step_by(BATCH) {
        let plan = (start..jobs.min(start + BATCH)).map(|at| Planned { spec: spec(at as u64), after: Vec::new() });
        pollster::block_on(registry.enqueue_all(plan.collect()))?;
    }
    Ok(())
}

/// Makes jobs, and does them with handlers of a sort.
fn handle(url: &str, jobs: usize, how: &str) -> Outcome<()> {
    if how == "info" {
        // What is formatted goes nowhere: a terminal would be measured otherwise.
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_writer(std::io::sink)
            .init();
    }
    let registry = open(url)?;
    fill(&registry, jobs)?;
    execute(registry, jobs, how)
}

fn drain(url: &str, jobs: usize) -> Outcome<()> {
    let registry = open(url)?;
    println!("enqueued {}", measure(|| fill(&registry, jobs))?.as_secs_f64());
    execute(registry, jobs, "async")
}

/// Says how long it takes to execute all jobs.
fn execute(registry: Registry, jobs: usize, how: &str) -> Outcome<()> {
    let runtime = runtime()?;
    let done = measure(|| {
        let worker = Worker::builder(registry).concurrency(SLOTS).prefetch(SLOTS).runtime(runtime.handle().clone());
        let worker = match how {
            "blocking" => worker.handle_blocking(KIND, |_| Ok::<_, Failed>(())),
            _ => worker.handle(KIND, |_: Job<Marked>| async { Ok::<_, Failed>(()) }),
        };
        let worker = worker.start()?;
        worker.wait_until(|tally| tally.succeeded == jobs as u64);
        worker.stop();
        Ok(())
    })?;
    println!("done {}", done.as_secs_f64());
    Ok(())
}

fn add(url: &str, jobs: usize, pause: Duration) -> Outcome<()> {
    let registry = open(url)?;
    for _ in 0..jobs {
        let mut spec = spec(now_micros());
        spec.policy.orphans = OrphanPolicy::Requeue;
        pollster::block_on(registry.enqueue(spec))?;
        std::thread::park_timeout(pause);
    }
    Ok(())
}

/// Says how long a job has waited, and which it is.
fn tell(job: &Job<Marked>) -> Result<(), Failed> {
    let mark = job.input.mark;
    println!("picked {} {mark}", now_micros().saturating_sub(mark));
    Ok(())
}

fn for_ever() {
    loop {
        std::thread::park();
    }
}

fn stand_by(builder: impl FnOnce(Handle) -> Outcome<WorkerBuilder>) -> Outcome<()> {
    let runtime = runtime()?;
    let _worker = builder(runtime.handle().clone())?.start()?;
    println!("ready");
    for_ever();
    Ok(())
}

/// Workers that own runs and begin one each.
fn own(url: &str, runs: usize, workers: usize) -> Outcome<()> {
    fill(&open(url)?, runs)?;
    let each = runs / workers;
    let mut all = Vec::new();
    for _ in 0..workers {
        let builder = Worker::builder(open(url)?).concurrency(1).prefetch(each - 1).times(WorkerTiming::fast());
        let worker = builder.handle_blocking(KIND, |_| {
            for_ever();
            Ok::<_, Failed>(())
        });
        let worker = worker.start()?;
        worker.wait_until(|tally| tally.claimed == each as u64);
        all.push(worker);
    }
    println!("ready");
    for_ever();
    Ok(())
}
