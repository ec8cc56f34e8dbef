//! dbos: a workflow without steps, started on a queue that is polled as often as it may be.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Words, for_ever, now_micros, rest, tell, took};
use dbos::{Client, ClientConfig, Config, DBOS, QueueConflict, QueueOptions, WorkflowHandle};

const APP: &str = "bench";
const QUEUE: &str = "nothing";
/// How many are being made at once: there is no call that makes many.
const AT_ONCE: usize = 16;

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Quiet,
    Tell,
    Hold,
}

async fn launch(words: &Words, manner: Manner, options: QueueOptions) -> (DBOS, Arc<AtomicU64>) {
    let done = Arc::new(AtomicU64::new(0));
    let dbos = DBOS::new(Config {
        app_version: Some("1".into()),
        executor_id: Some(format!("executor-{}", std::process::id())),
        max_connections: 20,
        ..Config::new(APP, words.url())
    });
    let counted = done.clone();
    dbos.register_workflow("nothing", move |mark: u64| {
        let counted = counted.clone();
        async move {
            if manner != Manner::Quiet {
                tell(mark);
            }
            if manner == Manner::Hold {
                for_ever().await;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<(), dbos::Error>(())
        }
    })
    .unwrap();
    dbos.launch().await.unwrap();
    dbos.register_queue(QUEUE, options, QueueConflict::AlwaysUpdate).await.unwrap();
    (dbos, done)
}

async fn client(words: &Words) -> Client {
    let config = ClientConfig { app_name: Some(APP.into()), ..ClientConfig::new(words.url()) };
    Client::connect(config).await.unwrap()
}

async fn make(client: &Client, mark: u64) {
    let _: WorkflowHandle<()> = client.enqueue("nothing", QUEUE, mark).await.unwrap();
}

async fn fill(words: &Words, jobs: u64) {
    let client = Arc::new(client(words).await);
    let next = Arc::new(AtomicU64::new(0));
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, next) = (client.clone(), next.clone());
        all.spawn(async move {
            loop {
                let mark = next.fetch_add(1, Ordering::Relaxed);
                if mark >= jobs {
                    break;
                }
                make(&client, mark).await;
            }
        });
    }
    all.join_all().await;
}

fn often() -> QueueOptions {
    QueueOptions { polling_interval: Duration::from_millis(20), ..QueueOptions::default() }
}

#[tokio::main]
async fn main() {
    let words = Words::read();
    match words.verb() {
        "drain" => {
            let jobs = words.number(0);
            let (first, _) = launch(&words, Manner::Quiet, often()).await;
            first.shutdown().await;
            let began = Instant::now();
            fill(&words, jobs).await;
            took("enqueued", began);
            let began = Instant::now();
            let (_dbos, done) = launch(&words, Manner::Quiet, often()).await;
            while done.load(Ordering::Relaxed) < jobs {
                rest(2).await;
            }
            took("done", began);
        }
        "fill" => fill(&words, words.number(0)).await,
        "add" => {
            let client = client(&words).await;
            for _ in 0..words.number(0) {
                make(&client, now_micros()).await;
                rest(words.number(1)).await;
            }
        }
        verb => {
            let slots = Some(words.number(0) as i32);
            let (manner, options) = match verb {
                "work" => (Manner::Tell, often()),
                _ => (Manner::Hold, QueueOptions { worker_concurrency: slots, ..QueueOptions::default() }),
            };
            let _dbos = launch(&words, manner, options).await;
            println!("ready");
            for_ever().await;
        }
    }
    std::process::exit(0);
}
