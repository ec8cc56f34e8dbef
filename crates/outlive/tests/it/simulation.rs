//! The simulation: promises hold in many histories, a seed makes the same history twice, and planted defects are found.
#![allow(clippy::print_stdout, reason = "what was counted, and at which seed a defect was noticed, is for people")]

use std::ops::Range;

use outlive::simulation::{Counters, Fact, Plan, Planted, simulate};

/// How many histories are played by default.
const HISTORIES: u64 = 20_000;
/// Within how many of them a planted defect must be noticed.
const NOTICED_WITHIN: u64 = 2_000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("`{variable}` is not a number: {text}")))
}

/// Plays these histories with the default plan, and counts.
fn play(seeds: Range<u64>) -> Counters {
    let mut counters = Counters::default();
    for seed in seeds {
        match simulate(seed, &Plan::default()) {
            Ok(history) => counters += history.counters,
            Err(violation) => panic!("{violation}"),
        }
    }
    counters
}

#[test]
fn simulated_histories_hold() {
    if let Some(seed) = number("OUTLIVE_SIM_SEED") {
        match simulate(seed, &Plan::default()) {
            Ok(history) => println!("{history}\nseed {seed}: every promise held"),
            Err(violation) => panic!("{violation}"),
        }
        return;
    }
    let histories = number("OUTLIVE_SIM_HISTORIES").unwrap_or(HISTORIES);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let share = |thread: u64| histories * thread / threads..histories * (thread + 1) / threads;
    let counters = std::thread::scope(|scope| {
        let played: Vec<_> = (0..threads).map(|thread| scope.spawn(move || play(share(thread)))).collect();
        let mut sum = Counters::default();
        for thread in played {
            sum += thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        sum
    });
    println!("{histories} histories, 0 violations\n{counters}");
    for fact in Fact::ALL {
        assert!(counters.of(fact) > 0, "these histories prove nothing about: {}", fact.as_str());
    }
}

#[test]
fn same_seed_same_history() {
    let digest = |seed| simulate(seed, &Plan::default()).unwrap_or_else(|violation| panic!("{violation}")).digest();
    let digests: Vec<u64> = (0..200).map(digest).collect();
    assert_eq!(digests, (0..200).map(digest).collect::<Vec<u64>>());
    let different: std::collections::BTreeSet<&u64> = digests.iter().collect();
    assert_eq!(different.len(), digests.len(), "two seeds made the same history");
}

/// Defects of what owners, claims and sweeps rest on.
const OF_OWNERS: [Planted; 4] =
    [Planted::FinishWithoutEpoch, Planted::ReapWithoutRecheck, Planted::OwnWriteByEquality, Planted::BeatForgotten];
const OF_CLAIMS: [Planted; 4] =
    [Planted::ClaimWithoutRevision, Planted::ClaimPassedOver, Planted::DeadOwnerHidden, Planted::FinishForgotten];
const OF_SWEEPS: [Planted; 2] = [Planted::SweepMarkForgotten, Planted::ListingWithoutManifests];

/// Plays histories with a defect until it is noticed, for what it is.
fn notice(planted: Planted) {
    // What a sweep may delete is there only after a while.
    let steps = if OF_SWEEPS.contains(&planted) { 1_500 } else { Plan::default().steps };
    let plan = Plan { planted: Some(planted), steps };
    let violation = (0..NOTICED_WITHIN).find_map(|seed| simulate(seed, &plan).err());
    let violation = violation.unwrap_or_else(|| panic!("{planted:?} was not noticed in {NOTICED_WITHIN} histories"));
    println!("{planted:?} was noticed at seed {}: {}", violation.seed, violation.what);
    let (_, words) = Planted::ALL.into_iter().find(|(known, _)| *known == planted).unwrap();
    assert!(violation.what.contains(words), "{planted:?} was noticed as something else:\n{violation}");
    assert!(violation.to_string().contains("OUTLIVE_SIM_SEED="), "it cannot be replayed");
}

#[test]
fn planted_defects_of_owners_are_noticed() {
    OF_OWNERS.into_iter().for_each(notice);
}

#[test]
fn planted_defects_of_claims_are_noticed() {
    OF_CLAIMS.into_iter().for_each(notice);
}

#[test]
fn planted_defects_of_sweeps_are_noticed() {
    OF_SWEEPS.into_iter().for_each(notice);
}

#[test]
fn every_planted_defect_is_looked_for() {
    let looked_for: Vec<Planted> = OF_OWNERS.into_iter().chain(OF_CLAIMS).chain(OF_SWEEPS).collect();
    assert_eq!(looked_for.len(), Planted::ALL.len());
    for (planted, _) in Planted::ALL {
        assert!(looked_for.contains(&planted), "{planted:?} is in no list");
    }
}
