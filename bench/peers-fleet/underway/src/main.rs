//! underway: one job is found by each call, so many calls are under way at once.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Words, for_ever, now_micros, rest, tell, took};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres, Transaction};
use underway::task::Result as TaskResult;
use underway::{Queue, Task, Worker};

#[derive(Clone, Serialize, Deserialize)]
struct Input {
    mark: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Quiet,
    Tell,
    Hold,
}

#[derive(Clone)]
struct Nothing {
    manner: Manner,
    done: Arc<AtomicU64>,
}

impl Task for Nothing {
    type Input = Input;
    type Output = ();

    async fn execute(&self, tx: Transaction<'_, Postgres>, input: Input) -> TaskResult<()> {
        self.done.fetch_add(1, Ordering::Relaxed);
        if self.manner != Manner::Quiet {
            tell(input.mark);
        }
        if self.manner == Manner::Hold {
            for_ever().await;
        }
        tx.commit().await?;
        Ok(())
    }
}

async fn queue(pool: &PgPool) -> Arc<Queue<Nothing>> {
    Arc::new(Queue::builder().name("nothing").pool(pool.clone()).build().await.unwrap())
}

async fn fill(pool: &PgPool, task: &Nothing, jobs: u64) {
    let queue = queue(pool).await;
    for batch in common::batches(jobs) {
        let inputs: Vec<Input> = batch.map(|mark| Input { mark }).collect();
        queue.enqueue_multi(pool, task, &inputs).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let pool = PgPoolOptions::new().max_connections(24).connect(words.url()).await.unwrap();
    underway::run_migrations(&pool).await.unwrap();
    let task = |manner| Nothing { manner, done: Arc::default() };
    match words.verb() {
        "drain" => {
            let (task, jobs) = (task(Manner::Quiet), words.number(0));
            let began = Instant::now();
            fill(&pool, &task, jobs).await;
            took("enqueued", began);
            let done = task.done.clone();
            let mut worker = Worker::new(queue(&pool).await, task);
            worker.set_concurrency_limit(16);
            let began = Instant::now();
            tokio::spawn(async move { worker.run().await.unwrap() });
            let left = "SELECT count(*) FROM underway.task WHERE state::text <> 'succeeded'";
            while done.load(Ordering::Relaxed) < jobs
                || sqlx::query_scalar::<_, i64>(left).fetch_one(&pool).await.unwrap() > 0
            {
                rest(5).await;
            }
            took("done", began);
        }
        "fill" => fill(&pool, &task(Manner::Quiet), words.number(0)).await,
        "add" => {
            let (queue, task) = (queue(&pool).await, task(Manner::Quiet));
            for _ in 0..words.number(0) {
                queue.enqueue(&pool, &task, &Input { mark: now_micros() }).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        verb => {
            let manner = if verb == "work" { Manner::Tell } else { Manner::Hold };
            let mut worker = Worker::new(queue(&pool).await, task(manner));
            worker.set_concurrency_limit((words.number(0) as usize).min(16));
            tokio::spawn(async move { worker.run().await.unwrap() });
            tokio::time::sleep(Duration::from_millis(200)).await;
            println!("ready");
            for_ever().await;
        }
    }
    std::process::exit(0);
}
