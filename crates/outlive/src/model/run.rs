//! What a run is: its spec, which never changes, and its state, which only `lifecycle.rs` changes.

mod command;
mod key;
mod output;
mod readiness;
mod share;
mod spec;
mod state_name;
mod stored;
mod summary;
mod trace_parent;
mod usage;
mod variables;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::{Evidence, Identity};
use crate::model::policy::Lease;
use crate::model::signal::signal_name;
use crate::model::time::{Timestamp, millis};

pub(crate) use self::command::mask_argv;
pub use self::command::{Arg, Command, FIRST_PORT, PORT_PREFIX, Program, Withheld};
pub use self::key::{Hold, Key};
pub use self::output::{InvalidOutput, Output};
pub use self::readiness::{Readiness, ReadyCheck};
pub use self::share::{HEAVIEST, InvalidShare, QueueHead, Share};
pub use self::spec::{After, InvalidSpec, Lineage, Release, Spec, Step};
pub use self::state_name::{StateName, UnknownState};
pub use self::summary::{RunSummary, SummaryEnd};
pub use self::trace_parent::{InvalidTraceParent, TRACE_VARIABLE, TraceParent};
pub use self::usage::{POINTS, Usage, UsagePoint};
pub use self::variables::{EnvMode, Variables, is_of_session};

/// The longest name, kind, key or label, in bytes.
pub const NAME_LIMIT: usize = 256;
/// The most labels, keys or dependencies of one run.
pub const LIST_LIMIT: usize = 64;
/// The longest checkpoint, progress document, input or result, in bytes of JSON.
pub const DOCUMENT_LIMIT: usize = 1 << 20;
/// The most levels that such a document is nested. Readers of records have limits of their own, which are higher.
pub const DEPTH_LIMIT: usize = 48;
/// The longest message kept with progress, an error or a reason, in bytes.
pub const MESSAGE_LIMIT: usize = 4 << 10;

/// Who did something: a person on a host, in a process. [`Registry::spec`](crate::Registry::spec) fills it in; read
/// it in events and cancel requests. Cheap to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(
        description = "Who did something: a person on a host, in a process. Part of every event, and so cheap to copy."
    )
)]
pub struct Actor {
    /// The user's name.
    pub user: Arc<str>,
    /// The host's name: a label, never an identity.
    pub host: Arc<str>,
    /// The process.
    pub pid: u32,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} (pid {})", self.user, self.host, self.pid)
    }
}

/// One unit of work and its state, as it is on record. [`Registry::get`](crate::Registry::get) answers with it as a
/// [`RunStatus`](crate::RunStatus), which also knows whether the owner lives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What is to be done. Shared, because it never changes.
    pub spec: Arc<Spec>,
    /// The maker's signature of the registry, id and spec: without one that this user trusts, no command of it is executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The fence.
    pub epoch: Epoch,
    /// The attempt that waits, runs or has just ended; the first is 1.
    pub attempt: u32,
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
    /// The priority that a person gave it since it was made; see [`Run::priority`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The request to cancel it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Box<CancelRequest>>,
    /// How far it says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<Progress>>,
    /// What the attempt has used, as far as its owner has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Arc<Usage>>,
    /// What its next attempt will be handed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// What the attempt that succeeded has returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<Value>>,
    /// What it has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// The manifest that names its winners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_ref: Option<String>,
    /// How often it was reaped.
    #[serde(default)]
    pub reaps: u32,
    /// How many of its attempts failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
    /// Put away by a person or a policy: hidden, not gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<Box<Archived>>,
    /// Its artifacts were deleted, or are being.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub swept: Option<Box<Swept>>,
    /// Came with a copied registry: its owner belongs to the original, so it is neither judged nor resumed here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
    /// Written by a program that knows only the fields that writers of a bucket share. Such a run is also `copied`: its record
    /// is its writer's alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
}

impl Run {
    /// The priority by which it is claimed: lower ones first.
    pub fn priority(&self) -> i32 {
        self.priority.unwrap_or(self.spec.priority)
    }

    /// The slot of its schedule that it stands for. Neither a retry nor an edit of its time changes it.
    pub(crate) fn slot(&self) -> Timestamp {
        let moved = match &self.state {
            State::Pending(pending) => pending.slot,
            _ => None,
        };
        moved.or(self.spec.not_before).unwrap_or(self.created_at)
    }

    /// The tenant whose share it counts against; empty where it has none.
    pub fn tenant(&self) -> &str {
        self.spec.share.as_ref().map_or("", |share| &share.tenant)
    }

    /// A run that waits to be claimed for the first time.
    pub fn new(id: RunId, spec: Arc<Spec>, signature: Option<String>, now: Timestamp) -> Self {
        let not_before = spec.not_before;
        let waits_for = spec.after.iter().map(|after| after.run).collect();
        Self {
            id,
            spec,
            signature,
            epoch: Epoch(0),
            attempt: 1,
            state: State::Pending(Pending {
                since: now,
                not_before,
                slot: None,
                waits_for,
                reason: None,
                paused: None,
            }),
            priority: None,
            cancel: None,
            progress: None,
            usage: None,
            checkpoint: None,
            result: None,
            artifacts: Vec::new(),
            manifest_ref: None,
            reaps: 0,
            failures: 0,
            created_at: now,
            updated_at: now,
            archived: None,
            swept: None,
            copied: false,
            foreign: false,
        }
    }

    /// Its owner, while it runs.
    pub fn owner(&self) -> Option<&Owner> {
        match &self.state {
            State::Running(running) => Some(&running.owner),
            _ => None,
        }
    }

    /// Whether it is in the hands of the claim `epoch`, or was taken over from it with its processes alive.
    pub fn is_current(&self, epoch: Epoch) -> bool {
        let State::Running(running) = &self.state else { return false };
        (running.started_by.unwrap_or(self.epoch)..=self.epoch).contains(&epoch)
    }

    /// The process that its attempt ends with, while it runs.
    pub fn leash(&self) -> Option<&Identity> {
        match &self.state {
            State::Running(running) => running.leash.as_deref(),
            _ => None,
        }
    }

    /// The ports that it was leased, by name: those of its attempt while it runs, else those that it was made with.
    pub fn ports(&self) -> BTreeMap<String, u16> {
        match &self.state {
            State::Running(running) if !running.ports.is_empty() => running.ports.clone(),
            _ => self.spec.command.as_ref().map(Command::ports).unwrap_or_default(),
        }
    }

    /// Where the first port that it was leased is reached.
    pub fn url(&self) -> Option<String> {
        let first = self.spec.command.as_ref()?.first_port()?;
        self.ports().get(&first).map(|port| format!("http://127.0.0.1:{port}/"))
    }

    /// Its owner, to be given the time of its last heartbeat.
    pub(crate) fn owner_mut(&mut self) -> Option<&mut Owner> {
        match &mut self.state {
            State::Running(running) => Some(&mut running.owner),
            _ => None,
        }
    }

    /// Its owner, present or last.
    #[cfg(feature = "http")]
    pub(crate) fn any_owner_mut(&mut self) -> Option<&mut Owner> {
        match &mut self.state {
            State::Running(running) => Some(&mut running.owner),
            State::Ended(ending) => ending.owner.as_mut(),
            _ => None,
        }
    }

    /// The host where it runs, or ran last, as far as it is on record.
    pub fn last_host(&self) -> Option<&str> {
        let owner = self.owner().or_else(|| self.ending().and_then(|ending| ending.owner.as_ref()))?;
        (!owner.identity.is_unknown()).then(|| &*owner.identity.vantage.host)
    }

    /// The number of its last attempt that has started: the one that live processes belong to. None before the first.
    pub fn started_attempt(&self) -> Option<u32> {
        let has_started = match &self.state {
            State::Running(_) => true,
            State::Pending(_) => false,
            State::Suspended(suspended) => !suspended.parked,
            State::Ended(ending) => ending.started_at.is_some(),
        };
        let attempt = if has_started { self.attempt } else { self.attempt.saturating_sub(1) };
        (attempt > 0).then_some(attempt)
    }

    /// How its last attempt ended, if it has.
    pub fn ending(&self) -> Option<&Ending> {
        match &self.state {
            State::Ended(ending) => Some(ending),
            _ => None,
        }
    }
}

/// The state of a run with what only that state has. Match [`Run::state`](crate::Run::state) for details;
/// [`StateName`](crate::StateName) is enough for most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Waiting to be claimed.
    Pending(Pending),
    /// Owned by a worker.
    Running(Running),
    /// Waiting by design, without an owner.
    Suspended(Suspended),
    /// The attempt is over.
    Ended(Ending),
}

impl State {
    /// Its name.
    pub fn name(&self) -> StateName {
        match self {
            Self::Pending(_) => StateName::Pending,
            Self::Running(_) => StateName::Running,
            Self::Suspended(_) => StateName::Suspended,
            Self::Ended(ending) => ending.how.name(),
        }
    }
}

/// Waiting to be claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Since when.
    pub since: Timestamp,
    /// Not claimed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The slot of its schedule that it stands for, where that is no longer the one that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Timestamp>,
    /// The runs whose end it still waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<RunId>,
    /// Why it waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A person holds it back. Until it is unpaused, `not_before` is a time that never comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub paused: Option<Box<Paused>>,
}

/// Held back by a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// By whom.
    pub by: Actor,
    /// Since when.
    pub at: Timestamp,
    /// The time before which it was not claimed when it was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Why, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Pending {
    /// Whether it could be claimed by now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.waits_for.is_empty() && self.not_before.is_none_or(|not_before| not_before <= now)
    }
}

/// Owned by a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// By whom.
    pub owner: Owner,
    /// When this attempt began.
    pub started_at: Timestamp,
    /// When it last showed progress; its start counts.
    pub progressed_at: Timestamp,
    /// The claim by which its processes were started, where another owner has taken them over since. It is what they
    /// present when they report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_by: Option<Epoch>,
    /// When this attempt became ready, where its spec says by what that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// The process that this attempt ends with, where it ends with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leash: Option<Box<Identity>>,
    /// The ports that this attempt was leased, by name, where they are not those of its spec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
}

impl Running {
    /// An attempt of which its owner has said nothing yet.
    pub fn begun(owner: Owner, started_at: Timestamp, progressed_at: Timestamp) -> Self {
        let (started_by, ready_at, leash, ports) = (None, None, None, BTreeMap::new());
        Self { owner, started_at, progressed_at, started_by, ready_at, leash, ports }
    }
}

/// Waiting by design: for an approval, a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspended {
    /// Since when.
    pub since: Timestamp,
    /// When this attempt began.
    pub started_at: Timestamp,
    /// For what.
    pub reason: String,
    /// It has cost so many owners their lives that it waits for a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
}

/// The worker that owns a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Which incarnation.
    pub worker: WorkerId,
    /// Which process, as evidence.
    pub identity: Identity,
    /// What it promised.
    pub lease: Lease,
    /// What the store last heard of it. Not part of the record: the store fills it in when it reads.
    #[serde(skip)]
    pub heard: LastHeartbeat,
}

impl Owner {
    /// A worker of which nothing is on record but that it owns something.
    pub fn unknown(worker: WorkerId) -> Self {
        Self { worker, identity: Identity::unknown(), lease: Lease::default(), heard: LastHeartbeat::default() }
    }
}

/// When a store last heard of a worker, by the store's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LastHeartbeat {
    /// How many beats there have been. Rises with each, so that a beat between a look and a write is noticed.
    pub beat: u64,
    /// When the last was.
    pub at: Timestamp,
    /// For how long the store could have heard of it, and did not.
    pub silent_for: Duration,
}

/// How an attempt ended: read it from [`Run::ending`](crate::Run::ending) to report an outcome with its time and
/// owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The outcome.
    pub how: End,
    /// When the attempt ended.
    pub at: Timestamp,
    /// When the attempt began, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Who owned it, if anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The exit status, where a process had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
}

/// The ways in which an attempt ends: match [`Ending::how`](crate::Ending::how).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// It did what it was to do.
    Succeeded,
    /// It did not.
    Failed(Failure),
    /// It was stopped because of a cancel request.
    Cancelled(Box<CancelRequest>),
    /// Its owner was asked to stop, by a signal or a graceful shutdown.
    Interrupted(Interruption),
    /// Its owner was gone.
    Dead(Box<Reap>),
}

impl End {
    /// The state that this end is.
    pub fn name(&self) -> StateName {
        match self {
            Self::Succeeded => StateName::Succeeded,
            Self::Failed(_) => StateName::Failed,
            Self::Cancelled(_) => StateName::Cancelled,
            Self::Interrupted(_) => StateName::Interrupted,
            Self::Dead(_) => StateName::Dead,
        }
    }
}

/// Why an attempt failed, as it is on record: match `error_type` to tell a failed handler from a timeout or a panic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A class a policy can name: `exit`, `signal`, `spawn`, `timeout`, `panic`, `dropped`, `reaped`.
    pub error_type: String,
    /// For people.
    pub error_message: String,
    /// The reap behind it, where a policy made a failure of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap: Option<Box<Reap>>,
    /// Why it is not tried again, where its policy would have had it tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gave_up: Option<GaveUp>,
}

/// Why a run that is tried again when it fails is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GaveUp {
    /// It has failed as often as it may.
    MaxAttempts,
    /// Its policy calls this failure permanent.
    Permanent,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxAttempts => "no attempts left",
            Self::Permanent => "permanent",
        })
    }
}

/// What asked the owner to stop: a signal or the shutdown of its worker. Read it in
/// [`End::Interrupted`](crate::End::Interrupted).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    /// The signal's number, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// For people.
    pub reason: String,
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.signal {
            // A number means little to people.
            Some(signal) if self.reason == format!("signal {signal}") => fmt::Display::fmt(&Exit::Signal(signal), f),
            _ => f.write_str(&self.reason),
        }
    }
}

/// A judgement of an owner, and the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reap {
    /// What was seen.
    pub evidence: Evidence,
    /// Who saw it.
    pub by: Actor,
    /// When the store had last heard of the owner.
    pub last_heard: Timestamp,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By returning a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "stopped by {}", signal_name(*signal)),
        }
    }
}

/// A request to cancel a run: what [`Stop::Cancelled`](crate::Stop::Cancelled) carries, to tell who asked and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Who asked.
    pub by: Actor,
    /// When it was asked.
    pub at: Timestamp,
    /// The reason, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it may take to stop by itself before it is killed; unset, as long as its owner sees fit.
    #[serde(default, rename = "grace_ms", with = "millis::option", skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
}

/// How far a run says that it is, for [`Job::progress`](crate::Job::progress) and
/// [`RunHandle::progress`](crate::RunHandle::progress). Lists and the dashboard show it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// How much is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Of how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// An archive mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// Who archived it.
    pub by: Actor,
    /// When it was archived.
    pub at: Timestamp,
    /// The reason, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A mark that what a run made was deleted. It stands before anything is, so that no worker resumes the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// By whom.
    pub by: Actor,
    /// Since when, or, where it is done, when.
    pub at: Timestamp,
    /// It is done.
    pub done: bool,
    /// The process that does it: other sweepers that see it gone need not wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Identity>,
}

/// One line of a run's event log, appended with the change that it records and never edited. Read with
/// [`Registry::events`](crate::Registry::events), to show or audit what happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(description = "One line of a run's event log. Appended with the change it tells of, never edited.")
)]
pub struct Event {
    /// When it happened.
    pub at: Timestamp,
    /// What was done.
    pub action: Cow<'static, str>,
    /// By whom.
    pub by: Actor,
    /// From which state; none for a new run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<StateName>,
    /// To which state.
    pub to: StateName,
    /// The fence after it.
    pub epoch: Epoch,
    /// The attempt it belongs to.
    pub attempt: u32,
    /// The worker that owns the run after it, or did until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The evidence that the owner is gone, where this is a reap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What the attempt used that this ended, without its course.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Whether a document is nested more than `limit` levels deep.
pub(crate) fn is_deeper(document: &Value, limit: usize) -> bool {
    match document {
        Value::Array(values) => limit == 0 || values.iter().any(|value| is_deeper(value, limit - 1)),
        Value::Object(fields) => limit == 0 || fields.values().any(|value| is_deeper(value, limit - 1)),
        _ => false,
    }
}

/// Text cut to [`MESSAGE_LIMIT`] at a character's border.
pub fn truncate_message(mut text: String) -> String {
    if text.len() > MESSAGE_LIMIT {
        let cut = (0..=MESSAGE_LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor() -> Actor {
        Actor { user: "ada".into(), host: "here".into(), pid: 1 }
    }

    #[test]
    fn cancel_request_of_an_earlier_version_has_no_grace() {
        let old = r#"{"by":{"user":"ada","host":"here","pid":1},"at":"2026-11-15T09:30:00Z"}"#;
        let request: CancelRequest = serde_json::from_str(old).unwrap();
        assert_eq!(request.grace, None);
        let patient = CancelRequest { grace: Some(Duration::from_millis(1_500)), ..request };
        let json = serde_json::to_string(&patient).unwrap();
        assert!(json.contains("\"grace_ms\":1500"), "{json}");
        assert_eq!(serde_json::from_str::<CancelRequest>(&json).unwrap(), patient);
    }

    #[test]
    fn a_run_reads_back_from_json() {
        let run = Run::new(
            "01890000-0000-7000-8000-000000000000".parse().unwrap(),
            Arc::new(Spec::new("test", actor())),
            None,
            Timestamp::from_micros(1),
        );
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&json).unwrap(), run);
    }
}
