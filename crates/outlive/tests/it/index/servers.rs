//! Registries on servers as sources: what is found in them, and what becomes of the others when one does not answer.

use std::net::TcpListener;

use outlive::index::{Freshness, Kind, Lifecycle, Query, SourceAddress, Standing};
use outlive::registry::Registry;
use outlive::run::Spec;
use outlive::testing::bucket::Bucket;
use outlive::testing::server::Server;
use outlive::time::Timestamp;

use super::yard::{Yard, put, state};

const DAY: &str = "2026-01-01T00:00:00.000Z";

fn add(yard: &Yard, url: &str) {
    let address = SourceAddress { kind: Kind::Outlive, url: url.into() };
    address.register(&yard.path().join("home"), Timestamp::default()).unwrap();
}

fn named(registry: &Registry, name: &str) -> Spec {
    Spec { name: Some(name.into()), ..Spec::new("import", registry.me().clone()) }
}

fn stands(yard: &Yard) -> Vec<(String, Lifecycle, Freshness)> {
    let runs = yard.search(&Query { kind: Some("import".into()), ..Query::default() });
    runs.into_iter().map(|run| (run.record.title, run.record.lifecycle, run.freshness)).collect()
}

/// Runs are made, found, ended and found again in the registry that `url` names.
fn found_and_found_again(url: &str) {
    use {Freshness::*, Lifecycle::*};
    let yard = Yard::new();
    put(&yard.repo("repo"), "beside", &state("beside", DAY, &["completed"]));
    add(&yard, url);
    pollster::block_on(async {
        let registry = Registry::open(url).await.unwrap();
        registry.start(named(&registry, "done")).await.unwrap().succeed().await.unwrap();
        let held = registry.start(named(&registry, "held")).await.unwrap();
        let refreshed = yard.index().refresh(None).unwrap();
        assert_eq!((refreshed.read, refreshed.unavailable), (3, 0));
        assert_eq!(stands(&yard), [("done".into(), Succeeded, Valid), ("held".into(), Running, Valid)]);
        assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Valid);
        assert_eq!(yard.index().refresh(None).unwrap().read, 0, "nothing has changed");
        held.fail("exit", "code 3").await.unwrap();
        assert_eq!(stands(&yard)[1], ("held".into(), Failed, Stale));
        assert_eq!(yard.index().report(None).unwrap().stale_runs.count, 1);
        assert_eq!(yard.index().refresh(None).unwrap().read, 1, "by its revision");
        assert_eq!(stands(&yard)[1], ("held".into(), Failed, Valid));
        // More than one question's worth.
        for number in 0..150 {
            registry.start(named(&registry, &format!("more-{number}"))).await.unwrap().succeed().await.unwrap();
        }
        assert_eq!(yard.index().refresh(None).unwrap().added, 150);
        assert_eq!(yard.search(&Query { limit: 1_000, ..Query::default() }).len(), 153);
        registry.close().await;
    });
}

#[test]
fn c01_runs_in_a_database_are_found_beside_local_ones() {
    found_and_found_again(&Server::shared().fresh_url());
}

#[test]
fn c01_runs_in_a_bucket_are_found_beside_those_of_this_machine() {
    found_and_found_again(&Bucket::shared().fresh_url());
}

#[test]
fn c01_where_there_is_no_registry_none_is_made() {
    let yard = Yard::new();
    let (database, bucket) = (Server::shared().fresh_url(), Bucket::shared().fresh_url());
    add(&yard, &database);
    add(&yard, &bucket);
    for _ in 0..2 {
        assert_eq!(yard.index().refresh(None).unwrap().unavailable, 2);
        let report = yard.index().report(None).unwrap();
        let told = |source: &outlive::index::SourceReport| source.reason.as_ref().unwrap().contains("no registry");
        assert!(report.sources.iter().all(told), "{:?}", report.sources);
    }
    let schema = database.split_once("schema=").unwrap().1.split('&').next().unwrap();
    let made = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
    assert_eq!(Server::shared().psql(&made), "0");
}

#[test]
fn c04_lost_server_takes_its_runs_along_and_brings_them_back() {
    let yard = Yard::new();
    put(&yard.repo("repo"), "beside", &state("beside", DAY, &["completed"]));
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    add(&yard, &url);
    pollster::block_on(async {
        let registry = Registry::open(&url).await.unwrap();
        registry.start(named(&registry, "done")).await.unwrap().succeed().await.unwrap();
        registry.close().await;
    });
    assert_eq!(yard.index().refresh(None).unwrap().added, 2);
    server.stop("immediate");
    let found = yard.index().search(&Query::default()).unwrap();
    assert_eq!((found.runs.len(), found.missing.len()), (1, 1));
    assert_eq!(found.runs[0].record.run_id, "beside");
    put(&yard.path().join("repo"), "another", &state("another", DAY, &["completed"]));
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.unavailable, refreshed.added, refreshed.gone), (1, 1, 0));
    let report = yard.index().report(None).unwrap();
    assert_eq!((report.freshness, report.missing_runs.count), (Standing::Degraded, 1));
    assert!(report.sources.iter().any(|source| source.state == "unavailable" && source.reason.is_some()));
    server.start();
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Stale, "it is back");
    assert_eq!(yard.index().refresh(None).unwrap().unavailable, 0);
    assert_eq!(yard.all().len(), 3);
}

#[test]
fn c04_servers_that_never_answer_are_waited_for_with_an_end() {
    let yard = Yard::new();
    put(&yard.repo("repo"), "beside", &state("beside", DAY, &["completed"]));
    // They take connections, and say nothing.
    let silent: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    for listener in &silent {
        let port = listener.local_addr().unwrap().port();
        add(&yard, &format!("postgres://tester@127.0.0.1:{port}/postgres?schema=x&sslmode=disable"));
    }
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.unavailable, refreshed.added), (3, 1));
    assert_eq!(yard.all().len(), 1);
    let unavailable = yard.index().report(None).unwrap().sources;
    let told = unavailable.iter().filter_map(|source| source.reason.as_deref());
    assert_eq!(told.filter(|reason| reason.contains("has not answered")).count(), 3, "{unavailable:?}");
}
