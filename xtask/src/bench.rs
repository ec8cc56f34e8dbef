//! `cargo xtask bench`: the benchmarks, in release.

use crate::steps::{Failed, cargo, step};

/// Runs the benchmark that is named, or all of them.
pub fn run(words: &[String]) -> Result<(), Failed> {
    // The command is built by itself, without the features that the benchmarks ask of the library.
    step(&cargo(), &["build", "--release", "--package", "outlive-cli"])?;
    let mut bench = vec!["run", "--release", "--quiet", "--package", "outlive-bench", "--"];
    bench.extend(words.iter().map(String::as_str));
    step(&cargo(), &bench)
}
