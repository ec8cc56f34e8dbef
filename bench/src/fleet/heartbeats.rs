//! What beats cost the database, whatever the number of runs that are alive, and while somebody holds a transaction open.
//!
//! Twenty workers beat twice a second, as those of `WorkerTiming::fast` do. At first nothing else happens: what is written is
//! written by beats. Then runs are claimed one at a time, while the beats go on.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outlive::filter::Filter;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use outlive::testing::server::{Server, program};

use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

const LIVE: [usize; 3] = [1_000, 10_000, 100_000];
const WORKERS: usize = 20;
/// How long the beats are watched; with `OUTLIVE_BENCH_LONG` only while a transaction is held open, for five minutes.
const WATCHED: u64 = 20;
const WATCHED_LONG: u64 = 300;
/// By then each worker has beaten.
const AFTER_CHECKPOINT: Duration = Duration::from_secs(2);
/// How many claims are measured.
const CLAIMS: usize = 300;
const KIND: &str = "quick";
/// At least so many of a hundred updates leave the indexes alone.
const HOT: f64 = 99.0;
/// How much more the most runs may cost than the fewest.
const FLAT: f64 = 1.25;

/// A process that is ended with what is measured.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a number of live runs cost.
struct Cost {
    rows: f64,
    wal: f64,
    hot: f64,
    dead: f64,
    claims: [f64; 2],
}

/// Measures, and answers whether the cost is flat and the updates are HOT.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = Server::alone(&["shared_buffers=256MB", "max_wal_size=4GB", "max_connections=500"]);
    let is_long = std::env::var_os("OUTLIVE_BENCH_LONG").is_some();
    let watched = if is_long { WATCHED_LONG } else { WATCHED };
    let most = std::env::var("OUTLIVE_BENCH_LIVE").ok().and_then(|most| most.parse().ok()).unwrap_or(usize::MAX);
    println!("{WORKERS} workers that beat twice a second, watched for {watched} s");
    println!("| transaction held open | live runs | beats/s | WAL bytes/s | HOT % | dead rows | claim p50, p99 |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut met = true;
    for held in [false, true].into_iter().filter(|held| *held || !is_long) {
        let mut costs = Vec::new();
        for live in LIVE.into_iter().filter(|live| *live <= most) {
            let cost = measure_one(&server, live, held, Duration::from_secs(watched))?;
            let Cost { rows, wal, hot, dead, claims: [p50, p99] } = &cost;
            let held = if held { "yes" } else { "no" };
            println!("| {held} | {live} | {rows:.1} | {wal:.0} | {hot:.1} | {dead:.0} | {p50:.1} ms, {p99:.1} ms |");
            costs.push(cost);
        }
        let grows = costs[costs.len() - 1].wal / costs[0].wal;
        let least = costs.iter().map(|cost| cost.hot).fold(100.0, f64::min);
        met &= grows <= FLAT && least >= HOT;
        println!(
            "WAL of the most runs over that of the fewest: {grows:.2} (bar: {FLAT}); HOT at least {least:.1} % (bar: {HOT})"
        );
    }
    Ok(met)
}

fn measure_one(server: &Server, live: usize, held: bool, watched: Duration) -> Outcome<Cost> {
    let url = server.fresh_url();
    let schema = url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default().to_owned();
    let _workers = own(&url, live)?;
    let registry = pollster::block_on(Registry::open(&url))?;
    // What was written to get there is on the disk, and cleared up.
    server.psql("VACUUM ANALYZE");
    server.psql("CHECKPOINT");
    // The first beat after it writes each page as a whole.
    std::thread::park_timeout(AFTER_CHECKPOINT);
    let _holder = held.then(|| hold(server)).transpose()?;
    let before = Counts::read(server, &schema)?;
    std::thread::park_timeout(watched);
    let after = Counts::read(server, &schema)?;
    let claims = claims(&registry)?;
    let seconds = watched.as_secs_f64();
    let updates = after.updates - before.updates;
    Ok(Cost {
        rows: updates / seconds,
        wal: (after.wal - before.wal) / seconds,
        hot: 100.0 * (after.hot - before.hot) / updates.max(1.0),
        dead: after.dead,
        claims,
    })
}

/// A process of workers that own so many runs.
fn own(url: &str, live: usize) -> Outcome<Ended> {
    let words = ["fleet-process", url, "own", &live.to_string(), &WORKERS.to_string()];
    let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or("a process without an output")?;
    let workers = Ended(child);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
    if line.trim() == "ready" { Ok(workers) } else { Err("the workers could not claim their runs".into()) }
}

/// Somebody who has looked at the database and not ended the transaction.
fn hold(server: &Server) -> Outcome<Ended> {
    let words = ["-X", "-q", "-h", "127.0.0.1", "-U", "tester", "-d", "postgres", "-p", &server.port().to_string()];
    let mut child = Command::new(program("psql")).args(words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id();\n";
    child.stdin.as_mut().ok_or("a process without an input")?.write_all(begin.as_bytes())?;
    let holder = Ended(child);
    for _ in 0..200 {
        let held =
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = 'psql'";
        if server.psql(held) != "0" {
            return Ok(holder);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Err("no transaction was held open".into())
}

/// What the server has counted.
struct Counts {
    updates: f64,
    hot: f64,
    dead: f64,
    wal: f64,
}

impl Counts {
    fn read(server: &Server, schema: &str) -> Outcome<Self> {
        let said = server.psql(&format!(
            "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_current_wal_insert_lsn() - '0/0'::pg_lsn
             FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'worker'"
        ));
        let counts: Vec<f64> = said.split('|').map(str::parse).collect::<Result<_, _>>()?;
        match counts.as_slice() {
            [updates, hot, dead, wal] => Ok(Self { updates: *updates, hot: *hot, dead: *dead, wal: *wal }),
            _ => Err(format!("the server counts nothing: {said}").into()),
        }
    }
}

/// How long the middle claim of one run takes, and the hundredth longest, in ms.
fn claims(registry: &Registry) -> Outcome<[f64; 2]> {
    let plan = (0..CLAIMS).map(|_| Planned { spec: Spec::new(KIND, person("ada")), after: Vec::new() });
    pollster::block_on(registry.enqueue_all(plan.collect()))?;
    let mut took = Vec::new();
    for _ in 0..CLAIMS {
        let seconds = measure(|| {
            let filter = Filter { kind: Some(KIND.into()), ..Filter::default() };
            let handles = pollster::block_on(registry.claim(filter, 1))?;
            let claimed = handles.len();
            // They go with the registry that they are in.
            handles.into_iter().for_each(std::mem::forget);
            if claimed == 1 { Ok(()) } else { Err("nothing was claimed".into()) }
        })?;
        took.push(seconds.as_secs_f64() * 1_000.0);
    }
    took.sort_by(f64::total_cmp);
    Ok([Spread::of(&took).median, took[CLAIMS * 99 / 100]])
}
