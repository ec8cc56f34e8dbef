//! How long after `kill -9` of a worker its job is begun by another, with the times that each has by default.
//!
//! Several processes hold a job each and are killed one after the other, a little apart, so that each is at another point
//! between two of its beats. All peers are measured at the same time: they only wait.

use std::time::Duration;

use outlive::testing::server::Server;

use super::peer::{self, Crowd, Peer};
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::now_micros;

/// How many are killed of each.
const VICTIMS: usize = 5;
/// The time between two of them.
const APART: Duration = Duration::from_millis(700);
/// The longest that anybody is waited for, unless the environment says otherwise.
const PATIENCE: u64 = 420;

/// Measures all at once.
pub(super) fn main() -> Outcome<bool> {
    let server = super::server();
    let peers = peer::all(&server)?;
    let patience = std::env::var("OUTLIVE_BENCH_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(PATIENCE);
    let patience = Duration::from_secs(patience);
    println!("{VICTIMS} killed of each, s from the kill to the handler of another; load {}", super::load());
    std::thread::scope(|scope| {
        for peer in &peers {
            let profiles: &[&str] = if peer.name == peer::OURS { &["default", "fast"] } else { &["default"] };
            for profile in profiles {
                let server = &server;
                scope.spawn(move || {
                    let name = format!("{} ({profile})", peer.name);
                    match measure(server, peer, profile, patience) {
                        Ok(took) if took.len() == VICTIMS => {
                            let Spread { median, min, max, .. } = Spread::of(&took);
                            println!("  {name:<42} {median:.1} ({min:.1}..{max:.1})");
                        }
                        Ok(took) => {
                            println!("  {name:<42} {} of {VICTIMS} within {} s", took.len(), patience.as_secs())
                        }
                        Err(error) => println!("  {name:<42} could not be measured: {error}"),
                    }
                });
            }
        }
    });
    Ok(true)
}

/// How long it took for each that was taken over in time, in seconds.
fn measure(server: &Server, peer: &Peer, profile: &str, patience: Duration) -> Outcome<Vec<f64>> {
    let place = peer.place(server, &format!("reclaim_{profile}"));
    let mut victims = Vec::new();
    for _ in 0..VICTIMS {
        let mut victim = Crowd::new();
        place.start(&["hold", "1", profile], &mut victim)?;
        place.call(&["add", "1", "0"])?;
        let begun = victim.picked(peer::PATIENCE).ok_or("a job was not begun")?;
        victims.push((victim, begun.mark));
    }
    let mut survivor = Crowd::new();
    place.start(&["hold", &(2 * VICTIMS).to_string(), profile], &mut survivor)?;
    let mut killed = Vec::new();
    for (victim, mark) in victims {
        std::thread::park_timeout(APART);
        drop(victim);
        killed.push((mark, now_micros()));
    }
    let mut took = Vec::new();
    while took.len() < VICTIMS {
        let Some(picked) = survivor.picked(patience) else { break };
        let at = killed.iter().find(|(mark, _)| *mark == picked.mark).ok_or("an unknown job was begun")?.1;
        took.push((picked.mark + picked.waited).saturating_sub(at) as f64 / 1e6);
    }
    Ok(took)
}
