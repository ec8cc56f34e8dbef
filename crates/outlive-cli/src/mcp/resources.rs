//! The output of runs as resources of MCP: listed, read, and followed by clients that subscribe.
//!
//! There is no notification of a run that writes, so that a log which is subscribed to is looked at: often while it
//! grows, seldom while it does not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    ErrorData, ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceUpdatedNotificationParam,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::harmless::harmless;
use super::{Desk, Tools, operation};
use crate::call::calls::Who;

/// The most runs whose output is listed at a time, and the most bytes and lines of it that are read.
const LISTED: usize = 50;
const READ: usize = 256 << 10;
const READ_LINES: usize = 2_000;
/// How many resources a session may subscribe to.
const SUBSCRIBED: usize = 32;
/// How often a log that grows is looked at, and one that does not.
const LOOK_OFTEN: Duration = Duration::from_millis(250);
const LOOK_SELDOM: Duration = Duration::from_secs(2);

/// What a session has subscribed to by `resources/subscribe`. Dropping it ends the subscriptions.
#[derive(Default)]
pub struct Subscriptions(Mutex<HashMap<String, AbortHandle>>);

impl Subscriptions {
    fn set(&self, uri: &str, follows: Option<AbortHandle>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match follows {
            Some(follows) => kept.insert(uri.into(), follows),
            None => kept.remove(uri),
        };
        before.inspect(AbortHandle::abort);
    }

    fn is_full(&self) -> bool {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, follows| !follows.is_finished());
        kept.len() >= SUBSCRIBED
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).values().for_each(AbortHandle::abort);
    }
}

/// The run whose output a resource is.
pub fn run_of(uri: &str) -> Option<&str> {
    uri.strip_prefix("outlive://runs/").and_then(|rest| rest.strip_suffix("/output")).filter(|run| !run.is_empty())
}

fn not_found(uri: &str, why: &str) -> ErrorData {
    ErrorData::resource_not_found(why.to_owned(), Some(json!({ "uri": uri })))
}

impl<D: Desk> Tools<D> {
    /// A page of the runs whose output can be read.
    pub(super) async fn resources(&self, cursor: Option<String>, who: &Who) -> Result<ListResourcesResult, ErrorData> {
        let input = json!({ "all": true, "limit": LISTED, "cursor": cursor });
        let page = self.ask(operation("ps")?, input, who).await;
        let page = page.map_err(|failure| ErrorData::invalid_params(failure.message().to_owned(), None))?;
        let resource = |run: &Value| {
            let run = harmless(run.clone());
            let id = run["id"].as_str().unwrap_or_default().to_owned();
            let title = run["name"].as_str().unwrap_or(&id).to_owned();
            Resource::new(format!("outlive://runs/{id}/output"), format!("output of {title}"))
                .with_mime_type("text/plain")
        };
        let resources = page["runs"].as_array().into_iter().flatten().map(resource).collect();
        let mut listed = ListResourcesResult::with_all_items(resources);
        listed.next_cursor = page["next"].as_str().map(str::to_owned);
        Ok(listed)
    }

    /// The last of what a run has written.
    pub(super) async fn read(&self, uri: String, who: &Who) -> Result<ReadResourceResult, ErrorData> {
        let run = run_of(&uri).ok_or_else(|| not_found(&uri, "there is no such resource"))?;
        let input = json!({ "run": run, "lines": READ_LINES, "limit": READ });
        let page = self.ask(operation("output")?, input, who).await;
        let page = page.map_err(|failure| not_found(&uri, failure.message()))?;
        let pieces = harmless(page["pieces"].clone());
        let text_of = |piece: &Value| match (piece["text"].as_str(), piece["left_out"].as_u64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(bytes)) => format!("\n[{bytes} bytes are left out]\n"),
            (None, None) => "\n[bytes that are no text]\n".into(),
        };
        let text: String = pieces.as_array().into_iter().flatten().map(text_of).collect();
        Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type("text/plain")]))
    }

    /// How far the output of a run is, and whether it has ended.
    pub(super) async fn place(&self, uri: &str, who: &Who) -> Result<(String, bool), ErrorData> {
        let run = run_of(uri).ok_or_else(|| not_found(uri, "there is no such resource"))?;
        let input = json!({ "run": run, "lines": 1, "text": true, "limit": 1 });
        let page = self.ask(operation("output")?, input, who).await;
        let page = page.map_err(|failure| not_found(uri, failure.message()))?;
        Ok((page["next"].as_str().unwrap_or_default().to_owned(), page["ended"] == true))
    }

    /// Waits until the output of a run has grown or ended since a place. None where there is nothing to wait for.
    pub(super) async fn grown(&self, uri: &str, place: &(String, bool), who: &Who) -> Option<(String, bool)> {
        if place.1 {
            return None;
        }
        let mut pause = LOOK_OFTEN;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_SELDOM);
            let now = self.place(uri, who).await.ok()?;
            if now != *place {
                return Some(now);
            }
        }
    }

    /// Subscribes a session to a resource, until it unsubscribes or ends.
    pub(super) async fn subscribe_to(
        &self,
        uri: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let who = self.who(context);
        let mut place = self.place(&uri, &who).await?;
        if self.subscriptions.is_full() {
            let most = format!("a session subscribes to at most {SUBSCRIBED} resources");
            return Err(ErrorData::invalid_request(most, None));
        }
        let (tools, followed, peer) = (self.of_session(), uri.clone(), context.peer.clone());
        let follows = tokio::spawn(async move {
            while let Some(now) = tools.grown(&followed, &place, &who).await {
                place = now;
                let updated = ResourceUpdatedNotificationParam::new(followed.clone());
                if peer.notify_resource_updated(updated).await.is_err() {
                    return;
                }
            }
        });
        self.subscriptions.set(&uri, Some(follows.abort_handle()));
        Ok(())
    }

    pub(super) fn unsubscribe_from(&self, uri: &str) {
        self.subscriptions.set(uri, None);
    }

    /// Notifies a client of the resources that it listens to, until it stops listening.
    pub(super) async fn listen_to(&self, context: SubscriptionContext) {
        let who = self.who(context.request_context());
        let uris = context.accepted().resource_subscriptions.clone().unwrap_or_default();
        let follow = |uri: String| {
            let (who, sink, tools) = (who.clone(), context.sink().clone(), self);
            async move {
                let Ok(mut place) = tools.place(&uri, &who).await else { return };
                while let Some(now) = tools.grown(&uri, &place, &who).await {
                    place = now;
                    if sink.notify_resource_updated(uri.clone()).await.is_err() {
                        return;
                    }
                }
            }
        };
        let all = super::listening::join(uris.into_iter().take(SUBSCRIBED).map(follow).collect());
        tokio::select! {
            () = context.cancelled() => {}
            () = async { all.await; context.cancelled().await } => {}
        }
    }
}

/// The resources that a client asks to listen to and that there are.
pub fn accepted(asked: &[String]) -> Vec<String> {
    asked.iter().filter(|uri| run_of(uri).is_some()).take(SUBSCRIBED).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::run_of;

    #[test]
    fn resources_name_runs() {
        assert_eq!(run_of("outlive://runs/dev/output"), Some("dev"));
        for uri in ["", "outlive://runs//output", "outlive://runs/dev", "file:///dev/output", "outlive://runs/output"] {
            assert_eq!(run_of(uri), None, "{uri}");
        }
    }
}
