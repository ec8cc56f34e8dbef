//! Signing in: a browser comes with a link or a token, learns its role, makes links for others, and leaves.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use outlive::error::Code;
use serde_json::json;

use super::Server;
use super::listener::Peer;
use super::middleware::credential;
use crate::call::calls::Who;
use crate::call::tokens::Role;
use crate::call::{Effect, Failure, SCHEMA};
use crate::operations::TABLE;

/// What a browser signs in with.
#[derive(serde::Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Begin {
    Link { key: String },
    Token { token: String },
}

/// `POST /session`: a browser that came with a link or a token is given a cookie.
pub async fn begin(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Failure> {
    let peer = request.extensions().get::<Peer>().copied();
    let peer = peer.ok_or_else(|| Failure::new(Code::Unauthorised, "the peer is unknown"))?;
    let secure = if is_secure(&server, request.headers()) { "; Secure" } else { "" };
    let body = super::api::body(request).await?;
    let wrong = |error: serde_json::Error| Failure::new(Code::Invalid, &error.to_string());
    let session = match serde_json::from_slice(&body).map_err(wrong)? {
        Begin::Link { key } => server.authentication.begin_session(peer, &key)?,
        Begin::Token { token } => server.authentication.begin_session_by_token(peer, token.trim())?,
    };
    let cookie = format!("{}={session}; Path=/; HttpOnly; SameSite=Strict{secure}", server.authentication.cookie);
    Ok(([(header::SET_COOKIE, cookie)], Json(json!({ "schema": SCHEMA }))).into_response())
}

/// Whether the browser speaks TLS, with us or with the proxy that was announced. Without it a browser would not send back
/// what is `Secure`.
fn is_secure(server: &Server, headers: &HeaderMap) -> bool {
    let forwarded = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok()).unwrap_or_default();
    server.has_tls || (server.has_tls_proxy && forwarded.eq_ignore_ascii_case("https"))
}

/// `GET /session`: who asks, and what they may do.
pub async fn tell(State(server): State<Arc<Server>>, Extension(who): Extension<Who>) -> impl IntoResponse {
    let may_call = |effect: Effect, name: &str| {
        effect <= who.may && effect < Effect::Local && (name != crate::exec::NAME || server.starts_commands)
    };
    let operations = TABLE.iter().filter(|one| may_call(one.effect, one.name)).map(|one| one.name);
    let role = [Role::Admin, Role::Operate, Role::Read].into_iter().find(|role| role.may() <= who.may);
    Json(json!({
        "schema": SCHEMA,
        "user": who.user.clone().unwrap_or_else(|| server.user.clone()),
        "role": role.unwrap_or(Role::Read).as_str(),
        "everywhere": who.everywhere,
        "registry": server.shown_registry,
        "version": env!("CARGO_PKG_VERSION"),
        "operations": operations.collect::<Vec<_>>(),
    }))
}

/// `POST /session/link`: a link that signs another browser in, once, as the same user.
pub async fn link(State(server): State<Arc<Server>>, headers: HeaderMap) -> Result<impl IntoResponse, Failure> {
    let key = server.authentication.new_link(&credential(&headers, &server.authentication.cookie))?;
    Ok(Json(json!({ "schema": SCHEMA, "link": format!("/#key={key}") })))
}

/// `DELETE /session`: the session of this browser ends; with `?everywhere=true` all sessions of this user do.
pub async fn end(State(server): State<Arc<Server>>, request: Request) -> Result<impl IntoResponse, Failure> {
    let everywhere = request.uri().query() == Some("everywhere=true");
    server.authentication.end_session(&credential(request.headers(), &server.authentication.cookie), everywhere)?;
    let gone = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", server.authentication.cookie);
    Ok(([(header::SET_COOKIE, gone)], Json(json!({ "schema": SCHEMA }))))
}
