//! What to do next with a run of cool-workflow: its tasks that can be continued, and the commands that continue it.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::state::State;
use super::{STATE_LIMIT, unread};
use crate::index::record::{IndexRecord, Lifecycle};
use crate::util::files;

/// A task that waits or runs. Its fields are copied from the run's state; what is absent there is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextTask {
    /// Its id.
    pub id: Option<Value>,
    /// The phase it belongs to.
    pub phase: Option<Value>,
    /// `pending` or `running`.
    pub status: Option<Value>,
    /// The file that describes it.
    pub task_path: Option<Value>,
}

/// A command to type, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextAction {
    /// The command.
    pub command: String,
    /// What it does.
    pub reason: String,
}

/// What to do next with a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextSteps {
    /// The id of the run.
    pub run_id: String,
    /// Its repository.
    pub repo: String,
    /// How it stands, its marks included.
    pub lifecycle: Lifecycle,
    /// How it stands, its marks left out.
    pub derived_lifecycle: Lifecycle,
    /// There is something left to do in it.
    pub resumable: bool,
    /// The tasks that can be continued, in the order of the state.
    pub next_tasks: Vec<NextTask>,
    /// What to type.
    pub next_actions: Vec<NextAction>,
}

impl NextSteps {
    /// Reads the state of a run, and says what to do next with it. At most `limit` tasks are named.
    pub fn of(record: &IndexRecord, limit: usize) -> Result<Self, String> {
        let dir = record.run_dir.as_deref().ok_or("it has no directory")?;
        let handle = files::open_dir(rustix::fs::CWD, Path::new(dir)).map_err(|error| error.to_string())?;
        let bytes = files::read(&handle, Path::new("state.json"), STATE_LIMIT);
        let bytes = bytes.map_err(|error| unread(&error, STATE_LIMIT))?;
        let next_tasks = State::next_tasks(&bytes, limit)?;
        let derived = record.derived_lifecycle;
        let is_over = matches!(derived, Lifecycle::Completed | Lifecycle::Failed);
        // cool-workflow looks a run up by its directory.
        let name = dir.rsplit('/').next().unwrap_or(&record.run_id);
        Ok(Self {
            run_id: record.run_id.clone(),
            repo: record.repo.clone(),
            lifecycle: record.lifecycle,
            derived_lifecycle: derived,
            resumable: !next_tasks.is_empty() || !is_over,
            next_actions: actions((name, &record.repo), derived, next_tasks.len()),
            next_tasks,
        })
    }
}

/// The commands that cool-workflow itself answers with.
fn actions((name, repo): (&str, &str), derived: Lifecycle, tasks: usize) -> Vec<NextAction> {
    let action = |command: String, reason: &str| NextAction { command, reason: reason.into() };
    if tasks > 0 {
        return vec![
            action(
                format!("cw dispatch {name} --cwd {repo}"),
                &format!("Continue {tasks} pending/running task(s) from durable state."),
            ),
            action(
                format!("cw multi-agent step {name} --cwd {repo}"),
                "Take one deterministic host step without spawning agents.",
            ),
        ];
    }
    if derived == Lifecycle::Failed {
        let reason = "Run terminated as failed with no runnable tasks; rerun as a new linked run.";
        return vec![action(format!("cw run rerun {name}"), reason)];
    }
    vec![action(format!("cw status {name} --cwd {repo} --json"), "No runnable tasks remain; inspect status.")]
}
