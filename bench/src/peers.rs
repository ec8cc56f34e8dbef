//! Ours beside queues of one machine that people use: task-spooler, nq and pueue. One that is not installed is left out.
//!
//! They are queues with a daemon or a lock file and none survives its manager's death; ours is a registry that needs no
//! daemon and syncs what it says. So this tells what that costs a person at a prompt, and nothing else. Where something is
//! to be done as it is added, `outlive work` stands by, as the servers of tsp and pueue do; nq has a process of its own
//! stand by for every job.

mod backlog;
mod latency;
mod queues;

use std::path::Path;

use self::queues::Queue;
use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::Outcome;
use crate::time::measure;

const CALLS: Plan = Plan { rounds: 20, slices: 1, units: 1 };
/// pueue looks every two seconds.
const WAITS: Plan = Plan { rounds: 5, slices: 1, units: 1 };
/// pueue takes half a minute for a round.
const DRAIN: Plan = Plan { rounds: 2, slices: 1, units: 100 };

/// Measures, and answers whether `wait` returns in time.
pub fn main(dir: &Path) -> Outcome<bool> {
    let mut queues = queues::all(dir)?;
    let measured = rows(dir, &mut queues);
    queues::end(&mut queues);
    measured
}

fn rows(dir: &Path, queues: &mut [Queue]) -> Outcome<bool> {
    compare(queues, CALLS, "enqueue `true`", &|queue| Some(format!("exec {}", queue.add("true"))))?;
    settle(queues)?;
    compare(queues, WAITS, "`true` added, done by whoever is called for it, and waited for", &|queue| {
        Some(both(&queue.add("true"), queue.drain, queue.wait?))
    })?;
    queues.iter_mut().try_for_each(Queue::serve)?;
    compare(queues, CALLS, "`true` added, done and on record", &done)?;
    compare(queues, WAITS, "`true` added and waited for", &|queue| {
        Some(both(&queue.add("true"), queue.drain, queue.wait?))
    })?;
    compare_all(queues, DRAIN, "one of 100 `true`, added and done one after the other", &|queue| {
        let adds =
            format!("i=0; while [ $i -lt {} ]; do {} >/dev/null; i=$((i+1)); done", DRAIN.units, queue.add("true"));
        Some(both(&adds, queue.drain, queue.wait?))
    })?;
    for queue in &*queues {
        let words = queue.wait.map(|wait| both(&queue.add(queue.failing), queue.drain, wait));
        if let Some(words) = words {
            println!("  {}: a job that exits 7, waited for, gives {:?}", queue.name, queue.say(&words)?.status.code());
        }
    }
    let in_time = latency::main(dir, queues)?;
    backlog::main(dir, queues)?;
    Ok(in_time)
}

/// Adds, has it done where nobody does it otherwise, and waits.
fn both(add: &str, drain: Option<&str>, wait: &str) -> String {
    // Whoever drains may well say that a job failed.
    let drain = drain.map(|drain| format!("({drain} || true) && ")).unwrap_or_default();
    format!("{add} && {drain}{wait}")
}

/// The words that return when a job that was added is on record as done. tsp and nq tell no sooner than by waiting.
fn done(queue: &Queue) -> Option<String> {
    match queue.name {
        "pueue" => Some(format!(
            "id=$({}) && until pueue status --json status=success | grep -q \"\\\"$id\\\":\"; do :; done",
            queue.add("true").replace("pueue add", "pueue add --print-task-id")
        )),
        "outlive" => Some(both(&queue.add("true"), queue.drain, queue.wait?)),
        _ => None,
    }
}

/// Waits until everything is done, so that what follows is not measured beside it.
fn settle(queues: &[Queue]) -> Outcome<()> {
    queues.iter().try_for_each(|queue| match (queue.drain, queue.wait) {
        (Some(drain), _) => queue.must(drain),
        (None, Some(wait)) => queue.must(wait),
        (None, None) => Ok(()),
    })
}

/// Has each of them do the same, one unit after the other.
fn compare(queues: &[Queue], plan: Plan, what: &str, words: &dyn Fn(&Queue) -> Option<String>) -> Outcome<()> {
    measure_each(queues, plan, what, words, &|queue, words| {
        measure(|| (0..plan.units).try_for_each(|_| queue.must(words)))
    })
}

/// Has each of them do the same, all units in one call.
fn compare_all(queues: &[Queue], plan: Plan, what: &str, words: &dyn Fn(&Queue) -> Option<String>) -> Outcome<()> {
    measure_each(queues, plan, what, words, &|queue, words| measure(|| queue.must(words)))
}

type Slice<'a> = &'a dyn Fn(&Queue, &str) -> Outcome<std::time::Duration>;

fn measure_each(
    queues: &[Queue],
    plan: Plan,
    what: &str,
    words: &dyn Fn(&Queue) -> Option<String>,
    slice: Slice<'_>,
) -> Outcome<()> {
    let able: Vec<(&Queue, String)> = queues.iter().filter_map(|queue| Some((queue, words(queue)?))).collect();
    let variants = able.iter().map(|(queue, words)| Variant::new(queue.name, || slice(queue, words))).collect();
    let measured = interleave(plan, variants)?;
    println!("{what}, ms each:");
    for (index, (queue, _)) in able.iter().enumerate() {
        let each: Vec<f64> = measured.pairs(index, index).map(|pair| pair.0 * 1_000.0).collect();
        println!("  {:<10} {}", queue.name, Spread::of(&each));
    }
    (1..able.len()).for_each(|index| _ = measured.print_ratio(0, index, None));
    Ok(())
}
