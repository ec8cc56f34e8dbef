//! This machine: its processes, their locks, control groups and process trees, and the user's home.
//!
//! Everything here observes or ends processes of this host. What it finds are values of [`crate::model::owner`].

pub(crate) mod attempts;
mod command;
mod fork;
mod group;
pub mod home;
mod ladder;
mod lock;
mod process;
mod tree;
mod usage;

pub use self::command::{HeldCommand, Noted};
pub(crate) use self::fork::{MadeBy, PerProcess, Writing};
pub use self::fork::{after_fork_in_child, after_fork_in_parent, before_fork};
pub use self::group::{Group, leave_group, may_have_group};
pub(crate) use self::group::{attempts_nearby, name_of};
pub use self::ladder::weigh;
pub use self::lock::{FileId, LifeLock, LockState, file_id, has_open, holders, holds, id_of, lock_state, worker_lock};
pub use self::process::{
    ATTEMPT_VARIABLE, EPOCH_VARIABLE, OUTCOME_VARIABLE, REGISTRY_ID_VARIABLE, RUN_VARIABLE, STEP_VARIABLE, read_proc,
    wait_gone,
};
pub use self::tree::{DETACHED, GONE_WITHIN, Member, Tree, carriers};
pub use self::usage::{UsageReading, collected_by, usage_below, usage_of};
