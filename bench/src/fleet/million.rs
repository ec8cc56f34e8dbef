//! A registry with a million runs that wait and a million that have ended: claims beside those of an empty one, and lists.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use outlive::filter::Filter;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::person;
use outlive::testing::server::Server;
use serde_json::Value;

use super::process::KIND;
use crate::rounds::Spread;
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

/// How many wait, and how many have ended, unless `OUTLIVE_BENCH_RUNS` says otherwise.
const RUNS: usize = 1_000_000;
const CLAIMS: usize = 1_000;
/// How much longer the hundredth longest claim may take than where nothing else waits.
const SLOWER: f64 = 2.0;
/// The most that a list may take, in ms, in the middle of so many.
const LATEST: f64 = 50.0;
const CALLS: usize = 15;

/// Measures, and answers whether the bars are met.
pub fn main(_dir: &Path) -> Outcome<bool> {
    let server = super::server();
    let runs = super::number("OUTLIVE_BENCH_RUNS", RUNS);
    let (full_url, empty_url) = (server.fresh_url(), server.fresh_url());
    let (full, empty) =
        (pollster::block_on(Registry::open(&full_url))?, pollster::block_on(Registry::open(&empty_url))?);
    pollster::block_on(full.enqueue(Spec::new(KIND, person("ada"))))?;
    let schema = full_url.split("schema=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
    let filled = measure(|| {
        fill(&server, schema, runs);
        Ok(())
    })?;
    let load = super::load();
    println!("{runs} runs wait and {runs} have ended (made in {:.0} s), load {load}:", filled.as_secs_f64());
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..CLAIMS {
        for (registry, took) in [&full, &empty].into_iter().zip(&mut took) {
            let one = Planned { spec: Spec::new(KIND, person("ada")), after: Vec::new() };
            pollster::block_on(registry.enqueue_all(vec![one]))?;
            let seconds = measure(|| {
                let handles = pollster::block_on(registry.claim(Filter::default(), 1))?;
                let claimed = handles.len();
                handles.into_iter().for_each(std::mem::forget);
                if claimed == 1 { Ok(()) } else { Err("nothing was claimed".into()) }
            })?;
            took.push(seconds.as_secs_f64() * 1_000.0);
        }
    }
    let [full, empty] = took.map(|mut took| {
        took.sort_by(f64::total_cmp);
        (Spread::of(&took).median, took[CLAIMS * 99 / 100])
    });
    let (middle, late) = (full.0 / empty.0, full.1 / empty.1);
    println!("  claim p50 {:.2} ms, p99 {:.2} ms; empty {:.2}, {:.2}", full.0, full.1, empty.0, empty.1);
    println!("  full / empty: p50 {middle:.2}, p99 {late:.2} (bar: {SLOWER})");
    let mut met = late <= SLOWER;
    for list in ["ps", "ps --all", "queue list", "search nothing", "search bench", "stats"] {
        let words: Vec<&str> = list.split(' ').collect();
        met &= print(list, || {
            let called = Command::new(outlive()?).args(["--registry", &full_url]).args(&words).output()?;
            // A search that finds nothing says so by its status.
            let is_told = called.status.success() || words[0] == "search";
            if is_told { Ok(()) } else { Err(String::from_utf8_lossy(&called.stderr).into_owned().into()) }
        })?;
    }
    let served = Served::start(&full_url)?;
    met &= print("GET /metrics", || served.metrics())?;
    Ok(met)
}

fn print(name: &str, mut call: impl FnMut() -> Outcome<()>) -> Outcome<bool> {
    call()?;
    let mut took = Vec::new();
    for _ in 0..CALLS {
        took.push(measure(&mut call)?.as_secs_f64() * 1_000.0);
    }
    let took = Spread::of(&took);
    let is_met = took.median <= LATEST;
    println!("  {name:<16} {took} ms{}", if is_met { "" } else { "  MISSED" });
    Ok(is_met)
}

/// Copies the one run of the registry: so many that wait, and so many that have ended.
fn fill(server: &Server, schema: &str, runs: usize) {
    server.psql(&format!(
        "SET search_path TO {schema}; SET synchronous_commit = off;
         CREATE TEMP TABLE one AS SELECT spec.*, waiting.stamp, waiting.events FROM spec JOIN waiting USING (id);
         CREATE TEMP TABLE many AS SELECT first_id(at) AS id, at, n FROM (
             SELECT n, clock() - {runs}::int8 * 2000 + n::int8 * 1000 AS at FROM generate_series(1, {runs} * 2) AS n) AS moments;
         INSERT INTO spec SELECT many.id, at, priority, NULL, kind, NULL, NULL, body FROM many, one;
         INSERT INTO ended (id, revision, stamp, epoch, created_at, priority, archived, started_at, ended_at, state, kind, events)
             SELECT many.id, 3, stamp, 1, at, priority, false, at, at, 'succeeded', kind, events FROM many, one WHERE n <= {runs};
         INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, state, kind, events)
             SELECT many.id, 1, stamp, 0, at, priority, true, 'pending', kind, events FROM many, one WHERE n > {runs}"
    ));
    server.psql("VACUUM ANALYZE");
    server.psql("CHECKPOINT");
}

/// A server of the registry.
struct Served {
    child: Child,
    address: String,
    token: String,
}

impl Served {
    fn start(url: &str) -> Outcome<Self> {
        let words = ["--registry", url, "serve", "--json", "--listen", "127.0.0.1:0"];
        let mut child = Command::new(outlive()?).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("it says nothing")?).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line)?;
        let address = said["url"].as_str().and_then(|url| url.split("://").nth(1)).ok_or("it is nowhere")?.to_owned();
        let token = std::fs::read_to_string(Path::new(&std::env::var("OUTLIVE_HOME")?).join("token"))?;
        Ok(Self { child, address, token: token.trim().to_owned() })
    }

    fn metrics(&self) -> Outcome<()> {
        let mut stream = TcpStream::connect(&self.address)?;
        let (address, token) = (&self.address, &self.token);
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err("no metrics".into()) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
