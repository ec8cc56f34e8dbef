//! Logs on real files: written through a watcher or by real commands, read back while they grow and afterwards.

mod caps;
mod masks;
mod mishaps;
mod reading;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outlive::id::SystemEntropy;
use outlive::logs::{LogPolicy, LogReader, LogWriter, Mask, Part, Piece, Stream};
use outlive::run::Run;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::testing::{ManualClock, pending, spec};
use outlive::time::Clock;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

struct Scene {
    dir: TempDir,
    clock: Arc<ManualClock>,
    store: SqliteStore,
    run: Run,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("registry");
        Self::at(dir, &store)
    }

    fn at(dir: TempDir, path: &Path) -> Self {
        let clock = ManualClock::new();
        let store = SqliteStore::create(path, Sharing::Private, clock.clone(), Arc::new(SystemEntropy)).unwrap();
        let run = pending(spec("talks"), clock.now(), &SystemEntropy);
        Self { dir, clock, store, run }
    }

    fn writer(&self, cap: u64) -> LogWriter {
        self.store.write_logs(&self.run, &LogPolicy { cap }).unwrap()
    }

    fn reader(&self) -> LogReader {
        self.store.read_logs(self.run.id, 1).unwrap().expect("nothing was kept")
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.store.path().join(format!("runs/{}/attempts/0001.{kind}", self.run.id))
    }

    fn pass(&self, millis: u64) {
        self.clock.pass(Duration::from_millis(millis));
    }
}

fn pieces(reader: &mut LogReader) -> Vec<Piece> {
    reader.read_unnoted(true);
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        pieces.push(piece);
    }
    pieces
}

/// What is there of one stream or both, with a mark where something was left out.
fn read(reader: &mut LogReader) -> Vec<u8> {
    let bytes = |piece: Piece| match piece.part {
        Part::Bytes(bytes) => bytes,
        Part::LeftOut(count) => format!("[{count} left out]").into_bytes(),
    };
    pieces(reader).into_iter().flat_map(bytes).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shell that has the files of the log as its own streams.
fn shell(writer: &mut LogWriter, script: &str) -> std::process::Child {
    let (out, err) = (writer.file(Stream::Out).unwrap(), writer.file(Stream::Err).unwrap());
    Command::new("sh").args(["-ec", script]).stdin(Stdio::piped()).stdout(out).stderr(err).spawn().unwrap()
}

/// A file system of its own, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(path: &Path, words: &[&str]) -> Self {
        std::fs::create_dir_all(path).unwrap();
        assert!(Command::new("mount").args(words).arg(path).status().unwrap().success());
        Self(path.into())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Whether this test may mount. `cargo xtask test` skips tests that begin by asking for it where they may not.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: this test mounts, which needs root");
    }
    root
}

fn mounted(words: &[&str]) -> (Scene, Mount) {
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::new(&dir.path().join("mount"), words);
    let path = dir.path().join("mount/registry");
    (Scene::at(dir, &path), mount)
}

/// A secret by the looks of one word.
struct Secret;

impl Mask for Secret {
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let word = b"hunter2";
        let mut spans = Vec::new();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(word.len()).position(|window| window == word) {
            spans.push(at + found..at + found + word.len());
            at += found + word.len();
        }
        spans
    }

    fn longest(&self) -> usize {
        7
    }
}
