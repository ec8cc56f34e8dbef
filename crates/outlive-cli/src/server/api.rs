//! The operations over HTTP: `POST /v1/<operation>` with its fields as JSON; what only reads, also by `GET`.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use outlive::error::Code;
use serde_json::{Value, json};

use super::Server;
use super::middleware::EXIT_STATUS;
use crate::call::calls::Who;
use crate::call::{Effect, Failure, Operation, from_query};
use crate::operations::TABLE;

/// The most bytes of a body.
const BODY: usize = 1 << 20;

/// Where an operation is found.
pub fn path(operation: &Operation) -> String {
    format!("/v1/{}", operation.name.replace(' ', "/"))
}

/// Does what a request asks for.
pub async fn operate(
    State(server): State<Arc<Server>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Result<Response, Response> {
    let asked = request.uri().path().to_owned();
    let operation = TABLE.iter().find(|operation| path(operation) == asked);
    let unknown = || Failure::new(Code::NotFound, "there is no such operation; /v1/openapi.json lists them");
    let operation = operation.ok_or_else(|| unknown().into_response())?;
    if operation.name == crate::exec::NAME && !server.starts_commands {
        let why = "this server starts no commands; `outlive serve --allow execute` lets it";
        return Err(Failure::new(Code::Forbidden, why).into_response());
    }
    let input = input(operation, request).await?;
    let began = server.counters.begin();
    let answer = server.calls.call(operation, input, &who).await;
    server.counters.end(operation.name, answer.as_ref().err(), began);
    let answer = answer.map_err(IntoResponse::into_response)?;
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (EXIT_STATUS, answer.exit_status.to_string())];
    Ok((headers, answer.text).into_response())
}

async fn input(operation: &Operation, request: Request) -> Result<Value, Response> {
    let invalid = |why: &str| Failure::new(Code::Invalid, why).into_response();
    match (request.method(), operation.effect) {
        (&Method::GET, Effect::Read) => {
            let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes());
            from_query(&(operation.command)(), pairs.into_owned()).map_err(|why| invalid(&why))
        }
        (&Method::POST, _) => {
            let body = body(request).await.map_err(IntoResponse::into_response)?;
            if body.is_empty() {
                return Ok(json!({}));
            }
            serde_json::from_slice(&body).map_err(|error| invalid(&format!("the body is not JSON: {error}")))
        }
        (method, effect) => {
            let allowed = if effect == Effect::Read { "GET, POST" } else { "POST" };
            let why = format!("`{}` is not asked for with {method}, but with {allowed}", operation.name);
            Err(with_status(StatusCode::METHOD_NOT_ALLOWED, &[(header::ALLOW, allowed)], &why))
        }
    }
}

/// The body of a request. Only JSON is taken: a form of another site cannot send it.
pub async fn body(request: Request) -> Result<Bytes, Failure> {
    body_within(request, BODY).await
}

/// The JSON body of a request, of at most `limit` bytes.
pub async fn body_within(request: Request, limit: usize) -> Result<Bytes, Failure> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    if !is_json {
        return Err(Failure::new(Code::Invalid, "the body must be JSON, with `Content-Type: application/json`"));
    }
    let too_long = |_| Failure::new(Code::Invalid, &format!("the body is cut, or longer than {limit} bytes"));
    let read = tokio::time::timeout(super::middleware::BODY_TIME, to_bytes(request.into_body(), limit)).await;
    read.map_err(|_| Failure::new(Code::Invalid, "the body did not come in time"))?.map_err(too_long)
}

fn with_status(status: StatusCode, headers: &[(HeaderName, &str)], why: &str) -> Response {
    let mut response = Failure::new(Code::Invalid, why).into_response();
    *response.status_mut() = status;
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The server lives.
pub async fn healthy() -> &'static str {
    "ok\n"
}

/// Its registry can be read.
pub async fn ready(State(server): State<Arc<Server>>) -> Result<&'static str, Failure> {
    let own = Who::own(Effect::Read);
    let look = |context: &crate::call::Context| pollster::block_on(context.existing()).map(|_| ());
    server.calls.with(&own, look).await?.map_err(Failure::from)?;
    if *server.open.borrow() { Ok("ok\n") } else { Err(Failure::new(Code::Unavailable, "the server is about to end")) }
}

/// There is nothing.
pub async fn nothing(uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(100).collect();
    Failure::new(Code::NotFound, &format!("there is nothing at `{path}`"))
}
