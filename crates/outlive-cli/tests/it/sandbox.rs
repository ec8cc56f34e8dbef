//! A place of its own for each test: a home, a directory, and the command.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// How long anything may take that should happen soon. Only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(150);

pub(crate) struct Sandbox {
    dir: tempfile::TempDir,
}

/// Whatever a test has started is gone with it: what waits for a file that nobody will make would wait for ever.
impl Drop for Sandbox {
    fn drop(&mut self) {
        let is_inside = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(self.dir.path()))
        };
        let all = || {
            let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
            names.filter_map(|name| name.to_str()?.parse().ok()).filter(|pid| *pid != std::process::id().cast_signed())
        };
        // Twice: whoever is killed may have started another meanwhile.
        for _ in 0..2 {
            for pid in all().filter(is_inside).filter_map(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let sandbox = Self { dir: tempfile::tempdir().unwrap() };
        // A repository, so that its registry is made in it.
        std::fs::create_dir_all(sandbox.work().join(".git")).unwrap();
        sandbox
    }

    /// A sandbox whose runs beat every tenth of a second and are given up after half of one.
    pub(crate) fn impatient() -> Self {
        let sandbox = Self::new();
        sandbox.outlive(["init"]).succeeds();
        sandbox.write_config("beat = \"100ms\"\nlease = \"500ms\"\n");
        sandbox
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The working directory.
    pub(crate) fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// The registry of the working directory, once it is made.
    pub(crate) fn registry(&self) -> PathBuf {
        self.work().join(".outlive")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.registry().join("registry.db")
    }

    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.registry().join("config.toml"), text).unwrap();
    }

    pub(crate) fn write_home_config(&self, text: &str) {
        std::fs::create_dir_all(self.home()).unwrap();
        std::fs::write(self.home().join("config.toml"), text).unwrap();
    }

    /// Whether a file of the working directory holds a whole line: it is there before anything is in it.
    pub(crate) fn has_line(&self, name: &str) -> bool {
        std::fs::read_to_string(self.work().join(name)).is_ok_and(|text| text.ends_with('\n'))
    }

    /// `outlive` with these words, in the working directory.
    pub(crate) fn outlive<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, words: I) -> Command {
        self.command(binary(), words)
    }

    /// Any program, in the working directory, with `outlive` found by name.
    pub(crate) fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        words: I,
    ) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
        command.args(words).current_dir(self.work()).env("PATH", path).env("OUTLIVE_HOME", self.home());
        command.env("CW_HOME", self.path().join("cool-workflow"));
        command.env_remove("OUTLIVE_REGISTRY").env_remove("OUTLIVE_RUN_ID").stdin(Stdio::null());
        command
    }

    /// A shell script.
    pub(crate) fn shell(&self, script: &str) -> Command {
        self.command("sh", ["-ec", script])
    }

    /// A run in the background, on record before this returns.
    pub(crate) fn start(&self, name: &str, command: &[&str]) -> Started {
        let words = ["run", "--name", name, "--"].into_iter().chain(command.iter().copied());
        let wrapper = self.outlive(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.wait_for(name, |run| run["owner_pid"].as_u64() == Some(wrapper.id().into()));
        Started { wrapper }
    }

    /// The run of this name, once it is as wanted.
    pub(crate) fn wait_for(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        until(&format!("run `{name}` to be as wanted"), || {
            let output = self.outlive(["show", name, "--json"]).output().unwrap();
            last = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| text(&output.stderr).into());
            output.status.success() && wanted(&last)
        });
        last
    }

    pub(crate) fn wait_for_state(&self, name: &str, state: &str) -> Value {
        self.wait_for(name, |run| run["state"] == state)
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        self.outlive(["show", name, "--json"]).json()
    }

    pub(crate) fn runs(&self) -> Vec<Value> {
        let mut runs = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut command = self.outlive(["ps", "--all", "--limit", "1000", "--json"]);
            command.args(after.iter().flat_map(|next| ["--cursor", next]));
            let page = command.json();
            runs.extend(page["runs"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = Some(next.into()),
                None => return runs,
            }
        }
    }
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_outlive"))
}

/// A run in the background. Whatever is left of it is killed at the end.
pub(crate) struct Started {
    pub(crate) wrapper: Child,
}

impl Started {
    pub(crate) fn pid(&self) -> u32 {
        self.wrapper.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal_pid(self.pid(), signal);
    }

    /// Kills the wrapper alone, as the kernel would, and collects it.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        self.wrapper.wait().unwrap();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.wrapper.kill();
        let _ = self.wrapper.wait();
    }
}

pub(crate) fn signal_pid(pid: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "signal {signal} could not be sent to {pid}");
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until something is so.
#[allow(clippy::disallowed_methods, reason = "a test gives up by real time")]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What tests say of a command's end.
pub(crate) trait Ends {
    /// It succeeds, and this is its standard output.
    fn succeeds(&mut self) -> String;
    /// It ends with this status, and this is what it said to people.
    fn fails_with(&mut self, status: i32) -> String;
    /// It succeeds and answers with JSON.
    fn json(&mut self) -> Value;

    /// The JSON that it prints, whatever its status.
    fn printed(&mut self) -> Value;
}

impl Ends for Command {
    fn succeeds(&mut self) -> String {
        let output = self.output().unwrap();
        assert!(output.status.success(), "{self:?} ended with {}:\n{}", output.status, said(&output));
        text(&output.stdout)
    }

    fn fails_with(&mut self, status: i32) -> String {
        let output = self.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{self:?}:\n{}", said(&output));
        text(&output.stderr)
    }

    fn json(&mut self) -> Value {
        serde_json::from_str(&self.succeeds()).unwrap()
    }

    fn printed(&mut self) -> Value {
        let output = self.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{self:?} printed {}", said(&output)))
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Whether this test may mount, freeze and enter namespaces. Elsewhere those tests say that they did nothing.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: this test mounts, freezes or enters namespaces, which needs root");
    }
    root
}

/// A line of text with what differs between two machines or two moments made equal.
pub(crate) fn settled(sandbox: &Sandbox, text: &str) -> String {
    let path = sandbox.path().display().to_string();
    text.replace(&path, "[SANDBOX]").lines().map(settle_line).map(|line| line + "\n").collect()
}

fn is_id(text: &str) -> bool {
    let fits = |(index, c): (usize, char)| match index {
        8 | 13 | 18 | 23 => c == '-',
        _ => matches!(c, '0'..='9' | 'a'..='f'),
    };
    text.chars().enumerate().all(fits)
}

/// A mask in the place of a word: as wide as that where a column is behind it, so that columns stay as they are printed.
pub(crate) fn masked(mask: &str, word: &str, next: Option<&&str>) -> String {
    let width = if next.is_some_and(|next| next.is_empty()) { word.chars().count() } else { 0 };
    format!("{mask:<width$}")
}

fn settle_line(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest = line.split(' ').peekable();
    while let Some(word) = rest.next() {
        // A local time is two words.
        let fits = |word: &str, like: &str| {
            word.len() == like.len()
                && word
                    .bytes()
                    .zip(like.bytes())
                    .all(|(c, like)| if like == b'0' { c.is_ascii_digit() } else { c == like })
        };
        if fits(word, "00:00:00") && words.last().is_some_and(|last| fits(last, "0000-00-00")) {
            words.pop();
            words.push(masked("[TIME]", "0000-00-00 00:00:00", rest.peek()));
        } else {
            words.push(masked(&settle_word(word), word, rest.peek()));
        }
    }
    words.join(" ")
}

fn settle_word(word: &str) -> String {
    // An id inside a longer word, with the moment before it where it is the place of a page.
    if let Some(at) = (1..=word.len().saturating_sub(36)).find(|at| word.get(*at..at + 36).is_some_and(is_id)) {
        let before = word[..at].trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        return format!("{before}[ID]{}", &word[at + 36..]);
    }
    let core: String = word.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let hexadecimal = core.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if hexadecimal && core.len() >= 12 && core.starts_with("01") {
        return word.replace(&core, "[ID]");
    }
    let is_time = word.len() >= 27 && word.contains("T") && word.trim_end_matches(',').ends_with('Z');
    if is_time {
        return "[TIME]".into();
    }
    word.into()
}

/// Makes a run of this name that a handler has done, with an input and a result.
pub fn make_result(sandbox: &Sandbox, name: &str) {
    let url = format!("sqlite:{}", sandbox.work().join(".outlive").display());
    let registry = pollster::block_on(outlive::Registry::open(&url)).unwrap();
    let spec = registry.spec("migrate").with_input(&serde_json::json!({"tenant": "acme"})).unwrap();
    let spec = outlive::Spec { name: Some(name.into()), ..spec };
    pollster::block_on(registry.enqueue(spec)).unwrap();
    let rows = |_: &outlive::BlockingJob| Ok::<_, outlive::Failed>(serde_json::json!({"rows": 7}));
    let worker = outlive::Worker::builder(registry).handle_blocking("migrate", rows).start().unwrap();
    worker.wait_until(|tally| tally.succeeded == 1);
    worker.stop();
}

/// A worker in this process whose runs are suspended until they are approved.
pub struct Gates {
    registry: outlive::Registry,
    worker: Option<outlive::Worker>,
}

impl Gates {
    pub fn open(sandbox: &Sandbox) -> Self {
        let url = format!("sqlite:{}", sandbox.work().join(".outlive").display());
        let open = || pollster::block_on(outlive::Registry::open(&url)).unwrap();
        let deploy = |job: &outlive::BlockingJob| -> Result<outlive::Done, outlive::Failed> {
            if job.checkpoint().is_some() {
                return Ok(outlive::Done::Succeeded("deployed".into()));
            }
            job.set_checkpoint("asked".into())?;
            Ok(outlive::Done::Suspended("deploy to production?".into()))
        };
        let worker = outlive::Worker::builder(open()).handle_blocking("deploy", deploy).start().unwrap();
        Self { registry: open(), worker: Some(worker) }
    }

    /// A run that its handler has suspended.
    pub fn suspended_run(&self, sandbox: &Sandbox) -> String {
        let run = pollster::block_on(self.registry.enqueue(self.registry.spec("deploy"))).unwrap();
        let id = run.id.to_string();
        sandbox.wait_for_state(&id, "suspended");
        id
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
    }
}
