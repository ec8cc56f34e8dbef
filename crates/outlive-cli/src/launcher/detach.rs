//! Detaching: a run whose owner is a process of its own, in a session of its own, with no terminal.
//!
//! This program starts itself once more, and waits until the run is on record and the command started, or until it is
//! known why not.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::SigSet;
use outlive::error::{Code, Error};
use outlive::id::RunId;
use outlive::process::{DETACHED, REGISTRY_ID_VARIABLE, RUN_VARIABLE};
use outlive::run::Exit;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::child;
use super::spawn::{Start, handed};
use super::streams::Placed;
use super::tree;
use crate::cli::{fail, say_line, talk};
use crate::inside::{ATTEMPT_VARIABLE, EPOCH_VARIABLE};
use crate::operation::{SCHEMA, body, error_body};

/// What the processes of a run have in their environment. A detached run that is started inside another is none of it.
const OF_THE_OTHER: [&str; 4] = [RUN_VARIABLE, REGISTRY_ID_VARIABLE, ATTEMPT_VARIABLE, EPOCH_VARIABLE];

/// Whom the owner of a detached run tells how it came out.
pub struct Report(UnixStream);

impl Report {
    /// The command runs.
    pub fn started(self, run: RunId) {
        self.send(&json!({ "status": 0, "id": run }));
    }

    /// The command could not be started.
    pub fn not_started(self, run: RunId, exit: Exit, talk: Option<&(Code, String)>) {
        let error = talk.map(|(code, text)| body(*code, text, None));
        let talk = talk.map(|(_, text)| text);
        self.send(&json!({ "status": child::status(exit), "id": run, "talk": talk, "error": error }));
    }

    /// There is no run.
    pub fn refused(self, error: &Error) -> u8 {
        let status = error.code().exit_status();
        self.send(
            &json!({ "status": status, "talk": error.to_string(), "hint": error.hint(), "error": error_body(error) }),
        );
        status
    }

    fn send(mut self, report: &Value) {
        // Whoever asked may have gone; the run goes on.
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
    let _ = rustix::thread::set_name(c"outlive");
    Some(([program.clone()].into_iter().chain(rest.iter().cloned()).collect(), Report(listener.into())))
}

/// Has another process own the run that this one was asked for. Says the run's id once it is on record and started.
pub fn start(json: bool, mask: &SigSet) -> u8 {
    let started = (|| -> std::io::Result<Value> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let mut words: Vec<OsString> = std::env::args_os().collect();
        words.splice(1..1, [DETACHED.into(), theirs.as_raw_fd().to_string().into()]);
        let mut placed = Vec::new();
        for number in 0..3 {
            let fd = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            placed.push(Placed { fd, number });
        }
        tree::keep_locks_to_ourselves();
        let kept = [theirs.as_fd()];
        let start = Start { argv: &words, variables: &[], dropped: &OF_THE_OTHER, mask, placed: &placed, kept: &kept };
        start.ourselves()?;
        drop(theirs);
        let mut report = Vec::new();
        ours.read_to_end(&mut report)?;
        serde_json::from_slice(&report).map_err(|_| std::io::Error::other("its owner ended without a word"))
    })();
    let report = match started {
        Ok(report) => report,
        Err(error) => return fail(&Error::Invalid(format!("the run cannot be detached: {error}")), json),
    };
    let status = report["status"].as_u64().and_then(|status| u8::try_from(status).ok()).unwrap_or(1);
    if json && !report["error"].is_null() {
        talk(&format!("{}\n", report["error"]));
    } else if let Some(said) = report["talk"].as_str() {
        let hint = report["hint"].as_str().map(|hint| format!("hint: {}\n", crate::terminal::plain(hint)));
        talk(&format!("outlive: {}\n{}", crate::terminal::plain(said), hint.unwrap_or_default()));
    }
    match report["id"].as_str() {
        Some(id) if json => say_line(&json!({ "schema": SCHEMA, "id": id }).to_string()),
        Some(id) => say_line(id),
        None => {}
    }
    status
}
