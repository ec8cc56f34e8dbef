//! The queue of cool-workflow, as its home has it. It is read and never changed: `cw queue drain` hands out its entries.

use serde::Serialize;
use serde_json::Value;

use super::source::Problem;
use super::sources::{cool_workflow_registry, read};
use crate::util::files;

/// The file of the queue.
const QUEUE: &str = "queue.json";

/// An entry of the queue of cool-workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PeerEntry {
    /// Its id there.
    pub id: String,
    /// `pending`, `ready`, `drained` or another word of cool-workflow.
    pub status: String,
    /// The app to run.
    pub app: Option<String>,
    /// The workflow to run.
    pub workflow: Option<String>,
    /// The run to continue.
    pub run: Option<String>,
    /// The repository it is about.
    pub repo: Option<String>,
    /// What was noted with it.
    pub note: Option<String>,
    /// Lower is handed out first.
    pub priority: i64,
    /// When it was added, as cool-workflow says it.
    pub enqueued_at: Option<String>,
}

/// The entries of the queue of cool-workflow in the order in which it hands them out, or what is wrong with its file.
pub fn peer_queue() -> Result<Vec<PeerEntry>, Problem> {
    let Some(registry) = cool_workflow_registry() else { return Ok(Vec::new()) };
    let path = registry.join(QUEUE);
    if path.symlink_metadata().is_err() {
        return Ok(Vec::new());
    }
    let problem = |reason: String| Problem { what: path.display().to_string(), reason };
    let dir = files::open_dir(rustix::fs::CWD, &registry).map_err(|error| problem(error.to_string()))?;
    let bytes = read(&dir, QUEUE).map_err(problem)?;
    let file: Value = serde_json::from_slice(&bytes).map_err(|error| problem(format!("not understood: {error}")))?;
    let Value::Array(entries) = &file["entries"] else {
        return Err(problem("not understood: its `entries` are no list".into()));
    };
    let mut entries: Vec<PeerEntry> = entries.iter().filter_map(entry).collect();
    let key = |entry: &PeerEntry| (entry.priority, entry.enqueued_at.clone(), entry.id.clone());
    entries.sort_by_key(key);
    Ok(entries)
}

fn entry(entry: &Value) -> Option<PeerEntry> {
    let text = |field: &str| entry[field].as_str().map(str::to_owned);
    #[allow(clippy::cast_possible_truncation, reason = "a priority beyond 64 bits is as good as the largest")]
    let priority = entry["priority"].as_f64().map_or(0, |priority| priority as i64);
    Some(PeerEntry {
        id: text("id")?,
        status: text("status").unwrap_or_else(|| "pending".into()),
        app: text("appId"),
        workflow: text("workflowId"),
        run: text("runId"),
        repo: text("repo"),
        note: text("note"),
        priority,
        enqueued_at: text("enqueuedAt"),
    })
}
