//! A server that others follow: what is acknowledged, and which server is asked.

use std::net::TcpListener;

use super::*;

#[test]
fn a_commit_that_waits_for_a_second_server_is_not_acknowledged() {
    let server = Server::alone(&[]);
    let store = open(&server.fresh_url()).unwrap();
    pollster::block_on(store.commit(vec![making(draft())])).unwrap();
    // Of a server that is away: commits wait for it, as soon as the server has read its configuration.
    server.psql("ALTER SYSTEM SET synchronous_standby_names = 'away'");
    server.psql("SELECT pg_reload_conf()");
    let mut last = draft();
    until("a commit to wait", || {
        last = draft();
        match pollster::block_on(store.commit(vec![making(last.clone())])) {
            Ok(_) => false,
            Err(Error::Unknown(_)) => true,
            Err(other) => panic!("{other}"),
        }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_ne!(server.psql(waits), "0", "the commit waited for nothing");
    server.psql("ALTER SYSTEM RESET synchronous_standby_names");
    server.psql("SELECT pg_reload_conf()");
    // It was done after all, as `Unknown` says that it may.
    until("the commit to be done", || pollster::block_on(record(&store, last.id)).is_some());
}

#[test]
fn a_server_that_hangs_keeps_no_client_from_the_one_that_leads() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, port) = (Server::shared().fresh_url(), silent.local_addr().unwrap().port());
    let (before, after) = url.split_once("127.0.0.1:").unwrap();
    let store = open(&format!("{before}127.0.0.1:{port},127.0.0.1:{after}")).unwrap();
    pollster::block_on(store.commit(vec![making(draft())])).unwrap();
}
