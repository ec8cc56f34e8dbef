//! The Debian package: the staged files where Debian has such files, and the system units.

use std::path::Path;

use super::{Release, copy, write};
use crate::steps::{Failed, output, root, step};

/// Files of the stage or the repository, and where the package has them.
const FILES: [(&str, &str); 9] = [
    ("bin/outlive", "usr/bin/outlive"),
    ("completions/outlive.bash", "usr/share/bash-completion/completions/outlive"),
    ("completions/outlive.fish", "usr/share/fish/vendor_completions.d/outlive.fish"),
    ("completions/_outlive", "usr/share/zsh/vendor-completions/_outlive"),
    ("LICENSES-THIRD-PARTY.txt", "usr/share/doc/outlive/LICENSES-THIRD-PARTY.txt"),
    ("packaging/debian/copyright", "usr/share/doc/outlive/copyright"),
    ("packaging/debian/lintian-overrides", "usr/share/lintian/overrides/outlive"),
    ("packaging/systemd/outlive-serve.service", "usr/lib/systemd/system/outlive-serve.service"),
    ("packaging/systemd/outlive-work.service", "usr/lib/systemd/system/outlive-work.service"),
];

/// Makes the package.
pub fn make(release: &Release) -> Result<(), Failed> {
    let tree = release.out.join("stage/deb");
    for (from, to) in FILES {
        let from = if from.starts_with("packaging/") { root().join(from) } else { release.stage.join(from) };
        place(&from, &tree.join(to))?;
    }
    let pages =
        std::fs::read_dir(release.stage.join("man/man1")).map_err(|error| Failed(format!("`man1`: {error}")))?;
    for page in pages.flatten() {
        place(&page.path(), &tree.join("usr/share/man/man1").join(page.file_name()))?;
    }
    let changelog = tree.join("usr/share/doc/outlive/changelog");
    let date = output("date", &["-u", "-R", "-d", &format!("@{}", release.epoch)])?;
    write(&changelog, &changelog_of(&release.version, &date))?;
    let tree = tree.to_string_lossy().into_owned();
    step(
        "sh",
        &[
            "-c",
            "find \"$1/usr/share/man\" \"$1/usr/share/doc\" -type f ! -name copyright -exec gzip -9n {} +",
            "sh",
            &tree,
        ],
    )?;
    step(
        "sh",
        &[
            "-c",
            "find \"$1\" -type d -exec chmod 755 {} + && find \"$1\" -type f ! -name outlive -exec chmod 644 {} + && chmod 755 \"$1/usr/bin/outlive\" && chmod 644 \"$1\"/usr/share/bash-completion/completions/outlive \"$1\"/usr/share/lintian/overrides/outlive",
            "sh",
            &tree,
        ],
    )?;
    let size = output("du", &["-k", "-s", "--apparent-size", &tree])?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let architecture = output("dpkg", &["--print-architecture"])?;
    let control = std::fs::read_to_string(root().join("packaging/debian/control"));
    let control = control.map_err(|error| Failed(format!("`packaging/debian/control`: {error}")))?;
    let control = control
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", &architecture)
        .replace("@SIZE@", &size);
    std::fs::create_dir_all(Path::new(&tree).join("DEBIAN")).map_err(|error| Failed(format!("`DEBIAN`: {error}")))?;
    write(&Path::new(&tree).join("DEBIAN/control"), &control)?;
    step(
        "sh",
        &[
            "-c",
            "cd \"$1\" && find usr -type f | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums && chmod 644 DEBIAN/*",
            "sh",
            &tree,
        ],
    )?;
    let package = release.out.join(format!("outlive_{}_{architecture}.deb", release.version));
    let epoch = format!("SOURCE_DATE_EPOCH={}", release.epoch);
    step("env", &[&epoch, "dpkg-deb", "--root-owner-group", "-Zxz", "--build", &tree, &package.to_string_lossy()])
}

fn changelog_of(version: &str, date: &str) -> String {
    format!(
        "outlive ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the release.\n\n -- The outlive authors \
         <outlive@packages.invalid>  {date}\n"
    )
}

fn place(from: &Path, to: &Path) -> Result<(), Failed> {
    let dir = to.parent().unwrap_or(to);
    std::fs::create_dir_all(dir).map_err(|error| Failed(format!("`{}`: {error}", dir.display())))?;
    copy(from, to)
}
