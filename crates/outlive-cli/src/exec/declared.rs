//! The outcome that a command declares for its run, in the file that `OUTLIVE_OUTCOME` names.
//!
//! An exit status says neither which error ended the work nor that it was interrupted. A program that uses the library in
//! Python says so here, and its run ends as it would if the program owned it.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use outlive::lifecycle::{Outcome, OwnerEnd};
use outlive::registry::Registry;
use outlive::run::{Interruption, Run};
use serde::Deserialize;

/// The most bytes of a declaration that are read.
const LIMIT: u64 = 64 << 10;

/// What a command declares.
#[derive(Deserialize)]
#[serde(tag = "how", rename_all = "snake_case", deny_unknown_fields)]
enum Declared {
    Succeeded,
    Failed { error_type: String, error_message: String },
    Interrupted { signal: Option<i32>, reason: String },
}

/// Where the command of an attempt declares its outcome. Each claim has a file of its own: a process of an earlier attempt
/// declares nothing for a later one.
pub(super) fn place(registry: &Registry, run: &Run) -> Option<String> {
    path(registry, run)?.into_os_string().into_string().ok()
}

fn path(registry: &Registry, run: &Run) -> Option<PathBuf> {
    Some(registry.logs()?.path(run.id).with_file_name(format!("outcome-{}.json", run.epoch)))
}

/// What the command of an attempt has declared. A declaration that cannot be read is none: the exit status counts.
pub(super) fn take(registry: &Registry, run: &Run) -> Option<OwnerEnd> {
    let path = path(registry, run)?;
    let mut text = String::new();
    File::open(&path).ok()?.take(LIMIT).read_to_string(&mut text).ok()?;
    // What stays behind is deleted with the run.
    let _ = std::fs::remove_file(&path);
    Some(match serde_json::from_str(&text).ok()? {
        Declared::Succeeded => OwnerEnd::Finished(Outcome::SUCCEEDED),
        Declared::Failed { error_type, error_message } => {
            OwnerEnd::Finished(Outcome::Failed { error_type, error_message, permanent: false })
        }
        Declared::Interrupted { signal, reason } => OwnerEnd::Interrupted(Interruption { signal, reason }),
    })
}
