//! Real workers on a real server, one of which is killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use outlive::engine::worker::{Failed, Worker, WorkerTiming};
use outlive::policy::{OrphanPolicy, Policy};
use outlive::registry::Registry;
use outlive::run::{Spec, StateName};
use outlive::testing::server::Server;

/// Names the registry to the process that is to be a worker.
const URL: &str = "OUTLIVE_TEST_FLEET";
const NAME: &str = "fleet_workers::killed::w07_a_killed_worker_has_its_runs_done_by_another";

/// A worker in a process of its own, which says what it begins.
fn start(url: &str, home: &std::path::Path, ends: bool) -> Child {
    let mut inside = Command::new(std::env::current_exe().unwrap());
    inside.args(["--exact", NAME, "--nocapture"]).stdout(Stdio::piped()).stdin(Stdio::piped());
    inside.env(URL, url).env("OUTLIVE_HOME", home).env("OUTLIVE_TEST_ENDS", if ends { "1" } else { "0" });
    inside.spawn().unwrap()
}

/// Works until its standard input ends.
fn be_worker(url: &str) {
    let registry = pollster::block_on(Registry::open(url)).unwrap();
    let ends = std::env::var("OUTLIVE_TEST_ENDS").unwrap() == "1";
    let worker =
        Worker::builder(registry).concurrency(2).times(WorkerTiming::fast()).handle_blocking("job", move |job| {
            println!("begun {} {}", job.id(), job.run().attempt);
            while !ends && job.wait_for_stop(std::time::Duration::from_secs(60)).is_none() {}
            Ok::<_, Failed>(())
        });
    let worker = worker.start().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
    worker.stop();
}

fn begun(said: &mut impl BufRead, count: usize) -> Vec<(String, String)> {
    let mut begun = Vec::new();
    while begun.len() < count {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "the worker ended before it had begun {count}");
        if let Some((_, told)) = line.trim().split_once("begun ") {
            let (id, attempt) = told.split_once(' ').unwrap();
            begun.push((id.to_owned(), attempt.to_owned()));
        }
    }
    begun
}

#[test]
fn w07_a_killed_worker_has_its_runs_done_by_another() {
    if let Ok(url) = std::env::var(URL) {
        return be_worker(&url);
    }
    let (url, home) = (Server::shared().fresh_url(), tempfile::tempdir().unwrap());
    let mut victim = start(&url, home.path(), false);
    let store = pollster::block_on(outlive::store::postgres::PostgresStore::open(&url.parse().unwrap())).unwrap();
    let maker = Registry::over(
        std::sync::Arc::new(store),
        std::sync::Arc::new(outlive::time::SystemClock),
        std::sync::Arc::new(outlive::id::SystemEntropy),
        outlive::testing::person("ada"),
        outlive::testing::stranger(1),
    );
    let policy = Policy { orphans: OrphanPolicy::Requeue, ..Policy::default() };
    let spec = || Spec { policy: policy.clone(), ..outlive::testing::spec("job") };
    let runs = [(); 2].map(|()| pollster::block_on(maker.enqueue(spec())).unwrap());
    let mut first = begun(&mut BufReader::new(victim.stdout.take().unwrap()), 2);
    let mut other = start(&url, home.path(), true);
    victim.kill().unwrap();
    victim.wait().unwrap();
    // Kept open: what it says at its end must not end it.
    let mut said = BufReader::new(other.stdout.take().unwrap());
    let mut second = begun(&mut said, 2);
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    drop(said);
    first.sort();
    second.sort();
    let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    let expected = |attempt: &str| ids.iter().map(|id| (id.clone(), attempt.to_owned())).collect::<Vec<_>>();
    assert_eq!((first, second), (expected("1"), expected("2")));
    for run in runs {
        let run = pollster::block_on(maker.store().get(&[run.id])).unwrap().pop().unwrap().run;
        assert_eq!((run.state.name(), run.reaps, run.failures), (StateName::Succeeded, 1, 0));
    }
}
