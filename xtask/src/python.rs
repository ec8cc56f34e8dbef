//! `cargo xtask python`: the Python package, built and tested as users install it.
//!
//! The wheel goes into an environment of its own below `target/`, beside the frameworks that the tests talk to. Ray and
//! Spark take half a gigabyte and a minute, so they and notebooks are tested only where they are asked for.

use crate::setup::once;
use crate::steps::{Failed, cargo, root, step};

const VENV: &str = "target/python-package";
const WHEELS: &str = "target/wheels";
const MANIFEST: &str = "crates/outlive-py/Cargo.toml";

/// What builds and tests the package, and the framework that every run of the tests has.
const PACKAGES: [&str; 6] = [
    "basedpyright==1.40.2",
    "distributed==2026.8.0",
    "maturin==1.16.0",
    "mypy==2.4.1",
    "pydantic==2.12.5",
    "pytest==9.2.0",
];
/// The frameworks that are tested where `--all` asks for them. Transformers is installed without `torch`, which is gigabytes
/// of libraries for graphics cards on Linux.
const FRAMEWORKS: [&str; 5] =
    ["ipykernel==7.4.0", "papermill==2.7.0", "pyspark==4.3.0", "ray==2.60.0", "transformers==5.23.0"];

/// Builds the command, with which the tests resume scripts, and tests the package.
pub fn run(words: &[String]) -> Result<(), Failed> {
    step(&cargo(), &["build", "--package", "outlive-cli"])?;
    test(words)
}

/// Builds the package, installs it and runs its tests: with `--all` also those that start large frameworks. What else is
/// said beyond the chore's name is said to pytest. The command is the one that was built last.
pub fn test(words: &[String]) -> Result<(), Failed> {
    let all = words.iter().any(|word| word == "--all");
    install()?;
    let rest: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "--all").collect();
    pytest("crates/outlive-py/tests", &rest)?;
    if !all {
        return Ok(());
    }
    once(&format!("{VENV}/frameworks"), &FRAMEWORKS, || pip(&FRAMEWORKS))?;
    pytest("crates/outlive-py/frameworks", &rest)
}

fn pytest(tests: &str, words: &[&str]) -> Result<(), Failed> {
    let pytest = ["-m", "pytest", "--quiet", "-c", "crates/outlive-py/pyproject.toml", "--rootdir", ".", tests];
    step(&format!("{VENV}/bin/python"), &[&pytest, words].concat())
}

/// Builds the wheel and installs it in place of the one before.
fn install() -> Result<(), Failed> {
    once(VENV, &PACKAGES, || {
        step("python3", &["-m", "venv", VENV])?;
        pip(&PACKAGES)
    })?;
    let wheels = root().join(WHEELS);
    let _ = std::fs::remove_dir_all(&wheels);
    let maturin = format!("{VENV}/bin/maturin");
    step(&maturin, &["build", "--quiet", "--manifest-path", MANIFEST, "--out", WHEELS, "--compatibility", "linux"])?;
    let found = std::fs::read_dir(&wheels).ok().and_then(|mut entries| entries.next()?.ok());
    let wheel = found.ok_or_else(|| Failed(format!("there is no wheel in `{WHEELS}`")))?.path();
    pip(&["--force-reinstall", "--no-deps", &wheel.to_string_lossy()])
}

fn pip(words: &[&str]) -> Result<(), Failed> {
    step(&format!("{VENV}/bin/pip"), &[&["install", "--quiet", "--disable-pip-version-check"], words].concat())
}
