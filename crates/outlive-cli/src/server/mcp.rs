//! MCP over HTTP: the service that `outlive serve` has at /mcp.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::Server;
use crate::call::allowed::Allowed;
use crate::call::calls::{Calls, Who};
use crate::mcp::toolset::Group;
use crate::mcp::{Desk, Ending, Tools};

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
