//! An async worker with typed input and result, in a registry of any kind.
//!
//! `cargo run --example worker -- URL` enqueues three migrations, does them and prints what they returned.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::time::Duration;

use outlive::{Done, Error, Failed, IntoDone, Job, Key, Policy, Registry, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Migrate {
    tenant: String,
    rows: u64,
}

#[derive(Serialize)]
struct Migrated {
    rows: u64,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    // A run is tried three times before it counts as failed.
    let registry = Registry::open(&url).await?.with_policy("migrate", Policy::default().with_retries(3));
    let mut runs = Vec::new();
    for (tenant, rows) in [("acme", 7), ("umbrella", 3), ("acme", 5)] {
        let mut spec = registry.spec("migrate").with_input(&Migrate { tenant: tenant.into(), rows })?;
        // One migration of a tenant at a time, on all workers together.
        spec.keys.push(Key::lock(format!("tenant {tenant}")));
        runs.push(registry.enqueue(spec).await?.id);
    }
    let worker = Worker::builder(&registry).concurrency(100).handle("migrate", |job: Job<Migrate>| async move {
        let work = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Migrated { rows: job.input.rows }.into_done()
        };
        tokio::select! {
            done = work => done,
            // Recorded as what was asked for: a cancel as cancelled, and a shutdown, which spends no attempt, as interrupted.
            _ = job.stopped() => Ok::<_, Failed>(Done::Stopped),
        }
    });
    // A service waits for its signal to shut down instead: `worker.run_until(shutdown).await?`
    worker.drain().await?;
    for id in runs {
        let run = registry.wait(id).await?.run;
        println!("{} {}", run.state.name(), run.result.unwrap_or_default());
    }
    Ok(())
}
