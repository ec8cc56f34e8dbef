//! Those who are measured: outlive and others, each a program with the same verbs, in a database of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use outlive::testing::server::{Server, program};

use crate::scratch::Outcome;

/// How long anything may take that is not measured by its length.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What the others are compared with.
pub(super) const OURS: &str = "outlive";
/// The oldest PostgreSQL that runledger takes: it makes ids with `uuidv7()`, and no job begins without `transaction_timeout`.
const RUNLEDGER: usize = 18;

/// Somebody who is measured.
pub(super) struct Peer {
    pub(super) name: &'static str,
    words: Vec<PathBuf>,
    /// How many jobs a round has: fewer of those who take long.
    pub(super) jobs: usize,
    /// SQL that counts the jobs that are not done.
    left: &'static str,
}

/// outlive first, then the others that are built and take this server. Of those that are not it is said.
pub(super) fn all(server: &Server) -> Outcome<Vec<Peer>> {
    let chosen = std::env::var("OUTLIVE_BENCH_PEERS").ok();
    let is_chosen = |peer: &Peer| {
        let is_named = |chosen: &String| chosen.split(',').any(|word| peer.name.starts_with(word));
        peer.name == OURS || chosen.as_ref().is_none_or(is_named)
    };
    let version: usize = server.psql("SHOW server_version_num").parse::<usize>()? / 10_000;
    let mut all = Vec::new();
    for peer in known()?.into_iter().filter(is_chosen) {
        if !peer.is_built() {
            println!("{} is not built: see bench/README.md", peer.name);
        } else if peer.name.starts_with("runledger") && version < RUNLEDGER {
            println!("{} needs PostgreSQL {RUNLEDGER}, and this is {version}", peer.name);
        } else {
            all.push(peer);
        }
    }
    Ok(all)
}

fn known() -> Outcome<Vec<Peer>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers-fleet");
    let node = |file: &str| vec!["node".into(), dir.join("node").join(file)];
    let rust = |name: &str| vec![dir.join("target/release").join(format!("peer-{name}"))];
    let own = vec![std::env::current_exe()?, "fleet-process".into()];
    let peer = |name, words, jobs, left| Peer { name, words, jobs, left };
    let ours = "SELECT (SELECT count(*) FROM outlive.waiting) + (SELECT count(*) FROM outlive.live)";
    let graphile = "SELECT count(*) FROM graphile_worker._private_jobs";
    let boss = "SELECT count(*) FROM pgboss.job WHERE state < 'completed'";
    // Its view of all jobs takes seconds for thousands of them.
    let awa = "SELECT (SELECT count(*) FROM awa.ready_entries) - (SELECT count(*) FROM awa.done_entries)
        - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)";
    let underway = "SELECT count(*) FROM underway.task WHERE state::text <> 'succeeded'";
    let dbos = "SELECT count(*) FROM dbos.workflow_status WHERE status <> 'SUCCESS'";
    let runledger = "SELECT count(*) FROM job_queue WHERE status <> 'SUCCEEDED'";
    let apalis = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
    Ok(vec![
        peer(OURS, own, 20_000, ours),
        peer("graphile_worker 0.14 (Rust)", rust("graphile-worker"), 20_000, graphile),
        peer("graphile-worker 0.17.3 (Node)", node("graphile.mjs"), 20_000, graphile),
        peer("pg-boss 10.4.2 (Node)", node("pg-boss.mjs"), 20_000, boss),
        peer("awa 0.6.9", rust("awa"), 20_000, awa),
        peer("underway 0.2", rust("underway"), 1_000, underway),
        peer("dbos 0.5 (Rust)", rust("dbos"), 5_000, dbos),
        peer("runledger 0.12", rust("runledger"), 2_000, runledger),
        peer("apalis-postgres 1.0", rust("apalis"), 20_000, apalis),
    ])
}

impl Peer {
    fn is_built(&self) -> bool {
        let is_there = |word: &PathBuf| word.components().count() == 1 || word.exists();
        let is_node = self.words.first().is_some_and(|word| word == Path::new("node"));
        let modules =
            || self.words.last().and_then(|file| file.parent()).is_some_and(|dir| dir.join("node_modules").exists());
        self.words.iter().all(is_there) && (!is_node || modules())
    }

    /// A database of its own on the server, until it is dropped.
    pub(super) fn place<'a>(&'a self, server: &'a Server, what: &str) -> Place<'a> {
        let name: String = self.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("{what}_{}", name.to_lowercase());
        server.psql(&format!("CREATE DATABASE {name}"));
        Place { peer: self, server, name }
    }
}

/// A database of a peer's own.
pub(super) struct Place<'a> {
    peer: &'a Peer,
    server: &'a Server,
    name: String,
}

impl Place<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let url = format!("postgres://tester@127.0.0.1:{}/{}?sslmode=disable", self.server.port(), self.name);
        let mut command = Command::new(&self.peer.words[0]);
        command.args(&self.peer.words[1..]).arg(url).args(words).stdin(Stdio::null());
        command
    }

    /// Has the program do something to its end, and answers with what it said.
    pub(super) fn call(&self, words: &[&str]) -> Outcome<String> {
        let output = self.command(words).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{} {}: {}: {said}{trouble}", self.peer.name, words.join(" "), output.status).into())
    }

    /// Starts a process that goes on, and waits until it is ready. What it says is heard by `said`.
    pub(super) fn start(&self, words: &[&str], crowd: &mut Crowd) -> Outcome<()> {
        let log = std::env::temp_dir().join(format!("{}.log", self.name));
        let mut child = self.command(words).stdout(Stdio::piped()).stderr(std::fs::File::create(&log)?).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("a process without an output")?).lines();
        let said = crowd.say.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // Nobody listens any more once the round is over.
                let _ = said.send(line);
            }
        });
        crowd.members.push(child);
        let ready = crowd.next(|line| (line == "ready").then_some(()));
        ready.map_err(|error| {
            format!("{}: {error}: {}", self.peer.name, std::fs::read_to_string(&log).unwrap_or_default())
        })?;
        std::fs::remove_file(&log)?;
        Ok(())
    }

    /// How many jobs are not done.
    pub(super) fn left(&self) -> Outcome<usize> {
        Ok(self.ask(self.peer.left)?.parse()?)
    }

    fn ask(&self, sql: &str) -> Outcome<String> {
        let words = ["-X", "-At", "-h", "127.0.0.1", "-U", "tester", "-d", &self.name];
        let output = Command::new(program("psql"))
            .args(words)
            .args(["-p", &self.server.port().to_string(), "-c", sql])
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.server.psql(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Processes that go on until they are dropped, and what they say.
pub(super) struct Crowd {
    members: Vec<Child>,
    say: Sender<String>,
    said: Receiver<String>,
}

/// What a process said of a job when it began it.
#[derive(Clone, Copy)]
pub(super) struct Picked {
    /// How long the job had waited, in microseconds.
    pub(super) waited: u64,
    pub(super) mark: u64,
}

impl Crowd {
    pub(super) fn new() -> Self {
        let (say, said) = channel();
        Self { members: Vec::new(), say, said }
    }

    fn next<T>(&self, mut wanted: impl FnMut(&str) -> Option<T>) -> Outcome<T> {
        self.within(PATIENCE, |line| wanted(line)).ok_or_else(|| "a process said nothing for a minute".into())
    }

    /// The next thing that is wanted of what is said, if anybody says anything for so long.
    fn within<T>(&self, patience: Duration, mut wanted: impl FnMut(&str) -> Option<T>) -> Option<T> {
        loop {
            let line = self.said.recv_timeout(patience).ok()?;
            if let Some(found) = wanted(&line) {
                return Some(found);
            }
        }
    }

    /// The next job that is begun, within so long.
    pub(super) fn picked(&self, patience: Duration) -> Option<Picked> {
        self.within(patience, |line| {
            let mut words = line.strip_prefix("picked ")?.split(' ').map(str::parse);
            Some(Picked { waited: words.next()?.ok()?, mark: words.next()?.ok()? })
        })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.members {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
