//! The Python wheel: the extension for every Python from 3.10 on, and the static command among its scripts.
//!
//! Zig links the extension against the symbols of manylinux2014, whatever C library this machine has. Maturin's own bill of
//! materials has a random number, a time and paths of this machine in it, so the wheel carries ours.

use std::path::Path;

use super::packages::Packages;
use super::{Release, copy, licences, sbom, write};
use crate::build::{environment, profile};
use crate::setup::once;
use crate::steps::{Failed, root, step};

const VENV: &str = "target/wheel-tools";
const TOOLS: [&str; 2] = ["maturin==1.16.0", "ziglang==0.17.0"];

const MANIFEST: &str = "crates/outlive-py/Cargo.toml";
/// Where maturin looks for files that are installed beside the module: there only while a wheel is made.
const DATA: &str = "crates/outlive-py/outlive._outlive.data";

/// Makes the wheel.
pub fn make(release: &Release) -> Result<(), Failed> {
    once(VENV, &TOOLS, || {
        step("python3", &["-m", "venv", VENV])?;
        step(&format!("{VENV}/bin/pip"), &[&["install", "--quiet"], TOOLS.as_slice()].concat())
    })?;
    let packages = Packages::read(&release.target, &["outlive-cli", "outlive-py"])?;
    let bill = release.out.join("stage/outlive.cdx.json");
    write(&bill, &sbom::render(release, &packages))?;
    let data = root().join(DATA);
    let made = fill(&data, release, &packages).and_then(|()| build(release, &bill));
    std::fs::remove_dir_all(&data).map_err(|error| Failed(format!("`{DATA}`: {error}")))?;
    made
}

/// Puts the command, its man pages and the licences of everything where maturin takes them from.
fn fill(data: &Path, release: &Release, packages: &Packages) -> Result<(), Failed> {
    let [scripts, manual, documents] =
        ["scripts", "data/share/man/man1", "data/share/doc/outlive"].map(|dir| data.join(dir));
    for dir in [&scripts, &manual, &documents] {
        std::fs::create_dir_all(dir).map_err(|error| Failed(format!("`{}`: {error}", dir.display())))?;
    }
    copy(&release.stage.join("bin/outlive"), &scripts.join("outlive"))?;
    let pages =
        std::fs::read_dir(release.stage.join("man/man1")).map_err(|error| Failed(format!("`man1`: {error}")))?;
    for page in pages.flatten() {
        copy(&page.path(), &manual.join(page.file_name()))?;
    }
    write(&documents.join("LICENSES-THIRD-PARTY.txt"), &licences::collect(packages)?)
}

fn build(release: &Release, bill: &Path) -> Result<(), Failed> {
    let tools = root().join(VENV).join("bin");
    let path = format!("PATH={}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let [rust, c] = environment(&release.target, "");
    let epoch = format!("SOURCE_DATE_EPOCH={}", release.epoch);
    let (bill, out) = (bill.to_string_lossy().into_owned(), release.out.to_string_lossy().into_owned());
    let profile = profile();
    let words = ["maturin", "build", "--profile", &profile, "--locked", "--target", &release.target];
    let wheel = ["--zig", "--compatibility", "manylinux2014", "--manifest-path", MANIFEST];
    let ends = ["--sbom-include", &bill, "--out", &out];
    step("env", &[&[path.as_str(), &rust, &c, &epoch], words.as_slice(), wheel.as_slice(), ends.as_slice()].concat())
}
