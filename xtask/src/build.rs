//! `cargo xtask build`: the command as it is shipped, optimised and in one file.
//!
//! A file that needs no other, and that nobody has to move to where it lies in memory, starts in half the time, and on any
//! Linux (ADR 0017). That takes flags of the compiler which the macros of the build itself cannot bear, so the target is
//! named, which keeps them from those. Paths of the builder are mapped to fixed ones, so that the directory of a build does not
//! show in the file.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Failed, cargo, root, step};

/// The cargo profile of what is shipped.
const PROFILE: &str = "dist";

/// The variable that names another profile: `dev` has packages tried out without waiting for the optimiser.
const PROFILE_VARIABLE: &str = "OUTLIVE_DIST_PROFILE";

const FLAGS: &str = "-Ctarget-feature=+crt-static -Crelocation-model=static";

/// Builds the command, and says where it is.
pub fn run(_: &[String]) -> Result<(), Failed> {
    let target = build(&["--package", "outlive-cli"])?;
    println!("xtask build: {}", directory(&target).join("outlive").display());
    Ok(())
}

/// The profile that is built with.
pub fn profile() -> String {
    std::env::var(PROFILE_VARIABLE).unwrap_or_else(|_| PROFILE.into())
}

/// Where cargo puts what is built for a target.
pub fn directory(target: &str) -> PathBuf {
    let profile = profile();
    root().join("target").join(target).join(if profile == "dev" { "debug" } else { &profile })
}

/// Builds what `words` name, and answers with the target it is built for.
pub fn build(words: &[&str]) -> Result<String, Failed> {
    let target = host()?;
    let [rust, c] = environment(&target, FLAGS);
    let (cargo, profile) = (cargo(), profile());
    let mut line = vec![rust.as_str(), &c, &cargo, "build", "--profile", &profile, "--target", &target];
    line.extend(words);
    step("env", &line)?;
    Ok(target)
}

/// The variables by which compilers are given `flags` and keep paths of this machine out of what they make.
pub fn environment(target: &str, flags: &str) -> [String; 2] {
    let mapped = remapped();
    let rust = mapped.iter().map(|(from, to)| format!(" --remap-path-prefix={}={to}", from.display()));
    let c: Vec<String> = mapped.iter().map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display())).collect();
    let target = target.to_uppercase().replace('-', "_");
    [format!("CARGO_TARGET_{target}_RUSTFLAGS={flags}{}", rust.collect::<String>()), format!("CFLAGS={}", c.join(" "))]
}

/// Directories of this machine, and what they are called in what is built: the repository, and the sources of each registry.
fn remapped() -> Vec<(PathBuf, &'static str)> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let sources =
        home.and_then(|home| std::fs::read_dir(home.join("registry/src")).ok()).into_iter().flatten().flatten();
    let mut mapped: Vec<_> = sources.map(|source| (source.path(), "/cargo")).collect();
    mapped.sort();
    mapped.push((root(), "/outlive"));
    mapped
}

/// The target that cargo builds for here by itself.
fn host() -> Result<String, Failed> {
    let told = Command::new("rustc").arg("-vV").output().map_err(|error| Failed(format!("`rustc -vV`: {error}")))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned);
    host.ok_or_else(|| Failed("`rustc -vV` does not tell for what it builds".into()))
}
