//! `cargo xtask dist --check`: installs what was made where nothing else is, and tries it out. Needs root.
//!
//! The archive goes into an empty chroot, by `install.sh` into a directory, the wheel into a virtual environment, and the
//! Debian package into a chroot that `debootstrap` makes.

use std::path::Path;

use crate::build::profile;
use crate::steps::{Failed, output, step};

/// The most bytes that the binary and each package of a release may have.
const SIZE_LIMIT: u64 = 25_000_000;

/// Names what is larger than it may be.
const SIZES: &str = r#"
set -eu
out=$1 scratch=$2 limit=$3
mkdir "$scratch/sizes"
tar -xzf "$out"/outlive-*.tar.gz -C "$scratch/sizes" --strip-components=2 --wildcards '*/bin/outlive'
set -- "$out"/outlive* "$scratch/sizes/outlive"
stat -c '%s bytes in %n' -- "$@"
test -z "$(find "$@" -size +"$limit"c)"
echo "nothing has more than $limit bytes"
"#;

/// Runs in a chroot whose only file is the program. What a process is, /proc tells, so that is mounted, as in every container.
const IN_EMPTY_CHROOT: &str = r#"
set -eu
out=$1 scratch=$2
mkdir -p "$scratch/empty/tmp" "$scratch/empty/proc"
tar -xzf "$out"/outlive-*.tar.gz -C "$scratch"
cp "$scratch"/outlive-*/bin/outlive "$scratch/empty/outlive"
mount -t proc proc "$scratch/empty/proc"
trap 'umount "$scratch/empty/proc"' EXIT
inside() { chroot "$scratch/empty" /outlive "$@"; }
export OUTLIVE_HOME=/tmp/home
inside --version
inside run --name inner -- /outlive --version
inside ps --all | grep -q inner
echo "the archive runs in an empty chroot"
"#;

/// Installs by the script, and refuses an archive with another sum.
const BY_SCRIPT: &str = r#"
set -eu
out=$1 scratch=$2
sh "$out/install.sh" --from "$out" --prefix "$scratch/prefix"
"$scratch/prefix/bin/outlive" --version
cp -r "$out" "$scratch/tampered"
for archive in "$scratch"/tampered/*.tar.gz; do printf x >> "$archive"; done
if sh "$out/install.sh" --from "$scratch/tampered" --prefix "$scratch/never"; then exit 1; fi
test ! -e "$scratch/never"
echo "install.sh installs the archive and refuses one with another sum"
"#;

/// Installs the wheel in an environment of its own, and says how long its import takes.
const OF_PYTHON: &str = r#"
set -eu
out=$1 scratch=$2 limit=$3
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --no-index "$out"/outlive-*.whl
test "$(stat -c %s "$out"/outlive-*.whl)" -le "$limit"
cd "$scratch"
PATH="$scratch/venv/bin:$PATH" OUTLIVE_HOME="$scratch/home"
export PATH OUTLIVE_HOME
python -c 'import outlive'
test "$(outlive run --name inner -- python -c 'print(1)')" = 1
outlive ps --all | grep -q inner
test "$(command -v outlive)" = "$scratch/venv/bin/outlive"
for round in 1 2 3 4 5 6 7 8 9 10; do
    python -X importtime -c 'import outlive' 2>&1 | sed -n 's/.*| *\([0-9]*\) | outlive$/\1/p'
done | sort -n | sed -n '1s/$/ µs for `import outlive`, at best/p'
echo "the wheel installs, imports and has the command"
"#;

/// Installs, tries and removes the package.
const OF_DEBIAN: &str = r#"
set -eu
out=$1 scratch=$2
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
debootstrap --variant=minbase "$suite" "$scratch/debian" "$mirror" >"$scratch/debootstrap.log" 2>&1 || { tail "$scratch/debootstrap.log"; exit 1; }
cp "$out"/outlive_*.deb "$scratch/debian/root/"
mount -t proc proc "$scratch/debian/proc"
trap 'umount "$scratch/debian/proc"' EXIT
chroot "$scratch/debian" sh -euc '
    cd /root
    find / -xdev -path /proc -prune -o -print | sort > /tmp/before
    apt-get install -y ./outlive_*.deb >/tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
    outlive run --name inner -- echo hello
    outlive ps --all | grep -q inner
    test -s /usr/share/bash-completion/completions/outlive
    gzip -dc /usr/share/man/man1/outlive.1.gz | head -n 3
    apt-get purge -y outlive >/dev/null 2>&1
    find / -xdev -path /proc -prune -o -print | sort > /tmp/after
    diff /tmp/before /tmp/after | grep "^[<>]" | grep -v -e " /root/.local" -e " /tmp/" -e " /var/" && exit 1
    echo "the Debian package installs, works and leaves nothing but data of the user"
'
"#;

/// Checks what is in `out`.
pub fn run(out: &Path) -> Result<(), Failed> {
    let scratch = output("mktemp", &["-d"])?;
    let place = out.to_string_lossy().into_owned();
    let package = output("sh", &["-c", "ls \"$1\"/outlive_*.deb", "sh", &place])?;
    let checks =
        [SIZES, IN_EMPTY_CHROOT, BY_SCRIPT, OF_PYTHON, OF_DEBIAN].map(|script| step_script(script, &place, &scratch));
    let lint = step("lintian", &["--fail-on", "error", &package]);
    let failed: Vec<String> =
        checks.into_iter().chain([lint]).filter_map(Result::err).map(|Failed(what)| what).collect();
    step("rm", &["-rf", "--one-file-system", &scratch])?;
    if failed.is_empty() { Ok(()) } else { Err(Failed(failed.join("; "))) }
}

/// Runs a script of this file, which is named by its last line.
fn step_script(script: &str, out: &str, scratch: &str) -> Result<(), Failed> {
    // What is not optimised, to try packages out, may be larger.
    let limit = if profile() == "dist" { SIZE_LIMIT } else { u64::MAX >> 1 };
    step("sh", &["-c", script, "sh", out, scratch, &limit.to_string()])
}
