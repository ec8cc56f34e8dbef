//! Inside a run: what the environment says to the commands that a run's own processes call.

use outlive::error::Error;
use outlive::id::{Epoch, RunId};
use outlive::process::RUN_VARIABLE;

/// The variable that holds the number of the attempt.
pub const ATTEMPT_VARIABLE: &str = "OUTLIVE_ATTEMPT";
/// The variable that holds the fence of the attempt.
pub const EPOCH_VARIABLE: &str = "OUTLIVE_EPOCH";

/// The run that this process belongs to, and the epoch of the attempt that started it.
pub fn inside() -> Result<(RunId, Epoch), Error> {
    let read = |variable| std::env::var(variable).ok().filter(|value: &String| !value.is_empty());
    let (Some(id), Some(epoch)) = (read(RUN_VARIABLE), read(EPOCH_VARIABLE)) else {
        return Err(Error::Invalid(format!(
            "this is not inside a run: {RUN_VARIABLE} and {EPOCH_VARIABLE} are not set; start it with `outlive run -- COMMAND`"
        )));
    };
    let id = id.parse().map_err(|error| Error::Invalid(format!("{RUN_VARIABLE}: {error}")))?;
    let epoch = epoch.parse().map_err(|_| Error::Invalid(format!("{EPOCH_VARIABLE}: `{epoch}` is not a number")))?;
    Ok((id, Epoch(epoch)))
}
