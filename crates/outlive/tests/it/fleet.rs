//! A fleet's database in trouble: killed, cut off, put back, locked, full, and reached through a pooler.

mod contention;
mod crashes;
mod dialects;
mod due;
mod event_logs;
mod failover;
mod history;
mod housekeeping;
mod news;
mod opening;
mod owners;
mod plans;
mod pooling;
mod transactions;
mod waiting;
mod wire;

use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outlive::id::{RunId, SystemEntropy};
use outlive::lifecycle::enqueued;
use outlive::registry::Registry;
use outlive::run::Run;
use outlive::store::postgres::PostgresStore;
use outlive::store::{Error, Expect, Store, Write};
use outlive::testing::server::{Server, make_dir, program, unprivileged};
use outlive::testing::{pending, person, spec, stamp, stranger};
use outlive::time::{Clock, SystemClock};

pub(crate) use self::pooling::Pooler;
use self::pooling::Way;

/// How long anything may take that should happen soon. Only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

fn open(url: &str) -> Result<PostgresStore, Error> {
    pollster::block_on(PostgresStore::open(&url.parse().unwrap()))
}

/// A process that beats when it is told to.
fn process(store: &PostgresStore, clock: Arc<dyn Clock>) -> Registry {
    Registry::over(Arc::new(store.clone()), clock, Arc::new(SystemEntropy), person("ada"), stranger(1))
}

fn registry(url: &str) -> Registry {
    process(&open(url).unwrap(), Arc::new(SystemClock))
}

fn draft() -> Run {
    pending(spec("job"), SystemClock.now(), &SystemEntropy)
}

/// The write that makes a run.
fn making(run: Run) -> Write {
    let made = enqueued(&run, &person("ada"));
    Write { expect: Expect::Absent, run, events: vec![made], ended: None, stamp: stamp(&SystemEntropy) }
}

fn schema_of(url: &str) -> String {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned()
}

async fn record(store: &dyn Store, id: RunId) -> Option<outlive::store::Record> {
    store.get(&[id]).await.unwrap().pop()
}

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = SystemClock.awake();
    while !so() {
        assert!(SystemClock.awake() - start < PATIENCE, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Lets time pass by the server's clock, which nobody here can move.
fn pass(duration: Duration) {
    let start = SystemClock.awake();
    until("time to pass", || SystemClock.awake() - start >= duration);
}

/// Somebody at a prompt of the server.
struct Session {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Session {
    fn begin(server: &Server) -> Self {
        let mut child = Command::new(program("psql"))
            .args(["-X", "-At", "-q", "-h", "127.0.0.1", "-U", "tester", "-d", "postgres"])
            .args(["-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Types something.
    fn say(&mut self, sql: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{sql}").unwrap();
    }

    /// Types something and waits until it is done.
    fn does(&mut self, sql: &str) {
        self.say(&format!("{sql}\n\\echo done"));
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the session ended at: {sql}");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that a server's user may write, gone with this value.
struct Dir(PathBuf);

impl Dir {
    fn make() -> Self {
        use outlive::id::Entropy;
        let path = std::env::temp_dir().join(format!("outlive-fleet-{:x}", SystemEntropy.draw()));
        make_dir(&path);
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end.
fn succeeds(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}
