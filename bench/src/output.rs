//! What it costs a command that writes a lot to be kept: `outlive run -- … | cat` against `… | tee FILE | cat`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rounds::{Plan, Variant, interleave};
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 7, slices: 1, units: 1 };
const MEGABYTES: usize = 200;
/// The most memory that the wrapper may ever have had, in kB.
const MEMORY: u64 = 20 << 10;

/// Measures, and answers whether both bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let (outlive, url) = (outlive()?, format!("sqlite:{}", dir.join("registry").display()));
    let work =
        format!("yes 'a line as a program writes it, 64 characters long, more or less' | head -c {MEGABYTES}000000");
    let shell = |line: String| {
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(dir).stdin(Stdio::null());
        measure(|| if command.status()?.success() { Ok(()) } else { Err(format!("`{line}` failed").into()) })
    };
    let wrapped = format!("'{}' --registry '{url}' run -- sh -c \"{work}\"", outlive.display());
    let ours = || shell(format!("{wrapped} | cat > /dev/null"));
    let tee = || shell(format!("{{ {work}; }} | tee kept | cat > /dev/null"));
    let bare = || shell(format!("{{ {work}; }} | cat > /dev/null"));
    let variants =
        vec![Variant::new("outlive run", ours), Variant::new("tee", tee), Variant::new("kept nowhere", bare)];
    let measured = interleave(PLAN, variants)?;
    println!("{MEGABYTES} MB of lines through a pipe:");
    measured.print_rates("times");
    let met = measured.print_ratio(0, 1, Some(0.9..=f64::INFINITY));
    measured.print_ratio(0, 2, None);
    let peak = peak(&outlive, &url, &work, dir)?;
    println!("  the wrapper's most memory: {peak} kB (bar: {MEMORY})");
    Ok(met && peak <= MEMORY)
}

/// The most memory that the wrapper has had, in kB, as far as the kernel was asked before it ended.
fn peak(outlive: &Path, url: &str, work: &str, dir: &Path) -> Outcome<u64> {
    let mut command = Command::new(outlive);
    command.args(["--registry", url, "run", "--", "sh", "-c", work]).current_dir(dir).stdin(Stdio::null());
    let mut wrapper = command.stdout(Stdio::piped()).spawn()?;
    let reader = wrapper.stdout.take().ok_or("the wrapper has no output")?;
    let mut reader = Command::new("cat").stdin(reader).stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    while wrapper.try_wait()?.is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", wrapper.id())).unwrap_or_default();
        let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak = peak.max(mark.unwrap_or(0));
        std::thread::park_timeout(Duration::from_millis(10));
    }
    reader.wait()?;
    Ok(peak)
}
