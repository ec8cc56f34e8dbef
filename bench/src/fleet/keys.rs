//! Keys under contention: how close to the ideal several processes get where few runs may run at once, and how soon free
//! runs start behind many that wait for a key.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use outlive::registry::{Planned, Registry};
use outlive::run::{Key, Spec};
use outlive::testing::person;
use outlive::testing::server::Server;

use super::process::{self, LOCKED, LOCKED_FOR};
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::{Begun, now_micros};

const RUNS: usize = 80;
const KEYS: usize = 4;
const PROCESSES: [usize; 4] = [1, 2, 4, 8];
/// How much longer than the ideal it may take.
const SLOWER: f64 = 1.2;
/// How many runs wait for one key, unless `OUTLIVE_BENCH_RUNS` says otherwise, and how many are free behind them.
const WAITING: usize = 100_000;
const FREE: usize = 100;
/// The latest that a free run may start, in ms.
const LATEST: f64 = 100.0;
const BATCH: usize = 500;

/// A worker process, and what it says.
struct Working {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Working {
    /// Starts a process that is ready when this returns.
    fn start(url: &str, words: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["fleet-process", url])
            .args(words)
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or("a process without an output")?);
        let mut working = Self { child, said };
        if working.line()? == "ready" { Ok(working) } else { Err("a worker did not start".into()) }
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.said.read_line(&mut line)? == 0 {
            return Err("a worker ended".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures, and answers whether the bars are met.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = super::server();
    let rounds = super::rounds(3);
    let ideal = LOCKED_FOR.as_secs_f64() * (RUNS / KEYS) as f64;
    println!("{RUNS} runs of {} ms on {KEYS} keys, load {}:", LOCKED_FOR.as_millis(), super::load());
    let mut took: Vec<Vec<f64>> = vec![Vec::new(); PROCESSES.len()];
    for _ in 0..rounds {
        for (place, processes) in PROCESSES.into_iter().enumerate() {
            took[place].push(contend(&server, processes)? / ideal);
        }
    }
    let mut met = true;
    for (processes, ratios) in PROCESSES.iter().zip(&took) {
        let ratio = Spread::of(ratios);
        let is_met = ratio.median <= SLOWER;
        println!("  {processes} processes: {ratio} of the ideal{}", if is_met { "" } else { "  MISSED" });
        met &= is_met;
    }
    let deadlocks = server.log().matches("deadlock detected").count();
    println!("  deadlocks in the server's log: {deadlocks} (bar: 0)");
    Ok(free_behind_locked(&server)? && met && deadlocks == 0)
}

/// How long so many processes take for all runs, in seconds.
fn contend(server: &Server, processes: usize) -> Outcome<f64> {
    let url = server.fresh_url();
    let registry = pollster::block_on(Registry::open(&url))?;
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(Working::start(&url, &["lock", "8"])?);
    }
    let run = |number: usize| {
        let keys = vec![Key::limit(format!("door {}", number % KEYS), 1)];
        Planned { spec: Spec { keys, ..Spec::new(LOCKED, person("ada")) }, after: Vec::new() }
    };
    let begun = Begun::now();
    pollster::block_on(registry.enqueue_all((0..RUNS).map(run).collect()))?;
    loop {
        let counts = pollster::block_on(registry.counts())?;
        let ended = counts.iter().filter(|count| count.state.is_ended()).map(|count| count.runs).sum::<u64>();
        if ended >= RUNS as u64 {
            return Ok(begun.ago().as_secs_f64());
        }
        if begun.ago() > Duration::from_secs(120) {
            return Err(format!("{ended} of {RUNS} runs have ended after two minutes").into());
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// How late free runs start behind those that wait for a key.
fn free_behind_locked(server: &Server) -> Outcome<bool> {
    let waiting = super::number("OUTLIVE_BENCH_RUNS", WAITING);
    let url = server.fresh_url();
    let registry = pollster::block_on(Registry::open(&url))?;
    let spec = |key: bool| {
        let keys = if key { vec![Key::limit("door", 1)] } else { Vec::new() };
        Planned { spec: Spec { keys, ..process::spec(now_micros()) }, after: Vec::new() }
    };
    let _holder = pollster::block_on(registry.start(spec(true).spec))?;
    for start in (0..waiting).step_by(BATCH) {
        let count = BATCH.min(waiting - start);
        pollster::block_on(registry.enqueue_all((0..count).map(|_| spec(true)).collect()))?;
    }
    server.psql("VACUUM ANALYZE");
    let mut worker = Working::start(&url, &["work", "100"])?;
    let mut latest = Vec::new();
    for _ in 0..super::rounds(3) {
        pollster::block_on(registry.enqueue_all((0..FREE).map(|_| spec(false)).collect()))?;
        let mut waited = Vec::new();
        for _ in 0..FREE {
            let line = worker.line()?;
            let micros =
                line.strip_prefix("picked ").and_then(|rest| rest.split(' ').next()).ok_or("no run started")?;
            waited.push(micros.parse::<f64>()? / 1_000.0);
        }
        latest.push(waited.into_iter().fold(0.0, f64::max));
    }
    let latest = Spread::of(&latest);
    println!(
        "  the last of {FREE} free runs behind {waiting} that wait for a key starts after {latest} ms (bar: {LATEST})"
    );
    Ok(latest.median <= LATEST)
}
