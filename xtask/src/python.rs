//! `cargo xtask python`: the Python package, built and tested as users install it.
//!
//! The wheel goes into an environment of its own below `target/`, beside the frameworks that the tests talk to. Ray and
//! Spark take half a gigabyte and a minute, so they and notebooks are tested only where they are asked for.

use crate::build::profile;
use crate::setup::once;
use crate::steps::{Failed, cargo, root, step};

/// The environment of the package; one of another interpreter has that in its name.
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

/// An interpreter, and the environment that the package is installed into for it.
struct Environment {
    interpreter: String,
    venv: String,
}

impl Environment {
    /// That of `python3`, or of an interpreter that is named, as `3.10` or by its path.
    fn of(named: Option<&str>) -> Self {
        let Some(named) = named else { return Self { interpreter: "python3".into(), venv: VENV.into() } };
        let is_version = named.starts_with(|first: char| first.is_ascii_digit());
        let interpreter = if is_version { format!("python{named}") } else { named.to_owned() };
        Self { interpreter, venv: format!("{VENV}-{}", named.trim_start_matches('/').replace('/', "-")) }
    }

    /// Builds the wheel and installs it in place of the one before.
    fn install(&self, profile: &str) -> Result<(), Failed> {
        once(&self.venv, &PACKAGES, || {
            step(&self.interpreter, &["-m", "venv", &self.venv])?;
            self.pip(&PACKAGES)
        })?;
        let wheels = root().join(WHEELS);
        let _ = std::fs::remove_dir_all(&wheels);
        let place = ["--manifest-path", MANIFEST, "--out", WHEELS, "--compatibility", "linux"];
        step(&self.program("maturin"), &[&["build", "--quiet", "--profile", profile], place.as_slice()].concat())?;
        let found = std::fs::read_dir(&wheels).ok().and_then(|mut entries| entries.next()?.ok());
        let wheel = found.ok_or_else(|| Failed(format!("there is no wheel in `{WHEELS}`")))?.path();
        self.pip(&["--force-reinstall", "--no-deps", &wheel.to_string_lossy()])
    }

    fn program(&self, name: &str) -> String {
        format!("{}/bin/{name}", self.venv)
    }

    fn pip(&self, words: &[&str]) -> Result<(), Failed> {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        step(&self.program("python"), &[pip.as_slice(), words].concat())
    }

    fn pytest(&self, tests: &str, words: &[&str]) -> Result<(), Failed> {
        let pytest = ["-m", "pytest", "--quiet", "-c", "crates/outlive-py/pyproject.toml", "--rootdir", ".", tests];
        step(&self.program("python"), &[&pytest, words].concat())
    }
}

/// Builds the command, with which the tests resume scripts, and tests the package.
pub fn run(words: &[String]) -> Result<(), Failed> {
    step(&cargo(), &["build", "--package", "outlive-cli"])?;
    test(words)
}

/// Builds the package, installs it and runs its tests: with `--all` also those that start large frameworks, with `--python`
/// for another interpreter. What else is said beyond the chore's name is said to pytest. The command is the one that was
/// built last.
pub fn test(words: &[String]) -> Result<(), Failed> {
    let (mut all, mut interpreter, mut rest) = (false, None, Vec::new());
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--all" => all = true,
            "--python" => {
                let missing = || Failed("`--python` needs an interpreter, such as 3.10".into());
                interpreter = Some(words.next().ok_or_else(missing)?);
            }
            other => rest.push(other),
        }
    }
    let environment = Environment::of(interpreter);
    environment.install("dev")?;
    environment.pytest("crates/outlive-py/tests", &rest)?;
    if !all {
        return Ok(());
    }
    let frameworks = format!("{}/frameworks", environment.venv);
    once(&frameworks, &FRAMEWORKS, || environment.pip(&FRAMEWORKS))?;
    environment.pytest("crates/outlive-py/frameworks", &rest)
}

/// Installs the package as it is shipped, for benchmarks.
pub fn install_shipped() -> Result<(), Failed> {
    Environment::of(None).install(&profile())
}
