//! A PostgreSQL for tests: found on this machine, run by a user who is not root, gone when no test uses it any more.

#![allow(clippy::unwrap_used, reason = "a test without its server has failed")]

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

use super::ports::free_port;
use crate::model::id::{Entropy, SystemEntropy};

/// Who runs the server where this process is root, which PostgreSQL refuses to be.
const USER: &str = "postgres";

/// Where Debian and its kin keep the programs of the server.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The variable that names a directory with the programs of a server: tests then use that server, and what is not there is
/// looked for as usual. `cargo xtask postgres` sets it.
const BIN: &str = "OUTLIVE_POSTGRES_BIN";
/// The variable that names features, separated by commas: the registries of tests are then made without them.
const WITHOUT: &str = "OUTLIVE_POSTGRES_WITHOUT";
/// The variable that has the URL of a running server, of any engine: tests that share a server then share that one.
const URL: &str = "OUTLIVE_POSTGRES_URL";

/// What a server logs once it can be used.
const READY: &str = "ready to accept connections";
/// What a server logs when it breaks a transaction off because two wait for each other. No test leads to one:
/// `cargo xtask test` counts them in the log of the shared server, and dropping a server of one's own does in its log.
const DEADLOCK: &str = "deadlock detected";

/// A running server.
pub struct Server {
    dir: PathBuf,
    port: u16,
    /// Where it is, if it is not ours to start.
    elsewhere: Option<String>,
    /// Stopped and deleted with this value.
    is_own: bool,
    /// Held as long as it is used.
    _users: Option<File>,
}

impl Server {
    /// The server that all tests of this checkout share. It is stopped soon after the last of them has ended.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            if let Ok(url) = std::env::var(URL) {
                let dir = std::env::temp_dir();
                return Self { dir, port: 0, elsewhere: Some(url), is_own: false, _users: None };
            }
            let uid = std::fs::metadata("/proc/self").unwrap().uid();
            let place = env!("CARGO_MANIFEST_DIR").replace('/', "-");
            // One for each version: the path of a socket is short, so that a number stands for the version's directory.
            let version = std::env::var_os(BIN).map_or_else(String::new, |bin| {
                let mut hasher = std::hash::DefaultHasher::new();
                bin.hash(&mut hasher);
                format!("-{:08x}", hasher.finish() as u32)
            });
            let dir = std::env::temp_dir().join(format!("outlive-postgres-{uid}{place}{version}"));
            make_dir(&dir);
            let users = lock(&dir.join("users.lock"), FlockOperation::LockShared);
            let _starting = lock(&dir.join("start.lock"), FlockOperation::LockExclusive);
            let port_file = dir.join("port");
            let is_up = |port: &u16| answers(&dir, *port);
            let known =
                std::fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse().ok()).filter(is_up);
            let port = known.unwrap_or_else(|| {
                let _ = std::fs::remove_dir_all(dir.join("data"));
                let port = start(&dir, &["-c", "fsync=off"]);
                std::fs::write(&port_file, port.to_string()).unwrap();
                stop_when_unused(&dir);
                port
            });
            Self { dir, port, elsewhere: None, is_own: false, _users: Some(users) }
        })
    }

    /// A server of one's own, to be stopped, killed and started at will. What it says it has written, it has.
    pub fn alone(settings: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("outlive-postgres-{}", SystemEntropy.draw()));
        make_dir(&dir);
        let port = start(&dir, settings);
        Self { dir, port, elsewhere: None, is_own: true, _users: None }
    }

    /// The URL of a registry in a schema of its own.
    pub fn fresh_url(&self) -> String {
        self.url(&format!("t{:x}", SystemEntropy.draw()))
    }

    /// The URL of the registry in a schema.
    pub fn url(&self, schema: &str) -> String {
        let without = std::env::var(WITHOUT).map_or_else(|_| String::new(), |names| format!("&without={names}"));
        if let Some(url) = &self.elsewhere {
            let behind = if url.contains('?') { '&' } else { '?' };
            return format!("{url}{behind}schema={schema}{without}");
        }
        format!("postgres://tester@127.0.0.1:{}/postgres?schema={schema}&sslmode=disable{without}", self.port)
    }

    /// Its port on the loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has the server execute statements, and answers with what psql prints.
    pub fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|why| panic!("psql: {why}"))
    }

    /// Runs SQL where the server may be down.
    pub fn try_psql(&self, sql: &str) -> Result<String, String> {
        let own = format!("postgres://tester@127.0.0.1:{}/postgres", self.port);
        let output = Command::new(program("psql"))
            .args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql, "-d", self.elsewhere.as_ref().unwrap_or(&own)])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
    }

    /// Stops it: `fast` as an administrator does, `immediate` as a crash.
    pub fn stop(&self, how: &str) {
        control(&self.dir, &["stop", "-m", how]);
    }

    /// Starts it again after it was stopped.
    pub fn start(&self) {
        start_logged(&self.dir);
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log_path(&self.dir)).unwrap()
    }

    /// Kills it as the kernel would, and waits until nothing of it is left.
    pub fn kill(&self) {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let pid = file.lines().next().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        assert!(Command::new("kill").args(["-s", "KILL", pid]).status().unwrap().success());
        // Its sessions end by themselves, each when it has done what it was at.
        for pid in children.split_whitespace().chain([pid]) {
            while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
                std::thread::park_timeout(std::time::Duration::from_millis(5));
            }
        }
        // It may not have been collected yet, and its successor would take it for alive.
        for left in [self.data().join("postmaster.pid"), self.dir.join(format!(".s.PGSQL.{}.lock", self.port))] {
            std::fs::remove_file(left).unwrap();
        }
    }

    /// What it has written down, for as long as it is stopped.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Has its next start go by more settings.
    pub fn configure(&self, settings: &[&str]) {
        append(&self.data().join("postgresql.conf"), &said(settings));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_own {
            let words = ["stop", "-m", "immediate", "-D", self.dir.join("data").to_str().unwrap()].map(String::from);
            let _ = unprivileged("pg_ctl", &words).stdout(Stdio::null()).stderr(Stdio::null()).status();
            let _ = std::fs::remove_dir_all(&self.dir);
            // The log of a test that fails is kept for the reader of the failure.
            if !std::thread::panicking() {
                let log = self.log();
                assert!(log.contains(READY), "not the log of a server: {log}");
                assert_eq!(log.matches(DEADLOCK).count(), 0, "the server broke transactions off:\n{log}");
                let _ = std::fs::remove_file(log_path(&self.dir));
            }
        }
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Makes a directory that the user of the server may write.
pub fn make_dir(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    if is_root() {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("chown").arg(USER).arg(dir).status().unwrap().success(), "no user `{USER}`");
    }
}

fn lock(path: &Path, how: FlockOperation) -> File {
    let file = File::options().create(true).append(true).open(path).unwrap();
    flock(&file, how).unwrap();
    file
}

/// A program of the server, of the version that `BIN` names or else of the newest there is.
pub fn program(name: &str) -> PathBuf {
    if let Some(chosen) = std::env::var_os(BIN).map(|dir| Path::new(&dir).join(name)).filter(|path| path.exists()) {
        return chosen;
    }
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).collect();
    found.sort();
    let admin = PathBuf::from("/usr/sbin").join(name);
    found.pop().or_else(|| admin.exists().then_some(admin)).unwrap_or_else(|| name.into())
}

/// A program that is run as the user of the server.
pub fn unprivileged(name: &str, words: &[String]) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]).arg(program(name));
        command
    } else {
        Command::new(program(name))
    };
    command.args(words).current_dir("/").stdin(Stdio::null());
    command
}

fn control(dir: &Path, words: &[&str]) {
    let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    all.extend(["-w".into(), "-D".into(), dir.join("data").display().to_string()]);
    let status = unprivileged("pg_ctl", &all).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let log = std::fs::read_to_string(log_path(dir)).unwrap_or_default();
    assert!(status.success(), "pg_ctl {}: {status}\n{log}", words.join(" "));
}

/// Where a server logs: all of them in one directory, which `cargo xtask test` looks through.
fn log_path(dir: &Path) -> PathBuf {
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/postgres-logs");
    std::fs::create_dir_all(&logs).unwrap();
    logs.join(dir.file_name().unwrap()).with_extension("log")
}

/// Starts a server that logs to [`log_path`], which the user that it runs as need not be able to open.
fn start_logged(dir: &Path) {
    let log = File::options().create(true).append(true).open(log_path(dir)).unwrap();
    let words = ["start", "-w", "-D", dir.join("data").to_str().unwrap()].map(String::from);
    let status = unprivileged("pg_ctl", &words).stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    let said = std::fs::read_to_string(log_path(dir)).unwrap_or_default();
    assert!(status.success(), "pg_ctl start: {status}\n{said}");
}

fn answers(dir: &Path, port: u16) -> bool {
    let words = ["-q", "-h", &dir.display().to_string(), "-p", &port.to_string()].map(String::from);
    unprivileged("pg_isready", &words).status().is_ok_and(|status| status.success())
}

/// Settings as its configuration has them.
fn said(settings: &[&str]) -> String {
    let named = settings.iter().filter_map(|setting| setting.split_once('='));
    named.map(|(name, value)| format!("{name} = '{value}'\n")).collect()
}

fn append(file: &Path, text: &str) {
    let before = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, format!("{before}\n{text}")).unwrap();
}

/// Makes a database and starts its server on a free port of the loopback.
fn start(dir: &Path, settings: &[&str]) -> u16 {
    let data = dir.join("data").display().to_string();
    let words = ["-D", &data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8"].map(String::from);
    let made = unprivileged("initdb", &words).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    let port = free_port(&[]);
    let mut said = format!(
        "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 200\n\
         shared_buffers = '64MB'\nlogging_collector = off\nlc_messages = 'C'\n",
        dir.display()
    );
    said.push_str(&self::said(settings));
    append(&dir.join("data/postgresql.conf"), &said);
    start_logged(dir);
    port
}

/// Starts a process that stops the server once no test holds the lock of its users.
fn stop_when_unused(dir: &Path) {
    let (data, users) = (dir.join("data"), dir.join("users.lock"));
    let stop = format!("{} stop -m immediate -D {}", program("pg_ctl").display(), data.display());
    let script = format!("while sleep 5; do flock -n -x {users} {stop} && exit; done", users = users.display(),);
    // It goes on when this process has ended, and its starter is waited for.
    let mut command = Command::new("setsid");
    command.arg("--fork");
    if is_root() {
        command.args(["setpriv", &format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
    }
    let quiet = || Stdio::null();
    command.args(["sh", "-c", &script]).current_dir("/").stdin(quiet()).stdout(quiet()).stderr(quiet());
    assert!(command.status().unwrap().success());
}
