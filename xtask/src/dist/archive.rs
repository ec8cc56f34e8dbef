//! Archives that are the same whoever makes them: sorted, owned by root, with the time of the commit.

use super::{Release, write};
use crate::steps::{Failed, output, root, step};

/// The `.tar.gz` of the staged directory.
pub fn make(release: &Release) -> Result<(), Failed> {
    let name = release.name();
    let archive = release.out.join(format!("{name}.tar"));
    let (archive, stage) = (archive.to_string_lossy().into_owned(), release.out.join("stage"));
    let mtime = format!("--mtime=@{}", release.epoch);
    let fixed = ["--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rwX,go=rX"];
    let what = ["-C", &stage.to_string_lossy(), "-cf", &archive, &name];
    step("tar", &[fixed.as_slice(), &[&mtime], what.as_slice()].concat())?;
    step("gzip", &["-9n", &archive])?;
    super::copy(&root().join("install.sh"), &release.out.join("install.sh"))
}

/// `SHA256SUMS` of everything that was made.
pub fn sums(release: &Release) -> Result<(), Failed> {
    let entries = std::fs::read_dir(&release.out).map_err(|error| Failed(format!("`dist`: {error}")))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let dir = release.out.to_string_lossy().into_owned();
    let words =
        [&["-C", &dir, "sha256sum", "--"], names.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat();
    let sums = output("env", &words)?;
    write(&release.out.join("SHA256SUMS"), &format!("{sums}\n"))
}
