//! What the Python package costs: its import, the calls that a loop makes, and a durable save against the same call of the
//! library.
//!
//! The package is measured as it is installed, in the interpreter that `OUTLIVE_BENCH_PYTHON` names. It is built by the same
//! profile as this program, or the ratio says nothing.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use outlive::registry::Registry;
use serde_json::json;

use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::Outcome;
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 15, slices: 10, units: 20 };
/// The variable that names the interpreter.
const PYTHON_VARIABLE: &str = "OUTLIVE_BENCH_PYTHON";
/// The interpreter that `cargo xtask python` installs the package for.
const PYTHON: &str = "target/python-package/bin/python";
/// A call, how often it is made in a slice, and the most microseconds that it may take.
const CALLS: [(&str, usize, f64); 3] = [("import", 1, 30_000.0), ("check", 20_000, 2.0), ("progress", 20_000, 5.0)];

/// Measures, and answers whether the bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let mut package = Package::start(&dir.join("python"))?;
    let mut met = true;
    for (name, times, most) in CALLS {
        let mut micros = Vec::new();
        for round in 0..=PLAN.rounds {
            let took = package.call(name, times)?.as_secs_f64() * 1e6 / times as f64;
            micros.extend((round > 0).then_some(took));
        }
        let spread = Spread::of(&micros);
        let is_met = spread.median <= most;
        println!("  {name:<9} {spread} µs  bar <= {most}: {}", if is_met { "met" } else { "MISSED" });
        met &= is_met;
    }
    let registry = pollster::block_on(Registry::open(&url(&dir.join("rust"))))?;
    let run = pollster::block_on(registry.start(registry.spec("bench")))?;
    let library = Variant::new("save of the library", || {
        let save = || pollster::block_on(run.set_checkpoint(json!({"epoch": 1})));
        measure(|| (0..PLAN.units).try_for_each(|_| Ok(save()?)))
    });
    let python = Variant::new("save of the package", || package.call("save", PLAN.units));
    let measured = interleave(PLAN, vec![library, python])?;
    measured.print_rates("saves");
    Ok(met & measured.print_ratio(1, 0, Some(1.0 / 1.5..=f64::INFINITY)))
}

fn url(dir: &Path) -> String {
    format!("sqlite:{}", dir.display())
}

/// A process that makes calls of the package.
struct Package {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Package {
    fn start(registry: &Path) -> Outcome<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = std::env::var_os(PYTHON_VARIABLE).map_or_else(|| root.join(PYTHON), PathBuf::from);
        if !python.exists() {
            return Err(format!("`{}` is missing: `cargo xtask python` installs it", python.display()).into());
        }
        let script = root.join("bench/python/calls.py");
        let mut command = Command::new(python);
        command.arg(script).arg(url(registry)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let (asks, answers) = process.stdin.take().zip(process.stdout.take()).ok_or("it has no pipes")?;
        Ok(Self { process, asks, answers: BufReader::new(answers) })
    }

    /// How long so many calls took.
    fn call(&mut self, name: &str, times: usize) -> Outcome<Duration> {
        writeln!(self.asks, "{name} {times}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let seconds =
            answer.trim().parse().map_err(|_| format!("`{name}` was not measured: it answered `{answer}`"))?;
        Ok(Duration::try_from_secs_f64(seconds)?)
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
