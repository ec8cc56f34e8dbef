//! Transactional enqueue: an order and the run that charges for it are committed together, or not at all.
//!
//! `cargo run --example transaction --features postgres -- URL SCHEMA` needs a PostgreSQL database.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use outlive::{Failed, Job, Registry, Worker};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut words = std::env::args().skip(1);
    let (Some(url), Some(schema)) = (words.next(), words.next()) else {
        return Err("usage: transaction URL SCHEMA".into());
    };
    let registry = Registry::open(&format!("{url}?schema={schema}&sslmode=disable")).await?;
    let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("CREATE TABLE IF NOT EXISTS {schema}.orders (id int PRIMARY KEY)")).await?;

    // Rolled back: there is neither an order nor a run.
    let transaction = client.transaction().await?;
    transaction.execute(&format!("INSERT INTO {schema}.orders VALUES (1)"), &[]).await?;
    registry.enqueue_in(&transaction, registry.spec("charge").with_input(&json!({ "order": 1 }))?).await?;
    transaction.rollback().await?;

    // Committed: there are both. The second is enqueued by SQL, as a trigger or another language would.
    let transaction = client.transaction().await?;
    transaction.execute(&format!("INSERT INTO {schema}.orders VALUES (2), (3)"), &[]).await?;
    registry.enqueue_in(&transaction, registry.spec("charge").with_input(&json!({ "order": 2 }))?).await?;
    transaction.execute(&format!("SELECT {schema}.enqueue('charge', '{{\"order\": 3}}')"), &[]).await?;
    transaction.commit().await?;

    let worker = Worker::builder(&registry).handle("charge", |job: Job<Value>| async move {
        println!("charged for order {}", job.input["order"]);
        Ok::<_, Failed>(())
    });
    println!("{} charged", worker.drain().await?.succeeded);
    Ok(())
}
