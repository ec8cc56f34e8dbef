//! What an idle fleet costs: statements, processor time and WAL of workers that have nothing to do on a registry with runs
//! that are not due.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use outlive::testing::server::Server;
use outlive::time::Timestamp;

use super::process::KIND;
use crate::scratch::{Outcome, outlive};

const WORKERS: usize = 8;
const NOT_DUE: usize = 10_000;
/// How long they are given to begin, and how long they are watched unless `OUTLIVE_BENCH_SECONDS` says otherwise.
const BEGINNING: Duration = Duration::from_secs(10);
const WATCHED: usize = 60;
/// The most statements of a worker in a second, its heartbeats among them.
const STATEMENTS: f64 = 1.0;
/// The most that a worker may use of a processor, in hundredths.
const PROCESSOR: f64 = 0.2;
/// What the statements are called that beats are made of.
const BEATS: &str = "%SET beat = beat + 1%";

/// A process that is ended with the benchmark.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Asked first, so that a worker takes its slots along.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        std::thread::park_timeout(Duration::from_millis(500));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures, and answers whether the bars are met.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server =
        Server::alone(&["max_connections=200", "autovacuum=off", "shared_preload_libraries=pg_stat_statements"]);
    server.psql("CREATE EXTENSION pg_stat_statements");
    let library = measure_on(&server, "library", &|url| {
        let words = ["fleet-process", url, "work", "8"];
        let mut child = Command::new(std::env::current_exe()?).args(words).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("a process without an output")?).read_line(&mut line)?;
        Ok(Ended(child))
    })?;
    let command = measure_on(&server, "outlive work --slots 1", &|url| {
        let quiet = || Stdio::null();
        let words = ["--registry", url, "work", "--slots", "1"];
        Ok(Ended(Command::new(outlive()?).args(words).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn()?))
    })?;
    Ok(library && command)
}

fn measure_on(server: &Server, name: &str, start: &dyn Fn(&str) -> Outcome<Ended>) -> Outcome<bool> {
    let url = server.fresh_url();
    let registry = pollster::block_on(Registry::open(&url))?;
    let later = Timestamp::from_micros(9_000_000_000_000_000);
    let run =
        || Planned { spec: Spec { not_before: Some(later), ..Spec::new(KIND, person("ada")) }, after: Vec::new() };
    for _ in 0..NOT_DUE / 500 {
        pollster::block_on(registry.enqueue_all((0..500).map(|_| run()).collect()))?;
    }
    pollster::block_on(registry.close());
    server.psql("VACUUM ANALYZE");
    let workers: Vec<Ended> = (0..WORKERS).map(|_| start(&url)).collect::<Outcome<_>>()?;
    std::thread::park_timeout(BEGINNING);
    server.psql("CHECKPOINT");
    server.psql("SELECT pg_stat_statements_reset()");
    let before: f64 = workers.iter().map(|worker| used(worker.0.id())).sum();
    let seconds = super::number("OUTLIVE_BENCH_SECONDS", WATCHED) as f64;
    std::thread::park_timeout(Duration::from_secs_f64(seconds));
    let processor = (workers.iter().map(|worker| used(worker.0.id())).sum::<f64>() - before) / seconds * 100.0;
    let asked = "FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";
    let calls: f64 = server.psql(&format!("SELECT coalesce(sum(calls), 0) {asked}")).parse()?;
    let beyond: f64 =
        server.psql(&format!("SELECT coalesce(sum(wal_bytes), 0) {asked} AND query NOT LIKE '{BEATS}'")).parse()?;
    let each = calls / seconds / WORKERS as f64;
    let processor = processor / WORKERS as f64;
    println!("{WORKERS} idle workers ({name}), {NOT_DUE} runs not due, {seconds} s, load {}:", super::load());
    println!("  statements of a worker in a second: {each:.2} (bar: {STATEMENTS})");
    println!(
        "  processor of each: {processor:.3} % (bar: {PROCESSOR}); WAL beyond heartbeats: {beyond:.0} bytes (bar: 0)"
    );
    let most = server.psql(&format!(
        "SELECT calls || ' × ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 90) {asked} ORDER BY calls DESC LIMIT 6"
    ));
    most.lines().for_each(|line| println!("    {line}"));
    Ok(each <= STATEMENTS && processor <= PROCESSOR && beyond == 0.0)
}

/// What a process and its children have used of a processor so far, in seconds.
fn used(pid: u32) -> f64 {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        sum += read("schedstat").split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
        sum += read("children").split_whitespace().filter_map(|child| child.parse().ok()).map(used).sum::<f64>();
    }
    sum
}
