//! `cargo xtask bench`: the benchmarks, built as the command is shipped.

use crate::build::{build, directory};
use crate::python;
use crate::steps::{Failed, step};

/// Runs the benchmark that is named, or all of them.
pub fn run(words: &[String]) -> Result<(), Failed> {
    // The command is built by itself, without the features that the benchmarks ask of the library.
    build(&["--package", "outlive-cli"])?;
    if words.first().is_none_or(|name| name == "python") {
        python::install_shipped()?;
    }
    let target = build(&["--package", "outlive-bench"])?;
    let bench = directory(&target).join("outlive-bench");
    step(&bench.to_string_lossy(), &words.iter().map(String::as_str).collect::<Vec<_>>())
}
