//! What can be seen of the owners of a local registry's runs: their locks first, then their processes.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::host::attempts::{group, tree_lock_of};
use crate::host::{LockState, carriers, file_id, holders, lock_state, weigh, worker_lock};
use crate::lifecycle::health::{Observation, ProcessObserver};
use crate::model::id::RunId;
use crate::model::owner::LiveProcesses;
use crate::model::owner::{HostContext, Liveness};
use crate::model::run::{Owner, Run};
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::util::files;

/// The lock that is held as long as a process serves the registry.
pub(super) const SERVED_LOCK: &str = "workers/served.lock";
/// For how long one statement counts that remote heartbeats can arrive. It is repeated several times as often.
pub const HEARD_WITHIN: Duration = Duration::from_secs(3);

pub(super) struct LocalWitness {
    pub(super) dir: OwnedFd,
    pub(super) vantage: HostContext,
    /// The names of the registry.
    pub(super) names: Vec<String>,
}

impl ProcessObserver for LocalWitness {
    fn look(&self, runs: &[&Run]) -> Vec<Observation> {
        let owner_of =
            |run: &Run| run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref())).cloned();
        let owners: Vec<Option<Owner>> = runs.iter().map(|run| owner_of(run)).collect();
        let locks = Locks::list(&self.dir, owners.len());
        let unowned = || Liveness::Unknown("it has no owner".into());
        let livenesses: Vec<Liveness> =
            owners.iter().map(|owner| owner.as_ref().map_or_else(unowned, |owner| self.owner(owner, &locks))).collect();
        // After the livenesses: whatever a dead owner started is there to be found by now.
        // What a run that has ended left behind is left behind, whether or not its owner lives on.
        let is_looked_for = |run: &Run, liveness: &Liveness| *liveness != Liveness::Alive || run.ending().is_some();
        let any = runs.iter().zip(&livenesses).any(|(run, liveness)| is_looked_for(run, liveness));
        let carriers = if any { carriers(&self.names) } else { Default::default() };
        let is_far = |owner: &Owner| owner.identity.is_far();
        let is_served = owners.iter().flatten().any(is_far) && is_served(&self.dir);
        let mut observations = Vec::with_capacity(runs.len());
        for ((run, owner), liveness) in runs.iter().zip(owners).zip(livenesses) {
            let mut leftovers = LiveProcesses::default();
            let is_unheard = owner.as_ref().is_some_and(is_far) && !is_served;
            if is_unheard && run.owner().is_some() {
                // No process serves, so no remote heartbeat can arrive: that remote owners are silent says nothing.
                leftovers.unseen = true;
            } else if is_looked_for(run, &liveness) {
                leftovers.pids.extend(carriers.get(&run.id.to_string()).into_iter().flatten());
                if let Some(attempt) = run.started_attempt() {
                    self.add_holders(&mut leftovers, &tree_lock_of(run.id, attempt), None);
                    self.add_members(&mut leftovers, run.id, attempt);
                }
                let owner = owner.filter(|owner| liveness != Liveness::Alive && locks.may_have(owner));
                if let Some(owner) = owner {
                    self.add_holders(&mut leftovers, &worker_lock(owner.worker), owner.identity.lock_inode);
                }
            }
            observations.push(Observation { owner: liveness, leftovers });
        }
        observations
    }

    fn look_at_owners(&self, owners: &[Owner]) -> Vec<Liveness> {
        let locks = Locks::list(&self.dir, owners.len());
        owners.iter().map(|owner| self.owner(owner, &locks)).collect()
    }
}

/// Whether remote heartbeats can arrive. A server that was stopped, or whose machine slept, has not said so.
fn is_served(dir: &OwnedFd) -> bool {
    let said = rustix::fs::statat(dir, SERVED_LOCK, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    let said =
        said.map(|found| Timestamp::from_micros(found.st_mtime * 1_000_000 + found.st_mtime_nsec as i64 / 1_000));
    said.is_ok_and(|said| SystemClock.now().since(said) <= HEARD_WITHIN)
        && lock_state(dir, Path::new(SERVED_LOCK), None) == LockState::Held
}

/// From so many runs on it is cheaper to list the locks of the workers than to look for each.
const MANY: usize = 16;

/// The locks of workers that were there when they were listed. The owner of a run had one before the run was read, so
/// that one which is not listed is gone.
struct Locks(Option<HashSet<String>>);

impl Locks {
    fn list(dir: &OwnedFd, runs: usize) -> Self {
        let names = |_| files::open_dir(dir, Path::new("workers")).and_then(|workers| files::names(&workers)).ok();
        Self(Some(runs).filter(|runs| *runs >= MANY).and_then(names).map(|names| names.into_iter().collect()))
    }

    fn may_have(&self, owner: &Owner) -> bool {
        let is_listed = |names: &HashSet<String>| {
            worker_lock(owner.worker)
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| names.contains(name))
        };
        self.0.as_ref().is_none_or(is_listed)
    }
}

impl LocalWitness {
    fn owner(&self, owner: &Owner, locks: &Locks) -> Liveness {
        let identity = &owner.identity;
        let process = identity.probe(&self.vantage);
        if identity.lock_inode.is_none() || !locks.may_have(owner) {
            return process;
        }
        weigh(lock_state(&self.dir, &worker_lock(owner.worker), identity.lock_inode), process)
    }

    fn add_holders(&self, leftovers: &mut LiveProcesses, name: &Path, inode: Option<u64>) {
        if lock_state(&self.dir, name, inode) != LockState::Held {
            return;
        }
        let mut pids = file_id(&self.dir, name).map(holders).unwrap_or_default();
        leftovers.unseen |= pids.is_empty();
        leftovers.pids.append(&mut pids);
        sort_pids(leftovers);
    }

    /// With the processes in the control group of a run's attempt.
    fn add_members(&self, leftovers: &mut LiveProcesses, run: RunId, attempt: u32) {
        if let Some(group) = group(&self.dir, run, attempt) {
            let (mut pids, unseen) = group.members();
            leftovers.unseen |= unseen;
            leftovers.pids.append(&mut pids);
            sort_pids(leftovers);
        }
    }
}

fn sort_pids(leftovers: &mut LiveProcesses) {
    leftovers.pids.retain(|pid| *pid != std::process::id());
    leftovers.pids.sort_unstable();
    leftovers.pids.dedup();
}
