//! A PostgreSQL that fails over while eight workers work: what was acknowledged, and what is left of it.
//!
//! The server that is written to is killed with its machine, paused, or cut off from the other machines, in turns. Under
//! synchronous replication nothing that was acknowledged may be lost. Under asynchronous replication it may, and is counted. Under
//! both no run may have two owners at a time or two ends. Needs root, Patroni 4 on the path, and `etcd-server` and
//! `iptables` of Debian.
//!
//! `OUTLIVE_FAILOVER_ROUNDS` says how often each is done (default 20), `OUTLIVE_FAILOVER` names one replication alone.

mod cluster;
mod promises;
pub mod workers;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::Filter;
use outlive::id::RunId;
use outlive::page::Page;
use outlive::policy::{OrphanPolicy, Policy, Retry};
use outlive::registry::{Planned, Registry};
use outlive::run::{Spec, StateName};
use outlive::testing::person;

use self::cluster::{Cluster, MACHINES, Replication};
use self::promises::Findings;
use self::workers::{KIND, Workers};
use crate::scratch::Outcome;
use crate::time::Begun;

const WORKERS: usize = 8;
/// Set in the process that has namespaces of its own.
const APART_VARIABLE: &str = "OUTLIVE_FAILOVER_APART";
/// How many runs are enqueued at once, and how often.
const BATCH: usize = 4;
const EVERY: Duration = Duration::from_millis(100);
/// How long is worked before a fault, after the failover, and after the machine has returned.
const WORKED: Duration = Duration::from_secs(3);
/// How long a failover may take, and how long the queue may take to become empty at the end.
const FAILED_OVER_WITHIN: Duration = Duration::from_secs(90);
const DRAINED_WITHIN: Duration = Duration::from_secs(300);

/// What happens to the machine that is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
    Partition,
}

/// Measures, and answers whether the promises are kept.
pub fn main(_: &Path) -> Outcome<bool> {
    if std::env::var_os(APART_VARIABLE).is_none() {
        let apart = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let status = Command::new("unshare")
            .args(apart)
            // The shell collects processes whose parents were killed: a server takes one that is not for a running one.
            .args(["sh", "-c", "\"$0\" failover; exit $?"])
            .arg(std::env::current_exe()?)
            .env(APART_VARIABLE, "1")
            .status()?;
        return match status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(format!("it ended with {status}").into()),
        };
    }
    let rounds = std::env::var("OUTLIVE_FAILOVER_ROUNDS").map_or(Ok(20), |rounds| rounds.parse())?;
    let only = std::env::var("OUTLIVE_FAILOVER").ok();
    Cluster::lay_network()?;
    let mut is_kept = true;
    for (name, replication) in [("synchronous", Replication::Synchronous), ("asynchronous", Replication::Asynchronous)]
    {
        if only.as_deref().is_none_or(|only| only == name) {
            is_kept &= measure(name, replication, rounds)?;
        }
    }
    Ok(is_kept)
}

/// A run that is executed again if its owner is gone.
fn spec() -> Spec {
    let retry = Retry { on_interrupt: true, max_reaps: 1_000, ..Retry::default() };
    let policy = Policy { orphans: OrphanPolicy::Requeue, retry, ..Policy::default() };
    Spec { policy, ..Spec::new(KIND, person("ada")) }
}

/// Enqueues runs all the time, and notes which were acknowledged.
#[derive(Default)]
struct Enqueuer {
    acknowledged: Mutex<BTreeSet<RunId>>,
    refused: AtomicUsize,
    is_over: AtomicBool,
}

impl Enqueuer {
    fn enqueue(&self, registry: &Registry) {
        while !self.is_over.load(Ordering::Relaxed) {
            let plan = (0..BATCH).map(|_| Planned { spec: spec(), after: Vec::new() }).collect();
            match pollster::block_on(registry.enqueue_all(plan)) {
                Ok(runs) => self.acknowledged().extend(runs.iter().map(|run| run.id)),
                Err(_) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
            }
            std::thread::park_timeout(EVERY);
        }
    }

    fn acknowledged(&self) -> std::sync::MutexGuard<'_, BTreeSet<RunId>> {
        self.acknowledged.lock().unwrap_or_else(|held| held.into_inner())
    }
}

fn measure(name: &str, replication: Replication, rounds: usize) -> Outcome<bool> {
    let scratch = tempfile::Builder::new().prefix("outlive-failover-").tempdir()?;
    // Servers run as another user, who passes through it.
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755))?;
    let cluster = Cluster::start(&scratch.path().join("cluster"), replication)?;
    let registry = Arc::new(pollster::block_on(Registry::open(&cluster.url()))?);
    let workers = Workers::start(&cluster.url(), WORKERS)?;
    let enqueuer = Arc::new(Enqueuer::default());
    let enqueuing = {
        let (enqueuer, registry) = (enqueuer.clone(), registry.clone());
        std::thread::spawn(move || enqueuer.enqueue(&registry))
    };
    for fault in [Fault::Kill, Fault::Pause, Fault::Partition] {
        let mut outages = Vec::new();
        for round in 0..rounds {
            let outage = torment(&cluster, &workers, &enqueuer, fault)
                .map_err(|error| format!("{name}, {fault:?}, round {round}: {error}"))?;
            outages.push(outage.as_secs_f64());
        }
        outages.sort_by(f64::total_cmp);
        let (shortest, longest) = (outages.first().unwrap_or(&0.0), outages.last().unwrap_or(&0.0));
        println!(
            "{name}, {fault:?}: {rounds} failovers, without an acknowledged end for {:.1} s ({shortest:.1}..{longest:.1})",
            outages.get(outages.len() / 2).unwrap_or(&0.0)
        );
    }
    enqueuer.is_over.store(true, Ordering::Relaxed);
    enqueuing.join().map_err(|_| "the enqueuer has panicked")?;
    wait_until_drained(&registry)?;
    let acknowledged = workers.stop()?;
    let enqueued = std::mem::take(&mut *enqueuer.acknowledged());
    let found = Findings::look(&registry, &enqueued, &acknowledged)?;
    println!(
        "{name}: {} runs acknowledged, {} enqueues refused, {} writes of owners acknowledged; in the store {} runs, {} claims; \
         lost: {} runs, {} checkpoints, {} ends; executed to an end twice: {}; broken histories: {}",
        enqueued.len(),
        enqueuer.refused.load(Ordering::Relaxed),
        acknowledged.len(),
        found.runs,
        found.claims,
        found.lost_runs,
        found.lost_checkpoints,
        found.lost_ends,
        found.executed_twice,
        found.broken.len()
    );
    found.broken.iter().take(10).for_each(|broken| println!("  {broken}"));
    (0..MACHINES).try_for_each(|machine| Cluster::signal(machine, "KILL"))?;
    let may_lose = replication == Replication::Asynchronous;
    Ok(found.broken.is_empty() && (may_lose || found.lost() == 0 && found.executed_twice == 0))
}

/// Does one thing to the leader, waits for another leader, and has the machine return. Answers how long no write of an owner
/// was acknowledged.
fn torment(cluster: &Cluster, workers: &Workers, enqueuer: &Enqueuer, fault: Fault) -> Outcome<Duration> {
    let leader = cluster.wait_until_whole()?;
    let others: Vec<usize> = (0..MACHINES).filter(|machine| *machine != leader).collect();
    std::thread::park_timeout(WORKED);
    match fault {
        Fault::Kill => Cluster::signal(leader, "KILL")?,
        Fault::Pause => Cluster::signal(leader, "STOP")?,
        Fault::Partition => Cluster::set_apart(leader, true)?,
    }
    let began = Begun::now();
    while Cluster::leader(&others).is_none() {
        if began.ago() > FAILED_OVER_WITHIN {
            return Err("no other machine leads".into());
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    // Writes that were under way on the old leader may still be heard: what counts is a run that was made on the new one.
    let (runs, writes) = (enqueuer.acknowledged().len(), workers.count());
    while enqueuer.acknowledged().len() == runs || workers.count() == writes {
        if began.ago() > FAILED_OVER_WITHIN {
            return Err("nothing is acknowledged after the failover".into());
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let outage = began.ago();
    std::thread::park_timeout(WORKED);
    match fault {
        Fault::Kill => cluster.boot(leader)?,
        Fault::Pause => Cluster::signal(leader, "CONT")?,
        Fault::Partition => Cluster::set_apart(leader, false)?,
    }
    std::thread::park_timeout(WORKED);
    Ok(outage)
}

fn wait_until_drained(registry: &Registry) -> Outcome<()> {
    let states = BTreeSet::from([StateName::Pending, StateName::Running]);
    let left = Filter { states: Some(states), ..Filter::default() };
    let began = Begun::now();
    loop {
        let listing = pollster::block_on(registry.store().list(&left, &Page { limit: 1, ..Page::default() }));
        if listing.is_ok_and(|listing| listing.records.is_empty()) {
            return Ok(());
        }
        if began.ago() > DRAINED_WITHIN {
            return Err(format!("the queue is not empty after {DRAINED_WITHIN:?}").into());
        }
        std::thread::park_timeout(Duration::from_millis(500));
    }
}
