//! How soon a supervisor has a run go on whose owner was killed, and what it costs while nothing happens.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outlive::id::{RunId, Stamp, SystemEntropy, WorkerId};
use outlive::lifecycle::{self, Action, Fence, apply, enqueued};
use outlive::owner::Identity;
use outlive::registry::Registry;
use outlive::run::{Owner, Run, Spec};
use outlive::store::sqlite::Sharing;
use outlive::store::{Expect, Write};
use serde_json::Value;

use crate::rounds::Spread;
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const ROUNDS: usize = 30;
/// The most that half of the runs may take to go on, in ms.
const RESUMED: f64 = 250.0;
/// How many runs an idle supervisor knows.
pub const KNOWN: usize = 100_000;
/// The most memory, in MB, and the most of a processor, in hundredths, that it may take.
const MEMORY: f64 = 100.0;
const PROCESSOR: f64 = 1.0;
/// How long an idle supervisor is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// How long anything may take that should happen soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is ended with the benchmark.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures, and answers whether the bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let resumed = resumed(dir)?;
    let idle = idle(dir)?;
    Ok(resumed && idle)
}

fn call(url: &str, words: &[&str]) -> Outcome<Command> {
    let mut command = Command::new(outlive()?);
    command.args(["--registry", url]).args(words).stdin(Stdio::null());
    Ok(command)
}

fn supervise(url: &str) -> Outcome<Ended> {
    Ok(Ended(call(url, &["supervise"])?.stdout(Stdio::null()).spawn()?))
}

/// Waits until something is so, without a clock: as often as fits into what it may take.
fn until(what: &str, mut so: impl FnMut() -> bool) -> Outcome<()> {
    let pause = Duration::from_micros(500);
    for _ in 0..PATIENCE.as_micros() / pause.as_micros() {
        if so() {
            return Ok(());
        }
        std::thread::park_timeout(pause);
    }
    Err(format!("waited in vain for {what}").into())
}

fn resumed(dir: &Path) -> Outcome<bool> {
    let url = format!("sqlite:{}", dir.join("resumed").display());
    call(&url, &["run", "--", "true"])?.status()?;
    let _supervisor = supervise(&url)?;
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        let mark = dir.join(format!("resumed-{round}"));
        let script = format!("[ $OUTLIVE_ATTEMPT -gt 1 ] && exec touch {}; exec sleep 60", mark.display());
        let name = format!("round-{round}");
        let words = ["run", "-d", "--name", &name, "--resume-on", "crash", "--", "sh", "-c", &script];
        call(&url, &words)?.stdout(Stdio::null()).status()?;
        let shown: Value = serde_json::from_slice(&call(&url, &["show", &name, "--json"])?.output()?.stdout)?;
        let owner = shown["owner_pid"].as_u64().ok_or("the run has no owner")?.to_string();
        let children = || std::fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap_or_default();
        // Long enough for the supervisor to have seen its owner, as it would have seen that of any run worth resuming.
        std::thread::park_timeout(Duration::from_millis(300));
        let killed: Vec<String> =
            std::iter::once(owner.clone()).chain(children().split_whitespace().map(Into::into)).collect();
        let seconds = measure(|| {
            Command::new("kill").arg("-9").args(&killed).status()?;
            until("the run to go on", || mark.exists())
        })?;
        took.push(seconds.as_secs_f64() * 1_000.0);
    }
    let took = Spread::of(&took);
    println!("owner killed → its command runs again, ms: {took} (bar: {RESUMED} at the median)");
    Ok(took.median <= RESUMED)
}

fn idle(dir: &Path) -> Outcome<bool> {
    let path = dir.join("idle");
    fill(&path)?;
    let supervisor = supervise(&format!("sqlite:{}", path.display()))?;
    let pid = supervisor.0.id();
    // It has looked at everything once.
    std::thread::park_timeout(Duration::from_secs(5));
    let before = ticks(pid)?;
    std::thread::park_timeout(WATCHED);
    // A tick is a hundredth of a second.
    let processor = (ticks(pid)? - before) as f64 / WATCHED.as_secs_f64();
    let memory = peak(pid)?;
    println!(
        "idle with {KNOWN} known runs: {memory:.1} MB at most (bar: {MEMORY}), {processor:.2} % of a processor (bar: {PROCESSOR})"
    );
    Ok(memory <= MEMORY && processor <= PROCESSOR)
}

/// What a process has used of processors, in ticks.
fn ticks(pid: u32) -> Outcome<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or("no such process")?.1.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// The most memory that a process has had, in MB.
fn peak(pid: u32) -> Outcome<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel does not say")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1_024.0)
}

/// Makes a registry of runs that have ended.
pub fn fill(path: &Path) -> Outcome<()> {
    const BATCH: usize = 1_000;
    let registry = Registry::open_local(path, Some(Sharing::Private))?;
    let (me, now) = (registry.me().clone(), registry.clock().now());
    let spec = Arc::new(Spec::new("command", me.clone()));
    for _ in 0..KNOWN / BATCH {
        let mut writes = Vec::new();
        for _ in 0..BATCH {
            let worker = WorkerId::draw(now, &SystemEntropy);
            let waiting = Run::new(RunId::draw(now, &SystemEntropy), spec.clone(), None, now);
            let owner =
                Owner { worker, identity: Identity::own(), lease: spec.policy.lease, heard: Default::default() };
            let claimed =
                apply(&waiting, &Action::Claim { owner, early: false, leftovers: Default::default() }, &me, now)?;
            let fence = Fence { worker, epoch: claimed.run.epoch };
            let finish = Action::Finish { fence, outcome: lifecycle::Outcome::SUCCEEDED, exit: None };
            let ended = apply(&claimed.run, &finish, &me, now)?;
            let events = vec![enqueued(&waiting, &me), claimed.event, ended.event];
            writes.push(Write {
                expect: Expect::Absent,
                run: ended.run,
                events,
                ended: None,
                stamp: Stamp::draw(&SystemEntropy),
            });
        }
        pollster::block_on(registry.store().commit(writes))?;
    }
    pollster::block_on(registry.close());
    Ok(())
}
