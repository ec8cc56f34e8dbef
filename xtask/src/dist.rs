//! `cargo xtask dist`: everything that a release of this machine's target consists of, in `target/packages`.
//!
//! What is made should depend on the commit and the toolchain alone: paths of the builder are mapped to fixed ones, times are
//! the commit's, and members of archives are sorted. `--check` installs what was made in chroots, which needs root.

mod archive;
mod check;
mod deb;
#[cfg(test)]
mod install_tests;
mod licences;
mod packages;
mod sbom;
mod wheel;

use std::path::{Path, PathBuf};

use self::packages::Packages;
use crate::build::{build, directory};
use crate::steps::{Failed, output, root, step};

/// The shells whose completions are shipped, and the names of their files.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "outlive.bash"),
    ("elvish", "outlive.elv"),
    ("fish", "outlive.fish"),
    ("nushell", "outlive.nu"),
    ("zsh", "_outlive"),
];

/// Where packages go. Cargo itself writes to `target/dist`, which has the name of the profile.
const OUT: &str = "target/packages";

/// What goes into every package, and where the packages go.
struct Release {
    version: String,
    target: String,
    /// The time of the commit, in seconds.
    epoch: String,
    /// The directory of finished packages.
    out: PathBuf,
    /// The directory that holds the binary, man pages, completions, licences and the SBOM.
    stage: PathBuf,
}

impl Release {
    /// The name that archives begin with.
    fn name(&self) -> String {
        format!("outlive-{}-{}", self.version, self.target)
    }
}

/// Makes the release, or with `--check` installs what was made in chroots.
pub fn run(words: &[String]) -> Result<(), Failed> {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["--check"] => return check::run(&root().join(OUT)),
        _ => return Err(Failed("usage: cargo xtask dist [--check]".into())),
    }
    let target = build(&["--package", "outlive-cli", "--locked"])?;
    let packages = Packages::read(&target, &["outlive-cli"])?;
    let out = root().join(OUT);
    let _ = std::fs::remove_dir_all(&out);
    let release = Release {
        version: packages.version().to_owned(),
        epoch: output("git", &["log", "-1", "--format=%ct"])?,
        stage: out.join("stage").join(format!("outlive-{}-{target}", packages.version())),
        target,
        out,
    };
    stage(&release, &packages)?;
    archive::make(&release)?;
    deb::make(&release)?;
    wheel::make(&release)?;
    write(&release.out.join(format!("{}.cdx.json", release.name())), &sbom::render(&release, &packages))?;
    std::fs::remove_dir_all(release.out.join("stage")).map_err(|error| Failed(format!("`stage`: {error}")))?;
    archive::sums(&release)?;
    println!("xtask dist: {}", release.out.display());
    Ok(())
}

/// Puts together what the archive and the Debian package contain.
fn stage(release: &Release, packages: &Packages) -> Result<(), Failed> {
    let (stage, built) = (&release.stage, directory(&release.target).join("outlive"));
    let binary = stage.join("bin/outlive");
    for dir in ["bin", "completions", "man/man1"] {
        std::fs::create_dir_all(stage.join(dir)).map_err(|error| Failed(format!("`{dir}`: {error}")))?;
    }
    copy(&built, &binary)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root().join(file), &stage.join(file))?;
    }
    let program = binary.to_string_lossy().into_owned();
    step(&program, &["man", &stage.join("man/man1").to_string_lossy()])?;
    for (shell, file) in COMPLETIONS {
        write(&stage.join("completions").join(file), &(output(&program, &["completions", shell])? + "\n"))?;
    }
    write(&stage.join("LICENSES-THIRD-PARTY.txt"), &licences::collect(packages)?)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failed> {
    std::fs::copy(from, to).map(|_| ()).map_err(|error| Failed(format!("`{}`: {error}", from.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Failed> {
    std::fs::write(path, text).map_err(|error| Failed(format!("`{}`: {error}", path.display())))
}
