//! Searches of many runs: which rows are handed to the reader of records, and how the database finds them.

use std::sync::Arc;

use rusqlite::Connection;

use super::*;
use crate::model::id::SystemEntropy;
use crate::model::run::{Spec, StateName};
use crate::model::time::{Clock, SystemClock};
use crate::store::sqlite::query::Query;
use crate::store::sqlite::{Sharing, SqliteStore};
use crate::store::{Expect, Order, Page, Store, Write};
use crate::testing::{pending, spec, stamp};

const RUNS: usize = 600;

/// A store with so many runs that they are not looked at one by one, every 100th of them with a label and a name.
fn store(dir: &std::path::Path) -> SqliteStore {
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let store = SqliteStore::create(&dir.join("r"), Sharing::Private, clock, entropy).unwrap();
    let run = |place: usize| {
        let mut of = Spec { kind: if place.is_multiple_of(3) { "train" } else { "etl" }.into(), ..spec("job") };
        if place.is_multiple_of(100) {
            of.name = Some(format!("Nightly-{place}"));
            of.labels.insert("team".into(), "Größe".into());
        }
        let run = pending(of, SystemClock.now(), &SystemEntropy);
        Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp: stamp(&SystemEntropy) }
    };
    for first in (0..RUNS).step_by(200) {
        pollster::block_on(store.commit((first..first + 200).map(run).collect())).unwrap();
    }
    store
}

/// How the database finds the runs of a filter, and how many records it hands over.
fn asked(connection: &Connection, filter: &Filter, order: Order) -> (String, usize) {
    let query = Query::of(connection, "id, body", filter, order, None).unwrap().unwrap();
    let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql)).unwrap();
    let steps = plan.query_map(rusqlite::params_from_iter(&query.values), |row| row.get::<_, String>(3)).unwrap();
    let plan = steps.map(Result::unwrap).collect::<Vec<_>>().join("\n");
    let mut statement = connection.prepare(&query.sql).unwrap();
    let rows = statement.query_map(rusqlite::params_from_iter(&query.values), |_| Ok(())).unwrap();
    (plan, rows.count())
}

fn label(value: &str) -> Filter {
    Filter { labels: [("team".to_owned(), value.to_owned())].into(), ..Filter::default() }
}

fn text(text: &str) -> Filter {
    Filter { text: Some(text.into()), ..Filter::default() }
}

#[test]
fn a_search_reads_the_records_that_match_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let user = |user: &str| Filter { user: Some(user.into()), ..Filter::default() };
    let maker = pollster::block_on(store.list(&Filter::default(), &Page::default())).unwrap().records.remove(0);
    let all = [
        (label("Größe"), RUNS / 100),
        (label("none"), 0),
        (text("GRÖSSE"), 0),
        (text("größe"), RUNS / 100),
        (text("TEAM=größ"), RUNS / 100),
        (text("NIGHTLY-10"), 1),
        (text("nowhere"), 0),
        (user("eve"), 0),
        (user(&maker.run.spec.created_by.user), RUNS),
        (Filter { host: Some("elsewhere".into()), ..Filter::default() }, 0),
        (Filter { kind: Some("train".into()), ..text("nightly") }, RUNS / 300),
        (Filter { states: Some([StateName::Pending].into()), ..text("nightly") }, RUNS / 100),
        (Filter { states: Some([StateName::Pending].into()), is_step: Some(false), ..label("none") }, 0),
        (Filter { archived: Some(false), is_step: Some(false), ..label("Größe") }, RUNS / 100),
    ];
    for (filter, expected) in all {
        let inner = store.lock().unwrap();
        for order in [Order::Newest, Order::Oldest] {
            let (plan, read) = asked(inner.connection(), &filter, order);
            assert_eq!(read, expected, "{filter:?}");
            assert!(plan.contains("INDEX runs_by_time") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
        drop(inner);
        let listed = pollster::block_on(store.list(&filter, &Page { limit: RUNS, ..Page::default() })).unwrap();
        assert_eq!(listed.records.len(), expected, "{filter:?}");
    }
}

#[test]
fn a_search_among_few_runs_of_a_state_reads_that_state() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let inner = store.lock().unwrap();
    let filter = Filter { states: Some([StateName::Dead, StateName::Running].into()), ..text("nightly") };
    let dead = "UPDATE runs SET state = 'dead' WHERE name = 'Nightly-100'";
    inner.connection().execute_batch(dead).unwrap();
    let (plan, read) = asked(inner.connection(), &filter, Order::Newest);
    assert!(plan.contains("INDEX runs_by_state") && !plan.contains("TEMP B-TREE"), "{plan}");
    assert_eq!(read, 1);
}

#[test]
fn a_run_with_a_long_command_is_found_by_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mut of = spec("job");
    let value = "x".repeat(LONGEST);
    of.labels.insert("long".into(), value.clone() + "Needle");
    let run = pending(of, SystemClock.now(), &SystemEntropy);
    assert_eq!(words(&run), None);
    let write = Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp: stamp(&SystemEntropy) };
    pollster::block_on(store.commit(vec![write])).unwrap();
    for filter in [text("xneedle"), Filter { labels: [("long".into(), value + "Needle")].into(), ..Filter::default() }]
    {
        let listed = pollster::block_on(store.list(&filter, &Page::default())).unwrap();
        assert_eq!(listed.records.len(), 1, "{filter:?}");
    }
}
