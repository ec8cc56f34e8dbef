//! Traces for a collector: one span for each request, sent as OpenTelemetry asks for it (OTLP over HTTP, JSON).
//!
//! Nothing is made unless `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector. What is sent says which call it was, for
//! whom, how long it took and what came of it; never what was asked or answered. No request waits for a collector: what
//! it cannot take in time is dropped.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::Response;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use outlive::error::Error;
use outlive::id::{Entropy, SystemEntropy};
use outlive::store::http::server;
use outlive::time::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Server, api};
use crate::call::calls::Who;
use crate::operations::TABLE;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE: &str = "OTEL_SERVICE_NAME";
/// The most spans that wait to be sent, and that are sent at once.
const WAITING: usize = 2_048;
const AT_ONCE: usize = 256;
/// How long spans are gathered, and how long a collector may take.
const GATHER: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where spans are handed in.
pub type Spans = mpsc::Sender<Value>;

/// What sends them.
pub struct Traces {
    /// Where they are handed in.
    pub spans: Spans,
    sending: JoinHandle<()>,
}

/// A collector.
struct Collector {
    uri: Uri,
    headers: HeaderMap,
    service: String,
}

impl Collector {
    /// The one that the environment names, if it does.
    fn named() -> Result<Option<Self>, Error> {
        let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let base = || variable(ENDPOINT).map(|base| format!("{}/v1/traces", base.trim_end_matches('/')));
        let Some(url) = variable(TRACES_ENDPOINT).or_else(base) else { return Ok(None) };
        let refuse = |why: &str| Error::Invalid(format!("`{ENDPOINT}` names no collector: {why}"));
        let uri: Uri = url.parse().map_err(|_| refuse("it is no URL"))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(refuse("it is written http://HOST:4318; for any other way put a collector beside this server"));
        }
        let mut headers = HeaderMap::new();
        for pair in variable(HEADERS).unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| refuse("a header is written NAME=VALUE"))?;
            let name = HeaderName::try_from(name.trim()).map_err(|_| refuse("a header has no such name"))?;
            headers
                .insert(name, HeaderValue::try_from(value.trim()).map_err(|_| refuse("a header has no such value"))?);
        }
        Ok(Some(Self { uri, headers, service: variable(SERVICE).unwrap_or_else(|| "outlive".into()) }))
    }

    async fn send(&self, spans: Vec<Value>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let scope = json!({ "name": "outlive", "version": env!("CARGO_PKG_VERSION") });
        let resource = json!({ "attributes": [said("service.name", &self.service)] });
        let body = json!({
            "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": scope, "spans": spans }] }]
        });
        let (host, port) = (self.uri.host().unwrap_or_default(), self.uri.port_u16().unwrap_or(80));
        let stream = TcpStream::connect((host, port)).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(Method::POST).uri(self.uri.path());
        request = request.header(HOST, format!("{host}:{port}")).header(CONTENT_TYPE, "application/json");
        let mut request = request.body(Body::from(Bytes::from(body.to_string())))?;
        request.headers_mut().extend(self.headers.clone());
        sender.send_request(request).await?;
        Ok(())
    }
}

impl Traces {
    /// What sends spans to the collector that the environment names, if it does.
    pub fn begin() -> Result<Option<Self>, Error> {
        let Some(collector) = Collector::named()? else { return Ok(None) };
        let (spans, mut waiting) = mpsc::channel(WAITING);
        let sending = tokio::spawn(async move {
            let mut gathered = Vec::new();
            while waiting.recv_many(&mut gathered, AT_ONCE).await > 0 {
                // More may come soon; none does once no sender is left.
                let more =
                    async { while gathered.len() < AT_ONCE && waiting.recv_many(&mut gathered, AT_ONCE).await > 0 {} };
                let _ = tokio::time::timeout(GATHER, more).await;
                // A collector that is away is no failure of ours.
                let _ = tokio::time::timeout(TIMEOUT, collector.send(std::mem::take(&mut gathered))).await;
            }
        });
        Ok(Some(Self { spans, sending }))
    }

    /// Sends what is left.
    pub async fn end(self) {
        drop(self.spans);
        let _ = tokio::time::timeout(TIMEOUT, self.sending).await;
    }
}

/// What a request belongs to, as its sender says.
struct Parent {
    trace: String,
    span: Option<String>,
}

impl Parent {
    /// None where the sender wants no trace of it.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let said = headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let parts: Vec<&str> = said.split('-').collect();
        let is_hex = |text: &str, length| {
            text.len() == length
                && text.bytes().all(|byte| byte.is_ascii_hexdigit())
                && text.bytes().any(|byte| byte != b'0')
        };
        match parts[..] {
            [_, trace, span, flags, ..] if is_hex(trace, 32) && is_hex(span, 16) => {
                let is_wanted = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
                is_wanted.then(|| Self { trace: trace.to_lowercase(), span: Some(span.to_lowercase()) })
            }
            _ => Some(Self { trace: format!("{:032x}", SystemEntropy.draw()), span: None }),
        }
    }
}

/// Records a request, if there is a collector.
pub async fn trace(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let spans = server.spans.lock().ok().and_then(|spans| spans.clone());
    let Some((spans, parent)) = spans.zip(Parent::of(request.headers())) else { return next.run(request).await };
    let (method, route, began) = (request.method().clone(), route(request.uri().path()), SystemClock.now());
    let response = next.run(request).await;
    let status = response.status();
    let mut attributes = vec![
        said("http.request.method", method.as_str()),
        said("http.route", &route),
        json!({ "key": "http.response.status_code", "value": { "intValue": status.as_u16().to_string() } }),
    ];
    if let Some(Who { user: Some(user), .. }) = response.extensions().get::<Who>() {
        attributes.push(said("enduser.id", user));
    }
    let span = json!({
        "traceId": parent.trace,
        "spanId": format!("{:016x}", SystemEntropy.draw() >> 64),
        "parentSpanId": parent.span.unwrap_or_default(),
        "name": format!("{method} {route}"),
        "kind": 2,
        "startTimeUnixNano": nanos(began),
        "endTimeUnixNano": nanos(SystemClock.now()),
        "attributes": attributes,
        "status": { "code": if status.is_server_error() { 2 } else { 0 } },
    });
    // A collector that cannot take it in time does without.
    let _ = spans.try_send(span);
    response
}

fn said(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn nanos(at: Timestamp) -> String {
    format!("{}000", at.as_micros())
}

/// What was asked for, in few words: what a caller makes up is none of them.
fn route(path: &str) -> String {
    let is_call = |call: &str| call == "prove" || server::changes(call).is_some();
    let known =
        ["/", "/v1/changes", "/v1/follow", "/v1/openapi.json", "/metrics", "/healthz", "/readyz", "/session", "/mcp"];
    let is_known = known.contains(&path)
        || path.strip_prefix("/v1/store/").is_some_and(is_call)
        || TABLE.iter().any(|operation| api::path(operation) == path);
    if is_known { path.to_owned() } else { "other".into() }
}
