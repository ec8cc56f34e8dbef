//! The table of operations.

pub mod cancel;
pub mod doctor;
pub mod init;
pub mod ps;
pub mod reap;
pub mod show;
pub mod trust;
pub mod why;

use crate::operation::Operation;

/// Everything that outlive can do but run, in the order of the help.
pub const TABLE: &[Operation] = &[
    Operation::of::<ps::Ps>(),
    Operation::of::<show::Show>(),
    Operation::of::<why::Why>(),
    Operation::of::<cancel::Cancel>(),
    Operation::of::<reap::Reap>(),
    Operation::of::<init::Init>(),
    Operation::of::<trust::Trust>(),
    Operation::of::<doctor::Doctor>(),
];
