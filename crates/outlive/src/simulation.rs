//! A seeded simulation: the real registry, keeper, reaper, worker, supervisor and sweeper over a store that fails, by a
//! clock that is made up.
//!
//! One history is a handful of processes that start, claim, report, suspend, cancel, resume, reap, end and sweep a few runs,
//! while the store refuses, loses answers, delivers writes late and goes away, and processes crash, stand still and
//! have their clocks set. Everything that may vary is drawn from one seed: which task is polled next, what fails, how
//! time passes. So a history that breaks a promise can be read, and repeated as often as it takes to understand it.
//!
//! - `world` holds what the processes share, and `faulty` is the store between them and it;
//! - `processes` and `work` say what each of them does, `scheduler` who goes next, `mishaps` what befalls
//!   them;
//! - `worker`, `supervisor` and `artifacts` poll the steps of the engine's loops, which the loops themselves call;
//! - `ledger` keeps its own account of every write and beat, `rules` says what a write may do, and `promises` holds what
//!   processes learned against it. They share nothing with the code that they watch but the words of `lifecycle.rs`.

mod artifacts;
mod clock;
mod faulty;
mod history;
mod ledger;
mod mishaps;
mod planted;
mod processes;
mod promises;
mod rules;
mod scheduler;
mod supervisor;
mod work;
mod worker;
mod world;

use std::fmt;

pub use history::{Counters, Fact, History};

/// What a history is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How often a task is polled while things fail. The history goes on, without faults, until all is quiet.
    pub steps: u32,
    /// A defect that the ledger must notice.
    pub planted: Option<Planted>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { steps: 400, planted: None }
    }
}

/// Defects that real systems had, to prove that the ledger notices them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The store takes the end of a run by its id alone, no matter which worker owns it since.
    FinishWithoutEpoch,
    /// The store applies a reaper's rule to what the reaper saw, not to what is there.
    ReapWithoutRecheck,
    /// A reaper whose answer was lost takes any ended run for its own work.
    OwnWriteByEquality,
    /// The store confirms the end of a run without keeping it.
    FinishForgotten,
    /// The store gives a run to each worker that claims it from the same look at it.
    ClaimWithoutRevision,
    /// The store never offers some runs to those that claim.
    ClaimPassedOver,
    /// The store takes a worker for silent that beats.
    BeatForgotten,
    /// The store has a run wait for ever whose owner died: it hides the owner from reapers.
    DeadOwnerHidden,
    /// The store confirms the mark of a sweeper without keeping it.
    SweepMarkForgotten,
    /// The bucket lists no manifests.
    ListingWithoutManifests,
}

impl Planted {
    /// All of them, each with a part of the words by which it must be noticed.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::FinishWithoutEpoch, "fence"),
        (Self::ReapWithoutRecheck, "reaped"),
        (Self::OwnWriteByEquality, "learned that"),
        (Self::FinishForgotten, "on record"),
        (Self::ClaimWithoutRevision, "`claim` moved the epoch"),
        (Self::ClaimPassedOver, "is still pending"),
        (Self::BeatForgotten, "reaped"),
        (Self::DeadOwnerHidden, "is still running"),
        (Self::SweepMarkForgotten, "without a mark"),
        (Self::ListingWithoutManifests, "manifest names it"),
    ];
}

/// A promise that was broken, and everything that led to it.
#[derive(Debug)]
pub struct Violation {
    /// The history that did it.
    pub seed: u64,
    /// Which promise, and how.
    pub what: String,
    /// All that happened.
    pub history: History,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.history)?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(
            f,
            "replay: OUTLIVE_SIM_SEED={} cargo nextest run -p outlive --no-capture simulated_histories",
            self.seed
        )
    }
}

/// Plays one history, and checks every promise after every step of it.
pub fn simulate(seed: u64, plan: &Plan) -> Result<History, Box<Violation>> {
    let world = world::World::new(seed, plan.clone());
    let broken = scheduler::play(&world);
    let history = world.take_history();
    match broken {
        None => Ok(history),
        Some(what) => Err(Box::new(Violation { seed, what, history })),
    }
}
