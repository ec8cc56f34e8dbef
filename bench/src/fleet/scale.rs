//! What a fleet costs as it grows: the real worker and the real store, many workers in one process, one server.
//!
//! Each worker has a registry of its own, with its own connections and its own heartbeats, as a process of its own would. What
//! is measured of each size: connections, heartbeats, processor time and WAL of the server while the fleet is idle; the time
//! from the call that makes a run to its handler; and, after a crash of the server, how long it is until a handler runs again
//! and until every worker has beaten again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use outlive::engine::worker::{Failed, Job, Worker};
use outlive::registry::Registry;
use outlive::testing::server::Server;
use tokio::runtime::{Builder, Runtime};

use super::process::{self, KIND, Marked};
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::{Begun, now_micros};

/// The sizes of the fleet, unless `OUTLIVE_BENCH_WORKERS` names one.
const SIZES: [usize; 3] = [10, 100, 1_000];
const SLOTS: usize = 4;
const JOBS: usize = 200;
/// The pause between two runs, so that each is picked up alone.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an idle fleet is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// The longest that a run is waited for after the crash.
const LIMIT: Duration = Duration::from_secs(120);

/// A fleet in this process.
struct Fleet {
    workers: Vec<Worker>,
    runtime: Runtime,
    /// The marks of runs, and when their handlers began.
    begun: Receiver<(u64, u64)>,
    /// How many errors of the store the workers survived.
    errors: Arc<AtomicU64>,
}

/// Measures. There is no bar: what grows with the fleet is shown.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let only = super::number("OUTLIVE_BENCH_WORKERS", 0);
    println!("workers of {SLOTS} slots in one process, one server, load {}:", super::load());
    for size in SIZES.into_iter().filter(|size| only == 0 || *size == only) {
        measure(size)?;
    }
    Ok(true)
}

fn measure(size: usize) -> Outcome<()> {
    let most = size * 4 + 50;
    let server = Server::alone(&["shared_buffers=256MB", "max_wal_size=4GB", &format!("max_connections={most}")]);
    let url = format!("{}&connections=1", server.fresh_url());
    let maker = pollster::block_on(Registry::open(&url))?;
    let joining = Begun::now();
    let fleet = Fleet::start(&url, size)?;
    let joined = joining.ago().as_secs_f64();
    println!("  {size} workers, joined within {joined:.1} s");
    watch_idle(&server, size)?;
    let waits = fleet.pick_up(&maker, JOBS)?;
    let spread = Spread::of(&waits);
    let late = waits.get(waits.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    println!("    from the call to the handler: p50 {:.1} ms, p99 {late:.1} ms, of {JOBS} runs", spread.median);
    fail_over(&server, &maker, &fleet)?;
    fleet.stop();
    Ok(())
}

/// What the server does while no run waits.
fn watch_idle(server: &Server, size: usize) -> Outcome<()> {
    std::thread::park_timeout(Duration::from_secs(5));
    let beats = "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE relname = 'worker'";
    let read = |sql: &str| -> Outcome<f64> { Ok(server.psql(sql).parse()?) };
    let (updates, log, used) = (read(beats)?, super::wal(server)?, super::server_time(server));
    std::thread::park_timeout(WATCHED);
    // Statistics are written once a second at most.
    std::thread::park_timeout(Duration::from_secs(1));
    let seconds = WATCHED.as_secs_f64() + 1.0;
    let updates = (read(beats)? - updates) / seconds;
    let log = (super::wal(server)? - log) / seconds / 1024.0;
    let used = (super::server_time(server) - used) / seconds / 10_000.0;
    let sessions = read("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")?;
    let each = sessions / size as f64;
    println!("    idle: {sessions} connections ({each:.1} a worker), {updates:.1} heartbeats a second");
    println!("    idle: server {used:.1} % of a processor, {log:.1} KiB of WAL a second");
    Ok(())
}

/// Crashes the server under the idle fleet, starts it again, and waits until work is done and every worker has beaten.
fn fail_over(server: &Server, maker: &Registry, fleet: &Fleet) -> Outcome<()> {
    server.stop("immediate");
    server.start();
    let since = server
        .psql("SELECT outlive_now.at FROM (SELECT extract(epoch FROM clock_timestamp()) * 1000000) AS outlive_now(at)");
    let back = Begun::now();
    let mut made = false;
    while !made {
        made = pollster::block_on(maker.enqueue(process::spec(now_micros()))).is_ok();
        if back.ago() > LIMIT {
            return Err("no run could be made after the crash".into());
        }
    }
    fleet.begun.recv_timeout(LIMIT).map_err(|_| "no run was begun after the crash")?;
    let first = back.ago().as_secs_f64();
    let silent = format!("SELECT count(*) FROM {} WHERE beat_at < {since}", table(server)?);
    while server.psql(&silent) != "0" {
        if back.ago() > LIMIT {
            return Err(format!("{} workers have not beaten after the crash", server.psql(&silent)).into());
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let all = back.ago().as_secs_f64();
    let errors = fleet.errors.load(Ordering::Relaxed);
    println!("    after a crash of the server: first run begun after {first:.1} s, all have beaten after {all:.1} s");
    println!("    errors that workers survived: {errors}");
    Ok(())
}

/// The table of workers of the one registry on the server.
fn table(server: &Server) -> Outcome<String> {
    let found = server.psql("SELECT schemaname || '.worker' FROM pg_tables WHERE tablename = 'worker'");
    if found.is_empty() { Err("the registry has no table of workers".into()) } else { Ok(found) }
}

impl Fleet {
    fn start(url: &str, size: usize) -> Outcome<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
        let (send, begun) = channel();
        let errors = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::with_capacity(size);
        for _ in 0..size {
            workers.push(worker(url, &runtime, &send, &errors)?);
        }
        Ok(Self { workers, runtime, begun, errors })
    }

    /// How long so many runs wait for their handlers, in ms, sorted.
    fn pick_up(&self, maker: &Registry, runs: usize) -> Outcome<Vec<f64>> {
        let mut waits = Vec::with_capacity(runs);
        for _ in 0..runs {
            pollster::block_on(maker.enqueue(process::spec(now_micros())))?;
            let (made, begun) = self.begun.recv_timeout(LIMIT).map_err(|_| "a run was not begun")?;
            waits.push(begun.saturating_sub(made) as f64 / 1_000.0);
            std::thread::park_timeout(PAUSE);
        }
        waits.sort_by(f64::total_cmp);
        Ok(waits)
    }

    fn stop(self) {
        std::thread::scope(|scope| {
            for worker in self.workers {
                scope.spawn(move || worker.stop());
            }
        });
        self.runtime.shutdown_background();
    }
}

fn worker(url: &str, runtime: &Runtime, begun: &Sender<(u64, u64)>, errors: &Arc<AtomicU64>) -> Outcome<Worker> {
    let registry = pollster::block_on(Registry::open(url))?;
    let (begun, errors) = (begun.clone(), Arc::clone(errors));
    let builder = Worker::builder(registry).concurrency(SLOTS).runtime(runtime.handle().clone());
    let builder = builder.on_error(move |_| {
        errors.fetch_add(1, Ordering::Relaxed);
    });
    let handled = builder.handle(KIND, move |job: Job<Marked>| {
        let told = begun.send((job.input.mark, now_micros()));
        async move { told.map_err(|_| Failed::new("ended", "the benchmark has ended")) }
    });
    Ok(handled.start()?)
}
