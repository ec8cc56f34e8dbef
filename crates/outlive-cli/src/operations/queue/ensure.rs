//! A worker for what was queued, where none is there.

use std::ffi::OsString;

use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::registry::{Enqueued, Registry};

use crate::exec::detach::Starting;
use crate::lookup::serving::is_served;
use crate::operations::run::collect;
use crate::workers::work;

/// Starts a worker in the background if no worker or supervisor serves one of these runs. It ends when nothing is left
/// that waits for a worker alone.
pub async fn ensure_worker(registry: &Registry, runs: &[Enqueued]) -> Result<(), Error> {
    for added in runs {
        if !is_served(registry, &added.run).await? {
            let words = ["outlive", "--registry", registry.url(), work::NAME, "--drain"].map(OsString::from);
            let failed = |error| Error::Invalid(format!("it is queued, but no worker can be started: {error}"));
            let worker = Starting::begin(&words, &SigSet::empty()).map_err(failed)?;
            collect(worker.pid);
            return Ok(());
        }
    }
    Ok(())
}
