//! Middleware: refuses requests for another host and from another site, authenticates the rest, sets security headers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use outlive::error::Code;

use super::Server;
use super::authentication::{Authentication, Credential};
use super::listener::Peer;
use crate::call::Failure;
use crate::call::codes::{Status, status};

/// Nothing but our own files is loaded, nothing is executed that stands in a page, and no page frames us.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How long a stream stays open at most after its credentials were revoked.
const CHECK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// How long a body may take to come.
pub const BODY_TIME: std::time::Duration = std::time::Duration::from_secs(20);

/// The exit status that a command with the same answer ends with.
pub const EXIT_STATUS: HeaderName = HeaderName::from_static("outlive-exit-status");

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Status { exit, http, .. } = status(self.code);
        let status = StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let exit_status = [(EXIT_STATUS, exit.to_string())];
        let mut response = (status, exit_status, Json(self.body)).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Refuses a request for another host or from another site, and adds the security headers to every response.
pub async fn check_origin(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let refused = check_host(request.headers(), &server.authentication.hosts).and_then(|()| check_site(&request));
    let mut response = match refused {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Finds out who asks, and refuses a request without valid credentials. The page itself and its files need none.
pub async fn authenticate(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let who =
        peer.map(|peer| server.authentication.who(peer, &credential(request.headers(), &server.authentication.cookie)));
    let who = match who {
        Some(Ok(who)) if server.authentication.has_rate(&who) => who,
        Some(Ok(_)) => {
            return Failure::new(Code::Throttled, "too many requests; ask again in a moment").into_response();
        }
        Some(Err(failure)) => return failure.into_response(),
        None => return Failure::new(Code::Unauthorised, "the peer is unknown").into_response(),
    };
    request.extensions_mut().insert(who.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(who);
    response
}

/// The client of a stream, which may be revoked while the stream lives.
#[derive(Clone)]
pub struct StreamClient {
    peer: Peer,
    headers: HeaderMap,
}

impl StreamClient {
    /// The client of a request that was authenticated.
    pub fn of(request: &Request) -> Option<Self> {
        let peer = request.extensions().get::<Peer>().copied()?;
        let shown = |name: &HeaderName| [header::AUTHORIZATION, header::COOKIE].contains(name);
        let headers = request.headers().iter().filter(|(name, _)| shown(name));
        Some(Self { peer, headers: headers.map(|(name, value)| (name.clone(), value.clone())).collect() })
    }

    /// Until its credentials are good no longer.
    pub async fn revoked(&self, authentication: &Authentication) {
        while authentication.is_still_known(self.peer, &credential(&self.headers, &authentication.cookie)) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }
}

/// The credentials of a request: a token before a cookie.
pub fn credential<'a>(headers: &'a HeaderMap, cookie: &str) -> Credential<'a> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(token) = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")) {
        return Credential::Token(token.trim());
    }
    // HTTP/2 may send each cookie in a header of its own.
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = cookies.flat_map(|value| value.split(';'));
    let found = cookies.filter_map(|one| one.trim().split_once('=')).find(|(name, _)| *name == cookie);
    found.map_or(Credential::Nothing, |(_, session)| Credential::Session(session))
}

/// A name that another DNS can point at us must be one of ours; addresses cannot be pointed elsewhere.
fn check_host(headers: &HeaderMap, hosts: &[String]) -> Result<(), Failure> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Failure::new(Code::Invalid, "the request has two Host headers"));
    }
    let asked = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_lowercase();
    let name = match asked.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &asked,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    if name == "localhost" || bare.parse::<IpAddr>().is_ok() || hosts.iter().any(|host| host == name) {
        return Ok(());
    }
    Err(Failure::new(
        Code::Forbidden,
        "this server is not asked for by that name; `outlive serve --host NAME` allows it",
    ))
}

/// Refuses what another site has a browser send.
fn check_site(request: &Request) -> Result<(), Failure> {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    let foreign = || Failure::new(Code::Forbidden, "cross-site request rejected");
    let host = text("host").unwrap_or_default();
    if let Some(origin) = text("origin") {
        let own = ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host));
        if !own {
            return Err(foreign());
        }
    }
    let is_page = request.method() == Method::GET && request.uri().path() == "/";
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        // A link from elsewhere leads to the page, which shows nothing by itself.
        Some(_) if is_page && text("sec-fetch-mode") == Some("navigate") => Ok(()),
        Some(_) => Err(foreign()),
    }
}
