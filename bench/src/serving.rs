//! What a server stands: many who listen, many who ask, and the beats of a run on it meanwhile.
//!
//! Requests are due at fixed times, and are timed from when they were due: a server that is late with one is late with
//! those behind it. `OUTLIVE_BENCH_SECONDS` is how long it lasts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::scratch::{Outcome, outlive};
use crate::supervise::{KNOWN, fill};
use crate::time::Begun;

const LISTENERS: usize = 1_000;
/// Requests a second, and how many connections they come by.
const RATE: usize = 200;
const ASKING: usize = 20;
const SECONDS: usize = 20;
/// The most that one of a hundred requests may take, in ms.
const SLOWEST: f64 = 50.0;
/// How much more memory it may have at the end than in the middle, as a ratio.
const GROWTH: f64 = 1.1;
const PAGE: &str = "/v1/ps?all=true&limit=100";

/// A process that is ended with the benchmark.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a server is, and what it knows us by.
struct Served {
    process: Ended,
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
        let home = std::env::var("OUTLIVE_HOME")?;
        let token = std::fs::read_to_string(Path::new(&home).join("token"))?.trim().to_owned();
        Ok(Self { process: Ended(child), address, token })
    }

    /// A connection, with a request for `path` sent.
    fn ask(&self, path: &str) -> Outcome<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        self.ask_again(&mut stream, path)?;
        Ok(stream)
    }

    fn ask_again(&self, stream: &mut TcpStream, path: &str) -> Outcome<()> {
        let (address, token) = (&self.address, &self.token);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
        Ok(stream.write_all(request.as_bytes())?)
    }

    /// The memory that it has, in MB.
    fn memory(&self) -> Outcome<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the kernel does not say")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1_024.0)
    }
}

/// The body of the next answer on a connection.
fn answer(stream: &mut TcpStream) -> Outcome<Vec<u8>> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err("the server has closed a connection".into());
        }
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4) else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err(format!("the server answered {}", head.lines().next().unwrap_or_default()).into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let length = length.ok_or("an answer of no length")?;
        if bytes.len() >= end + length {
            return Ok(bytes[end..end + length].to_vec());
        }
    }
}

/// Measures, and answers whether the bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let seconds = std::env::var("OUTLIVE_BENCH_SECONDS").ok().and_then(|said| said.parse().ok()).unwrap_or(SECONDS);
    let path = dir.join("served");
    fill(&path)?;
    // Every listener is a descriptor at either end; the server raises its own limit.
    let own = std::process::id().to_string();
    Command::new("prlimit").args(["--pid", &own, "--nofile=4096:"]).status()?;
    let served = Served::start(&format!("sqlite:{}", path.display()))?;
    let url = format!("http://{}", served.address);
    let words = ["--registry", &url, "run", "--name", "beater", "--", "sleep", "3600"];
    let beater = Ended(Command::new(outlive()?).args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    let listeners: Vec<TcpStream> = (0..LISTENERS).map(|_| served.ask("/v1/changes")).collect::<Outcome<_>>()?;
    let met = load(&served, listeners, seconds);
    drop(beater);
    met
}

fn load(served: &Served, listeners: Vec<TcpStream>, seconds: usize) -> Outcome<bool> {
    let (over, heard, gone) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Begun::now();
    std::thread::scope(|scope| {
        let (over, heard, gone) = (&over, &heard, &gone);
        let quarter = LISTENERS.div_ceil(4);
        let mut rest = listeners;
        while !rest.is_empty() {
            let part = rest.split_off(rest.len().saturating_sub(quarter));
            scope.spawn(move || listen(part, over, heard, gone));
        }
        let asking: Vec<_> = (0..ASKING)
            .map(|who| scope.spawn(move || ask(served, begun, who, seconds).map_err(|error| error.to_string())))
            .collect();
        let watched = watch(served, begun, seconds);
        let took: Result<Vec<Vec<f64>>, String> =
            asking.into_iter().map(|asked| asked.join().map_err(|_| "a thread ended".to_owned())?).collect();
        over.store(true, Ordering::SeqCst);
        tell(took?.concat(), watched?, heard.load(Ordering::SeqCst), gone.load(Ordering::SeqCst))
    })
}

/// Reads what listeners are told, and forgets it.
fn listen(streams: Vec<TcpStream>, over: &AtomicBool, heard: &AtomicUsize, gone: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    for stream in &streams {
        if stream.set_nonblocking(true).is_err() {
            gone.fetch_add(1, Ordering::SeqCst);
        }
    }
    while !over.load(Ordering::SeqCst) {
        for mut stream in &streams {
            match stream.read(&mut buffer) {
                Ok(0) => _ = gone.fetch_add(1, Ordering::SeqCst),
                Ok(_) => _ = heard.fetch_add(1, Ordering::SeqCst),
                Err(_) => {}
            }
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Asks for pages when they are due. Answers with how long each took, in ms.
fn ask(served: &Served, begun: Begun, who: usize, seconds: usize) -> Outcome<Vec<f64>> {
    let mut took = Vec::new();
    let mut stream = served.ask(PAGE)?;
    answer(&mut stream)?;
    for count in 0..seconds * RATE / ASKING {
        let due = Duration::from_secs_f64((count * ASKING + who) as f64 / RATE as f64);
        while let Some(left) = due.checked_sub(begun.ago()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        served.ask_again(&mut stream, PAGE)?;
        answer(&mut stream)?;
        took.push((begun.ago() - due).as_secs_f64() * 1_000.0);
    }
    Ok(took)
}

/// What was seen of the server and of the run on it, second by second.
#[derive(Default)]
struct Watched {
    memory: Vec<f64>,
    late: usize,
    looks: usize,
}

fn watch(served: &Served, begun: Begun, seconds: usize) -> Outcome<Watched> {
    let mut watched = Watched::default();
    while begun.ago() < Duration::from_secs(seconds as u64) {
        let shown: Value = serde_json::from_slice(&answer(&mut served.ask("/v1/show?run=beater")?)?)?;
        watched.looks += 1;
        watched.late += usize::from(shown["health"] != "healthy");
        watched.memory.push(served.memory()?);
        std::thread::park_timeout(Duration::from_secs(1));
    }
    Ok(watched)
}

fn tell(mut took: Vec<f64>, watched: Watched, heard: usize, gone: usize) -> Outcome<bool> {
    took.sort_by(f64::total_cmp);
    let at = |part: f64| took.get(((took.len() - 1) as f64 * part) as usize).copied().unwrap_or_default();
    let (middle, last) = (watched.memory[watched.memory.len() / 2], watched.memory[watched.memory.len() - 1]);
    let busy = std::fs::read_to_string("/proc/loadavg")?;
    println!(
        "{} pages of 100 of {KNOWN} runs at {RATE} a second, {LISTENERS} listeners: p50 {:.1} ms, p99 {:.1} ms (bar: {SLOWEST}), most {:.1} ms",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    println!("memory: {middle:.1} MB in the middle, {last:.1} MB at the end (bar: {GROWTH} times as much)");
    println!("listeners: {heard} times told something, {gone} lost (bar: 0)");
    println!("a run through the server: {} of {} looks late (bar: 0)", watched.late, watched.looks);
    println!("load of the machine: {}", busy.trim());
    Ok(at(0.99) <= SLOWEST && last <= middle * GROWTH && gone == 0 && watched.late == 0)
}
