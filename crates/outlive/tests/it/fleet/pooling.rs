//! Through PgBouncer, which hands every transaction to another session: F-62.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::ground::PostgresGround;
use outlive::conformance::CHECKS;
use outlive::filter::Filter;
use outlive::testing::ManualClock;
use outlive::testing::ports::free_port;

/// A pooler in transaction mode.
pub(crate) struct Pooler {
    child: Child,
    port: u16,
    _dir: Dir,
}

impl Pooler {
    /// One that has at most so many connections to the server on `server`.
    pub(crate) fn start(server: u16, connections: usize) -> Self {
        let dir = Dir::make();
        let port = free_port(&[]);
        let file = |name: &str| dir.0.join(name).display().to_string();
        std::fs::write(file("users"), "\"tester\" \"\"\n").unwrap();
        let said = format!(
            "[databases]\npostgres = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = {connections}\nmax_client_conn = 500\nserver_login_retry = 1\n",
            file("users")
        );
        std::fs::write(file("ini"), said).unwrap();
        let child = unprivileged("pgbouncer", &["-q".into(), file("ini")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pooler = Self { child, port, _dir: dir };
        until("the pooler to listen", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        pooler
    }

    /// The same registry, through this pooler.
    pub(crate) fn url(&self, direct: &str) -> String {
        let (before, after) = direct.split_once("127.0.0.1:").unwrap();
        format!("{before}127.0.0.1:{}/{}", self.port, after.split_once('/').unwrap().1)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The way to a server: straight, or through a pooler in transaction mode.
pub(super) struct Way(Option<Pooler>);

impl Way {
    pub(super) fn straight(_: &Server) -> Self {
        Self(None)
    }

    pub(super) fn pooled(server: &Server) -> Self {
        Self(Some(Pooler::start(server.port(), 4)))
    }

    /// The registry at a URL, this way.
    pub(super) fn url(&self, direct: &str) -> String {
        self.0.as_ref().map_or_else(|| direct.to_owned(), |pooler| pooler.url(direct))
    }
}

fn through_a_pooler(check: &str) {
    let check = CHECKS.iter().find(|known| known.name == check).unwrap();
    let ground = PostgresGround::pooled(ManualClock::new(), 4);
    if let Err(wrong) = pollster::block_on((check.run)(&ground)) {
        panic!("promise {}: {wrong}", check.promise);
    }
}

mod f_62 {
    outlive::conformance_tests!(super::through_a_pooler);
}

#[test]
fn f_62_eight_processes_share_two_sessions_and_claim_once() {
    const PROCESSES: usize = 8;
    const RUNS: usize = 200;
    let direct = Server::shared().fresh_url();
    let pooler = Pooler::start(Server::shared().port(), 2);
    let url = pooler.url(&direct);
    let maker = registry(&url);
    for _ in 0..RUNS {
        pollster::block_on(maker.enqueue(spec("job"))).unwrap();
    }
    let (claimed, passed) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                let worker = registry(&url);
                loop {
                    let handles = pollster::block_on(worker.claim(Filter::default(), 5)).unwrap();
                    pollster::block_on(worker.tick()).unwrap();
                    if handles.is_empty() {
                        break;
                    }
                    passed.fetch_add(1, Ordering::SeqCst);
                    for handle in handles {
                        claimed.lock().unwrap().push(handle.id());
                        pollster::block_on(handle.succeed()).unwrap();
                    }
                }
            });
        }
    });
    let mut claimed = claimed.into_inner().unwrap();
    claimed.sort();
    claimed.dedup();
    assert_eq!(claimed.len(), RUNS);
    let schema = schema_of(&url);
    let ended = Server::shared().psql(&format!("SELECT count(*) FROM {schema}.run WHERE state = 'succeeded'"));
    assert_eq!(ended, RUNS.to_string());
    println!("{} claims by {PROCESSES} processes", passed.into_inner());
}
