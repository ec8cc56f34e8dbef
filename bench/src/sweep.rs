//! How a sweep scales: a million objects of a thousand dead writers, in a bucket that makes them up as it is asked.

mod server;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use self::server::Server;
use outlive::store::object::Counted;

use crate::scratch::{Outcome, outlive};
use crate::time::measure;

/// How many runs there are, and how many objects each has left.
const RUNS: usize = 1_000;
const OBJECTS: usize = 1_000;
/// The most memory that a sweep may ever have had, in kB.
const MEMORY: u64 = 200 << 10;

/// Measures, and answers whether the bars are met.
pub fn main(_: &Path) -> Outcome<bool> {
    let (outlive, server) = (outlive()?, Server::start(RUNS, OBJECTS)?);
    let url = format!("s3://K:S@bench/p?endpoint=http://127.0.0.1:{}&region=us-east-1", server.port());
    let mut met = true;
    println!("{} objects of {RUNS} runs:", RUNS * OBJECTS);
    for (what, words) in
        [("made", &["ps", "--json"][..]), ("dry run", &["sweep", "--json"]), ("sweep", &["sweep", "--yes", "--json"])]
    {
        let before = server.counted();
        let mut peak = 0;
        let seconds = measure(|| {
            peak = call(&outlive, &url, words)?;
            Ok(())
        })?;
        let counted = server.counted() - before;
        let Counted { gets, puts, lists, deletes: deleted } = counted;
        println!(
            "  {what}: {seconds:.1?}, {peak} kB at most, {gets} reads, {puts} writes, {lists} lists, {deleted} deletes"
        );
        let deletes = if what == "sweep" { RUNS * OBJECTS / 1_000 } else { 0 };
        if what != "made" {
            let pages = (RUNS * OBJECTS).div_ceil(1_000) + RUNS.div_ceil(1_000);
            // Each prefix has one page more: the records, the manifests, the trees.
            met &= lists <= pages as u64 + 3 && deleted == deletes as u64 && peak <= MEMORY;
        }
    }
    println!("  (bars: {} lists, {} deletes, {MEMORY} kB)", RUNS * OBJECTS / 1_000 + 4, RUNS * OBJECTS / 1_000);
    Ok(met)
}

/// Calls the command, and answers with the most memory it has had, in kB, as far as the kernel was asked before it ended.
fn call(outlive: &Path, url: &str, words: &[&str]) -> Outcome<u64> {
    let mut command = Command::new(outlive);
    let mut child = command.args(["--registry", url]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() {
                Ok(peak)
            } else {
                Err(format!("`outlive {}`: {status}", words.join(" ")).into())
            };
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak = peak.max(mark.unwrap_or(0));
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
