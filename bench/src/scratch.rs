//! Where a benchmark works: a directory on the disk that the build is on, and a home of its own.
//!
//! The home is named by the environment, which only a new process can be given. So the process that is called makes the
//! directory, calls itself again for the work, and clears up whatever became of it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{beats, fleet, idle, lists, output, peers, plane, run, serving, sqlite, storm, supervise, sweep};

/// What a benchmark answers: nothing, or why it could not measure.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// A benchmark: its name, and what it does in a directory of its own. It answers whether its bars are met.
pub type Benchmark = (&'static str, fn(&Path) -> Outcome<bool>);

const DIRECTORY_VARIABLE: &str = "OUTLIVE_BENCH_DIR";

const BENCHMARKS: [Benchmark; 25] = [
    ("sqlite", sqlite::main),
    ("beats", beats::main),
    ("run", run::main),
    ("storm", storm::main),
    ("output", output::main),
    ("lists", lists::main),
    ("supervise", supervise::main),
    ("idle", idle::main),
    ("serving", serving::main),
    ("fleet", fleet::main),
    ("fleet-peers", fleet::against_peers),
    ("fleet-pickup", fleet::pickup),
    ("fleet-reclaim", fleet::reclaim),
    ("fleet-handlers", fleet::handlers::main),
    ("heartbeats", fleet::heartbeats::main),
    ("keys", fleet::keys::main),
    ("idle-fleet", fleet::idle::main),
    ("million", fleet::million::main),
    ("shares", fleet::shares::main),
    ("fleet-scale", fleet::scale::main),
    ("plane", plane::main),
    ("sweep", sweep::main),
    ("peers", peers::main),
    ("python", sqlite::python::main),
    (NAMED_ALONE, fleet::failover::main),
];
/// It takes more than an hour, and root.
const NAMED_ALONE: &str = "failover";

/// Runs the benchmark that the command line names, or all of them but [`NAMED_ALONE`].
pub fn main() -> ExitCode {
    let name = std::env::args().nth(1);
    if name.as_deref() == Some("fleet-process") {
        let words: Vec<String> = std::env::args().skip(2).collect();
        return answer(fleet::process::main(&words));
    }
    if let (Some("failover-worker"), Some(url)) = (name.as_deref(), std::env::args().nth(2)) {
        return answer(fleet::failover::workers::work(&url));
    }
    let chosen: Vec<&Benchmark> = BENCHMARKS
        .iter()
        .filter(|(known, _)| name.as_deref().map_or(*known != NAMED_ALONE, |name| name == *known))
        .collect();
    if chosen.is_empty() {
        let known: Vec<&str> = BENCHMARKS.iter().map(|(name, _)| *name).collect();
        eprintln!("no such benchmark; known: {}", known.join(", "));
        return ExitCode::from(2);
    }
    answer(match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(dir) => work(&chosen, Path::new(&dir)),
        None => in_scratch(),
    })
}

fn answer(done: Outcome<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("the benchmark could not measure: {error}");
            ExitCode::from(3)
        }
    }
}

fn work(chosen: &[&Benchmark], dir: &Path) -> Outcome<bool> {
    println!("on {}, {} processors", file_system(dir)?, std::thread::available_parallelism()?);
    let mut met = true;
    for (name, benchmark) in chosen {
        println!("\n== {name}");
        let own = dir.join(name);
        std::fs::create_dir_all(&own)?;
        met &= benchmark(&own)?;
    }
    Ok(met)
}

fn in_scratch() -> Outcome<bool> {
    let scratch = tempfile::Builder::new().prefix("bench-").tempdir_in(target_dir()?)?;
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(DIRECTORY_VARIABLE, scratch.path())
        .env("OUTLIVE_HOME", scratch.path().join("home"))
        .env_remove("OUTLIVE_REGISTRY")
        .status()?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(format!("it ended with {status}").into()),
    }
}

/// The directory that holds the binaries of this build.
fn binaries() -> Outcome<PathBuf> {
    Ok(std::env::current_exe()?.parent().ok_or("the benchmark has no directory")?.to_owned())
}

/// The variable that names another command than the one of this build: the one that `cargo install` installed, say.
const COMMAND_VARIABLE: &str = "OUTLIVE_BENCH_COMMAND";

/// The command `outlive` of this build, as it is once it is installed: a copy. A file that a linker has just written is
/// scattered over the disk's cache, and every start of it takes half a millisecond longer.
pub fn outlive() -> Outcome<PathBuf> {
    let built = match std::env::var_os(COMMAND_VARIABLE) {
        Some(named) => PathBuf::from(named),
        None => binaries()?.join("outlive"),
    };
    if !built.exists() {
        return Err(format!("`{}` is not built; `cargo xtask bench` builds it", built.display()).into());
    }
    let scratch = std::env::var_os(DIRECTORY_VARIABLE).ok_or("there is no directory to work in")?;
    let installed = Path::new(&scratch).join("bin").join("outlive");
    if !installed.exists() {
        std::fs::create_dir_all(Path::new(&scratch).join("bin"))?;
        std::fs::copy(&built, &installed)?;
    }
    Ok(installed)
}

fn target_dir() -> Outcome<PathBuf> {
    Ok(binaries()?.parent().ok_or("the benchmark is not in a target directory")?.to_owned())
}

/// What file system `dir` is on. One in memory is refused: syncs cost nothing there.
fn file_system(dir: &Path) -> Outcome<String> {
    let dir = dir.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let kind = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(mounted, _)| dir.starts_with(mounted))
        .max_by_key(|(mounted, _)| mounted.len())
        .map_or("an unknown file system", |(_, kind)| kind);
    if matches!(kind, "tmpfs" | "ramfs") {
        return Err(format!("`{}` is in memory; a benchmark of syncs needs a disk", dir.display()).into());
    }
    Ok(kind.into())
}
