//! An S3 server for tests: SeaweedFS, started on this machine's loopback, gone when no test uses it any more.

#![allow(clippy::unwrap_used, reason = "a test without its server has failed")]

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::ports::free_port;
use crate::model::id::{Entropy, SystemEntropy};
use crate::model::time::{Clock, SystemClock};

/// Who may do everything.
pub const KEY: (&str, &str) = ("AK", "SKSKSKSK");
/// Who may only read.
pub const READ_KEY: (&str, &str) = ("READER", "RKRKRKRK");
/// The bucket that tests share, each under a prefix of its own.
pub const BUCKET: &str = "outlive";
/// A shared bucket with versions: what is deleted or replaced there is only hidden.
pub const VERSIONED: &str = "outlive-versions";
/// How long the server may take to come up.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Where the ports of its parts lie behind the first, and their second ports behind those.
const BEHIND: [u16; 7] = [1, 2, 3, 10_000, 10_001, 10_002, 10_003];

/// A running server.
pub struct Bucket {
    dir: PathBuf,
    /// Of the S3 gateway; the other parts have those that follow.
    port: u16,
    /// Stopped and deleted with this value.
    is_own: bool,
    /// Held as long as it is used.
    _users: Option<File>,
}

impl Bucket {
    /// The server that all tests of this checkout share. It is stopped soon after the last of them has ended.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Bucket> = OnceLock::new();
        SHARED.get_or_init(|| {
            let uid = std::fs::metadata("/proc/self").unwrap().uid();
            let place = env!("CARGO_MANIFEST_DIR").replace('/', "-");
            let dir = std::env::temp_dir().join(format!("outlive-bucket-{uid}{place}"));
            std::fs::create_dir_all(&dir).unwrap();
            let users = lock(&dir.join("users.lock"), FlockOperation::LockShared);
            let _starting = lock(&dir.join("start.lock"), FlockOperation::LockExclusive);
            let port_file = dir.join("port");
            let known = std::fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse().ok());
            let port = known.filter(|port| answers(*port)).unwrap_or_else(|| {
                let _ = std::fs::remove_dir_all(dir.join("data"));
                let port = free_port(&BEHIND);
                start(&dir, port);
                std::fs::write(&port_file, port.to_string()).unwrap();
                stop_when_unused(&dir);
                port
            });
            Self { dir, port, is_own: false, _users: Some(users) }
        })
    }

    /// A server of one's own, to be stopped, killed and started at will.
    pub fn alone() -> Self {
        let dir = std::env::temp_dir().join(format!("outlive-bucket-{:x}", SystemEntropy.draw()));
        std::fs::create_dir_all(&dir).unwrap();
        let port = free_port(&BEHIND);
        start(&dir, port);
        Self { dir, port, is_own: true, _users: None }
    }

    /// Its port on the loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a registry under a prefix that no other test uses.
    pub fn fresh_url(&self) -> String {
        self.url(&format!("t{:x}", SystemEntropy.draw()))
    }

    /// The URL of what is under a prefix.
    pub fn url(&self, prefix: &str) -> String {
        url_at(self.port, KEY, prefix)
    }

    /// The URL of what is under a prefix of the bucket that keeps versions.
    pub fn versioned_url(&self, prefix: &str) -> String {
        static MADE: OnceLock<()> = OnceLock::new();
        MADE.get_or_init(|| {
            make(self.port, VERSIONED);
            self.shell(&format!("s3.bucket.versioning -name {VERSIONED} -enable"));
        });
        self.url(prefix).replace(&format!("@{BUCKET}/"), &format!("@{VERSIONED}/"))
    }

    /// Has the server's own shell do something, and answers with what it said.
    fn shell(&self, line: &str) -> String {
        use std::io::Write;
        let place = |name: &str, offset: u16| format!("-{name}=127.0.0.1:{}", self.port + offset);
        let mut command = Command::new(python("weed"));
        command.args(["shell", &place("master", 3), &place("filer", 1)]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        shell.stdin.take().unwrap().write_all(format!("lock\n{line}\nunlock\nexit\n").as_bytes()).unwrap();
        let said = shell.wait_with_output().unwrap();
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    }

    /// Kills it as the kernel would.
    pub fn kill(&self) {
        signal(&self.dir, "KILL");
    }

    /// Stops it where it is, until [`Bucket::go_on`].
    pub fn pause(&self) {
        signal(&self.dir, "STOP");
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        signal(&self.dir, "CONT");
    }

    /// Starts it again after it was killed.
    pub fn start(&self) {
        start(&self.dir, self.port);
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        if self.is_own {
            signal(&self.dir, "KILL");
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// The URL of what is under a prefix, at whatever answers at a port of the loopback, for the holder of that key.
pub fn url_at(port: u16, (key, secret): (&str, &str), prefix: &str) -> String {
    format!("s3://{key}:{secret}@{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&region=us-east-1")
}

/// Where `cargo xtask setup` puts programs of Python's packages.
pub fn python(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin").join(program);
    assert!(path.exists(), "`{}` is missing: `cargo xtask setup` installs it", path.display());
    path
}

fn lock(path: &Path, how: FlockOperation) -> File {
    let file = File::options().create(true).append(true).open(path).unwrap();
    flock(&file, how).unwrap();
    file
}

fn answers(port: u16) -> bool {
    asked(port, "GET /").is_some_and(|answer| answer == "HTTP/1.1 403")
}

/// How a server begins its answer.
fn asked(port: u16, line: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = [0; 12];
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.read_exact(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[allow(clippy::zombie_processes, reason = "it goes on after the test that started it, and is stopped by its pid")]
fn start(dir: &Path, port: u16) {
    let key = |(key, secret): (&str, &str)| format!(r#"[{{"accessKey":"{key}","secretKey":"{secret}"}}]"#);
    let who = |name: &str, credentials: String, actions: &str| {
        format!(r#"{{"name":"{name}","credentials":{credentials},"actions":[{actions}]}}"#)
    };
    let all = who("all", key(KEY), r#""Admin","Read","Write","List","Tagging""#);
    let config = format!(r#"{{"identities":[{all},{}]}}"#, who("reader", key(READ_KEY), r#""Read","List""#));
    std::fs::write(dir.join("s3.json"), config).unwrap();
    std::fs::create_dir_all(dir.join("data")).unwrap();
    let log = File::create(dir.join("log")).unwrap();
    let mut command = Command::new(python("weed"));
    command.arg(format!("-logdir={}", dir.display())).arg("server").current_dir(dir);
    for (name, offset) in [("s3", 0), ("filer", 1), ("volume", 2), ("master", 3)] {
        command.arg(format!("-{name}.port={}", port + offset));
    }
    let fixed = [
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.volumeSizeLimitMB=64",
        "-master.volumePreallocate=false",
        "-volume.max=50",
        // A disk that is nearly full is none of its business.
        "-volume.minFreeSpace=50MiB",
        "-filer",
        "-filer.localSocket=filer.sock",
        "-s3",
        "-s3.config=s3.json",
        "-s3.localSocket=s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ];
    command.args(fixed).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
    #[expect(clippy::zombie_processes, reason = "it stays, and is ended by its pid")]
    let mut child = command.spawn().unwrap();
    std::fs::write(dir.join("pid"), child.id().to_string()).unwrap();
    let clock = SystemClock;
    let deadline = clock.awake() + TIMEOUT;
    while !answers(port) {
        let ended = child.try_wait().unwrap();
        let log = || std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        assert!(ended.is_none() && clock.awake() < deadline, "the server did not come up: {ended:?}\n{}", log());
        std::thread::park_timeout(Duration::from_millis(50));
    }
    make(port, BUCKET);
}

/// Makes a bucket, where there is none of that name: they are directories of the server's filer.
fn make(port: u16, bucket: &str) {
    let made = asked(port + 1, &format!("POST /buckets/{bucket}/"));
    let is_there = |answer: &String| answer.starts_with("HTTP/1.1 2") || answer == "HTTP/1.1 409";
    assert!(made.as_ref().is_some_and(is_there), "no bucket was made: {made:?}");
}

/// Sends a signal to the server, no matter which test started it; after the last one waits until it is gone.
fn signal(dir: &Path, name: &str) {
    let Ok(pid) = std::fs::read_to_string(dir.join("pid")) else { return };
    let _ = Command::new("kill").args(["-s", name, pid.trim()]).stderr(Stdio::null()).status();
    let stat = format!("/proc/{}/stat", pid.trim());
    while name == "KILL" && std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Starts a process that stops the server once no test holds the lock of its users.
fn stop_when_unused(dir: &Path) {
    let (pid, users) = (dir.join("pid"), dir.join("users.lock"));
    let stop = format!("sh -c 'kill -9 $(cat {}); rm -rf {}'", pid.display(), dir.join("data").display());
    let script = format!("while sleep 5; do flock -n -x {} {stop} && exit; done", users.display());
    let quiet = || Stdio::null();
    let mut command = Command::new("setsid");
    command.args(["--fork", "sh", "-c", &script]).current_dir("/").stdin(quiet()).stdout(quiet()).stderr(quiet());
    assert!(command.status().unwrap().success());
}
