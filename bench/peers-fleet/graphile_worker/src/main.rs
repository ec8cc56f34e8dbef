//! graphile_worker with its batches, on the database that the first word names, for as many jobs as the second says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use graphile_worker::tokio_postgres::TokioPostgresDatabase;
use graphile_worker::{
    Database, IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Nothing {
    number: u64,
}

#[derive(Clone, Debug)]
struct Done(Arc<AtomicU64>);

impl TaskHandler for Nothing {
    const IDENTIFIER: &'static str = "nothing";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(done) = context.get_ext::<Done>() {
            done.0.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (url, jobs): (&str, u64) = (&words[1], words[2].parse().unwrap());
    let database: Database = TokioPostgresDatabase::from_url(url, 8).unwrap().into();
    let done = Done(Arc::default());
    let worker = WorkerOptions::default()
        .database(database.clone())
        .schema("graphile_worker")
        .concurrency(24)
        .poll_interval(Duration::from_millis(100))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .complete_job_batch_delay(Duration::from_millis(1))
        .add_extension(done.clone())
        .define_job::<Nothing>()
        .init()
        .await
        .unwrap();
    let began = Instant::now();
    let utils = WorkerUtils::new(database, "graphile_worker");
    for start in (0..jobs).step_by(500) {
        let batch: Vec<RawJobSpec> = (start..jobs.min(start + 500))
            .map(|number| RawJobSpec {
                identifier: Nothing::IDENTIFIER.into(),
                payload: serde_json::to_value(Nothing { number }).unwrap(),
                spec: JobSpec::default(),
            })
            .collect();
        utils.add_raw_jobs(&batch).await.unwrap();
    }
    println!("enqueued {}", began.elapsed().as_secs_f64());
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let worker = Arc::new(worker);
    let working = worker.clone();
    let began = Instant::now();
    tokio::spawn(async move { working.run().await });
    loop {
        let left = "SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs)";
        if done.0.load(Ordering::Relaxed) >= jobs && !client.query_one(left, &[]).await.unwrap().get::<_, bool>(0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    println!("done {}", began.elapsed().as_secs_f64());
    std::process::exit(0);
}
