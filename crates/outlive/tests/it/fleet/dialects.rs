//! Dialects: registries on engines that lack a feature of PostgreSQL, which PostgreSQL stands for.

use super::*;
use crate::ground::WITHOUT_ALL;
use outlive::filter::Filter;
use outlive::run::{Key, Spec, StateName};
use outlive::store::postgres::Feature;

/// The URL of a registry that is made without these features.
fn without(names: &str) -> String {
    let url = Server::shared().fresh_url();
    let plain = url.split("&without=").next().unwrap();
    format!("{plain}&without={names}")
}

#[test]
fn a_registry_keeps_the_dialect_it_was_made_with() {
    let url = without("listen,ctid");
    let made = open(&url).unwrap();
    let later = open(url.split("&without=").next().unwrap()).unwrap();
    for store in [&made, &later] {
        let lacks: Vec<_> = Feature::ALL.into_iter().filter(|feature| !store.has(*feature)).collect();
        assert_eq!(lacks, [Feature::Ctid, Feature::Listen]);
    }
    let refused = open(&url.replace("listen,ctid", "listen")).err().unwrap();
    let said = refused.to_string();
    assert!(said.contains("made with `without=ctid,listen`, not `without=listen`"), "{said}");
    later.listen(drop).err().unwrap();
}

#[test]
fn twelve_open_a_schema_that_no_lock_guards_and_one_makes_it() {
    let url = without("advisory-locks");
    let ids: Vec<String> = std::thread::scope(|scope| {
        let open = || open(&url).map(|store| store.id().to_owned()).unwrap();
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn without_partitions_old_history_is_deleted_run_by_run() {
    let url = without("partitions");
    let (store, owner, schema) = (open(&url).unwrap(), registry(&url), schema_of(&url));
    let count = |table: &str| Server::shared().psql(&format!("SELECT count(*) FROM {schema}.{table}"));
    pollster::block_on(async {
        let labels = [("team".to_owned(), "blue".to_owned())].into();
        let old = owner.start(Spec { labels, ..spec("old") }).await.unwrap();
        let old_id = old.id();
        old.succeed().await.unwrap();
        let waits = owner.enqueue(spec("waits")).await.unwrap();
        super::history::days_later(&schema, 40);
        // Without a limit nothing is deleted.
        assert_eq!(store.maintain().await.unwrap(), 0);
        store.keep_history(Some(Duration::from_secs(30 * 86_400))).await.unwrap();
        assert_eq!(store.maintain().await.unwrap(), 1);
        assert!(record(&store, old_id).await.is_none());
        assert!(owner.events(old_id).await.unwrap().is_empty());
        assert_eq!(count("label"), "0");
        assert_eq!(record(&store, waits.id).await.unwrap().run.state.name(), StateName::Pending);
        let counts = store.counts().await.unwrap();
        assert_eq!(counts.iter().map(|count| count.runs).sum::<u64>(), 1, "{counts:?}");
    });
}

#[test]
fn without_any_feature_keys_exclude_and_runs_are_done_once() {
    const WORKERS: usize = 4;
    const RUNS: usize = 40;
    let url = without("") + WITHOUT_ALL.trim_start_matches("&without=");
    let maker = registry(&url);
    pollster::block_on(async {
        for number in 0..RUNS {
            let keys = vec![Key::limit(format!("door {}", number % 2), 1)];
            maker.enqueue(Spec { keys, ..spec("job") }).await.unwrap();
        }
    });
    let done: usize = std::thread::scope(|scope| {
        let work = || {
            let worker = registry(&url);
            let mut done = 0;
            until("all runs to end", || {
                for handle in pollster::block_on(worker.claim(Filter::default(), 3)).unwrap() {
                    let running = Filter::in_states([StateName::Running]);
                    let page =
                        pollster::block_on(worker.store().list(&running, &outlive::store::Page::default())).unwrap();
                    let same = |run: &&outlive::store::Record| run.run.spec.keys == handle.run().spec.keys;
                    assert_eq!(page.records.iter().filter(same).count(), 1, "two runs hold one key");
                    pollster::block_on(handle.succeed()).unwrap();
                    done += 1;
                }
                let pending = Filter::in_states([StateName::Pending, StateName::Running]);
                let left = pollster::block_on(worker.store().list(&pending, &outlive::store::Page::default())).unwrap();
                left.records.is_empty()
            });
            done
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(done, RUNS);
    let counts = pollster::block_on(maker.counts()).unwrap();
    assert_eq!(counts.iter().map(|count| count.runs).sum::<u64>() as usize, RUNS, "{counts:?}");
}
