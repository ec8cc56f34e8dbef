//! outlive as one of the programs that are measured beside each other: `outlive-bench fleet-process URL VERB …`.
//!
//! The verbs are those of the programs in `bench/peers-fleet`. `drain N` makes N jobs and does them, `fill N` makes them,
//! `add N MS` makes them one by one with a pause in between, `work SLOTS` does what comes, `hold SLOTS [fast]` never ends
//! what it has begun, `lock SLOTS` does runs that take their time. `handle N blocking|async|info` makes N jobs and does them
//! with handlers of that sort, the last with events and spans at `info`. `own RUNS WORKERS` is ours alone: several workers
//! that own many runs and beat for them.

use std::time::Duration;

use outlive::engine::worker::{BlockingJob, Failed, Job, Worker, WorkerTiming};
use outlive::policy::OrphanPolicy;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;

use crate::scratch::Outcome;
use crate::time::{Begun, measure, now_micros};

/// The slots of a worker that is to do as much as it can.
const SLOTS: usize = 500;
/// How many jobs are made at once.
const BATCH: usize = 500;
pub const KIND: &str = "bench";
/// What tells a job from others: a number, or when it was made.
pub const MARK: &str = "mark";
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
        "work" => {
            stand_by(Worker::builder(open(url)?).concurrency(number(0)?).times(times).handle_blocking(KIND, |job| {
                tell(job);
                Ok::<_, Failed>(())
            }))?
        }
        "hold" => {
            stand_by(Worker::builder(open(url)?).concurrency(number(0)?).times(times).handle_blocking(KIND, |job| {
                tell(job);
                for_ever();
                Ok::<_, Failed>(())
            }))?
        }
        "lock" => stand_by(Worker::builder(open(url)?).concurrency(number(0)?).handle_blocking(LOCKED, |_| {
            let begun = Begun::now();
            while let Some(left) = LOCKED_FOR.checked_sub(begun.ago()) {
                std::thread::park_timeout(left);
            }
            Ok::<_, Failed>(())
        }))?,
        "own" => own(url, number(0)?, number(1)?)?,
        _ => return Err(format!("a process of the fleet cannot `{verb}`").into()),
    }
    Ok(true)
}

fn open(url: &str) -> Outcome<Registry> {
    Ok(pollster::block_on(Registry::open(url))?)
}

fn spec(mark: u64) -> Spec {
    let mut spec = Spec::new(KIND, person("ada"));
    spec.labels.insert(MARK.into(), mark.to_string());
    spec
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let done = measure(|| {
        let worker = Worker::builder(registry).concurrency(SLOTS).prefetch(SLOTS).runtime(runtime.handle().clone());
        let worker = match how {
            "blocking" => worker.handle_blocking(KIND, |_| Ok::<_, Failed>(())),
            _ => worker.handle(KIND, |_: Job| async { Ok::<_, Failed>(()) }),
        };
        let worker = worker.start()?;
        worker.wait_until(|tally| tally.succeeded == jobs as u64);
        worker.stop();
        Ok(())
    })?;
    println!("done {}", done.as_secs_f64());
    Ok(())
}

fn drain(url: &str, jobs: usize) -> Outcome<()> {
    let registry = open(url)?;
    println!("enqueued {}", measure(|| fill(&registry, jobs))?.as_secs_f64());
    let done = measure(|| {
        let worker = Worker::builder(registry)
            .concurrency(SLOTS)
            .prefetch(SLOTS)
            .handle_blocking(KIND, |_| Ok::<_, Failed>(()))
            .start()?;
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
fn tell(job: &BlockingJob) {
    let run = job.run();
    let mark = run.spec.labels.get(MARK).and_then(|mark| mark.parse::<u64>().ok()).unwrap_or(0);
    println!("picked {} {mark}", now_micros().saturating_sub(mark));
}

fn for_ever() {
    loop {
        std::thread::park();
    }
}

fn stand_by(builder: outlive::engine::worker::WorkerBuilder) -> Outcome<()> {
    let _worker = builder.start()?;
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
