//! The store protocol: the calls of `Store` over HTTP, so that `http://…` is a registry URL like any other.
//!
//! These calls are between one outlive and another. They are no operations, and are not documented for others.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use outlive::error::Code;
use outlive::registry::Registry;
use outlive::store::Beat;
use outlive::store::http::server::{self, BODY_LIMIT, ServeContext};
use outlive::store::sqlite::HEARD_WITHIN;
use outlive::time::{Clock, SystemClock};
use serde::Deserialize;
use serde_json::json;

use super::Server;
use super::api::body_within;
use super::listener::Peer;
use crate::call::calls::Who;
use crate::call::{Effect, Failure};

/// Answers one call of the store protocol.
pub async fn call(
    State(server): State<Arc<Server>>,
    Extension(who): Extension<Who>,
    Path(call): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let unknown = || Failure::new(Code::NotFound, "there is no such call of a store");
    let changes = server::changes(&call).ok_or_else(unknown)?;
    // A writer of records can say of any run that it has ended.
    if changes && who.may < Effect::Stop {
        return Err(Failure::new(Code::Forbidden, "your token only reads; this takes one with the role `operate`"));
    }
    let body = body_within(request, BODY_LIMIT).await?;
    let reads_only = who.may < Effect::Stop;
    let (user, is_beat, began) = (who.user.clone(), call == "beat", server.counters.begin());
    let answered = server.calls.with_registry(move |registry: &Registry| {
        let context = ServeContext { registry: registry.id(), user, lease: registry.lease(), is_far: true, reads_only };
        pollster::block_on(server::answer(registry.store(), &context, &call, &body))
    });
    let answer = answered.await?.map_err(|error| Failure::new(Code::Invalid, &error.to_string()))?;
    if is_beat {
        server.counters.kept_beat(began);
    }
    server.counters.refused_stale(answer.stale);
    Ok(([(header::CONTENT_TYPE, "application/json")], answer.body).into_response())
}

/// Proves to the holder of a token that this server knows it, before they show it.
pub async fn prove(State(server): State<Arc<Server>>, request: Request) -> Result<Response, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Prove {
        token: String,
        question: String,
        port: Option<u16>,
    }
    let peer = request.extensions().get::<Peer>().copied();
    let peer = peer.ok_or_else(|| Failure::new(Code::Unauthorised, "the peer is unknown"))?;
    let body = super::api::body(request).await?;
    let wrong = |error: serde_json::Error| Failure::new(Code::Invalid, &error.to_string());
    let asked: Prove = serde_json::from_slice(&body).map_err(wrong)?;
    let proof = server.authentication.prove(peer, &asked.token, &asked.question, asked.port)?;
    Ok(Json(json!({ "proof": proof })).into_response())
}

/// Receives remote heartbeats, from now on.
pub fn begin(registry: &Registry) {
    if registry.local().is_none() {
        return forgive(registry);
    }
    let mut hearing = Hearing { registry: registry.again(), held: None, last: Duration::ZERO };
    hearing.go_on();
    let hear = move || {
        loop {
            std::thread::park_timeout(SAID_EVERY);
            hearing.go_on();
        }
    };
    // Without it no remote owner is judged.
    let _ = std::thread::Builder::new().name("outlive-hears".into()).spawn(hear);
}

/// How often it is said that those who are far away are heard.
const SAID_EVERY: Duration = Duration::from_millis(500);

/// Says that remote heartbeats are received.
struct Hearing {
    registry: Registry,
    held: Option<OwnedFd>,
    /// When it was last said, by the time since boot.
    last: Duration,
}

impl Hearing {
    fn go_on(&mut self) {
        let Some(local) = self.registry.local() else { return };
        let now = SystemClock.since_boot();
        let had = self.held.is_some();
        self.held = local.hold_served_lock(self.held.take());
        let Some(lock) = &self.held else { return };
        // Before a reaper may judge again.
        if !had || now.saturating_sub(self.last) > HEARD_WITHIN / 2 {
            forgive(&self.registry);
        }
        self.last = SystemClock.since_boot();
        local.say_served(lock);
    }
}

/// Gives remote owners a full lease to be heard: they could not be while no server ran, or while it stood still.
fn forgive(registry: &Registry) {
    let workers = pollster::block_on(registry.store().workers()).unwrap_or_default();
    for worker in workers.into_iter().filter(|worker| worker.identity.is_far()) {
        let (identity, lease) = (worker.identity, worker.lease);
        let beat = Beat {
            worker: worker.id,
            identity,
            lease,
            held: [].into(),
            attention: None,
            leaving: false,
            offer: worker.offer,
        };
        // A remote owner that is not forgiven is heard of soon, or is gone.
        let _ = pollster::block_on(registry.store().beat(&beat));
    }
}
