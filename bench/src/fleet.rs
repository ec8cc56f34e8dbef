//! Claiming and finishing on PostgreSQL with the whole runtime: workers, beats, reaper, rules, fenced ends, stories.
//!
//! The server is one of the benchmark's own, with the durability that PostgreSQL has by default. Handlers do nothing, so
//! that what is measured is what outlive costs.

use std::path::Path;
use std::time::Duration;

use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::runtime::worker::{Tally, Worker};
use outlive::testing::person;
use outlive::testing::server::Server;

use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

const ROUNDS: usize = 5;
/// How many slots a worker has, which is how many runs a claim brings at most.
const BATCHES: [usize; 4] = [1, 10, 100, 500];
/// How many runs a round has, for each of them.
const RUNS: [usize; 4] = [500, 2_000, 6_000, 6_000];

/// What a round measured.
#[derive(Default)]
struct Figures {
    enqueued: Vec<f64>,
    done: Vec<f64>,
    wal: Vec<f64>,
    runs_per_claim: Vec<f64>,
    runs_per_commit: Vec<f64>,
}

/// Measures. There is no bar yet: peers are measured elsewhere.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = Server::alone(&["-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"]);
    let url = server.fresh_url();
    let schema = url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default().to_owned();
    let mut figures: Vec<Figures> = BATCHES.iter().map(|_| Figures::default()).collect();
    for round in 0..=ROUNDS {
        for (place, (batch, runs)) in BATCHES.into_iter().zip(RUNS).enumerate() {
            let mut scratch = Figures::default();
            // The first round warms up.
            let into = if round == 0 { &mut scratch } else { &mut figures[place] };
            measure_one(&server, &url, batch, runs, into)?;
        }
    }
    println!(
        "PostgreSQL with default durability, one worker process, handlers that do nothing; {ROUNDS} rounds, interleaved"
    );
    for (batch, figures) in BATCHES.iter().zip(&figures) {
        println!("  slots {batch:>3}");
        let print = |what: &str, values: &[f64]| {
            let Spread { median, min, max, .. } = Spread::of(values);
            println!("    {what:<28} {median:>9.0} ({min:.0}..{max:.0})");
        };
        print("enqueued a second", &figures.enqueued);
        print("claimed + finished a second", &figures.done);
        print("WAL bytes a run", &figures.wal);
        print("runs a claim", &figures.runs_per_claim);
        print("ends a write", &figures.runs_per_commit);
    }
    let hot = server.psql(&format!(
        "SELECT round(100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1), 1) || ' % of ' || n_tup_upd FROM pg_stat_user_tables
         WHERE schemaname = '{schema}' AND relname = 'worker'"
    ));
    println!("  updates of the worker table that were HOT: {hot}");
    Ok(true)
}

fn wal(server: &Server) -> Outcome<f64> {
    Ok(server.psql("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").parse()?)
}

fn measure_one(server: &Server, url: &str, batch: usize, runs: usize, figures: &mut Figures) -> Outcome<()> {
    let registry = pollster::block_on(Registry::open(url))?;
    let before = wal(server)?;
    let enqueued = measure(|| {
        for start in (0..runs).step_by(batch) {
            let count = batch.min(runs - start);
            let plan = (0..count).map(|_| Planned { spec: Spec::new("bench", person("ada")), after: Vec::new() });
            pollster::block_on(registry.enqueue_all(plan.collect()))?;
        }
        Ok(())
    })?;
    let mut tally = Tally::default();
    let done = measure(|| {
        let worker = Worker::builder(registry).slots(batch).handle("bench", |_| Ok(())).start()?;
        worker.wait_until(|tally| tally.succeeded == runs as u64);
        tally = worker.tally();
        worker.stop();
        Ok(())
    })?;
    let rate = |time: Duration| runs as f64 / time.as_secs_f64();
    figures.enqueued.push(rate(enqueued));
    figures.done.push(rate(done));
    figures.wal.push((wal(server)? - before) / runs as f64);
    figures.runs_per_claim.push(tally.claimed as f64 / tally.claims.max(1) as f64);
    figures.runs_per_commit.push(runs as f64 / tally.commits.max(1) as f64);
    Ok(())
}
