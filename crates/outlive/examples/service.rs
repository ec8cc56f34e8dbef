//! An axum service with a worker inside: requests enqueue runs, and the same process does them until it is to end.
//!
//! `cargo run --example service --features postgres -- URL` listens on a free port of the loopback, which it prints:
//!
//! - `POST /reports/TENANT` enqueues a report and answers with the id of its run.
//! - `GET /runs/ID` answers with the state of a run and its result.
//!
//! On SIGINT or SIGTERM it accepts no more requests, lets handlers finish, and ends. What it did not come to waits for the next worker.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::future::IntoFuture as _;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use outlive::{Code, Error, Failed, Job, Key, Policy, Registry, RunId, Spec, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Serialize, Deserialize)]
struct Render {
    tenant: String,
}

type Answer = Result<Json<Value>, (StatusCode, String)>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let registry = Arc::new(Registry::open(&url).await?.with_policy("report", Policy::default().with_retries(3)));
    let (stop, stopped) = tokio::sync::watch::channel(false);

    let worker = Worker::builder(&*registry).name("reports").concurrency(100).handle("report", render);
    let mut over = stopped.clone();
    let mut working = tokio::spawn(worker.run_until(async move {
        // An error says that the sender is gone: then it is over, too.
        let _ = over.wait_for(|stopped| *stopped).await;
    }));

    let routes = Router::new().route("/reports/{tenant}", post(enqueue)).route("/runs/{id}", get(show));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
    };
    let serving = axum::serve(listener, routes.with_state(registry)).with_graceful_shutdown(shutdown);
    tokio::select! {
        served = serving.into_future() => served?,
        // It ends by itself only where it could not be started.
        ended = &mut working => return Err(ended?.err().map_or_else(|| "the worker has ended".into(), Into::into)),
    }
    stop.send(true)?;
    println!("{} reports rendered", working.await??.succeeded);
    Ok(())
}

/// Renders a report. It is called again after a crash, so what it does must bear that.
async fn render(job: Job<Render>) -> Result<Value, Failed> {
    Ok(json!({ "tenant": job.input.tenant, "pages": job.input.tenant.len() }))
}

async fn enqueue(State(registry): State<Arc<Registry>>, Path(tenant): Path<String>) -> Answer {
    let spec = registry
        .spec("report")
        .with_input(&Render { tenant: tenant.clone() })
        .map_err(|error| refused(error.into()))?;
    // However often it is asked for, one report of a tenant waits or is rendered at a time.
    let spec = Spec { keys: vec![Key::unique(format!("report {tenant}"))], ..spec };
    let enqueued = registry.enqueue_once(spec).await.map_err(refused)?;
    Ok(Json(json!({ "run": enqueued.run.id, "made": enqueued.made })))
}

async fn show(State(registry): State<Arc<Registry>>, Path(id): Path<String>) -> Answer {
    let no_such_run = |_| (StatusCode::NOT_FOUND, format!("no run `{id}`"));
    let id: RunId = id.parse().map_err(no_such_run)?;
    let run = registry.get(id).await.map_err(refused)?.run;
    Ok(Json(json!({ "state": run.state.name(), "result": run.result.as_deref() })))
}

fn refused(error: Error) -> (StatusCode, String) {
    let status = match error.code() {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::Refused | Code::Busy => StatusCode::CONFLICT,
        // The caller may try again: the database is away, has no room or is busy.
        _ if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}
