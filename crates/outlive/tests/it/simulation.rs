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

fn noticed(planted: Planted, as_what: &str) {
    let plan = Plan { planted: Some(planted), ..Plan::default() };
    let violation = (0..NOTICED_WITHIN).find_map(|seed| simulate(seed, &plan).err());
    let violation = violation.unwrap_or_else(|| panic!("{planted:?} was not noticed in {NOTICED_WITHIN} histories"));
    println!("{planted:?} was noticed at seed {}: {}", violation.seed, violation.what);
    assert!(violation.what.contains(as_what), "noticed as something else:\n{violation}");
    assert!(violation.to_string().contains("OUTLIVE_SIM_SEED="), "it cannot be replayed");
}

#[test]
fn a_finish_without_an_epoch_is_noticed() {
    noticed(Planted::FinishWithoutEpoch, "fence");
}

#[test]
fn a_reap_without_a_second_look_is_noticed() {
    noticed(Planted::ReapWithoutRecheck, "reaped");
}

#[test]
fn an_own_write_recognised_by_equality_is_noticed() {
    noticed(Planted::OwnWriteByEquality, "learned that");
}
