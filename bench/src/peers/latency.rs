//! How long after a job's end whoever waits for it is told.

use std::path::Path;

use super::queues::Queue;
use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::Outcome;
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 9, slices: 1, units: 1 };
/// The most that it may take us in the middle, in ms.
const WAIT: f64 = 50.0;

/// Measures, and answers whether ours is told in time.
pub fn main(dir: &Path, queues: &[Queue]) -> Outcome<bool> {
    let able: Vec<(&Queue, &str)> = queues.iter().filter_map(|queue| Some((queue, queue.wait?))).collect();
    let one = |queue: &Queue, wait: &str| -> Outcome<std::time::Duration> {
        let pipe = dir.join(format!("{}.pipe", queue.name));
        let _ = std::fs::remove_file(&pipe);
        queue.must(&format!("mkfifo {}", pipe.display()))?;
        // It ends with its input.
        queue.must(&queue.add(&format!("cat {}", pipe.display())))?;
        let mut worker = queue.drain.map(|drain| queue.begin(drain)).transpose()?;
        // Opened as soon as the job has.
        let input = std::fs::OpenOptions::new().write(true).open(&pipe)?;
        let mut waiter = queue.begin(&format!("exec {wait}"))?;
        begins_to_wait(waiter.id());
        let took = measure(|| {
            drop(input);
            if waiter.wait()?.success() { Ok(()) } else { Err(format!("{}: `{wait}` failed", queue.name).into()) }
        })?;
        if let Some(worker) = &mut worker {
            worker.wait()?;
        }
        Ok(took)
    };
    let variants = able.iter().map(|(queue, wait)| Variant::new(queue.name, || one(queue, wait))).collect();
    let measured = interleave(PLAN, variants)?;
    println!("from the end of a job to the return of who waits for it, ms:");
    let mut met = true;
    for (index, (queue, _)) in able.iter().enumerate() {
        let took: Vec<f64> = measured.pairs(index, index).map(|pair| pair.0 * 1_000.0).collect();
        let took = Spread::of(&took);
        let bar = if index == 0 { format!("  bar {WAIT} in the middle") } else { String::new() };
        println!("  {:<10} {took}{bar}", queue.name);
        met &= index > 0 || took.median <= WAIT;
    }
    (1..able.len()).for_each(|index| _ = measured.print_ratio(0, index, None));
    Ok(met)
}

/// Returns when a process that was started to wait sleeps: it is found asleep in the same call several times in a row.
fn begins_to_wait(pid: u32) {
    const LOOKS: usize = 400;
    const ENOUGH: usize = 20;
    let mut last = (String::new(), 0);
    for _ in 0..LOOKS {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        let call = call.split(' ').next().unwrap_or_default().to_owned();
        let asleep = call.parse::<u32>().is_ok();
        last = if asleep && call == last.0 { (call, last.1 + 1) } else { (call, 0) };
        if last.1 >= ENOUGH {
            return;
        }
    }
}
