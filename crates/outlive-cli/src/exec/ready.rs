//! Readiness of a run that serves others: what the flags say of it, and the checks that its owner makes.
//!
//! Regular expressions take time in proportion to what they search. Checks are made on a thread of their own, so that a
//! server that does not answer does not keep its run from being cancelled.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::host::{REGISTRY_ID_VARIABLE, RUN_VARIABLE};
use outlive::redact::Redactor;
use outlive::registry::{LogDirectory, Registry};
use outlive::run::{Command, Readiness, ReadyCheck, Run};
use outlive::time::{Clock, SystemClock, parse_duration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::line_search::{LineSearch, expression};
use super::ports::variables;

/// How long a run may take to become ready where nothing is said.
const WITHIN: Duration = Duration::from_secs(60);
/// The pauses between two looks: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// How long one look may take.
const LOOK: Duration = Duration::from_secs(5);
/// The most bytes of an answer over HTTP that are read.
const MOST_OF_ANSWER: usize = 1 << 20;
/// How long the rest of an answer may take: one that never ends does not make its server less ready.
const REST: Duration = Duration::from_secs(2);
/// What stands for the first port that is leased.
const PORT: &str = "$PORT";

/// By what a run is known to be ready.
#[derive(Debug, Default, Args)]
pub struct ReadyFlags {
    /// It is ready when this port of the loopback address accepts connections: a number, or '$PORT' for the one of
    /// --port
    #[arg(long, value_name = "PORT", help_heading = "Environment", hide_short_help = true)]
    pub ready_tcp: Option<String>,
    /// It is ready when a GET of this http:// URL succeeds
    ///
    /// A status from 200 to 399 is a success. $PORT in the URL is the one of --port.
    #[arg(long, value_name = "URL", help_heading = "Environment")]
    pub ready_http: Option<String>,
    /// It is ready when a line of its output matches this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "no_log", help_heading = "Environment", hide_short_help = true)]
    pub ready_output: Option<String>,
    /// It is ready when a shell that executes this ends with status 0
    #[arg(long, value_name = "COMMAND", help_heading = "Environment", hide_short_help = true)]
    pub ready_command: Option<String>,
    /// A run that is not ready after this long is ended and has failed [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Environment", hide_short_help = true)]
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
    if host.starts_with('[') && !host.contains(']') {
        return Err("`]` is missing behind the address");
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
    pub fn of(run: &Run, registry: &Registry) -> Option<Self> {
        let readiness = readiness_of(run)?;
        let command = run.spec.command.as_ref();
        let cwd = command.map(|command| PathBuf::from(command.cwd.to_os())).filter(|cwd| cwd.is_dir());
        let mut variables = command.map(|command| command.env.clone()).unwrap_or_default();
        variables.extend(variables_of(run));
        // Where the owner is killed during a look, the command that looks is found as a process of the run.
        variables.insert(RUN_VARIABLE.into(), run.id.to_string());
        variables.insert(REGISTRY_ID_VARIABLE.into(), registry.id().unwrap_or_default());
        let search = |check: &ReadyCheck| match check {
            ReadyCheck::Output(text) => Some(LineSearch::new(run.id, run.attempt, expression(text).ok()?)),
            _ => None,
        };
        let searches = readiness.checks.iter().filter_map(search).collect();
        Some(Self { logs: registry.logs(), searches, cwd, variables, readiness })
    }

    /// Looks until all holds, or for too long. Answers with what did not hold. None where the result is not wanted any
    /// more.
    pub fn wait(mut self, over: &Over) -> Option<Result<(), String>> {
        let began = SystemClock.awake();
        let waited = || SystemClock.awake().saturating_sub(began);
        let within = self.readiness.within;
        let mut left = self.readiness.checks.clone();
        let mut pause = PAUSES[0];
        loop {
            // The last look does not outlast the deadline, but is one.
            let until = SystemClock.awake() + LOOK.min(within.saturating_sub(waited())).max(PAUSES[0]);
            left.retain(|check| !self.holds(check, until, over));
            if over.is_over() {
                return None;
            }
            if left.is_empty() {
                return Some(Ok(()));
            }
            if waited() >= within {
                return Some(Err(format!("it was not ready in time: {}", self.readiness)));
            }
            std::thread::sleep(pause.min(within.saturating_sub(waited())));
            pause = (pause * 3 / 2).min(PAUSES[1]);
        }
    }

    /// Whether a check holds by `until`, in time awake.
    fn holds(&mut self, check: &ReadyCheck, until: Duration, over: &Over) -> bool {
        match check {
            ReadyCheck::Tcp(port) => accepts(*port, until),
            ReadyCheck::Http(url) => answers(url, until).unwrap_or(false),
            ReadyCheck::Output(_) => {
                let logs = self.logs.as_ref();
                logs.is_some_and(|logs| self.searches.iter_mut().all(|search| search.is_found(logs)))
            }
            ReadyCheck::Command(command) => self.succeeds(command, until, over).unwrap_or(false),
        }
    }

    /// Has a shell execute a command, and ends it at `until`. It reports its success itself: the owner of the run may
    /// collect it first.
    fn succeeds(&self, command: &str, until: Duration, over: &Over) -> std::io::Result<bool> {
        let script = format!("(\n{command}\n) </dev/null >/dev/null 2>&1 && echo ready");
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script]).envs(&self.variables).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(cwd) = &self.cwd {
            shell.current_dir(cwd);
        }
        let Some(mut started) = over.begin_look(&mut shell)? else { return Ok(false) };
        let mut said = String::new();
        if let Some(mut stdout) = started.stdout.take() {
            let limit = Timespec::try_from(left(until)).unwrap_or_default();
            let in_time = poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&limit));
            if matches!(in_time, Ok(1..)) {
                stdout.read_to_string(&mut said)?;
                over.has_looked();
            }
        }
        over.end_look();
        // The owner may have collected it.
        let _ = started.wait();
        Ok(said == "ready\n")
    }
}

/// The readiness of an attempt: that of its spec, with the ports that the attempt was leased.
fn readiness_of(run: &Run) -> Option<Readiness> {
    let mut readiness = run.spec.ready.clone()?;
    let (was, is) = (run.spec.command.as_ref().map(Command::ports).unwrap_or_default(), run.ports());
    let moved = |port: u16| was.iter().find(|(_, was)| **was == port).and_then(|(name, _)| is.get(name)).copied();
    for check in &mut readiness.checks {
        match check {
            ReadyCheck::Tcp(port) => *port = moved(*port).unwrap_or(*port),
            ReadyCheck::Http(url) => {
                let port = address(url).ok().and_then(|(host, _)| host.rsplit_once(':')?.1.parse().ok());
                if let Some((port, is)) = port.and_then(|port| Some((port, moved(port)?))) {
                    *url = url.replacen(&format!(":{port}"), &format!(":{is}"), 1);
                }
            }
            ReadyCheck::Output(_) | ReadyCheck::Command(_) => {}
        }
    }
    Some(readiness)
}

/// The variables that tell of the ports that an attempt was leased.
fn variables_of(run: &Run) -> BTreeMap<String, String> {
    let first = run.spec.command.as_ref().and_then(Command::first_port);
    variables(first.as_deref(), &run.ports())
}

/// Whether the result of checks is still wanted. The command of a look in progress ends with the wish.
#[derive(Debug, Default)]
pub struct Over {
    is_over: AtomicBool,
    /// The process group of the command that looks.
    looks: Mutex<Option<Pid>>,
}

impl Over {
    /// Whether the result is not wanted any more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The result is not wanted any more: a command that looks must not outlive the run.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.end_look();
    }

    /// Starts a command that looks, unless its result is not wanted any more.
    fn begin_look(&self, command: &mut std::process::Command) -> std::io::Result<Option<Child>> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_over() {
            return Ok(None);
        }
        let started = command.spawn()?;
        *looks = i32::try_from(started.id()).ok().and_then(Pid::from_raw);
        Ok(Some(started))
    }

    /// The command that looked has ended by itself: its process group may be another's soon.
    fn has_looked(&self) {
        *self.looks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn end_look(&self) {
        if let Some(group) = self.looks.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// How long it is until then, in time awake; never nothing, which some calls take for no limit.
fn left(until: Duration) -> Duration {
    until.saturating_sub(SystemClock.awake()).max(Duration::from_millis(1))
}

/// Refuses to start a command while another process already answers where it is to be known as ready: the other would be
/// taken for it.
pub fn check_free(run: &Run) -> std::io::Result<()> {
    let until = SystemClock.awake() + LOOK;
    let taken = |check: &ReadyCheck| match check {
        ReadyCheck::Tcp(port) => accepts(*port, until).then(|| format!("port {port}")),
        ReadyCheck::Http(url) => answers(url, until).unwrap_or(false).then(|| format!("`{url}`")),
        ReadyCheck::Output(_) | ReadyCheck::Command(_) => None,
    };
    match readiness_of(run).iter().flat_map(|readiness| &readiness.checks).find_map(taken) {
        Some(what) => {
            Err(std::io::Error::other(format!("another process serves {what} already; `--port` leases a free port")))
        }
        None => Ok(()),
    }
}

/// Whether a port of the loopback address accepts connections.
fn accepts(port: u16, until: Duration) -> bool {
    ["127.0.0.1", "::1"].into_iter().any(|host| {
        let address = host.parse().map(|host| SocketAddr::new(host, port));
        address.is_ok_and(|address| TcpStream::connect_timeout(&address, left(until)).is_ok())
    })
}

/// Reads what is left of an answer: a server whose client leaves in the middle of it may log an error.
fn read_rest(stream: &mut TcpStream, until: Duration) {
    let mut rest = [0_u8; 4096];
    for _ in 0..MOST_OF_ANSWER / rest.len() {
        let has_time = SystemClock.awake() < until && stream.set_read_timeout(Some(left(until))).is_ok();
        if !has_time || !matches!(stream.read(&mut rest), Ok(1..)) {
            return;
        }
    }
}

/// Whether a URL is answered as by a server that is ready.
fn answers(url: &str, until: Duration) -> std::io::Result<bool> {
    let invalid = |why: &str| std::io::Error::other(why.to_owned());
    let (host, path) = address(url).map_err(invalid)?;
    for address in host.to_socket_addrs()? {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, left(until)) else { continue };
        stream.set_write_timeout(Some(left(until)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: outlive\r\nConnection: close\r\n\r\n")?;
        let mut head = [0_u8; 12];
        let mut filled = 0;
        // A server that sends byte by byte gets no more time than another.
        while filled < head.len() && SystemClock.awake() < until {
            stream.set_read_timeout(Some(left(until)))?;
            match stream.read(&mut head[filled..])? {
                0 => return Ok(false),
                read => filled += read,
            }
        }
        read_rest(&mut stream, until.min(SystemClock.awake() + REST));
        let status = std::str::from_utf8(&head[9..]).ok().and_then(|status| status.parse::<u16>().ok());
        return Ok(head.starts_with(b"HTTP/1.") && status.is_some_and(|status| (200..400).contains(&status)));
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_over_http_reads_the_whole_answer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
            answer.resize(600_000, b'x');
            client.write_all(&answer).and_then(|()| client.shutdown(std::net::Shutdown::Write)).unwrap();
            // A client that left in the middle would have reset the connection.
            client.read(&mut [0]).unwrap()
        });
        assert!(answers(&url, SystemClock.awake() + LOOK).unwrap());
        assert_eq!(server.join().unwrap(), 0);
    }

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
        assert!(one(|flags| flags.ready_http = Some("http://[::1/".into())));
        assert!(one(|flags| flags.ready_output = Some("a{1000}{1000}{1000}".into())));
        assert!(one(|flags| flags.ready_within = Some(WITHIN)));
    }
}
