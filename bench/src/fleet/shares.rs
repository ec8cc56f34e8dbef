//! Fairness at scale: how soon runs of one share start behind many of another, and whether weights hold.

use std::collections::BTreeMap;
use std::path::Path;

use outlive::engine::claims::Claims;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use outlive::testing::server::Server;

use super::process::KIND;
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

/// How many runs one share has, unless `OUTLIVE_BENCH_RUNS` says otherwise, and how many the other.
const MANY: usize = 100_000;
const FEW: usize = 100;
/// How many runs a worker claims at once.
const SLOTS: [usize; 3] = [1, 8, 100];
/// How far the claims of a share may be from what its weight says, as a ratio.
const OFF: f64 = 0.1;
const WEIGHTS: [(&str, u32); 3] = [("one", 1), ("three", 3), ("six", 6)];
const WEIGHED: usize = 5_000;
const BATCH: usize = 500;

/// Measures, and answers whether the bars are met.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = super::server();
    let many = super::number("OUTLIVE_BENCH_RUNS", MANY);
    let url = server.fresh_url();
    let registry = pollster::block_on(Registry::open(&url))?;
    enqueue(&registry, "many", many)?;
    server.psql("VACUUM ANALYZE");
    println!("{FEW} runs of a share behind {many} of another, load {}:", super::load());
    let mut met = true;
    for slots in SLOTS {
        enqueue(&registry, "few", FEW)?;
        let (mut claims, mut waits, mut since, mut took) = (Claims::of([]), Vec::new(), 0, Vec::new());
        while waits.len() < FEW {
            let mut handles = Vec::new();
            let seconds = measure(|| {
                handles = pollster::block_on(claims.claim(&registry, slots, &|_| true))?.0;
                Ok(())
            })?;
            took.push(seconds.as_secs_f64() * 1_000.0);
            for handle in handles {
                since += 1;
                if handle.run().tenant() == "few" {
                    waits.push(since);
                    since = 0;
                }
                std::mem::forget(handle);
            }
        }
        let most = waits.iter().copied().max().unwrap_or(0);
        let is_met = most <= 2 * slots.max(1);
        let took = Spread::of(&took);
        let verdict = if is_met { "" } else { "  MISSED" };
        println!("  {slots} slots: at most {most} runs claimed for each of them (bar: {}){verdict}", 2 * slots);
        println!("    a claim takes {took} ms");
        met &= is_met;
    }
    Ok(weights(&server)? && met)
}

fn enqueue(registry: &Registry, share: &str, runs: usize) -> Outcome<()> {
    for start in (0..runs).step_by(BATCH) {
        let of = || Spec { share: share.parse().ok(), ..Spec::new(KIND, person("ada")) };
        let plan = (0..BATCH.min(runs - start)).map(|_| Planned { spec: of(), after: Vec::new() });
        pollster::block_on(registry.enqueue_all(plan.collect()))?;
    }
    Ok(())
}

/// Whether shares are claimed from as often as their weights say.
fn weights(server: &Server) -> Outcome<bool> {
    let url = server.fresh_url();
    let registry = pollster::block_on(Registry::open(&url))?;
    for (share, weight) in WEIGHTS {
        enqueue(&registry, &format!("{share}:{weight}"), WEIGHED)?;
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut claims = Claims::of([]);
    // Until the heaviest has had most of its runs.
    let goal = WEIGHED * 3 / 2;
    let mut claimed = 0;
    while claimed < goal {
        let (handles, _) = pollster::block_on(claims.claim(&registry, 8, &|_| true))?;
        claimed += handles.len();
        for handle in handles {
            *counts.entry(handle.run().tenant().to_owned()).or_default() += 1;
            std::mem::forget(handle);
        }
    }
    let total: u32 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut met = true;
    for (share, weight) in WEIGHTS {
        let ideal = claimed as f64 * f64::from(weight) / f64::from(total);
        let ratio = counts.get(share).copied().unwrap_or(0) as f64 / ideal;
        let is_met = (ratio - 1.0).abs() <= OFF;
        println!("  weight {weight}: {ratio:.3} of its part{}", if is_met { "" } else { "  MISSED" });
        met &= is_met;
    }
    Ok(met)
}
