//! Enqueueing inside the caller's own transaction: a run is there exactly where the transaction is committed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use outlive::engine::claims::Claims;
use outlive::ownership::reaper::Reaper;
use outlive::run::StateName;
use outlive::{Done, Failed, Filter, Job, Lease, Policy, Registry, Worker};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

use super::*;

/// How many transactions the random test makes.
fn transactions() -> u64 {
    std::env::var("OUTLIVE_TRANSACTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A connection of the caller's own, as an application would have one.
pub(super) async fn connect(url: &str) -> Client {
    let (config, _) = url.split_once('?').unwrap_or((url, ""));
    let (client, connection) = tokio_postgres::connect(config, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn states(registry: &Registry) -> Vec<StateName> {
    let (runs, _) = registry.list(&Filter::default(), &outlive::store::Page::default()).await.unwrap();
    runs.iter().map(|seen| seen.run.state.name()).collect()
}

#[test]
fn run_enqueued_in_a_transaction_exists_only_if_it_commits() {
    let url = Server::shared().fresh_url();
    let schema = schema_of(&url);
    runtime().block_on(async {
        let registry = Registry::open(&url).await.unwrap();
        let mut client = connect(&url).await;
        let spec = || registry.spec("charge").with_input(&json!({"order": 7})).unwrap();
        let by_sql = format!(
            "SELECT {schema}.enqueue('charge', '{{\"order\": null}}', name => 'by-sql', \
                              labels => '{{\"tenant\": \"acme\"}}', priority => -1, max_attempts => 3)::text"
        );

        let rolled_back = client.transaction().await.unwrap();
        registry.enqueue_in(&rolled_back, spec()).await.unwrap();
        rolled_back.query(&by_sql, &[]).await.unwrap();
        assert_eq!(states(&registry).await, [], "it was seen before its transaction ended");
        rolled_back.rollback().await.unwrap();
        assert_eq!(states(&registry).await, []);

        let committed = client.transaction().await.unwrap();
        let id = registry.enqueue_in(&committed, spec()).await.unwrap();
        let made: String = committed.query_one(&by_sql, &[]).await.unwrap().get(0);
        committed.commit().await.unwrap();
        assert_eq!(states(&registry).await, [StateName::Pending; 2]);

        let worker =
            Worker::builder(&registry).handle("charge", |job: Job<Value>| async move { Ok::<_, Failed>(job.input) });
        assert_eq!(worker.drain().await.unwrap().succeeded, 2);
        let run = registry.get(id).await.unwrap().run;
        assert_eq!(run.result.as_deref(), Some(&json!({"order": 7})));
        let run = registry.find("by-sql").await.unwrap().run;
        assert_eq!(run.id.to_string(), made);
        assert_eq!(run.result.as_deref(), Some(&json!({"order": null})));
        assert_eq!((run.spec.labels["tenant"].as_str(), run.spec.priority), ("acme", -1));
        assert_eq!(run.spec.policy, Policy::default().with_retries(3));
        let actions: Vec<String> =
            registry.events(run.id).await.unwrap().iter().map(|event| event.action.to_string()).collect();
        assert_eq!(actions, ["enqueue", "claim", "finish"]);
        let tenants = Filter { labels: [("tenant".to_owned(), "acme".to_owned())].into(), ..Filter::default() };
        assert_eq!(registry.list(&tenants, &outlive::store::Page::default()).await.unwrap().0.len(), 1);
    });
}

#[test]
fn run_enqueued_by_sql_survives_stop_and_death_of_its_worker() {
    let url = Server::shared().fresh_url();
    let schema = schema_of(&url);
    runtime().block_on(async {
        let registry = Registry::open(&url).await.unwrap();
        let client = connect(&url).await;
        let enqueue = format!("SELECT {schema}.enqueue('charge', max_attempts => 1)::text");
        let id: RunId = client.query_one(&enqueue, &[]).await.unwrap().get::<_, String>(0).parse().unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let waits = Worker::builder(&registry).grace(Duration::ZERO, PATIENCE).handle_blocking("charge", move |job| {
            begun.send(()).unwrap();
            while job.wait_for_stop(PATIENCE).is_none() {}
            Ok::<_, Failed>(Done::Stopped)
        });
        let worker = waits.start().unwrap();
        begins.recv_timeout(PATIENCE).unwrap();
        assert_eq!(worker.stop().stopped, 1);
        let run = registry.get(id).await.unwrap().run;
        assert_eq!((run.state.name(), run.attempt, run.failures), (StateName::Pending, 2, 0));

        // A worker that never beats, with a lease that is soon over.
        let dead = super::registry(&url);
        let lease = Lease::new(Duration::from_millis(100), Duration::from_millis(300)).unwrap();
        let mut claims = Claims::of(["charge".to_owned()]).within(lease);
        let (held, _) = claims.claim(&dead, 1, &|_| true).await.unwrap();
        assert_eq!(held.len(), 1);
        let mut reaper = Reaper::new(None);
        until("its death is on record", || !pollster::block_on(reaper.pass(&registry)).unwrap().ended.is_empty());
        let run = registry.get(id).await.unwrap().run;
        assert_eq!((run.state.name(), run.attempt, run.failures, run.reaps), (StateName::Pending, 3, 0, 1));
        drop(held);
    });
}

#[test]
fn a_role_with_the_right_to_enqueue_can_do_nothing_else() {
    let server = Server::shared();
    let url = server.fresh_url();
    let schema = schema_of(&url);
    runtime().block_on(async {
        let registry = Registry::open(&url).await.unwrap();
        let client = connect(&url).await;
        let role = format!("app_{schema}");
        let set = format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role};");
        client.batch_execute(&set).await.unwrap();
        let enqueue = format!("SELECT {schema}.enqueue('charge')");
        let attempts =
            [enqueue.clone(), format!("SELECT * FROM {schema}.waiting"), format!("DELETE FROM {schema}.spec")];
        let denied = async |sql: &str| {
            client.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
            let denied = client.batch_execute(sql).await;
            client.batch_execute("RESET ROLE").await.unwrap();
            denied.err().map(|error| error.as_db_error().map(|said| said.message().to_owned()).unwrap_or_default())
        };
        for sql in &attempts {
            let said = denied(sql).await.unwrap_or_else(|| panic!("`{sql}` was allowed"));
            assert!(said.contains("permission denied"), "{said}");
        }
        client.batch_execute(&format!("GRANT EXECUTE ON FUNCTION {schema}.enqueue TO {role}")).await.unwrap();
        assert_eq!(denied(&enqueue).await, None);
        for sql in &attempts[1..] {
            assert!(denied(sql).await.is_some(), "`{sql}` was allowed");
        }
        // A table of the caller's own is not taken for one of the registry's.
        assert_eq!(denied(&format!("CREATE TEMP TABLE spec (LIKE pg_class); {enqueue}")).await, None);
        assert_eq!(states(&registry).await, [StateName::Pending; 2]);
        for (call, expected) in [
            ("'command'", "kind 'command' is not for handlers"),
            ("NULL", "kind NULL is not for handlers"),
            ("repeat('k', 257)", "more than 256 bytes"),
            ("'a', to_jsonb(repeat('x', 1048576))", "the longest is 1048576"),
            ("'a', name => '@last'", "could be taken for an id"),
            ("'a', name => '01a1ed2b'", "could be taken for an id"),
            ("'a', '{\"n\": 1e400}'", "a number out of range"),
            ("'a', (repeat('[', 60) || repeat(']', 60))::jsonb", "nested too deeply"),
            ("'a', not_before => '9999-12-31'", "no worker would ever take it"),
            ("'a', max_attempts => 0", "at least one attempt"),
            ("'a', name => E'a\\tb'", "control character"),
        ] {
            let said = denied(&format!("SELECT {schema}.enqueue({call})")).await.unwrap_or_default();
            assert!(said.contains(expected), "{call}: {said}");
        }
        assert_eq!(states(&registry).await.len(), 2);
        client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    });
}

#[test]
fn random_commits_and_kills_execute_only_committed_runs() {
    const CLIENTS: u64 = 4;
    let url = Server::shared().fresh_url();
    let schema = schema_of(&url);
    runtime().block_on(async {
        let registry = Arc::new(Registry::open(&url).await.unwrap());
        let own = connect(&url).await;
        own.batch_execute(&format!("CREATE TABLE {schema}.orders (run uuid PRIMARY KEY)")).await.unwrap();
        let turns = AtomicU64::new(transactions());
        let turns = Arc::new(turns);
        let clients = (0..CLIENTS).map(|seed| {
            let (registry, url, schema, turns) = (registry.clone(), url.clone(), schema.clone(), turns.clone());
            tokio::spawn(async move { place_orders(seed, &registry, &url, &schema, &turns).await })
        });
        let mut counts = [0_u64; 3];
        for client in clients.collect::<Vec<_>>() {
            for (count, of_client) in counts.iter_mut().zip(client.await.unwrap()) {
                *count += of_client;
            }
        }
        println!("committed, rolled back, killed: {counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        // The caller's own table says which were committed: also those whose answer was lost.
        let rows = own.query(&format!("SELECT run::text FROM {schema}.orders"), &[]).await.unwrap();
        let ordered: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
        let done = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = done.clone();
        let worker = Worker::builder(&*registry).concurrency(64).handle("charge", move |job: Job<Value>| {
            noted.lock().unwrap().push(job.id().to_string());
            async { Ok::<_, Failed>(()) }
        });
        let tally = worker.drain().await.unwrap();
        let done = std::mem::take(&mut *done.lock().unwrap());
        assert_eq!((done.len(), tally.succeeded), (ordered.len(), ordered.len() as u64));
        assert_eq!(done.into_iter().collect::<BTreeSet<_>>(), ordered);
    });
}

/// Places orders until none is left: each a row of the caller's and a run, in one transaction that commits, is rolled back,
/// or whose connection is ended by the server at a random moment. Answers with how many of each there were.
async fn place_orders(seed: u64, registry: &Registry, url: &str, schema: &str, turns: &AtomicU64) -> [u64; 3] {
    let entropy = outlive::testing::SeededEntropy::new(seed + 1);
    let mut counts = [0; 3];
    let mut client = connect(url).await;
    while turns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        let drawn = (outlive::id::Entropy::draw(&entropy) % 100) as u64;
        let killed = drawn < 5;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let killer = killed.then(|| {
            let (url, pause) = (url.to_owned(), Duration::from_micros(drawn * 400));
            tokio::spawn(async move {
                let killer = connect(&url).await;
                tokio::time::sleep(pause).await;
                killer.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
            })
        });
        let placed = place_order(&mut client, registry, schema, drawn.is_multiple_of(2), drawn >= 40).await;
        match placed {
            Ok(()) => counts[usize::from(drawn < 40)] += 1,
            Err(error) => assert!(killed, "{error}"),
        }
        if let Some(killer) = killer {
            killer.await.unwrap();
            counts[2] += 1;
            client = connect(url).await;
        }
    }
    counts
}

async fn place_order(
    client: &mut Client,
    registry: &Registry,
    schema: &str,
    by_sql: bool,
    commits: bool,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let transaction = client.transaction().await?;
    let run: String = match by_sql {
        true => transaction.query_one(&format!("SELECT {schema}.enqueue('charge')::text"), &[]).await?.get(0),
        false => registry.enqueue_in(&transaction, registry.spec("charge")).await?.to_string(),
    };
    transaction.batch_execute(&format!("INSERT INTO {schema}.orders VALUES ('{run}')")).await?;
    match commits {
        true => transaction.commit().await?,
        false => transaction.rollback().await?,
    }
    Ok(())
}
