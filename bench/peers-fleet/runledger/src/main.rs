//! runledger with the largest claims that it takes. It needs PostgreSQL 18.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Words, for_ever, now_micros, rest, tell, took};
use runledger_core::prelude::*;
use runledger_postgres::jobs::{JobEnqueue, enqueue_job, enqueue_job_tx};
use runledger_runtime::Supervisor;
use runledger_runtime::catalog::JobCatalog;
use runledger_runtime::config::JobsConfig;
use runledger_runtime::registry::JobHandler;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const KIND: &str = "bench.nothing";
const LEFT: &str = "SELECT count(*) FROM job_queue WHERE status <> 'SUCCEEDED'";
/// How many are being made at once: there is no call that makes many.
const AT_ONCE: u64 = 16;

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Quiet,
    Tell,
    Hold,
}

struct Nothing(Manner);

#[async_trait]
impl JobHandler for Nothing {
    fn job_type(&self) -> JobType<'static> {
        JobType::new(KIND)
    }

    async fn execute(&self, _context: JobContext, payload: Value) -> Result<JobCompletion, JobFailure> {
        if self.0 != Manner::Quiet {
            tell(payload["mark"].as_u64().unwrap());
        }
        if self.0 == Manner::Hold {
            for_ever().await;
        }
        Ok(JobCompletion::success())
    }
}

fn job(payload: &Value) -> JobEnqueue<'_> {
    JobEnqueue {
        job_type: JobType::new(KIND),
        organization_id: None,
        payload,
        priority: None,
        max_attempts: None,
        timeout_seconds: None,
        next_run_at: None,
        idempotency_key: None,
        stage: None,
    }
}

/// Several transactions at a time, of a hundred jobs each.
async fn fill(pool: &PgPool, jobs: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (pool, next) = (pool.clone(), next.clone());
        all.spawn(async move {
            loop {
                let start = next.fetch_add(100, Ordering::Relaxed);
                if start >= jobs {
                    break;
                }
                let mut tx = pool.begin().await.unwrap();
                for mark in start..jobs.min(start + 100) {
                    enqueue_job_tx(&mut tx, &job(&json!({ "mark": mark }))).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
        });
    }
    all.join_all().await;
}

fn start(pool: &PgPool, config: JobsConfig, catalog: &JobCatalog) -> Supervisor {
    Supervisor::builder(pool, config).unwrap().with_catalog(catalog).build().unwrap()
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    let pool = PgPoolOptions::new().max_connections(24).connect(words.url()).await.unwrap();
    runledger_postgres::migrate_after_idempotency_cutover(&pool).await.unwrap();
    let manner = match words.verb() {
        "work" => Manner::Tell,
        "hold" => Manner::Hold,
        _ => Manner::Quiet,
    };
    let catalog = JobCatalog::new().handler(Nothing(manner));
    catalog.sync_definitions(&pool).await.unwrap();
    let usual = JobsConfig { worker_id: format!("worker-{}", std::process::id()), ..JobsConfig::from_env() };
    let fast = JobsConfig {
        poll_interval: Duration::from_millis(10),
        claim_batch_size: 500,
        max_global_concurrency: 500,
        ..usual.clone()
    };
    match words.verb() {
        "drain" => {
            let began = Instant::now();
            fill(&pool, words.number(0)).await;
            took("enqueued", began);
            let began = Instant::now();
            let _supervisor = start(&pool, fast, &catalog);
            while sqlx::query_scalar::<_, i64>(LEFT).fetch_one(&pool).await.unwrap() > 0 {
                rest(10).await;
            }
            took("done", began);
        }
        "fill" => fill(&pool, words.number(0)).await,
        "add" => {
            for _ in 0..words.number(0) {
                enqueue_job(&pool, &job(&json!({ "mark": now_micros() }))).await.unwrap();
                rest(words.number(1)).await;
            }
        }
        verb => {
            let slots = words.number(0) as usize;
            let held = JobsConfig { max_global_concurrency: slots, claim_batch_size: slots as i64, ..usual };
            let _supervisor = start(&pool, if verb == "work" { fast } else { held }, &catalog);
            println!("ready");
            for_ever().await;
        }
    }
    std::process::exit(0);
}
