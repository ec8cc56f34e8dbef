//! `cargo xtask build`: the command as it is shipped, optimised and in one file.
//!
//! A file that needs no other, and that nobody has to move to where it lies in memory, starts in half the time, and on any
//! Linux (ADR 0017). That takes flags of the compiler which the macros of the build itself cannot bear, so the target is
//! named, which keeps them from those.

use std::process::Command;

use crate::steps::{Failed, cargo, step};

/// The cargo profile of what is shipped, which names the directory of its output too.
pub const PROFILE: &str = "dist";

const FLAGS: &str = "-Ctarget-feature=+crt-static -Crelocation-model=static";

/// Builds the command, and says where it is.
pub fn run(_: &[String]) -> Result<(), Failed> {
    let target = build(&["--package", "outlive-cli"])?;
    println!("xtask build: target/{target}/{PROFILE}/outlive");
    Ok(())
}

/// Builds what `words` name, and answers with the target it is built for.
pub fn build(words: &[&str]) -> Result<String, Failed> {
    let target = host()?;
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS={FLAGS}", target.to_uppercase().replace('-', "_"));
    let cargo = cargo();
    let mut line = vec![variable.as_str(), &cargo, "build", "--profile", PROFILE, "--target", &target];
    line.extend(words);
    step("env", &line)?;
    Ok(target)
}

/// The target that cargo builds for here by itself.
fn host() -> Result<String, Failed> {
    let told = Command::new("rustc").arg("-vV").output().map_err(|error| Failed(format!("`rustc -vV`: {error}")))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.ok_or_else(|| Failed("`rustc -vV` does not tell for what it builds".into()))
}
