//! The table of operations.

pub mod adopt;
pub mod archive;
pub mod artifact;
pub mod bulk;
pub mod cancel;
pub mod checkpoint;
pub mod completions;
pub mod delegate;
pub mod diff;
pub mod doctor;
#[cfg(test)]
mod documented;
pub mod facets;
pub mod fence;
pub mod gc;
pub mod grep;
pub mod history;
pub mod import;
pub mod init;
pub mod keys;
pub mod list;
pub mod listing;
pub mod man;
#[cfg(feature = "mcp")]
pub mod mcp_install;
pub mod output;
pub mod pause;
pub mod progress;
pub mod ps;
pub mod queue;
pub mod reap;
pub mod registry;
pub mod rerun;
pub mod result;
pub mod resume;
pub mod rm;
pub mod run;
pub mod search;
pub mod send;
pub mod service;
pub mod show;
pub mod stats;
#[cfg(feature = "object")]
pub mod sweep;
#[cfg(feature = "server")]
pub mod token;
pub mod trust;
pub mod wait;
pub mod why;
pub mod workers;

use crate::call::Operation;

/// Everything that outlive can do, in the order of the help.
pub const TABLE: &[Operation] = &[
    Operation::of::<run::Run>(),
    Operation::of::<ps::Ps>(),
    Operation::of::<show::Show>(),
    Operation::of::<why::Why>(),
    Operation::of::<wait::Wait>(),
    Operation::of::<output::Output>(),
    Operation::of::<grep::Grep>(),
    Operation::of::<result::GetResult>(),
    Operation::of::<diff::Diff>(),
    Operation::of::<facets::Facets>(),
    Operation::of::<keys::Keys>(),
    Operation::of::<send::Send>(),
    Operation::of::<cancel::Cancel>(),
    Operation::of::<adopt::Adopt>(),
    Operation::of::<resume::Resume>(),
    Operation::of::<resume::Unpark>(),
    Operation::of::<pause::Pause>(),
    Operation::of::<pause::Unpause>(),
    Operation::of::<rerun::Rerun>(),
    Operation::of::<reap::Reap>(),
    #[cfg(feature = "object")]
    Operation::of::<sweep::Sweep>(),
    Operation::of::<archive::Archive>(),
    Operation::of::<archive::Unarchive>(),
    Operation::of::<rm::Rm>(),
    Operation::of::<search::Search>(),
    Operation::of::<history::History>(),
    #[cfg(feature = "postgres")]
    Operation::of::<history::export::Export>(),
    Operation::of::<list::List>(),
    Operation::of::<stats::Stats>(),
    Operation::of::<gc::Gc>(),
    Operation::of::<registry::Add>(),
    Operation::of::<registry::Remove>(),
    Operation::of::<registry::List>(),
    Operation::of::<registry::Refresh>(),
    Operation::of::<registry::Show>(),
    Operation::of::<queue::Add>(),
    Operation::of::<queue::List>(),
    Operation::of::<queue::Show>(),
    Operation::of::<queue::edit::Edit>(),
    Operation::of::<queue::entry::Drain>(),
    Operation::of::<queue::entry::Beat>(),
    Operation::of::<queue::entry::Done>(),
    Operation::of::<queue::entry::Release>(),
    Operation::of::<queue::Cancel>(),
    Operation::of::<workers::Workers>(),
    Operation::of::<service::Install>(),
    Operation::of::<service::Remove>(),
    Operation::of::<service::Status>(),
    Operation::of::<progress::Progress>(),
    Operation::of::<checkpoint::Set>(),
    Operation::of::<checkpoint::Get>(),
    Operation::of::<artifact::Add>(),
    Operation::of::<artifact::Manifest>(),
    Operation::of::<fence::Check>(),
    #[cfg(feature = "mcp")]
    Operation::of::<mcp_install::Install>(),
    #[cfg(feature = "server")]
    Operation::of::<token::Create>(),
    #[cfg(feature = "server")]
    Operation::of::<token::List>(),
    #[cfg(feature = "server")]
    Operation::of::<token::Revoke>(),
    Operation::of::<init::Init>(),
    Operation::of::<import::Import>(),
    #[cfg(feature = "object")]
    Operation::of::<registry::check::Check>(),
    Operation::of::<trust::Trust>(),
    Operation::of::<doctor::Doctor>(),
    Operation::of::<completions::Completions>(),
    Operation::of::<man::Man>(),
];
