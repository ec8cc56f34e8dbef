//! A thousand jobs behind one that holds the only slot: what each takes to be added, what they cost while they wait, and
//! what it takes to list them.
//!
//! Once for each queue, one after the other: whoever keeps a process for every waiting job would slow the others down.

use std::path::Path;

use super::queues::Queue;
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

const MANY: usize = 1_000;
const LISTS: usize = 9;
/// Whoever is full by then may wait for ever.
const SECONDS: usize = 120;

/// Measures. It holds nobody to anything.
pub fn main(dir: &Path, queues: &[Queue]) -> Outcome<()> {
    println!("{MANY} `true` behind a job that holds the only slot:");
    queues.iter().try_for_each(|queue| one(dir, queue))
}

fn one(dir: &Path, queue: &Queue) -> Outcome<()> {
    let (pipe, count) = (dir.join(format!("{}.slot", queue.name)), dir.join(format!("{}.added", queue.name)));
    queue.must(&format!("mkfifo {}", pipe.display()))?;
    queue.must(&queue.add(&format!("cat {}", pipe.display())))?;
    // Opened as soon as the job has.
    let input = std::fs::OpenOptions::new().write(true).open(&pipe)?;
    let before = queue.processes()?;
    let words = format!(
        "timeout {SECONDS} sh -c 'i=0; while [ $i -lt {MANY} ] && {} >/dev/null 2>&1; do i=$((i+1)); echo $i >{}; done'",
        queue.add("true"),
        count.display()
    );
    // One that is full says so.
    let took = measure(|| queue.say(&words).map(drop))?;
    let added: usize = std::fs::read_to_string(&count)?.trim().parse()?;
    let processes = queue.processes()?.saturating_sub(before);
    let list = || Ok(measure(|| queue.must(queue.list))?.as_secs_f64() * 1_000.0);
    let lists: Vec<f64> = (0..LISTS).map(|_| list()).collect::<Outcome<_>>()?;
    let each = took.as_secs_f64() * 1_000.0 / added as f64;
    println!(
        "  {:<10} {added} added, {each:.2} ms each; {processes} processes more; listed in {} ms",
        queue.name,
        Spread::of(&lists)
    );
    drop(input);
    match (queue.name, queue.wait) {
        // Nobody waits for minutes until it has done them; it is ended.
        ("pueue" | "tsp", _) | (_, None) => Ok(()),
        (_, Some(wait)) => queue.must(wait),
    }
}
