//! Ours beside queues of one machine that people use: task-spooler, nq and pueue. One that is not installed is left out.
//!
//! They are queues with a daemon or a lock file and none survives its manager's death; ours is a registry without a
//! daemon that syncs what it says. So this tells what that costs a person at a prompt, and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outlive::id::SystemEntropy;
use outlive::registry::Registry;
use outlive::run::Spec;
use outlive::store::sqlite::Sharing;
use outlive::store::{Expect, Write};
use outlive::testing::{pending, person, stamp};
use outlive::time::{Clock, SystemClock};
use outlive::transition::enqueued;

use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const CALLS: Plan = Plan { rounds: 20, slices: 1, units: 1 };
const DRAIN: Plan = Plan { rounds: 2, slices: 1, units: 100 };
const ADD: Plan = Plan { rounds: 4, slices: 5, units: 50 };
/// The most time from a run's end to the return of `wait`, in ms.
const WAIT: f64 = 50.0;

/// One of the queues, with how each thing is said to it. Words are said by a shell.
struct Peer {
    name: &'static str,
    add: String,
    wait: Option<&'static str>,
    list: &'static str,
    fail_and_wait: Option<String>,
    environment: Vec<(&'static str, PathBuf)>,
    dir: PathBuf,
}

impl Peer {
    fn say(&self, words: &str) -> Outcome<Output> {
        let mut shell = Command::new("sh");
        shell.args(["-c", words]).current_dir(&self.dir).stdin(Stdio::null());
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(shell.output()?)
    }

    fn must(&self, words: &str) -> Outcome<()> {
        let output = self.say(words)?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{}: `{words}` failed: {told}", self.name).into()) }
    }
}

/// Measures, and answers whether `wait` returns in time.
pub fn main(dir: &Path) -> Outcome<bool> {
    let peers = peers(dir)?;
    let all = |plan: Plan, what: &str, words: &dyn Fn(&Peer) -> Option<String>| -> Outcome<()> {
        let able: Vec<(&Peer, String)> = peers.iter().filter_map(|peer| Some((peer, words(peer)?))).collect();
        let variants = able
            .iter()
            .map(|(peer, words)| {
                Variant::new(peer.name, || measure(|| (0..plan.units).try_for_each(|_| peer.must(words))))
            })
            .collect();
        let measured = interleave(plan, variants)?;
        println!("{what}, ms each:");
        for (index, (peer, _)) in able.iter().enumerate() {
            let each: Vec<f64> = measured.pairs(index, index).map(|pair| pair.0 * 1_000.0).collect();
            println!("  {:<10} {}", peer.name, Spread::of(&each));
        }
        (1..able.len()).for_each(|index| _ = measured.print_ratio(0, index, None));
        Ok(())
    };
    all(CALLS, "enqueue `true`", &|peer| Some(peer.add.clone()))?;
    all(CALLS, "enqueue `true` and wait", &|peer| Some(format!("{} && {}", peer.add, peer.wait?)))?;
    all(DRAIN, "one of 100 `true`, one after the other (ours: `outlive run -- true`)", &|peer| match peer.name {
        "outlive" => Some("outlive run -- true".into()),
        // It ends one in about 300 ms: half a minute for each round.
        "pueue" => None,
        _ => Some(format!("{} && {}", peer.add, peer.wait?)),
    })?;
    all(ADD, "one of 1,000 more", &|peer| Some(peer.add.clone()))?;
    all(CALLS, "list what was added", &|peer| Some(peer.list.into()))?;
    for peer in &peers {
        if let Some(words) = &peer.fail_and_wait {
            println!("  {}: a job that exits 7, waited for, gives {:?}", peer.name, peer.say(words)?.status.code());
        }
    }
    lists(dir)?;
    let met = wait_latency(dir)?;
    for peer in peers.iter().filter(|peer| peer.name == "pueue") {
        peer.must("pueue shutdown")?;
    }
    Ok(met)
}

fn peers(dir: &Path) -> Outcome<Vec<Peer>> {
    let home = |name: &str| -> Outcome<PathBuf> {
        let home = dir.join(name);
        std::fs::create_dir_all(&home)?;
        Ok(home)
    };
    let outlive = outlive()?;
    let mut path = std::ffi::OsString::from(outlive.parent().ok_or("it has no directory")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let ours = Peer {
        name: "outlive",
        add: "outlive run -d -- true".into(),
        wait: Some("outlive wait @last"),
        list: "outlive ps --all -n 1000",
        fail_and_wait: Some("outlive run -d -- sh -c 'exit 7' && outlive wait @last".into()),
        environment: vec![("PATH", path.into()), ("OUTLIVE_REGISTRY", format!("sqlite:{}/r", dir.display()).into())],
        dir: home("outlive")?,
    };
    let tsp = Peer {
        name: "tsp",
        add: "tsp true".into(),
        wait: Some("tsp -w"),
        list: "tsp -l",
        fail_and_wait: Some("tsp sh -c 'exit 7' && tsp -w".into()),
        environment: vec![
            ("TS_SOCKET", dir.join("tsp.socket")),
            ("TMPDIR", home("tsp")?),
            ("TS_MAXFINISHED", "2000".into()),
        ],
        dir: home("tsp")?,
    };
    let nq = Peer {
        name: "nq",
        add: "nq true".into(),
        wait: Some("nq -w"),
        list: "ls",
        fail_and_wait: Some("nq sh -c 'exit 7' && nq -w".into()),
        environment: vec![("NQDIR", home("nq")?)],
        dir: home("nq")?,
    };
    let own = |name: &str| home("pueue").map(|home| home.join(name));
    let pueue = Peer {
        name: "pueue",
        add: "pueue add -- true".into(),
        // It polls every two seconds: a round of these would take a minute.
        wait: None,
        list: "pueue status",
        fail_and_wait: Some("pueue add -- exit 7 && pueue wait --quiet".into()),
        environment: vec![
            ("HOME", home("pueue")?),
            ("XDG_CONFIG_HOME", own("config")?),
            ("XDG_DATA_HOME", own("data")?),
            ("XDG_RUNTIME_DIR", home("pueue")?),
        ],
        dir: home("pueue")?,
    };
    let mut found = vec![ours];
    for (peer, program, start) in [
        (tsp, "tsp", "tsp -S 1 >/dev/null 2>&1"),
        (nq, "nq", "true"),
        (pueue, "pueued", "pueued -d >/dev/null 2>&1 && sleep 1"),
    ] {
        if !peer.say(&format!("command -v {program}"))?.status.success() {
            println!("{} is not installed and is left out", peer.name);
        } else if let Err(error) = peer.must(start) {
            println!("{} is left out: {error}", peer.name);
        } else {
            found.push(peer);
        }
    }
    Ok(found)
}

/// How long it takes to list 1,000 and 10,000 runs.
fn lists(dir: &Path) -> Outcome<()> {
    let outlive = outlive()?;
    for (count, name) in [(1_000, "thousand"), (10_000, "ten-thousand")] {
        let path = dir.join(name);
        let registry = Registry::open_local(&path, Some(Sharing::Private))?;
        let (me, entropy) = (person("ada"), &SystemEntropy);
        for _ in 0..count / 1_000 {
            let write = |_| {
                let run = pending(Spec::new("bench", me.clone()), SystemClock.now(), entropy);
                let events = vec![enqueued(&run, &me)];
                Write { expect: Expect::Absent, run, events, ended: None, stamp: stamp(entropy) }
            };
            pollster::block_on(registry.store().commit((0..1_000).map(write).collect()))?;
        }
        let url = format!("sqlite:{}", path.display());
        let list = || {
            measure(|| {
                let mut after: Option<String> = None;
                loop {
                    let mut command = Command::new(&outlive);
                    command.args(["--registry", &url, "ps", "--all", "-n", "1000"]);
                    command.args(after.iter().map(|after| format!("--after={after}")));
                    let output = command.output()?;
                    let text = String::from_utf8(output.stdout)?;
                    // `more: outlive … --after=NEXT`
                    after = text.rsplit_once("--after=").map(|(_, next)| next.trim().to_owned());
                    if after.is_none() {
                        return if output.status.success() { Ok(()) } else { Err("`outlive ps` failed".into()) };
                    }
                }
            })
        };
        let measured = interleave(Plan { rounds: 9, slices: 1, units: 1 }, vec![Variant::new("ps", list)])?;
        let took: Vec<f64> = measured.pairs(0, 0).map(|pair| pair.0 * 1_000.0).collect();
        println!("list {count} waiting runs in pages of 1,000, ms: {}", Spread::of(&took));
    }
    Ok(())
}

/// How long after a command has nothing to wait for any more `outlive wait` returns.
fn wait_latency(dir: &Path) -> Outcome<bool> {
    let (outlive, url) = (outlive()?, format!("sqlite:{}", dir.join("waits").display()));
    let mut took = Vec::new();
    for round in 0..15 {
        let name = format!("round-{round}");
        let mut owner = Command::new(&outlive);
        owner
            .args(["--registry", &url, "run", "--name", &name, "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut owner = owner.spawn()?;
        let mut waiter = Command::new(&outlive);
        waiter.args(["--registry", &url, "wait", &name]).stdout(Stdio::null()).stderr(Stdio::null());
        // It fails for as long as the run is not on record.
        while !Command::new(&outlive).args(["--registry", &url, "show", &name]).output()?.status.success() {}
        let mut waiter = waiter.spawn()?;
        // It has begun to wait when it sleeps.
        let sleeps = |pid: u32| {
            std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|at| at.contains("poll"))
                || std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("271 "))
        };
        for _ in 0..200 {
            if sleeps(waiter.id()) {
                break;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        let taken = measure(|| {
            drop(owner.stdin.take());
            if waiter.wait()?.success() { Ok(()) } else { Err("`outlive wait` failed".into()) }
        })?;
        owner.wait()?;
        took.push(taken.as_secs_f64() * 1_000.0);
    }
    let took = Spread::of(&took);
    println!(
        "from the end of a command's input to the return of `outlive wait`, ms: {took} (bar: {WAIT} in the middle)"
    );
    Ok(took.median <= WAIT)
}
