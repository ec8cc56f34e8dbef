//! Peers on PostgreSQL: programs of their own in `bench/peers-fleet`, each with its batches on, in turns with ours on one
//! server.
//!
//! A machine that is never quiet says little by how long things took, so the processor time of each is measured too: of its
//! own process and of the server, for a job that is claimed, done and recorded as done.

use std::path::{Path, PathBuf};
use std::process::Command;

use outlive::testing::server::Server;

use super::{Figures, measure_one, processor_time, server_time, wal};
use crate::rounds::Spread;
use crate::scratch::Outcome;

const ROUNDS: usize = 5;
const JOBS: usize = 20_000;
const SLOTS: usize = 500;

/// A peer: its name, and the words that start it.
struct Peer {
    name: &'static str,
    words: Vec<PathBuf>,
}

fn peers() -> Vec<Peer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers-fleet");
    let node = |file: &str| vec!["node".into(), dir.join("node").join(file)];
    let rust =
        |name: &str| vec![dir.join(name).join("target/release").join(format!("peer-{}", name.replace('_', "-")))];
    vec![
        Peer { name: "graphile_worker 0.14 (Rust)", words: rust("graphile_worker") },
        Peer { name: "graphile-worker 0.17.3 (Node)", words: node("graphile.mjs") },
        Peer { name: "pg-boss 10.4.2 (Node), fetch and complete", words: node("pg-boss.mjs") },
    ]
}

impl Peer {
    fn is_built(&self) -> bool {
        let is_there = |word: &PathBuf| word.components().count() == 1 || word.exists();
        let modules =
            || self.words.last().and_then(|file| file.parent()).is_some_and(|dir| dir.join("node_modules").exists());
        self.words.iter().all(is_there) && (self.words.len() == 1 || modules())
    }

    /// One round in a database of its own.
    fn measure(&self, server: &Server, round: usize, figures: &mut Figures) -> Outcome<()> {
        let name =
            format!("peer_{round}_{}", self.name.chars().filter(char::is_ascii_alphanumeric).collect::<String>());
        let name = name.to_lowercase();
        server.psql(&format!("CREATE DATABASE {name}"));
        let url = format!("postgres://tester@127.0.0.1:{}/{name}?sslmode=disable", server.port());
        let (own, theirs, logged) = (processor_time("self"), server_time(server), wal(server)?);
        let output = Command::new(&self.words[0]).args(&self.words[1..]).arg(&url).arg(JOBS.to_string()).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let seconds = |what: &str| -> Outcome<f64> {
            let line = said.lines().find_map(|line| line.strip_prefix(what));
            let trouble = || format!("{}: {said}{}", self.name, String::from_utf8_lossy(&output.stderr));
            Ok(line.ok_or_else(trouble)?.trim().parse()?)
        };
        figures.enqueued.push(JOBS as f64 / seconds("enqueued")?);
        figures.done.push(JOBS as f64 / seconds("done")?);
        figures.wal.push((wal(server)? - logged) / JOBS as f64);
        // Enqueueing and starting are in it.
        figures.own_time.push((processor_time("self") - own) / JOBS as f64);
        figures.server_time.push((server_time(server) - theirs) / JOBS as f64);
        server.psql(&format!("DROP DATABASE {name} WITH (FORCE)"));
        Ok(())
    }
}

pub(super) fn main() -> Outcome<bool> {
    let server = Server::alone(&["shared_buffers=256MB", "max_wal_size=4GB"]);
    let (built, missing): (Vec<Peer>, Vec<Peer>) = peers().into_iter().partition(Peer::is_built);
    for peer in missing {
        println!("{} is not built: see bench/README.md", peer.name);
    }
    let mut ours = Figures::default();
    let mut theirs: Vec<Figures> = built.iter().map(|_| Figures::default()).collect();
    for round in 0..=ROUNDS {
        let mut scratch = Figures::default();
        // The first round warms up.
        let into = if round == 0 { &mut scratch } else { &mut ours };
        let (own, of_server) = (processor_time("self"), server_time(&server));
        measure_one(&server, &server.fresh_url(), SLOTS, JOBS, into)?;
        // With what enqueueing took, as the others'.
        into.own_time.pop();
        into.server_time.pop();
        into.own_time.push((processor_time("self") - own) / JOBS as f64);
        into.server_time.push((server_time(&server) - of_server) / JOBS as f64);
        for (peer, figures) in built.iter().zip(&mut theirs) {
            let mut scratch = Figures::default();
            peer.measure(&server, round, if round == 0 { &mut scratch } else { figures })?;
        }
    }
    println!("{JOBS} jobs that do nothing, one process of each, PostgreSQL with default durability; {ROUNDS} rounds");
    print("outlive, 500 slots", &ours);
    for (peer, figures) in built.iter().zip(&theirs) {
        print(peer.name, figures);
        let ratio =
            |ours: &[f64], theirs: &[f64]| -> Vec<f64> { ours.iter().zip(theirs).map(|(a, b)| a / b).collect() };
        for (what, ratio) in [
            ("claim + finish", ratio(&ours.done, &figures.done)),
            ("enqueue", ratio(&ours.enqueued, &figures.enqueued)),
        ] {
            let Spread { median, min, max, .. } = Spread::of(&ratio);
            println!("    {what}: outlive is {median:.2} ({min:.2}..{max:.2}) times as fast");
        }
    }
    Ok(true)
}

fn print(name: &str, figures: &Figures) {
    println!("  {name}");
    for (what, values) in [
        ("enqueued a second", &figures.enqueued),
        ("claimed + finished a second", &figures.done),
        ("WAL bytes a job", &figures.wal),
        ("processor µs a job, worker", &figures.own_time),
        ("processor µs a job, server", &figures.server_time),
    ] {
        let Spread { median, min, max, .. } = Spread::of(values);
        println!("    {what:<28} {median:>9.0} ({min:.0}..{max:.0})");
    }
}
