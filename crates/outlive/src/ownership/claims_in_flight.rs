//! Claims in flight: runs that the store says are this worker's and that no handle here holds yet.
//!
//! Either their claim was lost on the way, and no handle will ever hold them, or its answer is still awaited. So a first
//! suspicion is only noted, with the claims that may explain it: the run is forgotten once each of those was answered or
//! given up. Claims that were sent later explain nothing, so a worker that always claims still finds what it forgot.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::{Epoch, RunId};

/// The runs that may have been forgotten, and the claims that may explain them.
#[derive(Debug, Default)]
pub(super) struct ClaimsInFlight {
    runs: BTreeMap<RunId, Suspicion>,
    /// The claims whose answer is awaited, by number.
    taking: BTreeSet<u64>,
    /// How many claims there have been.
    takes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Suspicion {
    epoch: Epoch,
    /// How many claims there had been when it arose.
    takes: u64,
}

impl ClaimsInFlight {
    /// A claim is about to be sent. Answers with its number.
    pub(super) fn take(&mut self) -> u64 {
        let number = self.takes;
        self.takes += 1;
        self.taking.insert(number);
        number
    }

    /// The runs that a claim brought are held, or it was given up.
    pub(super) fn taken(&mut self, number: u64) {
        self.taking.remove(&number);
    }

    /// Drops the suspicion of all runs but these.
    pub(super) fn retain(&mut self, runs: &[RunId]) {
        self.runs.retain(|id, _| runs.contains(id));
    }

    /// Notes a run that is owned by this claim and not held. Answers whether no handle will ever hold it.
    pub(super) fn suspect(&mut self, run: RunId, epoch: Epoch) -> bool {
        match self.runs.get(&run).filter(|suspicion| suspicion.epoch == epoch) {
            Some(suspicion) => self.taking.first().is_none_or(|first| *first >= suspicion.takes),
            None => {
                self.runs.insert(run, Suspicion { epoch, takes: self.takes });
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::Timestamp;

    #[test]
    fn run_is_forgotten_once_every_claim_was_answered() {
        let run = RunId::draw(Timestamp::from_micros(1), &SystemEntropy);
        let mut suspects = ClaimsInFlight::default();
        let slow = suspects.take();
        assert!(!suspects.suspect(run, Epoch(1)), "a first suspicion is only noted");
        let later = suspects.take();
        assert!(!suspects.suspect(run, Epoch(1)), "the slow claim may bring it");
        suspects.taken(slow);
        assert!(suspects.suspect(run, Epoch(1)), "the later claim cannot have");
        assert!(!suspects.suspect(run, Epoch(2)), "another claim of the run is another suspicion");
        suspects.taken(later);
        suspects.retain(&[]);
        assert!(!suspects.suspect(run, Epoch(2)), "it was held meanwhile");
    }
}
