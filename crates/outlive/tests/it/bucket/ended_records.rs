//! Ended records are cached on the host, across processes: T6-09. Requests are counted, not time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::store::object::{Counted, ObjectStore};
use outlive::store::{Page, Record, Store};
use outlive::testing::bucket::Bucket;
use outlive::testing::spec;

use super::yard::Yard;

const ENDED: usize = 40;
const RUNNING: usize = 2;

/// Another process of a host whose cache is in `home`.
async fn process(yard: &Yard, home: &Path) -> (Registry, Arc<ObjectStore>) {
    let (registry, store) = yard.process_at(Bucket::shared().port(), Duration::from_secs(20)).await;
    store.cache_ended(home);
    (registry, store)
}

async fn list(store: &ObjectStore, states: Option<StateName>) -> (Vec<Record>, Counted) {
    let before = store.counted();
    let filter = Filter { states: states.map(|state| [state].into()), ..Filter::default() };
    let listed = store.list(&filter, &Page::default()).await.unwrap().records;
    (listed, store.counted() - before)
}

fn ended(records: Vec<Record>) -> Vec<Record> {
    records.into_iter().filter(|record| record.run.ending().is_some()).collect()
}

/// A yard with runs that have ended and runs that have not, one of the former.
async fn with_runs() -> (Yard, RunId) {
    let yard = Yard::new().await;
    let mut last = None;
    for number in 0..ENDED {
        let handle = yard.registry.start(yard.spec()).await.unwrap();
        last = Some(handle.id());
        if number % 2 == 0 { handle.succeed().await } else { handle.fail("exit", "1").await }.unwrap();
    }
    for _ in 0..RUNNING {
        std::mem::forget(yard.registry.start(spec("runs")).await.unwrap());
    }
    (yard, last.unwrap())
}

#[test]
fn t6_09_requests_of_a_list_are_bounded_by_what_is_in_flight() {
    pollster::block_on(async {
        let (yard, changed) = with_runs().await;
        let home = tempfile::tempdir().unwrap();
        let (_, first) = process(&yard, home.path()).await;
        let (all, counted) = list(&first, None).await;
        assert_eq!((all.len(), counted.gets), (ENDED + RUNNING, (ENDED + RUNNING) as u64));

        let (_, second) = process(&yard, home.path()).await;
        let (running, counted) = list(&second, Some(StateName::Running)).await;
        assert_eq!((running.len(), counted.gets, counted.puts), (RUNNING, RUNNING as u64, 0));
        let (again, counted) = list(&second, None).await;
        assert_eq!(counted.gets, 0, "ended records were read again");
        assert_eq!(ended(again), ended(all), "what is cached differs from what is on record");

        // A run that has changed since is read again, by its version.
        let (registry, third) = process(&yard, home.path()).await;
        list(&third, None).await;
        let before = third.events(changed).await.unwrap().len();
        registry.archive(changed).await.unwrap();
        assert_eq!(third.events(changed).await.unwrap().len(), before + 1, "a write from the cache lost events");
        let (_, fourth) = process(&yard, home.path()).await;
        let (all, counted) = list(&fourth, None).await;
        assert_eq!(counted.gets, RUNNING as u64 + 1);
        assert!(all.iter().any(|record| record.run.id == changed && record.run.archived.is_some()));
    });
}

#[test]
fn t6_09_damaged_or_unwritable_cache_costs_requests_alone() {
    pollster::block_on(async {
        let (yard, _) = with_runs().await;
        let home = tempfile::tempdir().unwrap();
        let (_, first) = process(&yard, home.path()).await;
        let (all, _) = list(&first, None).await;
        let file = std::fs::read_dir(home.path()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        for damaged in [&text[..text.len() / 2], "", "\t\t\n\u{fffd}\n", &text.replace('{', "[")] {
            std::fs::write(&file, damaged).unwrap();
            let (_, store) = process(&yard, home.path()).await;
            assert_eq!(ended(list(&store, None).await.0), ended(all.clone()));
        }
        let (_, nowhere) = process(&yard, &file.join("below a file")).await;
        assert_eq!(list(&nowhere, None).await.0.len(), ENDED + RUNNING);
    });
}
