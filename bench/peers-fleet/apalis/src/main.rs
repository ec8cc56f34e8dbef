//! apalis-postgres: batches fetched and pushed by several workers in one process where much is to be done.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use common::{Words, for_ever, now_micros, rest, tell, took};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "nothing";
const LEFT: &str = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
/// How many workers a process has where much is to be done: each fetches a batch, does it and records it, one after the
/// other.
const WORKERS: usize = 4;
/// How often they look.
const OFTEN: Duration = Duration::from_millis(20);
/// How often those look who are told by the database: it may tell them while they look, and then they do not look again.
const AFTER_ALL: Duration = Duration::from_millis(100);

#[derive(Serialize, Deserialize)]
struct Nothing {
    mark: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Quiet,
    Tell,
    Hold,
}

#[derive(Clone)]
struct Told {
    manner: Manner,
    done: Arc<AtomicU64>,
}

async fn nothing(job: Nothing, told: Data<Told>) -> Result<(), BoxDynError> {
    if told.manner != Manner::Quiet {
        tell(job.mark);
    }
    if told.manner == Manner::Hold {
        for_ever().await;
    }
    told.done.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn storage(pool: &PgPool, config: Config) -> PostgresStorage<Nothing> {
    PostgresStorage::new(pool).with_config(config.queue(QUEUE))
}

/// Starts workers that do as much as they can.
fn start_many(pool: &PgPool, told: &Told) {
    for place in 0..WORKERS {
        let config = Config::default().batch_size(common::BATCH as usize).lock_tasks(false);
        let worker = WorkerBuilder::new(format!("worker-{}-{place}", std::process::id()))
            .backend(storage(pool, config).poll_with_interval(OFTEN))
            .concurrency(common::BATCH as usize)
            .data(told.clone())
            .build(nothing);
        tokio::spawn(async move { worker.run().await.unwrap() });
    }
}

/// Starts a worker that is told by the database what there is to do.
fn start_one(pool: &PgPool, told: &Told, slots: usize) {
    let name = format!("worker-{}", std::process::id());
    let backend = storage(pool, Config::default()).with_pubsub();
    if told.manner == Manner::Hold {
        let builder = WorkerBuilder::new(name).backend(backend).concurrency(slots);
        let worker = builder.data(told.clone()).build(nothing);
        tokio::spawn(async move { worker.run().await.unwrap() });
    } else {
        let builder = WorkerBuilder::new(name).backend(backend.poll_with_interval(AFTER_ALL)).concurrency(slots);
        let worker = builder.data(told.clone()).build(nothing);
        tokio::spawn(async move { worker.run().await.unwrap() });
    }
}

async fn fill(pool: &PgPool, jobs: u64) {
    let mut storage = storage(pool, Config::default());
    for batch in common::batches(jobs) {
        storage.push_bulk(batch.map(|mark| Nothing { mark }).collect()).await.unwrap();
    }
}

async fn drain(pool: &PgPool, jobs: u64, told: Told) {
    let began = Instant::now();
    fill(pool, jobs).await;
    took("enqueued", began);
    let began = Instant::now();
    start_many(pool, &told);
    while told.done.load(Ordering::Relaxed) < jobs
        || sqlx::query_scalar::<_, i64>(LEFT).fetch_one(pool).await.unwrap() > 0
    {
        rest(5).await;
    }
    took("done", began);
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let pool = PgPoolOptions::new().max_connections(24).connect(words.url()).await.unwrap();
    PostgresStorage::setup(&pool).await.unwrap();
    let told = |manner| Told { manner, done: Arc::default() };
    match words.verb() {
        "drain" => drain(&pool, words.number(0), told(Manner::Quiet)).await,
        "fill" => fill(&pool, words.number(0)).await,
        "add" => {
            let mut storage = storage(&pool, Config::default());
            for _ in 0..words.number(0) {
                storage.push(Nothing { mark: now_micros() }).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        verb => {
            let slots = words.number(0) as usize;
            match verb {
                "work" if slots >= 100 => start_many(&pool, &told(Manner::Tell)),
                "work" => start_one(&pool, &told(Manner::Tell), slots),
                _ => start_one(&pool, &told(Manner::Hold), slots),
            }
            // It is listening by then.
            rest(500).await;
            println!("ready");
            for_ever().await;
        }
    }
    std::process::exit(0);
}
