//! The table of chores: what each is called, what it is for, and where it is done.

use std::process::ExitCode;

use crate::steps::Failed;
use crate::{bench, build, dist, lint, postgres, python, setup, test};

type Chore = (&'static str, &'static str, fn(&[String]) -> Result<(), Failed>);

const CHORES: [Chore; 8] = [
    (
        "test",
        "[NEXTEST ARGS…]  set up, then all tests; OUTLIVE_SIM_HISTORIES=N simulates N histories instead of the default",
        test::run,
    ),
    ("lint", "formatting, clippy, licences and versions of dependencies, packaging, and the house rules", lint::run),
    ("build", "the command as it is shipped: optimised, in one file that needs no other", build::run),
    ("bench", "[NAME]  the benchmarks in bench/, or one of them, built as the command is shipped", bench::run),
    (
        "dist",
        "[--check]  what a release has: archive, Debian package, wheel, sums, SBOM; --check installs each and tries it",
        dist::run,
    ),
    (
        "python",
        "[--all] [--python VERSION] [PYTEST ARGS…]  build, install and test the Python package; --all with Ray and Spark \
         too",
        python::run,
    ),
    (
        "postgres",
        "[VERSION…]  the fleet's tests on PostgreSQL 13 to 18, or on these versions; --without each|all|FEATURE,… without \
         what other engines lack; --url URL [--without FEATURE,…] the conformance suite on a server of any engine",
        postgres::run,
    ),
    ("setup", "install what the tests need and this machine lacks", setup::run),
];

/// Does the chore that the command line names.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let named = words.first().and_then(|name| CHORES.iter().find(|(chore, _, _)| chore == name));
    let Some((name, _, chore)) = named else {
        eprintln!("usage: cargo xtask CHORE");
        for (name, help, _) in CHORES {
            eprintln!("  {name:<8} {help}");
        }
        return ExitCode::from(2);
    };
    match chore(&words[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(what)) => {
            eprintln!("xtask {name}: {what}");
            ExitCode::FAILURE
        }
    }
}
