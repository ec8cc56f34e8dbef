//! Readiness of a run that serves others: what the flags say of it, and the checks that its owner makes.
//!
//! Regular expressions take time in proportion to what they search. Checks are made on a thread of their own, so that a
//! server that does not answer does not keep its run from being cancelled.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::redact::Redactor;
use outlive::registry::LogDirectory;
use outlive::run::{Readiness, ReadyCheck, Run};
use outlive::time::{Clock, SystemClock, parse_duration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::line_search::{LineSearch, expression};

/// How long a run may take to become ready where nothing is said.
const WITHIN: Duration = Duration::from_secs(60);
/// The pauses between two looks: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(5);
/// What stands for the first port that is leased.
const PORT: &str = "$PORT";

/// By what a run is known to be ready.
#[derive(Debug, Default, Args)]
pub struct ReadyFlags {
    /// It is ready when this port of the loopback address accepts connections: a number, or '$PORT' for the one of
    /// --port
    #[arg(long, value_name = "PORT")]
    pub ready_tcp: Option<String>,
    /// It is ready when a GET of this http:// URL is answered with a status from 200 to 399; $PORT in it is the one of
    /// --port
    #[arg(long, value_name = "URL")]
    pub ready_http: Option<String>,
    /// It is ready when a line of its output matches this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "no_log")]
    pub ready_output: Option<String>,
    /// It is ready when a shell that executes this ends with status 0
    #[arg(long, value_name = "COMMAND")]
    pub ready_command: Option<String>,
    /// A run that is not ready after this long is ended and has failed [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub ready_within: Option<Duration>,
}

impl ReadyFlags {
    /// What the flags say, with the port that was leased.
    pub fn readiness(&self, port: Option<u16>) -> Result<Option<Readiness>, Error> {
        let mut checks = Vec::new();
        if let Some(tcp) = &self.ready_tcp {
            let number = with_port(tcp, port)?;
            let invalid = || Error::Invalid(format!("`--ready-tcp {tcp}` is no port"));
            checks.push(ReadyCheck::Tcp(number.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?));
        }
        if let Some(url) = &self.ready_http {
            let url = with_port(url, port)?;
            address(&url).map_err(|why| Error::Invalid(format!("`--ready-http {url}`: {why}")))?;
            checks.push(ReadyCheck::Http(url));
        }
        if let Some(text) = &self.ready_output {
            expression(text)?;
            checks.push(ReadyCheck::Output(text.clone()));
        }
        checks.extend(self.ready_command.clone().map(ReadyCheck::Command));
        let said = [&self.ready_http, &self.ready_command];
        if said.into_iter().flatten().any(|text| Redactor::default().text(text) != *text) {
            let why = "a readiness check is stored and must not contain a secret: use a variable of the environment";
            return Err(Error::Invalid(why.into()));
        }
        if checks.is_empty() && self.ready_within.is_some() {
            return Err(Error::Invalid("`--ready-within` goes with another `--ready-…`".into()));
        }
        let within = self.ready_within.unwrap_or(WITHIN);
        Ok((!checks.is_empty()).then_some(Readiness { checks, within }))
    }
}

fn with_port(text: &str, port: Option<u16>) -> Result<String, Error> {
    match port {
        Some(port) => Ok(text.replace(PORT, &port.to_string())),
        None if text.contains(PORT) => Err(Error::Invalid(format!("`{text}` means a port that `--port` leases"))),
        None => Ok(text.to_owned()),
    }
}

/// The host with its port, and the path, of a URL.
fn address(url: &str) -> Result<(String, String), &'static str> {
    let rest = url.strip_prefix("http://").ok_or("only http:// is looked at; `--ready-command` can do more")?;
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    if host.is_empty() || host.contains('@') || url.bytes().any(|byte| byte <= b' ') {
        return Err("it is no URL such as http://127.0.0.1:8000/health");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok((if has_port { host.to_owned() } else { format!("{host}:80") }, path.to_owned()))
}

/// The checks of one attempt, being made.
pub struct Checking {
    logs: Option<LogDirectory>,
    /// The searches for lines, in the order of the checks.
    searches: Vec<LineSearch>,
    cwd: Option<PathBuf>,
    variables: BTreeMap<String, String>,
    readiness: Readiness,
}

impl Checking {
    /// The checks of an attempt that begins, where its spec names any.
    pub fn of(run: &Run, logs: Option<LogDirectory>) -> Option<Self> {
        let readiness = run.spec.ready.clone()?;
        let command = run.spec.command.as_ref();
        let cwd = command.map(|command| PathBuf::from(command.cwd.to_os())).filter(|cwd| cwd.is_dir());
        let variables = command.map(|command| command.env.clone()).unwrap_or_default();
        let search = |check: &ReadyCheck| match check {
            ReadyCheck::Output(text) => Some(LineSearch::new(run.id, run.attempt, expression(text).ok()?)),
            _ => None,
        };
        let searches = readiness.checks.iter().filter_map(search).collect();
        Some(Self { logs, searches, cwd, variables, readiness })
    }

    /// Looks until all holds, or for too long. Answers with what did not hold. None where the result is not wanted any
    /// more.
    pub fn wait(mut self, over: &AtomicBool) -> Option<Result<(), String>> {
        let began = SystemClock.awake();
        let waited = || SystemClock.awake().saturating_sub(began);
        let mut left = self.readiness.checks.clone();
        let mut pause = PAUSES[0];
        loop {
            left.retain(|check| !self.holds(check));
            if over.load(Ordering::Relaxed) {
                return None;
            }
            if left.is_empty() {
                return Some(Ok(()));
            }
            if waited() >= self.readiness.within {
                return Some(Err(format!("it was not ready in time: {}", self.readiness)));
            }
            std::thread::sleep(pause.min(self.readiness.within.saturating_sub(waited())));
            pause = (pause * 3 / 2).min(PAUSES[1]);
        }
    }

    fn holds(&mut self, check: &ReadyCheck) -> bool {
        match check {
            ReadyCheck::Tcp(port) => accepts(*port),
            ReadyCheck::Http(url) => answers(url).unwrap_or(false),
            ReadyCheck::Output(_) => {
                let logs = self.logs.as_ref();
                logs.is_some_and(|logs| self.searches.iter_mut().all(|search| search.is_found(logs)))
            }
            ReadyCheck::Command(command) => self.succeeds(command).unwrap_or(false),
        }
    }

    /// Has a shell execute a command. It reports its success itself: the owner of the run may collect it first.
    fn succeeds(&self, command: &str) -> std::io::Result<bool> {
        let script = format!("(\n{command}\n) </dev/null >/dev/null 2>&1 && echo ready");
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script]).envs(&self.variables).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(cwd) = &self.cwd {
            shell.current_dir(cwd);
        }
        let mut started = shell.spawn()?;
        let mut said = String::new();
        if let Some(mut stdout) = started.stdout.take() {
            let limit = Timespec { tv_sec: LOOK.as_secs().cast_signed(), tv_nsec: 0 };
            let in_time = poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&limit));
            if matches!(in_time, Ok(1..)) {
                stdout.read_to_string(&mut said)?;
            } else if let Some(group) = i32::try_from(started.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        // The owner may have collected it.
        let _ = started.wait();
        Ok(said == "ready\n")
    }
}

/// Refuses to start a command while another process already answers where it is to be known as ready: the other would be
/// taken for it.
pub fn check_free(run: &Run) -> std::io::Result<()> {
    let taken = |check: &ReadyCheck| match check {
        ReadyCheck::Tcp(port) => accepts(*port).then(|| format!("port {port}")),
        ReadyCheck::Http(url) => answers(url).unwrap_or(false).then(|| format!("`{url}`")),
        ReadyCheck::Output(_) | ReadyCheck::Command(_) => None,
    };
    match run.spec.ready.iter().flat_map(|readiness| &readiness.checks).find_map(taken) {
        Some(what) => {
            Err(std::io::Error::other(format!("another process serves {what} already; `--port` leases a free port")))
        }
        None => Ok(()),
    }
}

/// Whether a port of the loopback address accepts connections.
fn accepts(port: u16) -> bool {
    ["127.0.0.1", "::1"].into_iter().any(|host| {
        let address = host.parse().map(|host| SocketAddr::new(host, port));
        address.is_ok_and(|address| TcpStream::connect_timeout(&address, LOOK).is_ok())
    })
}

/// Whether a URL is answered as by a server that is ready.
fn answers(url: &str) -> std::io::Result<bool> {
    let invalid = |why: &str| std::io::Error::other(why.to_owned());
    let (host, path) = address(url).map_err(invalid)?;
    for address in host.to_socket_addrs()? {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, LOOK) else { continue };
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(LOOK))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: outlive\r\nConnection: close\r\n\r\n")?;
        let mut head = [0_u8; 12];
        stream.read_exact(&mut head)?;
        let status = std::str::from_utf8(&head[9..]).ok().and_then(|status| status.parse::<u16>().ok());
        return Ok(head.starts_with(b"HTTP/1.") && status.is_some_and(|status| (200..400).contains(&status)));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_is_checked_and_what_makes_no_sense_is_refused() {
        let flags = ReadyFlags {
            ready_tcp: Some("$PORT".into()),
            ready_http: Some("http://127.0.0.1:$PORT/health".into()),
            ..ReadyFlags::default()
        };
        let checks = flags.readiness(Some(4000)).unwrap().unwrap().checks;
        assert_eq!(checks, [ReadyCheck::Tcp(4000), ReadyCheck::Http("http://127.0.0.1:4000/health".into())]);
        assert!(flags.readiness(None).is_err());
        assert_eq!(ReadyFlags::default().readiness(None).unwrap(), None);
        let one = |set: fn(&mut ReadyFlags)| {
            let mut flags = ReadyFlags::default();
            set(&mut flags);
            flags.readiness(None).is_err()
        };
        assert!(one(|flags| flags.ready_tcp = Some("0".into())));
        assert!(one(|flags| flags.ready_tcp = Some("http".into())));
        assert!(one(|flags| flags.ready_http = Some("https://example.org/".into())));
        assert!(one(|flags| flags.ready_http = Some("http://u:p@example.org/".into())));
        assert!(one(|flags| flags.ready_output = Some("a{1000}{1000}{1000}".into())));
        assert!(one(|flags| flags.ready_within = Some(WITHIN)));
    }
}
