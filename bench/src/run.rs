//! What `outlive run -- true` costs over bare `true`, and how often it syncs.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

/// One slice of one call in each round: the extremes of single calls are what is asked for.
const PLAN: Plan = Plan { rounds: 200, slices: 1, units: 1 };
const SYNCS: &str = "fsync,fdatasync,syncfs,sync_file_range,sync";

/// The most that the fastest call may take longer than the fastest bare one, in ms.
const OVER: f64 = 3.0;
/// The most syncs that half of the calls may make.
const SYNCED: f64 = 3.0;

/// Measures, and answers whether both bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let outlive = outlive()?;
    let url = format!("sqlite:{}", dir.join("registry").display());
    let wrapped =
        [outlive.as_os_str(), "--registry".as_ref(), url.as_ref(), "run".as_ref(), "--".as_ref(), "true".as_ref()];
    let bare = ["true".as_ref()];
    let call = |words: &[&std::ffi::OsStr]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
        measure(|| match command.status()?.success() {
            true => Ok(()),
            false => Err("`true` failed".into()),
        })
    };
    // The first call makes the registry, which the later ones find.
    call(&wrapped)?;
    let measured = interleave(
        PLAN,
        vec![Variant::new("outlive run -- true", || call(&wrapped)), Variant::new("true", || call(&bare))],
    )?;
    let over: Vec<f64> = measured.pairs(0, 1).map(|(ours, bare)| (ours - bare) * 1_000.0).collect();
    println!("over bare `true`, ms: {}", Spread::of(&over));
    let [ours, bare] = [0, 1]
        .map(|variant| Spread::of(&measured.pairs(variant, variant).map(|pair| pair.0 * 1_000.0).collect::<Vec<_>>()));
    let over = ours.min - bare.min;
    println!("  of the fastest: {over:+.3} (bar: {OVER}); of the medians: {:+.3}", ours.median - bare.median);
    println!("  outlive run -- true, ms: {ours}\n  true, ms: {bare}");
    measured.print_ratio(0, 1, None);
    let synced = syncs(dir, &wrapped);
    match &synced {
        Ok(Spread { median, min, max, rounds }) => {
            println!("syncs in one call: {median} ({min}..{max}, {rounds} calls; bar: {SYNCED})");
        }
        Err(error) => println!("syncs in one call: not counted ({error})"),
    }
    Ok(over <= OVER && synced.is_ok_and(|synced| synced.median <= SYNCED))
}

/// The syncs of several calls, to see those that only some calls make.
fn syncs(dir: &Path, words: &[&std::ffi::OsStr]) -> Outcome<Spread> {
    const CALLS: usize = 20;
    let mut counts: Vec<f64> = Vec::new();
    let trace = dir.join("trace");
    for _ in 0..CALLS {
        let status = Command::new("strace")
            .args(["-f", "-qq", "-e"])
            .arg(format!("trace={SYNCS}"))
            .args(["-e", "signal=none", "-o"])
            .arg(&trace)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("strace ended with {status}").into());
        }
        let traced = std::fs::read_to_string(&trace)?;
        counts.push(traced.lines().filter(|line| line.contains("sync") && !line.contains("resumed>")).count() as f64);
    }
    Ok(Spread::of(&counts))
}
