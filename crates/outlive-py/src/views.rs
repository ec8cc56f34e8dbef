//! Runs as Python reads them: what is on record, and how the run stands.

use outlive::lifecycle::health::RunStatus;
use outlive::run::{Run, State};
use serde_json::{Value, json};

/// A run that was read, as JSON. A leftover is a process that lives on although its owner is gone.
pub fn seen(seen: &RunStatus) -> Value {
    json!({
        "state": seen.state.to_string(),
        "is_over": seen.is_over(),
        "is_parked": matches!(&seen.run.state, State::Suspended(suspended) if suspended.parked),
        "health": seen.health.map(|health| health.as_str()),
        "reason": seen.reason,
        "leftovers": seen.leftovers.pids,
        "record": record(&seen.run),
    })
}

/// What is on record of a run.
pub fn record(run: &Run) -> Value {
    let mut record = serde_json::to_value(run).unwrap_or_default();
    if let Some(fields) = record.as_object_mut() {
        // It proves who made the run, and nothing else.
        fields.remove("signature");
    }
    record
}
