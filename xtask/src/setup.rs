//! `cargo xtask setup`: installs what the tests need and this machine lacks.
//!
//! What needs root is installed only by root; anybody else is told what is missing and goes on. Servers are started by the
//! tests that talk to them.

use std::path::PathBuf;

use crate::steps::{Failed, cargo, root, step, succeeds};

/// A program that tests call, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 28] = [
    ("strace", "strace"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("setsid", "util-linux"),
    ("prlimit", "util-linux"),
    ("taskset", "util-linux"),
    ("setarch", "util-linux"),
    ("mount", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("git", "git"),
    ("xargs", "findutils"),
    ("ps", "procps"),
    ("top", "procps"),
    ("groff", "groff-base"),
    ("zsh", "zsh"),
    ("bash", "bash"),
    ("tmux", "tmux"),
    ("vim", "vim"),
    ("less", "less"),
    ("python3", "python3"),
    ("systemd-analyze", "systemd"),
    ("initdb", "postgresql"),
    ("pgbouncer", "pgbouncer"),
    ("openssl", "openssl"),
    ("faketime", "faketime"),
    ("chromium", "chromium"),
    ("node", "nodejs"),
    ("npm", "npm"),
];

/// Where clients that others made are kept, which tests of servers call.
const TOOLS: &str = "target/tools";

/// Those of Python, and those of Node.
const PYTHON: [&str; 2] = ["mcp==2.3.0", "schemathesis==4.32.5"];
const NODE: [&str; 3] = ["@modelcontextprotocol/sdk@1.32.2", "axe-core@4.14.0", "playwright-core@1.65.0"];

/// Where programs of the administrator are, which not every `PATH` names.
const ADMIN_DIRECTORIES: &str = "/usr/sbin:/sbin";

/// Where Debian keeps the programs of its PostgreSQL servers, by version.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Installs what is missing.
pub fn run(_: &[String]) -> Result<(), Failed> {
    programs()?;
    clients()?;
    components()?;
    nextest()
}

/// Installs clients that others made, unless these very versions are there.
fn clients() -> Result<(), Failed> {
    let wanted = format!("{}\n", [&PYTHON[..], &NODE[..]].concat().join("\n"));
    let tools = root().join(TOOLS);
    let installed = tools.join("installed");
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let venv = tools.join("venv").display().to_string();
    if !succeeds("python3", &["-m", "venv", &venv]) {
        // Debian keeps that apart from Python itself.
        if is_root() {
            step("env", &["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "python3-venv"])?;
        }
        step("python3", &["-m", "venv", &venv])?;
    }
    step(&format!("{venv}/bin/pip"), &[&["install", "--quiet"], &PYTHON[..]].concat())?;
    step("npm", &[&["install", "--no-audit", "--no-fund", "--prefix", TOOLS], &NODE[..]].concat())?;
    std::fs::write(&installed, wanted).map_err(|error| Failed(format!("{}: {error}", installed.display())))
}

fn programs() -> Result<(), Failed> {
    let path = format!("{}:{ADMIN_DIRECTORIES}", std::env::var("PATH").unwrap_or_default());
    let mut dirs: Vec<PathBuf> = path.split(':').map(PathBuf::from).collect();
    let versions = std::fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    dirs.extend(versions.map(|version| version.path().join("bin")));
    let missing = missing(|program| dirs.iter().any(|dir| dir.join(program).is_file()));
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !is_root() || !succeeds("apt-get", &["--version"]) {
        println!("setup: some tests cannot succeed without these, which only root can install: {packages}");
        return Ok(());
    }
    let quietly = |words: &[&str]| step("env", &[&["DEBIAN_FRONTEND=noninteractive", "apt-get"], words].concat());
    quietly(&["update"])?;
    quietly(&[&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat())
}

/// The packages to install, given which programs can be found.
fn missing(found: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !found(program)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn is_root() -> bool {
    // The owner of our own process, as the kernel tells it.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn components() -> Result<(), Failed> {
    for (word, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !succeeds(&cargo(), &[word, "--version"]) {
            step("rustup", &["component", "add", component])?;
        }
    }
    Ok(())
}

fn nextest() -> Result<(), Failed> {
    if succeeds(&cargo(), &["nextest", "--version"]) {
        return Ok(());
    }
    step(&cargo(), &["install", "cargo-nextest", "--locked"])
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn each_missing_program_names_its_package_once() {
        assert!(missing(|_| true).is_empty());
        assert_eq!(
            missing(|program| program == "git" || program == "strace"),
            [
                "util-linux",
                "mount",
                "e2fsprogs",
                "findutils",
                "procps",
                "groff-base",
                "zsh",
                "bash",
                "tmux",
                "vim",
                "less",
                "python3",
                "systemd",
                "postgresql",
                "pgbouncer",
                "openssl",
                "faketime",
                "chromium",
                "nodejs",
                "npm"
            ]
        );
    }
}
