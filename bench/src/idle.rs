//! What processes that have nothing to do use of a processor, beside runs that report: a worker with four slots, a
//! supervisor, a waiter and a server without listeners. The number of writes a second is the x-axis: the lines are flat.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outlive::lifecycle::Report;
use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use outlive::run::{Progress, Spec};
use outlive::testing::server::Server;
use serde_json::{Value, json};

use crate::scratch::{Outcome, outlive};
use crate::time::Begun;

/// How many runs report.
const REPORTING: usize = 20;
/// How many runs wait for one lock.
const WAITING: usize = 200;
/// The writes a second that are measured, beside heartbeats.
const WRITES: [u64; 3] = [0, 20, 100];
/// How long each is measured.
const WATCHED: Duration = Duration::from_secs(30);
/// How long the processes are given to begin.
const BEGINNING: Duration = Duration::from_secs(8);
/// The most that each may use of a processor, in hundredths.
const BAR: f64 = 0.5;

/// A process that is ended with the benchmark.
struct Ended(&'static str, Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Asked first, so that a worker takes its slots along.
        let _ = Command::new("kill").arg(self.1.id().to_string()).status();
        std::thread::park_timeout(Duration::from_millis(500));
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}

/// Measures, and answers whether the bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let local = measure_on("sqlite", &format!("sqlite:{}", dir.join("idle").display()), dir)?;
    let server = Server::alone(&[]);
    Ok(measure_on("postgres", &server.fresh_url(), dir)? && local)
}

fn call(url: &str, words: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(outlive()?);
    command.args(["--registry", url]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

fn measure_on(store: &str, url: &str, dir: &Path) -> Outcome<bool> {
    call(url, &["run", "-d", "--name", "holder", "--lock", "idle", "--", "sleep", "3600"])?.status()?;
    let line = format!("{}\n", json!({ "argv": ["true"], "lock": ["idle"] }));
    let plan = dir.join("plan.jsonl");
    std::fs::write(&plan, line.repeat(WAITING))?;
    let planned = plan.to_string_lossy();
    if !call(url, &["queue", "add", "--file", &planned])?.status()?.success() {
        return Err("the runs cannot be queued".into());
    }
    let orphan = orphan(url, dir)?;
    let registry = pollster::block_on(Registry::open(url))?;
    let start = |_| pollster::block_on(registry.start(Spec::new("reports", registry.me().clone())));
    let handles: Vec<RunHandle> = (0..REPORTING).map(start).collect::<Result<_, _>>()?;
    let commands: [(&str, &[&str]); 4] = [
        ("work --slots 4", &["work", "--slots", "4"]),
        ("supervise", &["supervise"]),
        ("wait", &["wait", "holder"]),
        ("serve", &["serve", "--listen", "127.0.0.1:0"]),
    ];
    let begin =
        |(name, words): &(&'static str, &[&str])| -> Outcome<Ended> { Ok(Ended(name, call(url, words)?.spawn()?)) };
    let processes: Vec<Ended> = commands.iter().map(begin).collect::<Outcome<_>>()?;
    std::thread::park_timeout(BEGINNING);
    let mut met = true;
    for writes in WRITES {
        met &= measure_beside(store, &handles, &processes, writes)?;
    }
    drop(processes);
    for pid in orphan {
        Command::new("kill").arg(pid).status()?;
    }
    call(url, &["cancel", "holder", "--wait"])?.status()?;
    handles.into_iter().try_for_each(|handle| pollster::block_on(handle.succeed()).map(|_| ()))?;
    pollster::block_on(registry.close());
    Ok(met)
}

/// A run whose owner was killed and whose command lives on. Another home made it, so that no supervisor adopts it. Answers
/// with the pids of its command.
fn orphan(url: &str, dir: &Path) -> Outcome<Vec<String>> {
    let elsewhere = |words: &[&str]| -> Outcome<Command> {
        let mut command = call(url, words)?;
        command.env("OUTLIVE_HOME", dir.join("other-home"));
        Ok(command)
    };
    elsewhere(&["run", "-d", "--name", "orphan", "--", "sleep", "3600"])?.status()?;
    let shown = elsewhere(&["show", "orphan", "--json"])?.stdout(Stdio::piped()).output()?.stdout;
    let shown: Value = serde_json::from_slice(&shown)?;
    let owner = shown["owner_pid"].as_u64().ok_or("the orphan has no owner")?.to_string();
    let children = std::fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap_or_default();
    Command::new("kill").args(["-9", &owner]).status()?;
    Ok(children.split_whitespace().map(Into::into).collect())
}

fn measure_beside(store: &str, handles: &[RunHandle], processes: &[Ended], writes: u64) -> Outcome<bool> {
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let used = std::thread::scope(|scope| {
        scope.spawn(|| report(handles, writes, &is_over, &written));
        let measured = || -> Outcome<Vec<(f64, f64)>> {
            let before = processes.iter().map(|process| used(process)).collect::<Outcome<Vec<_>>>()?;
            let begun = Begun::now();
            std::thread::park_timeout(WATCHED);
            let seconds = begun.ago().as_secs_f64();
            let after = processes.iter().map(|process| used(process)).collect::<Outcome<Vec<_>>>()?;
            let used = after.iter().zip(&before).map(|(after, before)| (after.0 - before.0, after.1 - before.1));
            Ok(used.map(|(time, wakeups)| (time / seconds * 100.0, wakeups / seconds)).collect())
        };
        let measured = measured();
        is_over.store(true, Ordering::SeqCst);
        measured
    })?;
    let rate = written.load(Ordering::SeqCst) as f64 / WATCHED.as_secs_f64();
    let shown = processes
        .iter()
        .zip(&used)
        .map(|(process, (processor, wakeups))| format!("{} {processor:.2} % ({wakeups:.1} wake-ups/s)", process.0));
    println!("{store}, {rate:.0} writes/s: {} (bar: {BAR} % each)", shown.collect::<Vec<_>>().join(", "));
    Ok(used.iter().all(|(processor, _)| *processor <= BAR))
}

/// Reports the progress of the runs in turn, so many times a second. Each report is a write.
fn report(handles: &[RunHandle], writes: u64, is_over: &AtomicBool, written: &AtomicU64) {
    let begun = Begun::now();
    let mut done = 0;
    while !is_over.load(Ordering::SeqCst) {
        let due = begun.ago().as_secs_f64() * writes as f64;
        if (done as f64) < due {
            let progress = Some(Progress { done: Some(done), ..Progress::default() });
            let handle = &handles[done as usize % handles.len()];
            let said = pollster::block_on(handle.report(Report { progress, ..Report::default() }));
            written.fetch_add(u64::from(said.is_ok()), Ordering::SeqCst);
            done += 1;
        } else {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

/// What a process has used so far, in seconds of a processor, and how often it was woken; a worker together with its slots.
fn used(process: &Ended) -> Outcome<(f64, f64)> {
    let mut pids = vec![process.1.id()];
    if process.0.starts_with("work") {
        let slots = slots_of(process.1.id());
        if slots.is_empty() {
            return Err("the worker has no slots".into());
        }
        pids.extend(slots);
    }
    let mut sum = (0.0, 0.0);
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            // Nanoseconds on a processor, nanoseconds waited for one, and how often it was given one.
            let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let fields: Vec<f64> = stat.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            sum.0 += fields.first().unwrap_or(&0.0) / 1e9;
            sum.1 += fields.get(2).unwrap_or(&0.0);
        }
    }
    Ok(sum)
}

/// The processes of a worker's slots: its children.
fn slots_of(worker: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{worker}/task")).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    children.collect::<String>().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
