//! graphile_worker, with its local queue and completions in batches where much is to be done.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Words, for_ever, now_micros, rest, tell, took};
use graphile_worker::tokio_postgres::TokioPostgresDatabase;
use graphile_worker::{
    Database, IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "graphile_worker";

#[derive(Serialize, Deserialize)]
struct Nothing {
    mark: u64,
}

/// What a handler does besides nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Count,
    Tell,
    Hold,
}

#[derive(Clone, Debug)]
struct Told {
    manner: Manner,
    done: Arc<AtomicU64>,
}

impl TaskHandler for Nothing {
    const IDENTIFIER: &'static str = "nothing";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let told = context.get_ext::<Told>().unwrap();
        told.done.fetch_add(1, Ordering::Relaxed);
        if told.manner != Manner::Count {
            tell(self.mark);
        }
        if told.manner == Manner::Hold {
            for_ever().await;
        }
        Ok::<(), String>(())
    }
}

fn options(database: &Database, told: &Told, slots: u64) -> WorkerOptions {
    let options = WorkerOptions::default().database(database.clone()).schema(SCHEMA).concurrency(slots as usize);
    options.add_extension(told.clone()).define_job::<Nothing>()
}

/// As much as it can.
fn fast(options: WorkerOptions) -> WorkerOptions {
    options
        .poll_interval(Duration::from_millis(100))
        .local_queue(LocalQueueConfig::default().with_size(500))
        .complete_job_batch_delay(Duration::from_millis(1))
}

async fn fill(database: &Database, jobs: u64) {
    let utils = WorkerUtils::new(database.clone(), SCHEMA);
    for batch in common::batches(jobs) {
        let batch: Vec<RawJobSpec> = batch
            .map(|mark| RawJobSpec {
                identifier: Nothing::IDENTIFIER.into(),
                payload: serde_json::to_value(Nothing { mark }).unwrap(),
                spec: JobSpec::default(),
            })
            .collect();
        utils.add_raw_jobs(&batch).await.unwrap();
    }
}

async fn drain(words: &Words, database: &Database, told: Told) {
    let jobs = words.number(0);
    let worker = Arc::new(fast(options(database, &told, 24)).init().await.unwrap());
    let began = Instant::now();
    fill(database, jobs).await;
    took("enqueued", began);
    let (client, connection) = tokio_postgres::connect(words.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let began = Instant::now();
    tokio::spawn(async move { worker.run().await });
    loop {
        let left = "SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs)";
        let is_done = told.done.load(Ordering::Relaxed) >= jobs;
        if is_done && !client.query_one(left, &[]).await.unwrap().get::<_, bool>(0) {
            break;
        }
        rest(2).await;
    }
    took("done", began);
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let database: Database = TokioPostgresDatabase::from_url(words.url(), 8).unwrap().into();
    let told = |manner| Told { manner, done: Arc::default() };
    match words.verb() {
        "drain" => drain(&words, &database, told(Manner::Count)).await,
        "fill" => fill(&database, words.number(0)).await,
        "add" => {
            let utils = WorkerUtils::new(database, SCHEMA);
            for _ in 0..words.number(0) {
                utils.add_job(Nothing { mark: now_micros() }, JobSpec::default()).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        "work" if words.number(0) < 100 => {
            let worker = options(&database, &told(Manner::Tell), words.number(0)).init().await.unwrap();
            println!("ready");
            worker.run().await.unwrap();
        }
        "work" => {
            let worker = fast(options(&database, &told(Manner::Tell), 24)).init().await.unwrap();
            println!("ready");
            worker.run().await.unwrap();
        }
        "hold" => {
            let worker = options(&database, &told(Manner::Hold), words.number(0)).init().await.unwrap();
            println!("ready");
            worker.run().await.unwrap();
        }
        verb => panic!("it cannot `{verb}`"),
    }
    std::process::exit(0);
}
