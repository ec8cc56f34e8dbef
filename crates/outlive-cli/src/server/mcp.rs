//! MCP over HTTP: the service that `outlive serve` has at /mcp.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::Server;
use crate::call::allowed::Allowed;
use crate::call::calls::{Calls, Who};
use crate::mcp::toolset::Group;
use crate::mcp::{Desk, Ending, Tools, listening};

/// The most bytes of a request that subscribes.
const SUBSCRIBING: usize = 64 << 10;
/// The header in which a request of protocol 2026-07-28 repeats its method.
const METHOD: &str = "mcp-method";

/// The tools over HTTP. Who asks, and that they mean us, is made sure of before anything gets here.
pub fn service(
    server: Arc<Server>,
    allow: Allowed,
    groups: &[Group],
) -> StreamableHttpService<Tools<Server>, LocalSessionManager> {
    let config = StreamableHttpServerConfig::default().disable_allowed_hosts();
    let tools = Tools::new(server, allow, groups);
    StreamableHttpService::new(move || Ok(tools.of_session()), Arc::default(), config)
}

/// Says of a session that was ended that it has ended. Clients take "accepted", which is what the transport answers,
/// for a failure.
pub async fn tell_session_ended(request: Request, next: Next) -> Response {
    let is_ending = request.method() == Method::DELETE && request.uri().path().starts_with("/mcp");
    let mut response = next.run(request).await;
    if is_ending && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response
}

/// Renames requests that subscribe to tasks, which the transport would read without the tasks. Other requests pass
/// unread.
pub async fn rename_task_subscriptions(request: Request, next: Next) -> Response {
    let is_subscribing = request.headers().get(METHOD).is_some_and(|method| method == listening::METHOD);
    if !is_subscribing || request.method() != Method::POST || !request.uri().path().starts_with("/mcp") {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Ok(mut body) = axum::body::to_bytes(body, SUBSCRIBING).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "a subscription has at most 64 KiB").into_response();
    };
    if let Some(renamed) = listening::rename(&body) {
        parts.headers.insert(METHOD, HeaderValue::from_static(listening::LISTEN));
        parts.headers.remove(CONTENT_LENGTH);
        body = renamed.into();
    }
    next.run(Request::from_parts(parts, Body::from(body))).await
}

impl Desk for Server {
    fn calls(&self) -> &Calls {
        &self.calls
    }

    fn who(&self, context: &RequestContext<RoleServer>) -> Option<Who> {
        context.extensions.get::<Parts>()?.extensions.get::<Who>().cloned()
    }

    fn begin(&self) -> Ending<'_> {
        let began = self.counters.begin();
        Box::new(move |operation, failed| self.counters.end(operation, failed, began))
    }
}
