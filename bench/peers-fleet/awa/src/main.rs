//! awa, with its queue storage, and the claims of jobs without a deadline, which are its shortest, where much is to be done.

#[path = "../../common.rs"]
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use awa::model::insert::params;
use awa::{
    Client, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig, insert, migrations,
};
use common::{Words, for_ever, now_micros, rest, tell, took};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Debug, Serialize, Deserialize, JobArgs)]
struct Nothing {
    mark: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Quiet,
    Tell,
    Hold,
}

/// How many jobs this process has done.
static DONE: AtomicU64 = AtomicU64::new(0);
/// What was made and is not recorded as done. The view `awa.jobs` tells it too, but takes seconds for thousands of them.
const LEFT: &str = "SELECT ((SELECT count(*) FROM awa.ready_entries) - (SELECT count(*) FROM awa.done_entries)
    - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches))::bigint";

async fn start(pool: &PgPool, config: QueueConfig, manner: Manner) -> Client {
    let client = Client::builder(pool.clone())
        .queue("default", config)
        .register::<Nothing, _, _>(move |args, _| async move {
            if manner != Manner::Quiet {
                tell(args.mark);
            }
            if manner == Manner::Hold {
                for_ever().await;
            }
            DONE.fetch_add(1, Ordering::Relaxed);
            Ok(JobResult::Completed)
        })
        .build()
        .unwrap();
    client.start().await.unwrap();
    client
}

/// As much as it can.
fn fast() -> QueueConfig {
    QueueConfig { max_workers: 512, claimers: 2, deadline_duration: Duration::ZERO, ..QueueConfig::default() }
}

async fn fill(pool: &PgPool, jobs: u64) {
    let storage = QueueStorage::new(QueueStorageConfig::default()).unwrap();
    for batch in common::batches(jobs) {
        let batch: Vec<InsertParams> = batch.map(|mark| params(&Nothing { mark }).unwrap()).collect();
        storage.enqueue_params_copy(pool, &batch).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let pool = PgPoolOptions::new().max_connections(24).connect(words.url()).await.unwrap();
    migrations::run(&pool).await.unwrap();
    match words.verb() {
        "drain" => {
            // Its storage is made by a worker that starts.
            let client = start(&pool, QueueConfig::default(), Manner::Quiet).await;
            client.shutdown(Duration::from_secs(5)).await;
            let (jobs, began) = (words.number(0), Instant::now());
            fill(&pool, jobs).await;
            took("enqueued", began);
            let began = Instant::now();
            let _client = start(&pool, fast(), Manner::Quiet).await;
            while DONE.load(Ordering::Relaxed) < jobs {
                rest(2).await;
            }
            while sqlx::query_scalar::<_, i64>(LEFT).fetch_one(&pool).await.unwrap() > 0 {
                rest(5).await;
            }
            took("done", began);
        }
        "fill" => fill(&pool, words.number(0)).await,
        "add" => {
            for _ in 0..words.number(0) {
                insert(&pool, &Nothing { mark: now_micros() }).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        verb => {
            let slots = words.number(0) as u32;
            let usual = QueueConfig { max_workers: slots, ..QueueConfig::default() };
            let (config, manner) = match verb {
                "work" if slots >= 100 => (fast(), Manner::Tell),
                "work" => (usual, Manner::Tell),
                _ => (usual, Manner::Hold),
            };
            let _client = start(&pool, config, manner).await;
            println!("ready");
            for_ever().await;
        }
    }
    std::process::exit(0);
}
