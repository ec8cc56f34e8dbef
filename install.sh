#!/bin/sh
# Installs outlive from a release: a directory that `cargo xtask dist` made, or the URL of one.
# Checks the archive against SHA256SUMS, needs no root, and changes nothing before the sum is right.
set -eu

usage() {
    cat <<'USAGE'
usage: sh install.sh --from DIR_OR_URL [--prefix DIR]
  --from    the release: a directory or an http(s) URL that has SHA256SUMS (default: $OUTLIVE_RELEASE)
  --prefix  where bin/, share/man/ and the completions go (default: ~/.local)
USAGE
}

fail() {
    echo "install.sh: error: $1" >&2
    exit 1
}

from=${OUTLIVE_RELEASE:-}
prefix=${HOME:-}/.local
while [ $# -gt 0 ]; do
    case $1 in
        --from) [ $# -ge 2 ] || fail "--from needs a directory or a URL"; from=$2; shift 2 ;;
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a directory"; prefix=$2; shift 2 ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
[ -n "$from" ] || { usage >&2; exit 2; }
from=${from%/}

[ "$(uname -s)" = Linux ] || fail "outlive runs on Linux only; this is $(uname -s)"
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no release for $(uname -m); build from source" ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# Gets one file of the release.
get() {
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 3 -o "$scratch/$1" "$from/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$scratch/$1" "$from/$1"
            else
                fail "neither curl nor wget is installed"
            fi
            ;;
        *) cp "$from/$1" "$scratch/$1" ;;
    esac || fail "\`$from/$1\` cannot be read"
}

get SHA256SUMS
line=$(grep -E "^[0-9a-f]{64} [ *]outlive-[0-9A-Za-z.+-]+-$machine-unknown-linux-[a-z]+\.tar\.gz\$" "$scratch/SHA256SUMS" | head -n 1) ||
    fail "the release has no archive for $machine"
[ -n "$line" ] || fail "the release has no archive for $machine"
archive=${line#* ?}
get "$archive"
(cd "$scratch" && printf '%s\n' "$line" | sha256sum -c - >/dev/null 2>&1) ||
    fail "\`$archive\` does not have the sum that SHA256SUMS says; nothing was installed"

tar -xzf "$scratch/$archive" -C "$scratch"
tree=$scratch/${archive%.tar.gz}
"$tree/bin/outlive" --version >/dev/null || fail "the program of \`$archive\` does not run here; nothing was installed"

mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
    "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
# A program that is running cannot be written to, but it can be replaced.
cp "$tree/bin/outlive" "$prefix/bin/.outlive.$$"
chmod 755 "$prefix/bin/.outlive.$$"
mv -f "$prefix/bin/.outlive.$$" "$prefix/bin/outlive"
cp "$tree"/man/man1/*.1 "$prefix/share/man/man1/"
cp "$tree/completions/outlive.bash" "$prefix/share/bash-completion/completions/outlive"
cp "$tree/completions/_outlive" "$prefix/share/zsh/site-functions/_outlive"
cp "$tree/completions/outlive.fish" "$prefix/share/fish/vendor_completions.d/outlive.fish"

echo "installed $("$prefix/bin/outlive" --version) in $prefix"
case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) echo "hint: add $prefix/bin to PATH" ;;
esac
