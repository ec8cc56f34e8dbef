//! Subscriptions to tasks: `subscriptions/listen` with `taskIds`, of protocol 2026-07-28 and its extension for tasks.
//!
//! The library for MCP drops `taskIds` while it reads a request, and lets no notification of a task through its own
//! subscriptions. Such a request is therefore renamed before it is read, on both transports, and answered here as a
//! request of our own, with the resources that it names beside tasks.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use rmcp::RoleServer;
use rmcp::model::{
    ClientCapabilities, CustomNotification, CustomRequest, CustomResult, ErrorData, RequestId, ServerNotification,
    TaskStatus,
};
use rmcp::service::{Peer, RequestContext};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};

use super::tasks::run_of;
use super::{Desk, Tools, resources};

/// What a request that subscribes to tasks is renamed to.
pub const LISTEN: &str = "outlive/listen_to_tasks";
/// How it is called by clients.
pub const METHOD: &str = "subscriptions/listen";
/// The field of a notification that names its subscription.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// How many tasks a client may listen to at once.
const LISTENED: usize = 32;
/// How much is buffered of what a client sends.
const BUFFER: usize = 64 << 10;

/// The messages of a client, with requests renamed that subscribe to tasks.
pub fn renamed(input: impl AsyncRead + Send + Unpin + 'static) -> impl AsyncRead + Send + Unpin + 'static {
    let (read, mut write) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        let (mut lines, mut line) = (BufReader::new(input), Vec::new());
        // The end of the input is the end of the session.
        while lines.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
            let passed = rename(&line).unwrap_or_else(|| line.clone());
            if write.write_all(&passed).await.is_err() {
                return;
            }
            line.clear();
        }
    });
    read
}

/// A message that subscribes to tasks, renamed.
pub fn rename(line: &[u8]) -> Option<Vec<u8>> {
    let has = |word: &[u8]| line.windows(word.len()).any(|at| at == word);
    if !has(METHOD.as_bytes()) || !has(b"taskIds") {
        return None;
    }
    let mut message: Value = serde_json::from_slice(line).ok()?;
    let is_meant = message["method"] == METHOD && message["params"]["notifications"]["taskIds"].is_array();
    is_meant.then(|| {
        message["method"] = LISTEN.into();
        format!("{message}\n").into_bytes()
    })
}

impl<D: Desk> Tools<D> {
    /// Notifies a client of the tasks that it listens to, until all of them are done or it stops listening.
    pub(super) async fn listen_to_tasks(
        &self,
        request: &CustomRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if !context.client_capabilities().is_some_and(|client| client.supports_tasks()) {
            let needed = ClientCapabilities::builder().enable_tasks().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let who = self.who(context);
        let asked = request.params.as_ref().map(|params| &params["notifications"]["taskIds"]);
        let asked = asked.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let mut tasks = Vec::new();
        for task in asked.filter(|task| run_of(task).is_ok()).take(LISTENED) {
            if self.task(task, &who).await.is_ok() {
                tasks.push(task.to_owned());
            }
        }
        let stream = Stream { peer: context.peer.clone(), id: context.id.clone() };
        let uris = request.params.as_ref().map(|params| &params["notifications"]["resourceSubscriptions"]);
        let uris: Vec<String> = uris.and_then(|uris| serde_json::from_value(uris.clone()).ok()).unwrap_or_default();
        let mut outputs = Vec::new();
        for uri in resources::accepted(&uris) {
            if let Ok(place) = self.place(&uri, &who).await {
                outputs.push((uri, place));
            }
        }
        let mut accepted = json!({ "notifications": { "taskIds": tasks } });
        if !outputs.is_empty() {
            accepted["notifications"]["resourceSubscriptions"] = outputs.iter().map(|(uri, _)| uri.as_str()).collect();
        }
        stream.send("notifications/subscriptions/acknowledged", accepted).await?;
        let follow = |task: String| {
            let (stream, who) = (stream.clone(), who.clone());
            async move {
                let mut status = None;
                while let Some(now) = self.changed_task(&task, status, &who).await {
                    status = Some(now.status());
                    let is_done = now.status().is_terminal();
                    let body = serde_json::to_value(&now).unwrap_or_default();
                    if stream.send("notifications/tasks", body).await.is_err() || is_done {
                        return;
                    }
                }
            }
        };
        let follow_output = |(uri, mut place): (String, (String, bool))| {
            let (stream, who) = (stream.clone(), who.clone());
            async move {
                while let Some(now) = self.grown(&uri, &place, &who).await {
                    place = now;
                    if stream.send("notifications/resources/updated", json!({ "uri": uri })).await.is_err() {
                        return;
                    }
                }
            }
        };
        let tasks = tasks.into_iter().map(follow).collect();
        let outputs = outputs.into_iter().map(follow_output).collect();
        tokio::select! {
            () = context.ct.cancelled() => {}
            ((), ()) = async { tokio::join!(join(tasks), join(outputs)) } => {}
        }
        let ended =
            json!({ "resultType": "complete", "_meta": { (SUBSCRIPTION): context.id.clone().into_json_value() } });
        Ok(CustomResult::new(ended))
    }

    /// A task as it is when its status differs from `known`, or at once where none is known and it is not working.
    pub(super) async fn changed_task(
        &self,
        task: &str,
        known: Option<TaskStatus>,
        who: &crate::call::calls::Who,
    ) -> Option<rmcp::model::DetailedTask> {
        let known = known.unwrap_or(TaskStatus::Working);
        loop {
            let now = self.task(task, who).await.ok()?;
            if now.status() != known {
                return Some(now);
            }
            self.wait_for_task(task, who).await?;
        }
    }
}

/// The stream of one subscription.
#[derive(Clone)]
struct Stream {
    peer: Peer<RoleServer>,
    id: RequestId,
}

impl Stream {
    async fn send(&self, method: &str, mut params: Value) -> Result<(), ErrorData> {
        params["_meta"] = json!({ (SUBSCRIPTION): self.id.clone().into_json_value() });
        let notification = ServerNotification::CustomNotification(CustomNotification::new(method, Some(params)));
        let failed = |error| ErrorData::internal_error(format!("the client cannot be notified: {error}"), None);
        self.peer.send_notification(notification).await.map_err(failed)
    }
}

/// Waits for all of these.
pub async fn join<F: Future<Output = ()>>(all: Vec<F>) {
    let mut all: Vec<Pin<Box<F>>> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(move |context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_subscribe_to_tasks_are_renamed() {
        let listen =
            json!({ "jsonrpc": "2.0", "id": 4, "method": METHOD, "params": { "notifications": { "taskIds": ["a"] } } });
        let renamed: Value = serde_json::from_slice(&rename(listen.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(
            (&renamed["method"], &renamed["params"], &renamed["id"]),
            (&json!(LISTEN), &listen["params"], &json!(4))
        );
        for other in [
            json!({ "id": 1, "method": METHOD, "params": { "notifications": { "resourceSubscriptions": ["taskIds"] } } }),
            json!({ "id": 1, "method": "tools/call", "params": { "name": "run", "arguments": { "argv": [METHOD, "taskIds"] } } }),
        ] {
            assert_eq!(rename(other.to_string().as_bytes()), None, "{other}");
        }
        assert_eq!(rename(b"subscriptions/listen taskIds {"), None);
    }
}
