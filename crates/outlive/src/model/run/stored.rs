//! A run as it is read back: state by state, each under the name it is written by.
//!
//! What is written by flattening one struct into another can be read the same way, but serde then first keeps
//! everything as it comes, in pieces, and a list reads thousands of runs.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Archived, CancelRequest, Ending, Pending, Progress, Run, Running, Spec, State, Suspended, Swept, Usage};
use crate::model::id::{Epoch, RunId};
use crate::model::time::Timestamp;

#[derive(Deserialize)]
struct StoredRun {
    id: RunId,
    spec: Arc<Spec>,
    #[serde(default)]
    signature: Option<String>,
    epoch: Epoch,
    attempt: u32,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    pending: Option<Pending>,
    #[serde(default)]
    running: Option<Running>,
    #[serde(default)]
    suspended: Option<Suspended>,
    #[serde(default)]
    ended: Option<Ending>,
    #[serde(default)]
    cancel: Option<Box<CancelRequest>>,
    #[serde(default)]
    progress: Option<Box<Progress>>,
    #[serde(default)]
    usage: Option<Arc<Usage>>,
    #[serde(default)]
    checkpoint: Option<Value>,
    #[serde(default)]
    result: Option<Arc<Value>>,
    #[serde(default)]
    artifacts: Vec<String>,
    #[serde(default)]
    manifest_ref: Option<String>,
    #[serde(default)]
    reaps: u32,
    #[serde(default)]
    failures: u32,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(default)]
    archived: Option<Box<Archived>>,
    #[serde(default)]
    swept: Option<Box<Swept>>,
    #[serde(default)]
    copied: bool,
    #[serde(default)]
    foreign: bool,
}

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = StoredRun::deserialize(deserializer)?;
        let state = match (stored.pending, stored.running, stored.suspended, stored.ended) {
            (Some(pending), None, None, None) => State::Pending(pending),
            (None, Some(running), None, None) => State::Running(running),
            (None, None, Some(suspended), None) => State::Suspended(suspended),
            (None, None, None, Some(ending)) => State::Ended(ending),
            (None, None, None, None) => return Err(D::Error::custom("it does not say how it stands")),
            _ => return Err(D::Error::custom("it says in two ways how it stands")),
        };
        Ok(Self {
            id: stored.id,
            spec: stored.spec,
            signature: stored.signature,
            epoch: stored.epoch,
            attempt: stored.attempt,
            state,
            priority: stored.priority,
            cancel: stored.cancel,
            progress: stored.progress,
            usage: stored.usage,
            checkpoint: stored.checkpoint,
            result: stored.result,
            artifacts: stored.artifacts,
            manifest_ref: stored.manifest_ref,
            reaps: stored.reaps,
            failures: stored.failures,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            archived: stored.archived,
            swept: stored.swept,
            copied: stored.copied,
            foreign: stored.foreign,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stands_in_exactly_one_way() {
        let json = |states: &str| {
            let spec = r#"{"kind":"test","created_by":{"user":"ada","host":"here","pid":1}}"#;
            let times = r#""created_at":"2026-11-15T09:30:00Z","updated_at":"2026-11-15T09:30:00Z""#;
            let id = "01890000-0000-7000-8000-000000000000";
            format!(r#"{{"id":"{id}","spec":{spec},"epoch":0,"attempt":1,{states}"later":{{}},{times}}}"#)
        };
        let read = |states: &str| serde_json::from_str::<Run>(&json(states)).map_err(|error| error.to_string());
        let pending = r#""pending":{"since":"2026-11-15T09:30:00Z"},"#;
        let suspended =
            r#""suspended":{"since":"2026-11-15T09:30:00Z","started_at":"2026-11-15T09:30:00Z","reason":"x"},"#;
        assert!(matches!(read(pending).unwrap().state, State::Pending(_)));
        assert!(matches!(read(suspended).unwrap().state, State::Suspended(_)));
        assert!(read("").unwrap_err().contains("does not say how it stands"));
        assert!(read(&format!("{pending}{suspended}")).unwrap_err().contains("in two ways"));
    }
}
