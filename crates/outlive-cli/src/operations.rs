//! The table of operations.

pub mod archive;
pub mod artifact;
pub mod cancel;
pub mod checkpoint;
pub mod completions;
pub mod doctor;
pub mod fence;
pub mod init;
pub mod man;
pub mod output;
pub mod progress;
pub mod ps;
pub mod queue;
pub mod reap;
pub mod resume;
pub mod service;
pub mod show;
pub mod token;
pub mod trust;
pub mod wait;
pub mod why;
pub mod workers;

use crate::operation::Operation;

/// Everything that outlive can do but run, in the order of the help.
pub const TABLE: &[Operation] = &[
    Operation::of::<ps::Ps>(),
    Operation::of::<show::Show>(),
    Operation::of::<why::Why>(),
    Operation::of::<wait::Wait>(),
    Operation::of::<output::Output>(),
    Operation::of::<cancel::Cancel>(),
    Operation::of::<resume::Resume>(),
    Operation::of::<resume::Unpark>(),
    Operation::of::<reap::Reap>(),
    Operation::of::<archive::Archive>(),
    Operation::of::<archive::Unarchive>(),
    Operation::of::<queue::Add>(),
    Operation::of::<queue::List>(),
    Operation::of::<queue::Show>(),
    Operation::of::<queue::Cancel>(),
    Operation::of::<workers::Workers>(),
    Operation::of::<service::Install>(),
    Operation::of::<service::Remove>(),
    Operation::of::<service::Status>(),
    Operation::of::<progress::Progress>(),
    Operation::of::<checkpoint::Set>(),
    Operation::of::<checkpoint::Get>(),
    Operation::of::<artifact::Add>(),
    Operation::of::<fence::Check>(),
    Operation::of::<token::Create>(),
    Operation::of::<token::List>(),
    Operation::of::<token::Revoke>(),
    Operation::of::<init::Init>(),
    Operation::of::<trust::Trust>(),
    Operation::of::<doctor::Doctor>(),
    Operation::of::<completions::Completions>(),
    Operation::of::<man::Man>(),
];
