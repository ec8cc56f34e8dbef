//! `outlive serve`: everything in the table of operations over HTTP, with the dashboard.
#![cfg(feature = "server")]

mod api;
mod authentication;
mod browser;
mod dashboard;
mod limits;
mod listener;
mod live;
#[cfg(feature = "mcp")]
mod mcp;
mod metrics;
mod middleware;
mod openapi;
mod raw;
mod sessions;
mod sign_in;
mod store_api;
mod traces;

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
#[cfg(feature = "mcp")]
use axum::middleware::from_fn;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use outlive::error::Error;
use serde_json::json;
use tokio::sync::watch;

use self::authentication::Authentication;
use self::limits::Limits;
use self::listener::Listener;
use self::live::Live;
use self::metrics::Counters;
use self::traces::{Spans, Traces};
use crate::call::allowed::Allowed;
use crate::call::calls::Calls;
use crate::call::tokens::Tokens;
use crate::call::{Context, SCHEMA, fail};
#[cfg(feature = "mcp")]
use crate::mcp::toolset::Group;
use crate::ui::{say_line, talk};

/// The verb.
pub const NAME: &str = "serve";

/// Serve the registry over HTTP: the API, the dashboard, and MCP at /mcp
///
/// Clients need a token: on this machine your own, which `outlive` reads from your home; elsewhere one made with
/// `outlive token create`. The printed link opens the dashboard. Use --tls-cert and --tls-key, or a TLS proxy, on an
/// address that others can reach.
#[derive(Debug, Args)]
struct Serve {
    /// Where: an address and a port, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7878")]
    listen: String,
    /// A name by which it is reached, besides localhost and its addresses (repeatable)
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// The certificate chain, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<std::path::PathBuf>,
    /// Its key, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<std::path::PathBuf>,
    /// A TLS proxy stands in front: cookies are Secure where it sends `X-Forwarded-Proto: https`, and the link is an https one
    #[arg(long, conflicts_with = "tls_cert")]
    tls_proxy: bool,
    /// Open the dashboard in a browser
    #[arg(long)]
    open: bool,
    /// What MCP tools may do besides reading; from `execute` on commands are also started by POST /v1/run
    #[arg(long, value_enum, value_name = "EFFECT", default_value = "read")]
    allow: Allowed,
    /// Which MCP tools are listed (repeatable, or with commas)
    #[cfg(feature = "mcp")]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUP", default_value = "core")]
    tools: Vec<Group>,
    /// Another limit than the default, for tests: a low limit is reached with few connections
    #[arg(long = "limit", value_name = "NAME=NUMBER", hide = true)]
    limits: Vec<String>,
}

/// The command's flags and help.
pub fn command() -> Command {
    Serve::augment_args(Command::new(NAME)).after_help(
        "Examples:\n  outlive serve\n  outlive serve --listen 0.0.0.0:7878 --host runs.example.org --tls-cert chain.pem --tls-key key.pem\n  outlive serve --listen unix:/run/user/1000/outlive.sock",
    )
}

/// What all requests share.
pub struct Server {
    calls: Calls,
    authentication: Authentication,
    live: Live,
    counters: Counters,
    /// Commands may be started that a call names.
    starts_commands: bool,
    has_tls: bool,
    /// A proxy in front of it speaks TLS and says so.
    has_tls_proxy: bool,
    /// This process's own user, and the registry, as people are shown them.
    user: String,
    shown_registry: String,
    /// Where spans of requests are sent; none without a collector.
    spans: Mutex<Option<Spans>>,
    /// Whether it goes on; streams end when it no longer does.
    open: watch::Sender<bool>,
}

/// Serves until it is asked to stop.
pub fn run(matches: &ArgMatches, context: &Context, json: bool) -> u8 {
    let serve = Serve::from_arg_matches(matches).map_err(|error| Error::Invalid(error.to_string()));
    match serve.and_then(|serve| serve.run(context, json)) {
        Ok(()) => 0,
        Err(error) => fail(&error, json),
    }
}

impl Serve {
    fn run(self, context: &Context, json: bool) -> Result<(), Error> {
        let limits = Limits::default().with(&self.limits)?;
        let tokens = Tokens::open()?;
        listener::raise_limit();
        let calls = Calls::on(context, store_api::begin)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(256).build();
        let runtime = runtime.map_err(|error| Error::Invalid(format!("no threads can be started: {error}")))?;
        runtime.block_on(async {
            let traces = Traces::begin()?;
            let listener = Listener::open(&self.listen, self.tls_cert.as_deref().zip(self.tls_key.as_deref())).await?;
            let url = listener.url().map(|url| self.reached_at(url, listener.port()));
            let authentication = Authentication::new(tokens, calls.id.clone(), listener.port(), self.hosts, limits)?;
            let link = url.map(|url| format!("{url}/#key={}", authentication.link()));
            announce(listener.place(), link.as_deref(), &calls.registry, json);
            let server = Arc::new(Server {
                authentication,
                live: Live::within(limits),
                counters: Counters::default(),
                starts_commands: self.allow >= Allowed::Execute,
                has_tls: listener.has_tls(),
                has_tls_proxy: self.tls_proxy,
                user: calls.user.clone(),
                shown_registry: outlive::redact::Redactor::default().text(&calls.registry),
                calls,
                spans: Mutex::new(traces.as_ref().map(|traces| traces.spans.clone())),
                open: watch::Sender::new(true),
            });
            let operations = operations();
            #[cfg(feature = "mcp")]
            let operations = operations
                .nest_service("/mcp", mcp::service(server.clone(), self.allow, &self.tools))
                .layer(from_fn(mcp::rename_task_subscriptions))
                .layer(from_fn(mcp::tell_session_ended));
            let router = router(&server, operations);
            if let Some(link) = link.filter(|_| self.open) {
                tokio::spawn(browser::open(server.clone(), link));
            }
            listener.serve(router, limits.connections, &server.open).await;
            if let Some(traces) = traces {
                *server.spans.lock().unwrap_or_else(PoisonError::into_inner) = None;
                traces.end().await;
            }
            Ok(())
        })
    }
}

impl Serve {
    /// The URL that a browser opens: by the name that was given, where one was, and by TLS where a proxy speaks it.
    fn reached_at(&self, url: String, port: u16) -> String {
        match (self.hosts.first(), self.tls_proxy) {
            (Some(host), true) => format!("https://{host}"),
            (Some(host), false) => {
                let scheme = url.split("://").next().unwrap_or("http");
                format!("{scheme}://{host}:{port}")
            }
            (None, _) => url,
        }
    }
}

/// What only callers with a token or a session may have done.
fn operations() -> Router<Arc<Server>> {
    Router::new()
        .route("/v1/openapi.json", get(openapi::document))
        .route("/v1/changes", get(live::changes))
        .route("/v1/follow", get(live::follow))
        .route("/v1/raw", get(raw::raw))
        .route("/v1/store/{call}", post(store_api::call))
        .route("/v1/{*operation}", any(api::operate))
        .route("/metrics", get(metrics::tell))
        .route("/session", get(sign_in::tell).delete(sign_in::end))
        .route("/session/link", post(sign_in::link))
}

fn router(server: &Arc<Server>, operations: Router<Arc<Server>>) -> Router {
    let open = dashboard::routes().route("/healthz", get(api::healthy)).route("/readyz", get(api::ready));
    operations
        .layer(from_fn_with_state(server.clone(), middleware::authenticate))
        // A client that is not authenticated yet may look at the page, and log in.
        .merge(open.route("/session", post(sign_in::begin)).route("/v1/store/prove", post(store_api::prove)))
        .fallback(api::nothing)
        .layer(from_fn_with_state(server.clone(), middleware::check_origin))
        .layer(from_fn_with_state(server.clone(), traces::trace))
        .with_state(server.clone())
}

fn announce(place: &str, link: Option<&str>, registry: &str, json: bool) {
    let registry = outlive::redact::Redactor::default().text(registry);
    if json {
        say_line(&json!({ "schema": SCHEMA, "url": place, "link": link, "registry": registry }).to_string());
    } else {
        talk(&format!("outlive: serving {registry} at {place}\n"));
        if let Some(link) = link {
            say_line(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_16_only_loopback_is_listened_on_unless_configured() {
        let matches = command().try_get_matches_from([NAME]).unwrap();
        let listen: std::net::SocketAddr = Serve::from_arg_matches(&matches).unwrap().listen.parse().unwrap();
        assert!(listen.ip().is_loopback(), "{listen}");
    }
}
