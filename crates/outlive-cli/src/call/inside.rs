//! Inside a run: which run, and by which claim, the commands mean that a run's own processes call.

use clap::Args;
use outlive::discovery;
use outlive::error::Error;
use outlive::host::RUN_VARIABLE;
pub use outlive::host::{ATTEMPT_VARIABLE, EPOCH_VARIABLE, STEP_VARIABLE};
use outlive::id::{Epoch, RunId};

use crate::call::Context;

/// The run that a call speaks for.
#[derive(Debug, Default, Args)]
pub struct Which {
    /// The id of the run [default: the run that this process belongs to]
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
}

/// The attempt that a call speaks for.
#[derive(Debug, Default, Args)]
pub struct Claim {
    #[command(flatten)]
    pub which: Which,
    /// The epoch of the attempt [default: that of the attempt that this process belongs to]
    #[arg(long, value_name = "N")]
    pub epoch: Option<u64>,
}

/// What the environment of a run's process says. A server's own says nothing of its clients.
fn own<T>(read: impl FnOnce() -> Result<Option<T>, Error>, context: &Context) -> Result<Option<T>, Error> {
    if context.is_served() { Ok(None) } else { read() }
}

fn outside(context: &Context) -> Error {
    Error::Invalid(if context.is_served() {
        "say which attempt is meant: `run` and `epoch`, as OUTLIVE_RUN_ID and OUTLIVE_EPOCH have them inside a run"
            .into()
    } else {
        format!(
            "this is not inside a run: {RUN_VARIABLE} and {EPOCH_VARIABLE} are not set; start it with `outlive run -- COMMAND`"
        )
    })
}

/// The step that this process belongs to. It only says where another is recorded: one that makes no sense is none.
pub fn step(context: &Context) -> Option<RunId> {
    let read = || Ok(std::env::var(STEP_VARIABLE).ok().and_then(|id| id.parse().ok()));
    own(read, context).ok().flatten()
}

impl Which {
    /// The run that is named, or that this process belongs to.
    pub fn run(&self, context: &Context) -> Result<RunId, Error> {
        match &self.run {
            Some(id) => id.parse().map_err(|error| Error::Invalid(format!("{error}"))),
            None => own(discovery::own_run, context)?.ok_or_else(|| outside(context)),
        }
    }
}

impl Claim {
    /// The attempt that is named, or that this process belongs to.
    pub fn attempt(&self, context: &Context) -> Result<(RunId, Epoch), Error> {
        let id = self.which.run(context)?;
        let epoch = match self.epoch {
            Some(epoch) => Some(Epoch(epoch)),
            // The epoch of this process says nothing of another run.
            None if self.which.run.is_some() => None,
            None => own(discovery::own_epoch, context)?,
        };
        Ok((id, epoch.ok_or_else(|| outside(context))?))
    }
}
