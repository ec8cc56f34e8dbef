//! apalis-postgres with batches of 100, without a lock for each task and told by the database where it can be, as in its
//! example.

#[path = "../../common.rs"]
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use common::{Words, for_ever, now_micros, rest, tell, took};
use sqlx::postgres::PgPoolOptions;

const QUEUE: &str = "nothing";
const LEFT: &str = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";

static DONE: AtomicU64 = AtomicU64::new(0);

async fn quiet(_mark: u64) -> Result<(), BoxDynError> {
    DONE.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn telling(mark: u64) -> Result<(), BoxDynError> {
    tell(mark);
    Ok(())
}

async fn holding(mark: u64) -> Result<(), BoxDynError> {
    tell(mark);
    for_ever().await;
    Ok(())
}

fn storage(pool: &PgPool, config: Config) -> PostgresStorage<u64> {
    PostgresStorage::<u64>::new(pool).with_config(config.queue(QUEUE))
}

fn fast() -> Config {
    Config::default().batch_size(100).lock_tasks(false)
}

async fn fill(pool: &PgPool, jobs: u64) {
    let mut connection = pool.acquire().await.unwrap();
    for batch in common::batches(jobs) {
        let tasks = batch.map(|mark| TaskBuilder::new(mark.to_string().into_bytes()).build()).collect();
        apalis_postgres::queries::push_tasks(&mut *connection, QUEUE, tasks).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let pool = PgPoolOptions::new().max_connections(16).connect(words.url()).await.unwrap();
    PostgresStorage::setup(&pool).await.unwrap();
    let name = format!("worker-{}", std::process::id());
    match words.verb() {
        "drain" => {
            let jobs = words.number(0);
            let began = Instant::now();
            fill(&pool, jobs).await;
            took("enqueued", began);
            let worker =
                WorkerBuilder::new(&name).backend(storage(&pool, fast())).parallelize(tokio::spawn).build(quiet);
            let began = Instant::now();
            tokio::spawn(async move { worker.run().await.unwrap() });
            while DONE.load(Ordering::Relaxed) < jobs
                || sqlx::query_scalar::<_, i64>(LEFT).fetch_one(&pool).await.unwrap() > 0
            {
                rest(5).await;
            }
            took("done", began);
        }
        "fill" => fill(&pool, words.number(0)).await,
        "add" => {
            let mut storage = storage(&pool, Config::default());
            for _ in 0..words.number(0) {
                storage.push(now_micros()).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        "work" if words.number(0) >= 100 => {
            let worker =
                WorkerBuilder::new(&name).backend(storage(&pool, fast())).parallelize(tokio::spawn).build(telling);
            tokio::spawn(async move { worker.run().await.unwrap() });
            stand_by().await;
        }
        "work" => {
            let backend = storage(&pool, fast()).with_pubsub();
            let worker = WorkerBuilder::new(&name).backend(backend).parallelize(tokio::spawn).build(telling);
            tokio::spawn(async move { worker.run().await.unwrap() });
            stand_by().await;
        }
        _ => {
            // A worker begins as many as one fetch brings: one at a time where one is to be held.
            let backend = storage(&pool, Config::default().batch_size(words.number(0) as usize));
            let worker = WorkerBuilder::new(&name)
                .backend(backend)
                .concurrency(words.number(0) as usize)
                .parallelize(tokio::spawn)
                .build(holding);
            tokio::spawn(async move { worker.run().await.unwrap() });
            stand_by().await;
        }
    }
    std::process::exit(0);
}

async fn stand_by() {
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!("ready");
    for_ever().await;
}
