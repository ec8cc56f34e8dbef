//! The evidence ladder: what a worker's lock and its process prove together.
//!
//! The kernel frees a lock with the last process that holds it, so a lock speaks for itself in every pid namespace and
//! every container of the machine. A boot id does not: a container may show one of its own. So a held lock outranks
//! another boot id, while a pid that is proven gone in the observer's own namespace outranks a lock that was inherited.

use super::LockState;
use crate::model::owner::{Evidence, Liveness};

/// Weighs the state of a worker's lock against what a probe of its process found. The stronger evidence wins.
pub fn weigh(lock: LockState, process: Liveness) -> Liveness {
    match (lock, process) {
        (LockState::Free, _) => Liveness::Dead(Evidence::LockFree),
        // No lock survives a boot: its holder lives, and the observer reads another boot id than the holder did.
        (LockState::Held, Liveness::Dead(Evidence::OtherBoot { .. })) => Liveness::Alive,
        // Another process inherited the lock; the owner itself is proven gone.
        (LockState::Held, Liveness::Dead(evidence)) => Liveness::Dead(evidence),
        (LockState::Held, Liveness::Alive | Liveness::Unknown(_)) => Liveness::Alive,
        (LockState::Unknown, process) => process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_03_held_lock_outranks_another_boot_id_and_nothing_else() {
        let dead = Liveness::Dead;
        let other_boot = || dead(Evidence::OtherBoot { recorded: "a".into(), current: "b".into() });
        let (gone, unknown) = (dead(Evidence::NoSuchProcess { pid: 7 }), Liveness::Unknown("no /proc".into()));
        let free = dead(Evidence::LockFree);
        let ladder = [
            (LockState::Held, other_boot(), Liveness::Alive),
            (LockState::Held, unknown.clone(), Liveness::Alive),
            (LockState::Held, Liveness::Alive, Liveness::Alive),
            (LockState::Held, gone.clone(), gone.clone()),
            (LockState::Held, dead(Evidence::Zombie { pid: 7 }), dead(Evidence::Zombie { pid: 7 })),
            (LockState::Free, other_boot(), free.clone()),
            (LockState::Free, Liveness::Alive, free.clone()),
            (LockState::Free, unknown.clone(), free.clone()),
            (LockState::Free, gone.clone(), free),
            (LockState::Unknown, other_boot(), other_boot()),
            (LockState::Unknown, Liveness::Alive, Liveness::Alive),
            (LockState::Unknown, unknown.clone(), unknown),
            (LockState::Unknown, gone.clone(), gone),
        ];
        for (lock, process, outcome) in ladder {
            assert_eq!(weigh(lock, process.clone()), outcome, "{lock:?}, {process}");
        }
    }
}
