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
const DRAIN: Plan = Plan { rounds: 10, slices: 1, units: 100 };
/// pueue looks every two seconds.
const SLOW_WAITS: Plan = Plan { rounds: 5, slices: 1, units: 1 };
/// pueue takes half a minute for a round.
const SLOW_DRAIN: Plan = Plan { rounds: 2, slices: 1, units: 100 };

/// Measures, and answers whether `wait` returns in time.
pub fn main(dir: &Path) -> Outcome<bool> {
    let mut queues = queues::all(dir)?;
    let measured = rows(dir, &mut queues);
    queues::end(&mut queues);
    measured
}

fn rows(dir: &Path, queues: &mut [Queue]) -> Outcome<bool> {
    let all: Vec<&Queue> = queues.iter().collect();
    compare(&all, CALLS, "enqueue `true`", &|queue| Some(format!("exec {}", queue.add("true"))))?;
    settle(queues)?;
    let waited = |queue: &Queue| Some(queue.both(&queue.add("true"), queue.wait?));
    let (brisk, slow) = by_pace(queues);
    let called_for = "`true` added, done by whoever is called for it, and waited for";
    compare(&brisk, CALLS, called_for, &waited)?;
    compare(&slow, SLOW_WAITS, called_for, &waited)?;
    queues.iter_mut().try_for_each(Queue::serve)?;
    let (brisk, slow) = by_pace(queues);
    compare(&slow, CALLS, "`true` added, done and on record", &done)?;
    for (queues, waits, drain) in [(&brisk, CALLS, DRAIN), (&slow, SLOW_WAITS, SLOW_DRAIN)] {
        compare(queues, waits, "`true` added and waited for", &waited)?;
        compare(queues, waits, "the same, in one call where one does both", &|queue| queue.see_through("true"))?;
        let one = "one of 100 `true`, added and done one after the other";
        compare_all(queues, drain, one, &|queue| Some(queue.both(&queue.add_each(drain.units), queue.wait?)))?;
        let one = "the same, added in one call where one adds many";
        compare_all(queues, drain, one, &|queue| Some(queue.both(&queue.add_many(drain.units), queue.wait?)))?;
    }
    for queue in &*queues {
        if let Some(words) = queue.wait.map(|wait| queue.both(&queue.add(queue.failing), wait)) {
            println!("  {}: a job that exits 7, waited for, gives {:?}", queue.name, queue.say(&words)?.status.code());
        }
    }
    let in_time = latency::main(dir, queues)?;
    backlog::main(dir, queues)?;
    Ok(in_time)
}

/// Ours beside those that take milliseconds, and beside the one that takes seconds, which are not to wait for it.
fn by_pace(queues: &[Queue]) -> (Vec<&Queue>, Vec<&Queue>) {
    let is_slow = |queue: &&Queue| queue.name == "pueue";
    let brisk = queues.iter().filter(|queue| !is_slow(queue)).collect();
    (brisk, queues.iter().take(1).chain(queues.iter().filter(is_slow)).collect())
}

/// The words that return when a job that was added is on record as done. tsp and nq tell no sooner than by waiting.
fn done(queue: &Queue) -> Option<String> {
    match queue.name {
        "pueue" => Some(format!(
            "id=$({}) && until pueue status --json status=success | grep -q \"\\\"$id\\\":\"; do :; done",
            queue.add("true").replace("pueue add", "pueue add --print-task-id")
        )),
        "outlive" => Some(queue.both(&queue.add("true"), queue.wait?)),
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
fn compare(queues: &[&Queue], plan: Plan, what: &str, words: &dyn Fn(&Queue) -> Option<String>) -> Outcome<()> {
    measure_each(queues, plan, what, words, &|queue, words| {
        measure(|| (0..plan.units).try_for_each(|_| queue.must(words)))
    })
}

/// Has each of them do the same, all units in one call.
fn compare_all(queues: &[&Queue], plan: Plan, what: &str, words: &dyn Fn(&Queue) -> Option<String>) -> Outcome<()> {
    measure_each(queues, plan, what, words, &|queue, words| measure(|| queue.must(words)))
}

type Slice<'a> = &'a dyn Fn(&Queue, &str) -> Outcome<std::time::Duration>;

fn measure_each(
    queues: &[&Queue],
    plan: Plan,
    what: &str,
    words: &dyn Fn(&Queue) -> Option<String>,
    slice: Slice<'_>,
) -> Outcome<()> {
    let able: Vec<(&Queue, String)> = queues.iter().filter_map(|queue| Some((*queue, words(queue)?))).collect();
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
