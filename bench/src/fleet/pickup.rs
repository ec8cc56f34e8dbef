//! How long a job waits until its handler begins, where workers stand by: one process, and eight.
//!
//! Jobs are made one at a time. What is measured is from right before the call that makes a job to the first line of its
//! handler, so the commit of the job is in it.

use outlive::testing::server::Server;

use super::peer::{self, Crowd, Peer};
use crate::rounds::Spread;
use crate::scratch::Outcome;

const PROCESSES: [usize; 2] = [1, 8];
const JOBS: usize = 200;
/// The pause between two jobs, in ms.
const PAUSE: &str = "15";
const SLOTS: &str = "24";

/// The middle and the hundredth longest of a round, in ms.
#[derive(Default)]
struct Waits {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// Measures all in turns.
pub(super) fn main() -> Outcome<bool> {
    let server = super::server();
    let peers = peer::all(&server)?;
    let mut all: Vec<[Waits; 2]> = peers.iter().map(|_| Default::default()).collect();
    let rounds = super::rounds(3);
    for round in 0..rounds {
        for step in 0..peers.len() {
            let place = (step + round) % peers.len();
            for (count, waits) in PROCESSES.into_iter().zip(&mut all[place]) {
                measure(&server, &peers[place], count, &format!("pickup_{round}_{count}"), waits)?;
            }
        }
    }
    println!(
        "{JOBS} jobs, one every {PAUSE} ms, ms from the call that makes one to its handler; {rounds} rounds, interleaved; load {}",
        super::load()
    );
    for (peer, by_count) in peers.iter().zip(&all) {
        println!("  {}", peer.name);
        for ((count, waits), ours) in PROCESSES.iter().zip(by_count).zip(&all[0]) {
            let ratio: Vec<f64> = ours.p50.iter().zip(&waits.p50).map(|(ours, theirs)| theirs / ours).collect();
            let ratio = Spread::of(&ratio);
            println!(
                "    {count} of them: p50 {}, p99 {}; outlive is {:.2} ({:.2}..{:.2}) times as fast at p50",
                shown(&waits.p50),
                shown(&waits.p99),
                ratio.median,
                ratio.min,
                ratio.max
            );
        }
    }
    Ok(true)
}

fn shown(values: &[f64]) -> String {
    let Spread { median, min, max, .. } = Spread::of(values);
    format!("{median:.1} ({min:.1}..{max:.1})")
}

fn measure(server: &Server, peer: &Peer, count: usize, what: &str, waits: &mut Waits) -> Outcome<()> {
    let place = peer.place(server, what);
    let mut crowd = Crowd::new();
    for _ in 0..count {
        place.start(&["work", SLOTS], &mut crowd)?;
    }
    // Whatever they do when they begin is over.
    std::thread::park_timeout(std::time::Duration::from_secs(1));
    place.call(&["add", &JOBS.to_string(), PAUSE])?;
    let mut waited = Vec::new();
    while waited.len() < JOBS {
        let trouble = || format!("{}: {} of {JOBS} jobs were begun", peer.name, waited.len());
        waited.push(crowd.picked(peer::PATIENCE).ok_or_else(trouble)?.waited as f64 / 1_000.0);
    }
    waited.sort_by(f64::total_cmp);
    waits.p50.push(waited[JOBS / 2]);
    waits.p99.push(waited[JOBS * 99 / 100]);
    Ok(())
}
