//! An axum service with a worker inside: requests enqueue runs, and the same process does them until it is to end.
//!
//! `cargo run --example service --features postgres -- URL` listens on a free port of the loopback, which it prints:
//!
//! - `POST /reports/TENANT` enqueues a report and answers with the id of its run.
//! - `GET /runs/ID` answers with the state of a run and its result.
//!
//! On SIGINT it accepts no more requests, lets handlers finish, and ends. What it did not come to waits for the next worker.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use outlive::{Failed, Job, Key, Policy, Registry, RunId, Spec, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
    let working = tokio::spawn(worker.run_until(async move {
        // An error says that the sender is gone: then it is over, too.
        let _ = over.wait_for(|stopped| *stopped).await;
    }));

    let routes = Router::new().route("/reports/{tenant}", post(enqueue)).route("/runs/{id}", get(show));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, routes.with_state(registry)).with_graceful_shutdown(interrupted()).await?;
    stop.send(true)?;
    println!("{} reports rendered", working.await??.succeeded);
    Ok(())
}

async fn interrupted() {
    // Without signals it serves until it is killed, which the next worker notices.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Renders a report. It is called again after a crash, so what it does must bear that.
async fn render(job: Job<Render>) -> Result<Value, Failed> {
    Ok(json!({ "tenant": job.input.tenant, "pages": job.input.tenant.len() }))
}

async fn enqueue(State(registry): State<Arc<Registry>>, Path(tenant): Path<String>) -> Answer {
    let spec = registry.spec("report").with_input(&Render { tenant: tenant.clone() }).map_err(refused)?;
    // However often it is asked for, one report of a tenant waits or is rendered at a time.
    let spec = Spec { keys: vec![Key::unique(format!("report {tenant}"))], ..spec };
    let enqueued = registry.enqueue_once(spec).await.map_err(refused)?;
    Ok(Json(json!({ "run": enqueued.run.id, "made": enqueued.made })))
}

async fn show(State(registry): State<Arc<Registry>>, Path(id): Path<String>) -> Answer {
    let id: RunId = id.parse().map_err(refused)?;
    let run = registry.get(id).await.map_err(refused)?.run;
    Ok(Json(json!({ "state": run.state.name(), "result": run.result.as_deref() })))
}

fn refused(error: impl std::fmt::Display) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, error.to_string())
}
