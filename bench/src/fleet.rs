//! Claiming and finishing on PostgreSQL with the whole runtime: workers, beats, reaper, rules, fenced ends, event logs.
//!
//! The server is one of the benchmark's own, with the durability that PostgreSQL has by default. Handlers do nothing, so
//! that what is measured is what outlive costs.

pub mod failover;
pub mod handlers;
pub mod heartbeats;
pub mod idle;
pub mod keys;
pub mod million;
mod peer;
mod peers;
mod pickup;
pub mod process;
mod reclaim;
pub mod scale;
pub mod shares;

use std::path::Path;
use std::time::Duration;

use outlive::engine::worker::{Tally, Worker};
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use outlive::testing::server::Server;

use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

const ROUNDS: usize = 5;
/// How many slots a worker has, which is how many runs a claim brings at most.
const BATCHES: [usize; 4] = [1, 10, 100, 500];
/// How many runs a round has, for each of them.
const RUNS: [usize; 4] = [500, 2_000, 10_000, 20_000];

/// What a round measured.
#[derive(Default)]
struct Figures {
    enqueued: Vec<f64>,
    done: Vec<f64>,
    wal: Vec<f64>,
    runs_per_claim: Vec<f64>,
    runs_per_commit: Vec<f64>,
    /// Processor time of a claim and an end, in microseconds: of the worker and of the server.
    own_time: Vec<f64>,
    server_time: Vec<f64>,
}

/// Measures. There is no bar yet: peers are measured elsewhere.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = server();
    let url = server.fresh_url();
    let schema = url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default().to_owned();
    let mut figures: Vec<Figures> = BATCHES.iter().map(|_| Figures::default()).collect();
    for round in 0..=ROUNDS {
        for (place, (batch, runs)) in BATCHES.into_iter().zip(RUNS).enumerate() {
            if std::env::var("OUTLIVE_BENCH_SLOTS").is_ok_and(|only| only != batch.to_string()) {
                continue;
            }
            let mut scratch = Figures::default();
            // The first round warms up.
            let into = if round == 0 { &mut scratch } else { &mut figures[place] };
            measure_one(&server, &url, batch, runs, into)?;
        }
    }
    println!(
        "PostgreSQL with default durability, one worker process, handlers that do nothing; {ROUNDS} rounds, interleaved"
    );
    for (batch, figures) in BATCHES.iter().zip(&figures).filter(|(_, figures)| !figures.done.is_empty()) {
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
        print("processor µs a run, worker", &figures.own_time);
        print("processor µs a run, server", &figures.server_time);
    }
    let hot = server.psql(&format!(
        "SELECT round(100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1), 1) || ' % of ' || n_tup_upd FROM pg_stat_user_tables
         WHERE schemaname = '{schema}' AND relname = 'worker'"
    ));
    println!("  updates of the worker table that were HOT: {hot}");
    println!("  bytes of an ended run in tables and indexes: {}", stored(&server, &schema));
    Ok(true)
}

/// What an ended run takes on the disk, after a vacuum that leaves no dead rows behind.
fn stored(server: &Server, schema: &str) -> String {
    server.psql("VACUUM FULL ANALYZE");
    server.psql(&format!(
        "SELECT round(sum(pg_total_relation_size(relation.oid)) / (SELECT count(*) FROM {schema}.ended))
         FROM pg_class relation JOIN pg_namespace place ON place.oid = relation.relnamespace
         WHERE place.nspname = '{schema}' AND relation.relkind = 'r'"
    ))
}

/// How much each of those whom others use gets done beside it.
pub fn against_peers(_dir: &Path) -> Outcome<bool> {
    peers::main()
}

/// How soon each of them begins a job.
pub fn pickup(_dir: &Path) -> Outcome<bool> {
    pickup::main()
}

/// How soon each of them takes over what a killed worker had.
pub fn reclaim(_dir: &Path) -> Outcome<bool> {
    reclaim::main()
}

/// A server with the durability that PostgreSQL has by default.
fn server() -> Server {
    Server::alone(&["shared_buffers=256MB", "max_wal_size=4GB", "max_connections=500"])
}

/// How many rounds, unless the environment says otherwise.
fn rounds(by_default: usize) -> usize {
    number("OUTLIVE_BENCH_ROUNDS", by_default)
}

/// A number of the environment.
fn number(variable: &str, by_default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(by_default)
}

/// How busy the machine is.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
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
    let (own, theirs) = (processor_time("self"), server_time(server));
    let done = measure(|| {
        let worker = Worker::builder(registry)
            .concurrency(batch)
            .prefetch(batch)
            .handle_blocking("bench", |_| Ok::<_, outlive::Failed>(()))
            .start()?;
        worker.wait_until(|tally| tally.succeeded == runs as u64);
        tally = worker.tally();
        worker.stop();
        Ok(())
    })?;
    let rate = |time: Duration| runs as f64 / time.as_secs_f64();
    figures.own_time.push((processor_time("self") - own) / runs as f64);
    figures.server_time.push((server_time(server) - theirs) / runs as f64);
    figures.enqueued.push(rate(enqueued));
    figures.done.push(rate(done));
    figures.wal.push((wal(server)? - before) / runs as f64);
    figures.runs_per_claim.push(tally.claimed as f64 / tally.claims.max(1) as f64);
    figures.runs_per_commit.push(runs as f64 / tally.commits.max(1) as f64);
    Ok(())
}

/// The processor time of a process and of the children that it has waited for, in microseconds.
fn processor_time(pid: &str) -> f64 {
    const TICK: f64 = 10_000.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields.iter().skip(11).take(4).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * TICK
}

/// The processor time of a server and its sessions.
fn server_time(server: &Server) -> f64 {
    let file = std::fs::read_to_string(server.data().join("postmaster.pid")).unwrap_or_default();
    let pid = file.lines().next().unwrap_or_default();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    processor_time(pid) + children.split_whitespace().map(processor_time).sum::<f64>()
}
