//! Three machines that a PostgreSQL fails over between: each with Patroni, etcd and a server, in a network namespace.
//!
//! The namespaces hang on one bridge, where the clients are too. All of it lives in namespaces that this process was started
//! in, so that no address of it is seen outside and no process outlives it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::scratch::Outcome;
use crate::time::Begun;

/// How many machines there are.
pub const MACHINES: usize = 3;
/// The user that servers run as, which must not be root.
const USER: &str = "postgres";
/// Where Debian keeps the programs of the server.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// How long a cluster may take until it is whole.
const WHOLE_WITHIN: Duration = Duration::from_secs(180);
/// How long an answer of Patroni is waited for.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);

/// Whether an acknowledged write is on a second machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// It is, always: without a second machine nothing is acknowledged.
    Synchronous,
    /// It will be, soon.
    Asynchronous,
}

/// The machines.
pub struct Cluster {
    dir: PathBuf,
    replication: Replication,
}

fn call(words: &[&str]) -> Outcome<()> {
    let [program, rest @ ..] = words else { return Ok(()) };
    let status = Command::new(program).args(rest).status()?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", words.join(" ")).into()) }
}

fn name(machine: usize) -> String {
    format!("m{machine}")
}

fn address(machine: usize) -> String {
    format!("10.77.0.{}", machine + 1)
}

impl Cluster {
    /// Makes the machines and starts a cluster on them.
    pub fn start(dir: &Path, replication: Replication) -> Outcome<Self> {
        check_patroni()?;
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777))?;
        let cluster = Self { dir: dir.to_owned(), replication };
        (0..MACHINES).try_for_each(|machine| cluster.boot(machine))?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// Lays the network. Once in a process.
    pub fn lay_network() -> Outcome<()> {
        // The names of namespaces are files, which are to be of this process alone.
        call(&["mount", "--make-rprivate", "/"])?;
        std::fs::create_dir_all("/run/netns")?;
        call(&["mount", "-t", "tmpfs", "tmpfs", "/run/netns"])?;
        call(&["ip", "link", "set", "lo", "up"])?;
        call(&["ip", "link", "add", "bridge", "type", "bridge"])?;
        call(&["ip", "address", "add", "10.77.0.254/24", "dev", "bridge"])?;
        call(&["ip", "link", "set", "bridge", "up"])?;
        for machine in 0..MACHINES {
            let (name, outer, address) = (name(machine), format!("v{machine}"), format!("{}/24", address(machine)));
            call(&["ip", "netns", "add", &name])?;
            call(&["ip", "link", "add", &outer, "type", "veth", "peer", "name", "inner", "netns", &name])?;
            call(&["ip", "link", "set", &outer, "master", "bridge", "up"])?;
            call(&["ip", "-n", &name, "address", "add", &address, "dev", "inner"])?;
            call(&["ip", "-n", &name, "link", "set", "inner", "up"])?;
            call(&["ip", "-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// What clients open: all machines, of which one can be written to.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = (0..MACHINES).map(|machine| format!("{}:5432", address(machine))).collect();
        format!("postgres://postgres@{}/postgres?connect_timeout=2&schema=outlive", hosts.join(","))
    }

    /// Starts what a machine runs. What its disk holds is there still.
    pub fn boot(&self, machine: usize) -> Outcome<()> {
        let (address, name) = (address(machine), name(machine));
        let peers: Vec<String> =
            (0..MACHINES).map(|peer| format!("{}=http://{}:2380", self::name(peer), self::address(peer))).collect();
        let (client, peer) = (format!("http://{address}:2379"), format!("http://{address}:2380"));
        let data = self.dir.join(format!("etcd-{name}")).display().to_string();
        let (listened, peers) = (format!("{client},http://127.0.0.1:2379"), peers.join(","));
        let etcd = [
            ["--name", &name],
            ["--data-dir", &data],
            ["--listen-client-urls", &listened],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &peers],
        ];
        self.spawn(machine, "etcd", &etcd.concat())?;
        let configuration = self.dir.join(format!("{name}.yml"));
        std::fs::write(&configuration, self.configuration(machine)?)?;
        self.spawn(machine, "patroni", &[&configuration.display().to_string()])
    }

    fn spawn(&self, machine: usize, program: &str, words: &[&str]) -> Outcome<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{program}-{}.log", name(machine))))?;
        let as_user = ["setpriv", &format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", program];
        Command::new("ip")
            .args(["netns", "exec", &name(machine)])
            .args(as_user)
            .args(words)
            // Clients look for certificates there.
            .env("HOME", &self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(())
    }

    /// Patroni's configuration, which is YAML and so may be JSON.
    fn configuration(&self, machine: usize) -> Outcome<String> {
        let (address, name) = (address(machine), name(machine));
        let sockets = self.dir.join(format!("sockets-{name}"));
        std::fs::create_dir_all(&sockets)?;
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o777))?;
        let is_synchronous = self.replication == Replication::Synchronous;
        let configuration = serde_json::json!({
            "scope": "outlive",
            "name": name,
            "restapi": { "listen": format!("{address}:8008"), "connect_address": format!("{address}:8008") },
            "etcd3": { "hosts": "127.0.0.1:2379" },
            "bootstrap": {
                "dcs": {
                    "ttl": 20, "loop_wait": 2, "retry_timeout": 5, "primary_start_timeout": 0,
                    "maximum_lag_on_failover": 1_u64 << 30,
                    "synchronous_mode": is_synchronous, "synchronous_mode_strict": is_synchronous,
                    "postgresql": {
                        "use_pg_rewind": true,
                        "parameters": { "max_connections": 100, "wal_keep_size": 1024, "synchronous_commit": "on" },
                    },
                },
                "initdb": [{ "encoding": "UTF8" }, { "auth": "trust" }, "data-checksums"],
            },
            "postgresql": {
                "listen": format!("{address}:5432"),
                "connect_address": format!("{address}:5432"),
                "data_dir": self.dir.join(format!("data-{name}")),
                "pgpass": self.dir.join(format!("pgpass-{name}")),
                "bin_dir": newest_programs()?,
                "pg_hba": ["host all all 10.77.0.0/24 trust", "host replication all 10.77.0.0/24 trust", "local all all trust"],
                "authentication": {
                    "superuser": { "username": "postgres" }, "replication": { "username": "replicator" },
                    "rewind": { "username": "postgres" },
                },
                "parameters": { "unix_socket_directories": sockets },
                "remove_data_directory_on_diverged_timelines": true,
                "remove_data_directory_on_rewind_failure": true,
            },
            "watchdog": { "mode": "off" },
        });
        Ok(configuration.to_string())
    }

    /// The machine that can be written to, as far as the others among `asked` know.
    pub fn leader(asked: &[usize]) -> Option<usize> {
        asked.iter().copied().find(|machine| get(*machine, "/primary").is_some_and(|(status, _)| status == 200))
    }

    /// Waits until one machine leads, and all others follow it closely.
    pub fn wait_until_whole(&self) -> Outcome<usize> {
        let began = Begun::now();
        loop {
            if let Some(leader) = Self::leader(&[0, 1, 2]).filter(|leader| self.is_whole(*leader)) {
                return Ok(leader);
            }
            if began.ago() > WHOLE_WITHIN {
                let said = get(0, "/cluster").map(|(_, body)| body).unwrap_or_default();
                return Err(format!("the cluster is not whole after {WHOLE_WITHIN:?}: {said}").into());
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    fn is_whole(&self, leader: usize) -> bool {
        let cluster = get(leader, "/cluster").and_then(|(_, body)| serde_json::from_str::<Value>(&body).ok());
        let members = cluster.as_ref().and_then(|cluster| cluster["members"].as_array());
        let follows = |member: &&Value| member["lag"].as_u64().is_some_and(|lag| lag < 1 << 20);
        let is_replica = |member: &&Value| {
            let wanted = if self.replication == Replication::Synchronous { "sync_standby" } else { "replica" };
            member["role"] == wanted
        };
        members.is_some_and(|members| {
            members.len() == MACHINES
                && members.iter().filter(follows).count() == MACHINES - 1
                && members.iter().any(|member| is_replica(&member))
        })
    }

    /// Sends a signal to every process of a machine.
    pub fn signal(machine: usize, signal: &str) -> Outcome<()> {
        let pids = Command::new("ip").args(["netns", "pids", &name(machine)]).output()?;
        let pids = String::from_utf8(pids.stdout)?;
        let pids: Vec<&str> = pids.split_whitespace().collect();
        // One that has ended meanwhile is missed by none.
        let _ = Command::new("kill").args(["-s", signal]).args(pids).stderr(Stdio::null()).status()?;
        Ok(())
    }

    /// Cuts a machine off from the other machines, or joins it to them again. Clients reach it all the time.
    pub fn set_apart(machine: usize, is_apart: bool) -> Outcome<()> {
        let change = if is_apart { "--append" } else { "--delete" };
        for peer in (0..MACHINES).filter(|peer| *peer != machine) {
            let peer = address(peer);
            for (chain, end) in [("INPUT", "--source"), ("OUTPUT", "--destination")] {
                let rule = ["iptables", change, chain, end, &peer, "--jump", "DROP"];
                call(&[&["ip", "netns", "exec", &name(machine)], &rule[..]].concat())?;
            }
        }
        Ok(())
    }
}

/// Refuses a Patroni that is too old: a leader of 3.0 that was paused takes the lead back from the one that followed it, and
/// rolls back what that one has acknowledged.
fn check_patroni() -> Outcome<()> {
    let said = String::from_utf8(Command::new("patroni").arg("--version").output()?.stdout)?;
    let major = said.trim().rsplit(' ').next().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 4) {
        Ok(())
    } else {
        Err(format!("Patroni 4 is needed, not `{}`", said.trim()).into())
    }
}

/// The newest server that is installed.
fn newest_programs() -> Outcome<PathBuf> {
    let versions =
        std::fs::read_dir(PROGRAMS)?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest = versions.max().ok_or("no PostgreSQL is installed")?;
    Ok(Path::new(PROGRAMS).join(newest.to_string()).join("bin"))
}

/// What Patroni of a machine answers: a status and a body.
fn get(machine: usize, path: &str) -> Option<(u16, String)> {
    let at: SocketAddr = format!("{}:8008", address(machine)).parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&at, ANSWER_WITHIN).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
