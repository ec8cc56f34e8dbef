//! Detaching: a run whose owner is a process of its own, in a session of its own, with no terminal.
//!
//! This program starts itself once more, and waits until the run is on record and the command started, or until it is
//! known why not.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::SigSet;
use outlive::discovery::REGISTRY_VARIABLE;
use outlive::error::{Code, Error};
use outlive::host::{DETACHED, OUTCOME_VARIABLE, REGISTRY_ID_VARIABLE, RUN_VARIABLE};
use outlive::id::RunId;
use outlive::run::Exit;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use serde::Deserialize;
use serde_json::{Value, json};

use super::child;
use super::spawn::{Environment, Start, handed};
use super::start::Begun;
use super::streams::Placed;
use super::tree;
use crate::call::codes::status;
use crate::call::inside::{ATTEMPT_VARIABLE, EPOCH_VARIABLE, STEP_VARIABLE};
use crate::call::{SCHEMA, body, error_body, fail};
use crate::ui::{say_line, talk};

/// What the processes of a run have in their environment. A detached run that is started inside another is none of it.
const OF_THE_OTHER: [&str; 6] =
    [RUN_VARIABLE, REGISTRY_ID_VARIABLE, ATTEMPT_VARIABLE, EPOCH_VARIABLE, STEP_VARIABLE, OUTCOME_VARIABLE];

/// Whom the owner of a detached run tells how it came out.
pub struct Report(UnixStream);

impl Report {
    /// The pipe to the process that started this one, to report more than how it began.
    pub fn into_stream(self) -> UnixStream {
        self.0
    }

    /// The run is owned.
    pub fn owned(self, run: RunId) {
        self.send(&json!({ "status": 0, "id": run }));
    }

    /// The command runs.
    pub fn started(self, begun: &Begun) {
        self.send(&json!({ "status": 0, "id": begun.id, "begun": begun }));
    }

    /// The run that was wanted is there already.
    pub fn held(self, begun: &Begun) -> u8 {
        self.started(begun);
        0
    }

    /// The command could not be started.
    pub fn not_started(self, run: RunId, exit: Exit, talk: Option<&(Code, String)>) {
        let error = talk.map(|(code, text)| body(*code, text, None));
        let talk = talk.map(|(_, text)| text);
        self.send(&json!({ "status": child::status(exit), "id": run, "talk": talk, "error": error }));
    }

    /// There is no run.
    pub fn refused(self, error: &Error) -> u8 {
        let status = status(error.code()).exit;
        self.send(
            &json!({ "status": status, "talk": error.to_string(), "hint": error.hint(), "error": error_body(error) }),
        );
        status
    }

    fn send(mut self, report: &Value) {
        // The caller may have exited; the run continues.
        let _ = self.0.write_all(report.to_string().as_bytes());
    }
}

/// The words and the listener of the owner of a detached run, where this process is to be one.
pub fn role(words: &[OsString]) -> Option<(Vec<OsString>, Report)> {
    let [program, role, number, rest @ ..] = words else { return None };
    if role != DETACHED {
        return None;
    }
    let listener = handed(number.to_str()?).ok()?;
    rustix::process::setsid().ok()?;
    outlive::host::leave_group();
    let _ = rustix::thread::set_name(c"outlive");
    Some(([program.clone()].into_iter().chain(rest.iter().cloned()).collect(), Report(listener.into())))
}

/// A process that was started to own a run, and has not said yet how that came out.
pub struct Starting {
    listener: UnixStream,
    /// The process.
    pub pid: Pid,
}

/// What a process that was started to own a run says.
#[derive(Debug, Deserialize)]
pub struct Started {
    /// The status that this program would end with.
    pub status: u8,
    /// The run, if there is one.
    pub id: Option<RunId>,
    /// The message for people, and what to type next.
    pub talk: Option<String>,
    pub hint: Option<String>,
    /// What is said of the run that was started, or found.
    pub begun: Option<Begun>,
    /// The error that kept it from owning the run, as its JSON body.
    pub error: Option<Value>,
}

impl Started {
    /// The run that is owned, or the error that kept it from being owned.
    pub fn owned(self) -> Result<Self, Error> {
        if self.status == 0 {
            return Ok(self);
        }
        let said = |name: &str| self.error.as_ref().and_then(|body| body["error"][name].as_str());
        let code = said("code").and_then(Code::of_word).unwrap_or(Code::Invalid);
        let message = said("message").or(self.talk.as_deref()).unwrap_or("the run has no owner");
        Err(Error::Reported { code, message: message.into(), hint: said("hint").map(Into::into) })
    }
}

impl Starting {
    /// Starts this program with these words to own a run, in a session of its own.
    pub fn begin(words: &[OsString], mask: &SigSet) -> std::io::Result<Self> {
        Self::begin_with(words, mask, None)
    }

    /// Starts this program as [`Starting::begin`] does, with a descriptor that it finds under the number that it has here.
    pub fn begin_with(words: &[OsString], mask: &SigSet, handed: Option<BorrowedFd<'_>>) -> std::io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (mut argv, registry) = apart(words);
        argv.splice(1..1, [DETACHED.into(), theirs.as_raw_fd().to_string().into()]);
        let mut placed = Vec::new();
        for number in 0..3 {
            let fd = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            placed.push(Placed { fd, number });
        }
        tree::keep_locks_to_ourselves();
        let environment = OF_THE_OTHER.iter().fold(Environment::own(), |own, name| own.with(name, None));
        let environment = registry.into_iter().fold(environment, |own, url| own.with(REGISTRY_VARIABLE, Some(url)));
        let kept: Vec<_> = [theirs.as_fd()].into_iter().chain(handed).collect();
        let start = Start { argv: &argv, program: None, environment: &environment, mask, placed: &placed, kept: &kept };
        Ok(Self { listener: ours, pid: start.ourselves()? })
    }

    /// The way to it, to hear more than how it began.
    pub fn into_stream(self) -> UnixStream {
        self.listener
    }

    /// Waits until it says so.
    pub fn wait(mut self) -> std::io::Result<Started> {
        let mut said = Vec::new();
        self.listener.read_to_end(&mut said)?;
        serde_json::from_slice(&said).map_err(|_| std::io::Error::other("its owner ended without a word"))
    }
}

impl AsFd for Starting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The words without a registry's URL that they name first, which may bear a password: everybody on the machine may
/// read the words of a process, and only its user its environment.
fn apart(words: &[OsString]) -> (Vec<OsString>, Option<String>) {
    let is_flag = |place: &usize| words.get(*place).is_some_and(|word| word == "--registry");
    let place = [1, 2].into_iter().find(is_flag);
    let url = place.and_then(|place| words.get(place + 1)?.to_str()).filter(|url| !url.starts_with("sqlite:"));
    let (Some(place), Some(url)) = (place, url) else { return (words.to_vec(), None) };
    let rest = [&words[..place], &words[place + 2..]].concat();
    (rest, Some(url.to_owned()))
}

/// Whether a call ties its run to its session. What stands behind `--` is the command's own.
fn is_leashed(words: &[OsString]) -> bool {
    let own: Vec<&OsString> = words.iter().take_while(|word| *word != "--").collect();
    own.iter().any(|word| *word == "--leash=session")
        || own.windows(2).any(|pair| pair[0] == "--leash" && pair[1] == "session")
}

/// Has another process own the run that this one was asked for. Says the run's id once it is on record and started.
pub fn start(json: bool, mask: &SigSet, session_leader: Option<u32>) -> u8 {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    // In its own session the owner cannot tell any more which one this is.
    let verb = words.iter().position(|word| word == super::NAME).filter(|_| is_leashed(&words));
    if let (Some(verb), Some(leader)) = (verb, session_leader) {
        words.insert(verb + 1, format!("--session-leader={leader}").into());
    }
    let report = match Starting::begin(&words, mask).and_then(Starting::wait) {
        Ok(report) => report,
        Err(error) => return fail(&Error::Invalid(format!("the run cannot be detached: {error}")), json),
    };
    if let Some(error) = report.error.as_ref().filter(|_| json) {
        talk(&format!("{error}\n"));
    } else if let Some(said) = &report.talk {
        let hint = report.hint.as_ref().map(|hint| format!("hint: {}\n", crate::ui::plain(hint)));
        talk(&format!("error: {}\n{}", crate::ui::plain(said), hint.unwrap_or_default()));
    }
    if let Some(begun) = report.begun.as_ref().filter(|_| !json) {
        let there = if begun.made { "" } else { "it is already running" };
        let url = begun.url.as_deref().unwrap_or_default();
        let said: Vec<&str> = [there, url].into_iter().filter(|word| !word.is_empty()).collect();
        if !said.is_empty() {
            talk(&format!("outlive: {}\n", crate::ui::plain(&said.join(": "))));
        }
    }
    match report.id {
        Some(_) if json && report.begun.is_some() => {
            let mut said = json!({ "schema": SCHEMA });
            if let (Value::Object(said), Ok(Value::Object(begun))) = (&mut said, serde_json::to_value(&report.begun)) {
                said.extend(begun);
            }
            say_line(&said.to_string());
        }
        Some(id) if json => say_line(&json!({ "schema": SCHEMA, "id": id }).to_string()),
        Some(id) => say_line(&id.to_string()),
        None => {}
    }
    report.status
}
