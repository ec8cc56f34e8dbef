//! Where a command is run bare and then wrapped: the same directory, the same environment, nothing left in between.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::known::reason;
use crate::sandbox::{Sandbox, binary};

/// How long a command may take. Only one that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long one may take that is known to differ, by hanging for example.
const KNOWN_PATIENCE: Duration = Duration::from_secs(4);

/// The variable by which the processes of one command are found again.
const MARK: &str = "AS_IF_BARE";

/// How a command is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As its user would.
    Bare,
    /// Below `outlive run`.
    Wrapped,
}

impl Way {
    /// The words before the command.
    pub(super) fn words(self) -> Vec<OsString> {
        match self {
            Self::Bare => Vec::new(),
            Self::Wrapped => vec![binary().into(), "run".into(), "--".into()],
        }
    }

    /// The same as somebody would type it.
    pub(super) fn typed(self) -> &'static str {
        match self {
            Self::Bare => "",
            Self::Wrapped => "outlive run -- ",
        }
    }
}

/// A registry in a home of its own, and a directory for each command, which is in no repository.
pub(super) struct Place {
    sandbox: Sandbox,
}

impl Place {
    pub(super) fn new() -> Self {
        let place = Self { sandbox: Sandbox::new() };
        std::fs::create_dir_all(place.user_home()).unwrap();
        // Whoever loses its parent becomes a child of this test, and is found at the end.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        place
    }

    fn user_home(&self) -> PathBuf {
        self.sandbox.path().join("user")
    }

    /// The empty directory of a command. Both ways have the same, one after the other.
    pub(super) fn empty(&self, name: &str) -> Dir {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = self.sandbox.path().join("here").join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir { path }
    }

    /// A program in that directory, with nothing of the tester's own home in its environment.
    pub(super) fn command<S: AsRef<OsStr>>(&self, dir: &Dir, words: impl IntoIterator<Item = S>) -> Command {
        let mut words = words.into_iter();
        let program = words.next().unwrap();
        let mut command = self.sandbox.command(program, words);
        command.current_dir(&dir.path).env(MARK, &dir.path).env("PWD", &dir.path);
        command.env("HOME", self.user_home()).env("LC_ALL", "C").env("TERM", "dumb").env("PS1", "$ ");
        for ours in ["ENV", "BASH_ENV", "INPUTRC", "LS_COLORS", "LESS", "TMUX", "PROMPT_COMMAND", "OLDPWD"] {
            command.env_remove(ours);
        }
        command
    }

    /// How many runs are on record.
    pub(super) fn runs(&self) -> usize {
        let dir = self.empty("runs");
        let path = dir.path.clone();
        let mut seen = 0;
        let mut after: Option<String> = None;
        loop {
            let mut command = self.sandbox.outlive(["ps", "--all", "--limit", "1000", "--json"]);
            command.args(after.iter().flat_map(|next| ["--cursor", next])).current_dir(&path);
            let page: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
            seen += page["runs"].as_array().unwrap().len();
            match page["next"].as_str() {
                Some(next) => after = Some(next.into()),
                None => return seen,
            }
        }
    }
}

/// The directory of a command. Whatever the command left running is killed with it.
pub(super) struct Dir {
    path: PathBuf,
}

impl Dir {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills what the command has started, and what that has, by the environment they inherited.
    pub(super) fn kill_what_is_left(&self) {
        let mark = [MARK.as_bytes(), b"=", self.path.as_os_str().as_encoded_bytes()].concat();
        // One that was just being started by another is found by the second look.
        for _ in 0..2 {
            let mut parents = vec![std::process::id()];
            while let Some(parent) = parents.pop() {
                for child in children(parent) {
                    parents.push(child);
                    let environment = std::fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
                    if environment.split(|byte| *byte == 0).any(|entry| entry == mark) {
                        let _ = kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::KILL);
                    }
                }
            }
        }
    }

    /// What the command made of it: each file with its mode and what is in it.
    pub(super) fn files(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut files = BTreeMap::new();
        let mut dirs = vec![self.path.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let (path, kind) = (entry.path(), entry.file_type().unwrap());
                let name = path.strip_prefix(&self.path).unwrap().to_string_lossy().into_owned();
                let mode = entry.metadata().unwrap().permissions().mode();
                if kind.is_dir() {
                    dirs.push(path.clone());
                    files.insert(name, (mode, b"a directory".to_vec()));
                } else if kind.is_fifo() || kind.is_socket() || kind.is_symlink() {
                    files.insert(name, (mode, b"special".to_vec()));
                } else if name.starts_with("core") {
                    // Where the kernel puts its number into the name, and memory is never the same twice.
                    files.insert("core".into(), (mode, dumped(&std::fs::read(&path).unwrap())));
                } else {
                    files.insert(name, (mode, std::fs::read(&path).unwrap()));
                }
            }
        }
        files
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        self.kill_what_is_left();
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Of which program a core is: the name in its `NT_PRPSINFO` note.
fn dumped(core: &[u8]) -> Vec<u8> {
    let number = |at: usize, bytes: usize| {
        let field = core.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let name = || {
        let (headers, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        let notes = (0..count).map(|n| headers + n * size).find(|at| number(*at, 4) == Some(4))?;
        let (mut at, end) = (number(notes + 8, 8)?, number(notes + 8, 8)? + number(notes + 32, 8)?);
        while at < end {
            let (name, about, kind) = (number(at, 4)?, number(at + 4, 4)?, number(at + 8, 4)?);
            let text = at + 12 + name.next_multiple_of(4);
            if kind == 3 {
                return core.get(text + 40..text + 56);
            }
            at = text + about.next_multiple_of(4);
        }
        None
    };
    let name = name().unwrap_or(b"not a core");
    [b"core of ", name.split(|byte| *byte == 0).next().unwrap_or_default()].concat()
}

/// Gives up by real time.
pub(super) struct Deadline(Instant);

impl Deadline {
    #[allow(clippy::disallowed_methods, reason = "a test gives up by real time")]
    pub(super) fn of(name: &str, way: Way) -> Self {
        let hangs = way == Way::Wrapped && reason(name).is_some();
        Self(Instant::now() + if hangs { KNOWN_PATIENCE } else { PATIENCE })
    }

    /// What is left of it, nothing when it is over.
    #[allow(clippy::disallowed_methods, reason = "a test gives up by real time")]
    pub(super) fn left(&self) -> Option<Duration> {
        Some(self.0.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Looks again and again until something is so; whether it came to be.
    pub(super) fn until(&self, mut so: impl FnMut() -> bool) -> bool {
        while !so() {
            if self.left().is_none() {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        true
    }
}
