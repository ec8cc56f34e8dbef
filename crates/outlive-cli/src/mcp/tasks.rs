//! Runs as tasks of MCP: a task's id is the id of its run, and nothing is stored that is not already a run.
//!
//! Whatever server is asked, after whatever crash, reads the run and answers. A run that says by what it is known to be
//! ready is done as a task when it is ready: a server never ends.

use outlive::error::Code;
use outlive::id::RunId;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResult, ContentBlock, CreateTaskResult, DetailedTask, ErrorData, JsonObject, Task, TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use serde_json::{Map, Value, json};

use super::answer::AnswerOptions;
use super::harmless::harmless;
use super::{Desk, Tools, missing};
use crate::call::calls::Who;
use crate::call::{Failure, Operation};
use crate::operations::TABLE;

/// How many lines and bytes of output a task's result has.
const LINES: usize = 60;
const BYTES: usize = 2048;
/// After how long a client asks again, at the least and at the most, in milliseconds.
const POLL: [u64; 2] = [500, 30_000];

/// Whether a call is answered as a task: it starts a run, waits for nothing itself, and the client knows tasks.
pub fn is_wanted(operation: &Operation, input: &Map<String, Value>, context: &RequestContext<RoleServer>) -> bool {
    let knows_tasks = context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks());
    knows_tasks && operation.name == crate::exec::NAME && !input.contains_key("watch")
}

/// The operation of this name.
fn operation(name: &str) -> Result<&'static Operation, ErrorData> {
    TABLE.iter().find(|operation| operation.name == name).ok_or_else(|| missing(name))
}

fn refused(failure: &Failure) -> ErrorData {
    let message = failure.message().to_owned();
    if failure.code == Code::Forbidden {
        ErrorData::invalid_request(message, None)
    } else {
        ErrorData::invalid_params(message, None)
    }
}

/// The run that a task is. A name is no task.
fn run_of(task: &str) -> Result<String, ErrorData> {
    task.parse::<RunId>().map(|id| id.to_string()).map_err(|_| missing("task"))
}

impl<D: Desk> Tools<D> {
    /// The task that a run is which was just started.
    pub(super) async fn begin_task(&self, started: &Value, who: &Who) -> Result<CreateTaskResult, ErrorData> {
        let id = started["id"].as_str().ok_or_else(|| missing("id"))?;
        let run = self.look(id, who).await?;
        Ok(CreateTaskResult::new(described(&run, TaskStatus::Working)))
    }

    /// How a task stands, with its result where it is done.
    pub(super) async fn task(&self, task: &str, who: &Who) -> Result<DetailedTask, ErrorData> {
        let run = self.look(&run_of(task)?, who).await?;
        let payload = match run["state"].as_str() {
            Some("cancelled") => TaskPayload::Cancelled,
            Some("succeeded" | "failed" | "dead" | "interrupted") => self.result(&run, who).await,
            Some("running") if run["ready"] == true => self.result(&run, who).await,
            _ => TaskPayload::Working,
        };
        Ok(DetailedTask::new(described(&run, payload.status()), payload))
    }

    /// Asks for the end of the run that a task is.
    pub(super) async fn end_task(&self, task: &str, who: &Who) -> Result<(), ErrorData> {
        let input = json!({ "runs": [run_of(task)?], "reason": "tasks/cancel" });
        let ended = self.ask(operation("cancel")?, input, who).await;
        ended.map(|_| ()).map_err(|failure| refused(&failure))
    }

    async fn look(&self, run: &str, who: &Who) -> Result<Value, ErrorData> {
        let shown = self.ask(operation("show")?, json!({ "run": run }), who).await;
        shown.map(harmless).map_err(|failure| refused(&failure))
    }

    /// What the call answers whose run is done.
    async fn result(&self, run: &Value, who: &Who) -> TaskPayload {
        let input = json!({ "run": run["id"], "lines": LINES, "limit": BYTES, "text": true });
        let written = match operation("output") {
            Ok(output) => self.ask(output, input, who).await.ok(),
            Err(_) => None,
        };
        let output = written.map(|written| harmless(written["text"].clone()));
        let wanted = AnswerOptions::default();
        let answer = wanted.fit(wanted.pick(json!({ "run": run, "output": output })));
        let content = vec![ContentBlock::text(answer.to_string())];
        let is_well = run["state"] == "succeeded" || run["state"] == "running";
        let result = if is_well { CallToolResult::success(content) } else { CallToolResult::error(content) };
        TaskPayload::Completed { result: object(serde_json::to_value(result).unwrap_or_default()) }
    }
}

fn object(value: Value) -> JsonObject {
    if let Value::Object(fields) = value { fields } else { JsonObject::new() }
}

/// What is said of a run as a task.
fn described(run: &Value, status: TaskStatus) -> Task {
    let text = |name: &str| run[name].as_str().unwrap_or_default().to_owned();
    let task = Task::new(text("id"), status, text("created_at"), text("updated_at"));
    let ran = run["duration_ms"].as_u64().unwrap_or_default();
    task.with_status_message(message(run)).with_poll_interval_ms((ran / 10).clamp(POLL[0], POLL[1]))
}

/// How a run stands, in one line.
fn message(run: &Value) -> String {
    let progress = match (run["progress_done"].as_u64(), run["progress_total"].as_u64()) {
        (Some(done), Some(total)) => Some(format!("{done} of {total} done")),
        (Some(done), None) => Some(format!("{done} done")),
        _ => None,
    };
    let said = |name: &str| run[name].as_str().map(str::to_owned);
    let word = match run["ready"].as_bool() {
        Some(false) => Some("starting".to_owned()),
        _ => said("state"),
    };
    let health = said("health").filter(|health| health != "healthy");
    let parts = [word, health, progress, said("progress_message"), said("reason"), said("url")];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_as_a_task_in_one_line() {
        let run = json!({ "id": "r", "state": "running", "ready": false, "progress_done": 3, "progress_total": 9, "url": "http://x/" });
        let task = described(&run, TaskStatus::Working);
        assert_eq!(task.status_message.as_deref(), Some("starting; 3 of 9 done; http://x/"));
        assert_eq!(task.poll_interval_ms, Some(500));
        assert!(run_of("dev").is_err());
    }
}
