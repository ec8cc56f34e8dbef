//! Workers that end in an orderly way, one after the other, and lose nothing: W07.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;

use outlive::engine::worker::{BlockingJob, Done, Failed, Worker, WorkerTiming};
use outlive::run::StateName;
use outlive::testing::server::Server;
use serde_json::Value;

use super::{LONG, Shared, lasting};
use outlive::id::RunId;
use outlive::registry::{Planned, Registry};
use outlive::testing::spec;
use std::time::Duration;

fn open(url: &str) -> Registry {
    pollster::block_on(Registry::open(url)).unwrap()
}

/// Nothing is found by asking, and nobody is taken for dead.
fn deaf() -> WorkerTiming {
    const NEVER: Duration = Duration::from_secs(100_000);
    WorkerTiming::new(NEVER, NEVER * 3, NEVER, NEVER).unwrap()
}

#[test]
fn w07_run_released_by_a_worker_is_claimed_by_another_at_once() {
    let url = Server::shared().fresh_url();
    let maker = open(&url);
    let (begun, begins) = channel();
    let worker = |name: &'static str| {
        let begun = begun.clone();
        let work = move |job: &BlockingJob| -> Result<Done, Failed> {
            begun.send((name, job.run().spec.kind.clone(), job.run().attempt)).unwrap();
            while name == "first" && job.wait_for_stop(LONG).is_none() {}
            Ok(if name == "first" { Done::Stopped } else { Done::Succeeded(Value::Null) })
        };
        let builder = Worker::builder(open(&url)).times(deaf()).grace(Duration::from_millis(1), LONG);
        if name == "first" {
            builder.handle_blocking("job", work)
        } else {
            builder.handle_blocking("job", work.clone()).handle_blocking("other", work)
        }
    };
    let run = pollster::block_on(maker.enqueue(lasting("job"))).unwrap();
    let first = worker("first").start().unwrap();
    assert_eq!(begins.recv_timeout(LONG).unwrap(), ("first", "job".into(), 1));
    let second = worker("second").start().unwrap();
    // It has looked, and found nothing else.
    pollster::block_on(maker.enqueue(spec("other"))).unwrap();
    assert_eq!(begins.recv_timeout(LONG).unwrap(), ("second", "other".into(), 1));
    second.wait_until(|tally| tally.succeeded == 1);
    assert_eq!(first.stop().stopped, 1);
    assert_eq!(begins.recv_timeout(LONG).unwrap(), ("second", "job".into(), 2));
    second.wait_until(|tally| tally.succeeded == 2);
    second.stop();
    let run = pollster::block_on(maker.get(run.id)).unwrap().run;
    assert_eq!((run.state.name(), run.failures, run.reaps), (StateName::Succeeded, 0, 0));
}

#[test]
fn w07_rolling_restart_of_all_workers_fails_no_run() {
    const WORKERS: usize = 4;
    const ROUNDS: usize = 2;
    const AHEAD: usize = 60;
    let url = Server::shared().fresh_url();
    let maker = open(&url);
    let done = Shared::<BTreeMap<RunId, usize>>::new();
    let start = || {
        let done = done.clone();
        let work = move |job: &BlockingJob| -> Result<Done, Failed> {
            if job.wait_for_stop(Duration::from_millis(100)).is_some() {
                return Ok(Done::Stopped);
            }
            done.change(|done| *done.entry(job.id()).or_default() += 1);
            Ok(Done::Succeeded(Value::Null))
        };
        let builder = Worker::builder(open(&url))
            .concurrency(4)
            .times(WorkerTiming::fast())
            .grace(Duration::from_millis(1), LONG);
        builder.handle_blocking("job", work).start().unwrap()
    };
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| start()).collect();
    let (mut made, mut stopped) = (Vec::new(), 0);
    for _ in 0..WORKERS * ROUNDS {
        let plan = (0..AHEAD).map(|_| Planned { spec: lasting("job"), after: Vec::new() }).collect();
        made.extend(pollster::block_on(maker.enqueue_all(plan)).unwrap());
        // The oldest goes when another is there, and while it is at work.
        workers.push(start());
        let oldest = workers.remove(0);
        oldest.wait_until(|tally| tally.running > 0);
        let tally = oldest.stop();
        assert_eq!((tally.failed, tally.lost), (0, 0), "{tally:?}");
        stopped += tally.stopped;
    }
    done.wait(|done| done.len() == made.len());
    for worker in workers {
        let tally = worker.stop();
        assert_eq!((tally.failed, tally.lost, tally.reaped), (0, 0, 0), "{tally:?}");
    }
    println!("{} runs, {stopped} of them interrupted", made.len());
    assert!(stopped > 0, "nothing was ever interrupted");
    for run in made {
        assert_eq!(done.change(|done| done.get(&run.id).copied()), Some(1));
        let run = pollster::block_on(maker.get(run.id)).unwrap().run;
        assert_eq!((run.state.name(), run.failures, run.reaps), (StateName::Succeeded, 0, 0));
    }
}
