//! Runs as tasks of MCP: a task's id is the id of its run, and nothing is stored that is not already a run.
//!
//! Whatever server is asked, after whatever crash, reads the run and answers. A run that says by what it is known to be
//! ready is done as a task when it is ready: a server never ends.

use std::time::Duration;

use outlive::error::Code;
use outlive::id::RunId;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResult, ContentBlock, CreateTaskResult, DetailedTask, ErrorCode, ErrorData, InputRequests, InputResponses,
    JsonObject, ServerNotification, Task, TaskPayload, TaskStatus, TaskStatusNotification,
};
use rmcp::service::RequestContext;
use serde_json::{Map, Value, json};

use super::answer::AnswerOptions;
use super::harmless::harmless;
use super::{Desk, Tools, missing, operation};
use crate::call::calls::Who;
use crate::call::{Failure, Operation};

/// How many lines and bytes of output a task's result has.
const LINES: usize = 60;
const BYTES: usize = 2048;
/// After how long a client asks again, at the least and at the most, in milliseconds.
const POLL: [u64; 2] = [500, 30_000];
/// For how long a task is waited for before it is looked at again: a run that is suspended has not ended.
const LOOK: &str = "2s";
/// How often a task is looked at for a token, whose few calls at a time are not spent on waiting.
const LOOK_FOR_TOKEN: Duration = Duration::from_secs(1);
/// What is done with a run that waits for a person, and how a client is asked for it.
const UNPARK: &str = "unpark";
const RESUME: &str = "resume";
const NEXT: &str = "next";
const RETRY: &str = "retry";
const CONTINUE: &str = "continue";
const CANCEL: &str = "cancel";

/// Whether a call is answered as a task: it starts a run, waits for nothing itself, and the client knows tasks.
pub fn is_wanted(operation: &Operation, input: &Map<String, Value>, context: &RequestContext<RoleServer>) -> bool {
    let knows_tasks = context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks());
    knows_tasks && operation.name == crate::exec::NAME && !input.contains_key("watch")
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
pub(super) fn run_of(task: &str) -> Result<String, ErrorData> {
    task.parse::<RunId>().map(|id| id.to_string()).map_err(|_| missing("task"))
}

impl<D: Desk> Tools<D> {
    /// The task that a run is which was just started. A client of an earlier protocol, which cannot subscribe to it, is
    /// notified of its end.
    pub(super) async fn begin_task(
        &self,
        started: &Value,
        context: &RequestContext<RoleServer>,
    ) -> Result<CreateTaskResult, ErrorData> {
        let (id, who) = (started["id"].as_str().ok_or_else(|| missing("id"))?.to_owned(), self.who(context));
        let run = self.look(&id, &who).await?;
        if context.protocol_version().is_some_and(|version| version.has_initialize())
            && let Ok(turn) = self.notifying.clone().try_acquire_owned()
        {
            let (tools, peer) = (self.of_session(), context.peer.clone());
            tokio::spawn(async move {
                let _turn = turn;
                let mut known = None;
                while let Some(now) = tools.changed_task(&id, known, &who).await {
                    known = Some(now.status());
                    let is_done = now.status().is_terminal();
                    let notification = TaskStatusNotification::new(now.into());
                    let sent = peer.send_notification(ServerNotification::TaskStatusNotification(notification)).await;
                    if is_done || sent.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(CreateTaskResult::new(described(&run, TaskStatus::Working)))
    }

    /// Waits until a task may have changed. None where it cannot be waited for.
    pub(super) async fn wait_for_task(&self, task: &str, who: &Who) -> Option<()> {
        if who.user.is_some() {
            tokio::time::sleep(LOOK_FOR_TOKEN).await;
            return Some(());
        }
        let input = json!({ "runs": [task], "ready": true, "timeout": LOOK });
        let waited = self.ask(operation("wait").ok()?, input, who).await;
        match waited {
            Ok(_) => Some(()),
            // Others wait already, and make room in time.
            Err(failure) if failure.code == Code::Unavailable || failure.code == Code::Throttled => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some(())
            }
            Err(_) => None,
        }
    }

    /// How a task stands, with its result where it is done.
    pub(super) async fn task(&self, task: &str, who: &Who) -> Result<DetailedTask, ErrorData> {
        let run = self.look(&run_of(task)?, who).await?;
        let payload = match run["state"].as_str() {
            Some("cancelled") => TaskPayload::Cancelled,
            // Its owner is gone, and with it the outcome.
            Some("dead") => TaskPayload::Failed { error: lost(&run) },
            Some("succeeded" | "failed" | "interrupted") => self.result(&run, who).await,
            Some("running") if run["ready"] == true => self.result(&run, who).await,
            Some("suspended") if waits_for_a_person(&run) => {
                TaskPayload::InputRequired { input_requests: question(&run) }
            }
            _ => TaskPayload::Working,
        };
        Ok(DetailedTask::new(described(&run, payload.status()), payload))
    }

    /// Asks for the end of the run that a task is. One that has ended stays as it is.
    pub(super) async fn end_task(&self, task: &str, who: &Who) -> Result<(), ErrorData> {
        let input = json!({ "runs": [run_of(task)?], "reason": "tasks/cancel" });
        match self.ask(operation("cancel")?, input, who).await {
            Err(failure) if failure.code != Code::Refused => Err(refused(&failure)),
            _ => Ok(()),
        }
    }

    /// Takes the answer to what a task asks for. Answers to anything else are ignored.
    pub(super) async fn answer_task(&self, task: &str, said: &InputResponses, who: &Who) -> Result<(), ErrorData> {
        let run = self.look(&run_of(task)?, who).await?;
        let Some(said) = said.get(&key(&run)).filter(|_| waits_for_a_person(&run)) else { return Ok(()) };
        let input = json!({ "runs": [run["id"]] });
        let verbs: &[&str] = match (said["action"].as_str(), said["content"][NEXT].as_str()) {
            (Some("accept"), Some(RETRY)) if can(&run, UNPARK) => &[UNPARK, RESUME],
            (Some("accept"), Some(CONTINUE)) if can(&run, RESUME) => &[RESUME],
            (Some("accept"), Some(CANCEL)) | (Some("decline"), _) => &[CANCEL],
            // It was put off.
            _ => &[],
        };
        for verb in verbs {
            self.ask(operation(verb)?, input.clone(), who).await.map_err(|failure| refused(&failure))?;
        }
        Ok(())
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

/// The error that a task fails with whose run is dead.
fn lost(run: &Value) -> JsonObject {
    let reason = run["reason"].as_str().unwrap_or("its owner is gone");
    let message = format!("the run is dead: {reason}");
    object(
        json!({ "code": ErrorCode::INTERNAL_ERROR, "message": message, "data": { "id": run["id"], "can": run["can"] } }),
    )
}

fn can(run: &Value, operation: &str) -> bool {
    run["can"].as_array().into_iter().flatten().any(|can| can == operation)
}

/// Whether a run is suspended until a person decides: it is parked, or its handler suspended it and a worker would
/// continue it.
fn waits_for_a_person(run: &Value) -> bool {
    run["state"] == "suspended" && (can(run, UNPARK) || can(run, RESUME))
}

/// The name of what a suspended run asks for. Each time that it is suspended it has another epoch.
fn key(run: &Value) -> String {
    format!("next-{}", run["epoch"])
}

/// What a client is asked for a run that waits for a person.
fn question(run: &Value) -> InputRequests {
    let (word, answer, verb, default) = if can(run, UNPARK) {
        ("parked", RETRY, "Retry", "its owners died again and again")
    } else {
        ("suspended", CONTINUE, "Continue", "its program waits for a decision")
    };
    let (id, reason) = (run["id"].as_str().unwrap_or_default(), run["reason"].as_str().unwrap_or(default));
    let asked = json!({ "method": "elicitation/create", "params": {
        "mode": "form",
        "message": format!("Run {id} is {word}: {reason}. {verb} it, or cancel it?"),
        "requestedSchema": {
            "type": "object",
            "properties": { (NEXT): { "type": "string", "enum": [answer, CANCEL] } },
            "required": [NEXT],
        },
    } });
    serde_json::from_value(asked).map(|asked| InputRequests::from([(key(run), asked)])).unwrap_or_default()
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
    fn a_task_shows_its_run_in_one_line() {
        let run = json!({ "id": "r", "state": "running", "ready": false, "progress_done": 3, "progress_total": 9, "url": "http://x/" });
        let task = described(&run, TaskStatus::Working);
        assert_eq!(task.status_message.as_deref(), Some("starting; 3 of 9 done; http://x/"));
        assert_eq!(task.poll_interval_ms, Some(500));
        assert!(run_of("dev").is_err());
    }
}
