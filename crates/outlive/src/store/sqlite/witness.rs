//! What can be seen of the owners of a local registry's runs: their locks first, then their processes.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::health::{Leftovers, Sight, Witness};
use crate::process::{Evidence, Liveness, LockState, Vantage, carriers, file_id, holders, lock_state, worker_lock};
use crate::run::{Owner, Run};

pub(super) struct LocalWitness {
    pub(super) dir: OwnedFd,
    pub(super) vantage: Vantage,
    /// The names of the registry.
    pub(super) names: Vec<String>,
}

impl Witness for LocalWitness {
    fn look(&self, runs: &[&Run]) -> Vec<Sight> {
        let owner_of =
            |run: &Run| run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref())).cloned();
        let owners: Vec<Option<Owner>> = runs.iter().map(|run| owner_of(run)).collect();
        let unowned = || Liveness::Unknown("nobody owned it".into());
        let verdicts: Vec<Liveness> =
            owners.iter().map(|owner| owner.as_ref().map_or_else(unowned, |owner| self.owner(owner))).collect();
        // After the verdicts: whatever a dead owner started is there to be found by now.
        // What a run that has ended left behind is left behind, whether or not whoever owned it lives on.
        let is_looked_for = |run: &Run, verdict: &Liveness| *verdict != Liveness::Alive || run.ending().is_some();
        let any = runs.iter().zip(&verdicts).any(|(run, verdict)| is_looked_for(run, verdict));
        let carriers = if any { carriers(&self.names) } else { Default::default() };
        let mut sights = Vec::with_capacity(runs.len());
        for ((run, owner), verdict) in runs.iter().zip(owners).zip(verdicts) {
            let mut leftovers = Leftovers::default();
            if is_looked_for(run, &verdict) {
                leftovers.pids.extend(carriers.get(&run.id.to_string()).into_iter().flatten());
                self.add_holders(&mut leftovers, &super::run_files::tree_lock(run), None);
                if let Some(owner) = owner.filter(|_| verdict != Liveness::Alive) {
                    self.add_holders(&mut leftovers, &worker_lock(owner.worker), owner.identity.lock_inode);
                }
            }
            sights.push(Sight { owner: verdict, leftovers });
        }
        sights
    }
}

impl LocalWitness {
    fn owner(&self, owner: &Owner) -> Liveness {
        let identity = &owner.identity;
        let process = identity.probe(&self.vantage);
        if identity.lock_inode.is_none() || matches!(process, Liveness::Dead(Evidence::OtherBoot { .. })) {
            return process;
        }
        match (lock_state(&self.dir, &worker_lock(owner.worker), identity.lock_inode), process) {
            (LockState::Free, _) => Liveness::Dead(Evidence::LockFree),
            // Somebody holds it who inherited it; the owner itself is proven gone.
            (LockState::Held, Liveness::Dead(evidence)) => Liveness::Dead(evidence),
            (LockState::Held, _) => Liveness::Alive,
            (LockState::Unknown, process) => process,
        }
    }

    fn add_holders(&self, leftovers: &mut Leftovers, name: &Path, inode: Option<u64>) {
        if lock_state(&self.dir, name, inode) != LockState::Held {
            return;
        }
        let mut pids = file_id(&self.dir, name).map(holders).unwrap_or_default();
        leftovers.unseen |= pids.is_empty();
        leftovers.pids.append(&mut pids);
        leftovers.pids.retain(|pid| *pid != std::process::id());
        leftovers.pids.sort_unstable();
        leftovers.pids.dedup();
    }
}
