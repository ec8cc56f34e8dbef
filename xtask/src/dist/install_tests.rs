//! `install.sh` against a release that is made up: it installs what has the right sum, and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::steps::root;

const RELEASE: &str = r#"
set -eu
cd "$1"
tree=outlive-0.0.0-$(uname -m)-unknown-linux-gnu
mkdir -p "$tree/bin" "$tree/man/man1" "$tree/completions"
printf '#!/bin/sh\necho outlive 0.0.0\n' > "$tree/bin/outlive"
chmod +x "$tree/bin/outlive"
touch "$tree/man/man1/outlive.1" "$tree/completions/outlive.bash" "$tree/completions/_outlive" "$tree/completions/outlive.fish"
tar -czf "$tree.tar.gz" "$tree"
rm -r "$tree"
sha256sum -- *.tar.gz > SHA256SUMS
"#;

/// A release in a directory of its own, and what is installed from it; removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("outlive-xtask-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("release")).unwrap();
        let made = Command::new("sh").args(["-c", RELEASE, "sh"]).arg(dir.join("release")).status().unwrap();
        assert!(made.success());
        Self(dir)
    }

    fn prefix(&self) -> PathBuf {
        self.0.join("prefix")
    }

    fn install(&self, from: &Path) -> Output {
        let script = root().join("install.sh");
        let mut sh = Command::new("sh");
        sh.arg(script).arg("--from").arg(from).arg("--prefix").arg(self.prefix());
        sh.env("TMPDIR", &self.0).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn install_script_installs_a_release_of_a_directory() {
    let scratch = Scratch::new("install");
    let installed = scratch.install(&scratch.0.join("release"));
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    assert!(String::from_utf8_lossy(&installed.stdout).contains("installed outlive 0.0.0 in "));
    for file in ["bin/outlive", "share/man/man1/outlive.1", "share/bash-completion/completions/outlive"] {
        assert!(scratch.prefix().join(file).is_file(), "{file}");
    }
    let left: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "the script leaves nothing in TMPDIR: {left:?}");
}

#[test]
fn install_script_refuses_an_archive_with_another_sum() {
    let scratch = Scratch::new("refuse");
    let release = scratch.0.join("release");
    let sums = std::fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let other = if sums.starts_with('0') { "1" } else { "0" };
    std::fs::write(release.join("SHA256SUMS"), format!("{other}{}", &sums[1..])).unwrap();
    let refused = scratch.install(&release);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("does not have the sum that SHA256SUMS says; nothing was installed"), "{said}");
    assert!(!scratch.prefix().exists());
}

#[test]
fn install_script_names_a_release_that_cannot_be_read() {
    let scratch = Scratch::new("missing");
    let refused = scratch.install(&scratch.0.join("nowhere"));
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("SHA256SUMS` cannot be read"));
}
