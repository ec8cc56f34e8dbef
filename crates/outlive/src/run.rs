//! What a run is: its spec, which never changes, and its state, which only `transition.rs` changes.

mod state_name;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{Epoch, RunId, WorkerId};
use crate::policy::{Lease, Policy};
use crate::process::{Evidence, Identity};
use crate::redact::Redactor;
use crate::signal::signal_name;
use crate::time::{Timestamp, millis};

pub use self::state_name::{StateName, UnknownState};

/// The longest name, kind, key or label, in bytes.
pub const NAME_LIMIT: usize = 256;
/// The most labels, keys or dependencies of one run.
pub const LIST_LIMIT: usize = 64;
/// The longest checkpoint or progress document, in bytes of JSON.
pub const CHECKPOINT_LIMIT: usize = 1 << 20;
/// The longest message kept with progress, an error or a reason, in bytes.
pub const MESSAGE_LIMIT: usize = 4 << 10;

/// What is to be done, and under which promises. Written once.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// What people call it. Need not be unique; the newest bearer is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What sort of work it is: `command`, `migrate`, `train`.
    pub kind: String,
    /// Free marks to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command, for runs that are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// What of the command is not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// Lower is claimed first.
    #[serde(default)]
    pub priority: i32,
    /// Not claimed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Concurrency keys, held while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// What it was promised.
    #[serde(default)]
    pub policy: Policy,
    /// Where it comes from, if it repeats another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// Who asked for it.
    pub created_by: Actor,
}

impl Spec {
    /// A spec of the given kind with default promises.
    pub fn new(kind: impl Into<String>, created_by: Actor) -> Self {
        Self {
            name: None,
            kind: kind.into(),
            labels: BTreeMap::new(),
            command: None,
            withheld: None,
            priority: 0,
            not_before: None,
            keys: Vec::new(),
            policy: Policy::default(),
            lineage: None,
            created_by,
        }
    }

    /// Refuses what no store should hold: empty, overlong or unprintable words, impossible limits.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        word("kind", &self.kind)?;
        if let Some(name) = &self.name {
            word("name", name)?;
            not_an_address(name)?;
        }
        if self.labels.len().max(self.keys.len()) > LIST_LIMIT {
            return Err(InvalidSpec(format!("more than {LIST_LIMIT} labels or keys")));
        }
        for (label, value) in &self.labels {
            word("label", label)?;
            if !value.is_empty() {
                word("label value", value)?;
            }
        }
        for key in &self.keys {
            word("key", &key.name)?;
            if key.limit == 0 {
                return Err(InvalidSpec(format!("a limit of 0 on key `{}` would never let it run", key.name)));
            }
        }
        self.policy.check().map_err(|error| InvalidSpec(error.to_string()))
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redactor = Redactor::default();
        let label = |(name, value): (&String, &String)| (name.clone(), redactor.named(name, value));
        f.debug_struct("Spec")
            .field("name", &self.name.as_deref().map(|name| redactor.text(name)))
            .field("kind", &self.kind)
            .field("labels", &self.labels.iter().map(label).collect::<BTreeMap<_, _>>())
            .field("command", &self.command)
            .field("withheld", &self.withheld)
            .field("priority", &self.priority)
            .field("not_before", &self.not_before)
            .field("keys", &self.keys)
            .field("policy", &self.policy)
            .field("lineage", &self.lineage)
            .field("created_by", &self.created_by)
            .finish()
    }
}

fn word(what: &str, text: &str) -> Result<(), InvalidSpec> {
    if text.is_empty() {
        Err(InvalidSpec(format!("an empty {what}")))
    } else if text.len() > NAME_LIMIT {
        Err(InvalidSpec(format!("a {what} of {} bytes; the longest is {NAME_LIMIT}", text.len())))
    } else if text.chars().any(char::is_control) {
        Err(InvalidSpec(format!("a control character in {what} `{}`", text.escape_default())))
    } else {
        Ok(())
    }
}

/// Refuses a name that could not be told from another way to say which run is meant.
fn not_an_address(name: &str) -> Result<(), InvalidSpec> {
    if name.starts_with('@') {
        Err(InvalidSpec(format!("the name `{name}` begins with @, as `@last` and `@~2` do; choose another")))
    } else if RunId::may_begin_with(name) {
        Err(InvalidSpec(format!("the name `{name}` could be taken for the beginning of an id; choose another")))
    } else {
        Ok(())
    }
}

/// A spec that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSpec(String);

/// What of a command is not in its spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// Secrets, which are masked. The maker's home has the words as they were.
    Secrets,
    /// All arguments, because somebody asked for it. Nobody has them.
    Arguments,
}

/// A command as it is executed: no shell in between.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<Arg>,
    /// The directory it starts in.
    pub cwd: Arg,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argv = crate::conceal::argv(&Redactor::default(), &self.argv);
        f.debug_struct("Command").field("argv", &argv).field("cwd", &self.cwd).finish()
    }
}

/// A word of a command line. Bytes that are not UTF-8 survive as hexadecimal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arg {
    /// Ordinary text.
    Text(String),
    /// Anything else.
    Bytes {
        /// Two digits a byte.
        hex: String,
    },
}

impl From<&OsStr> for Arg {
    fn from(word: &OsStr) -> Self {
        match word.to_str() {
            Some(text) => Self::Text(text.into()),
            None => Self::Bytes { hex: word.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect() },
        }
    }
}

impl Arg {
    /// The word to execute. Hexadecimal that is none reads as nothing.
    pub fn to_os(&self) -> OsString {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes { hex } => {
                let digits: Vec<u8> = hex.bytes().filter_map(|c| char::from(c).to_digit(16)).map(|d| d as u8).collect();
                OsString::from_vec(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
            }
        }
    }
}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Redactor::default().text(&self.to_string()), f)
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_os().to_string_lossy())
    }
}

/// A concurrency key: at most `limit` running runs hold it at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What is shared.
    pub name: String,
    /// How many may hold it.
    pub limit: u32,
}

/// How a run descends from the run it repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The run it repeats.
    pub rerun_of: RunId,
    /// The first of the line.
    pub origin: RunId,
    /// 1 for a rerun, 2 for a rerun of a rerun.
    pub generation: u32,
    /// Why it was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who did something: a person on a host, in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The user's name.
    pub user: String,
    /// The host's name: a label, never an identity.
    pub host: String,
    /// The process.
    pub pid: u32,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} (pid {})", self.user, self.host, self.pid)
    }
}

/// One unit of work, and how it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What is to be done. Shared, because it never changes.
    pub spec: Arc<Spec>,
    /// The maker's signature of id and spec; see [`crate::trust`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The fence.
    pub epoch: Epoch,
    /// The attempt that waits, runs or has just ended; the first is 1.
    pub attempt: u32,
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
    /// Somebody wants it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelRequest>,
    /// How far it says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What its next attempt will be handed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// What it has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// The manifest that names its winners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_ref: Option<String>,
    /// How often it was reaped.
    #[serde(default)]
    pub reaps: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
    /// Put away by a person or a policy: hidden, not gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<Archived>,
    /// Came with a copied registry: its owner belongs to the original, so nobody here may judge or resume it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
}

impl Run {
    /// A run that waits to be claimed for the first time.
    pub fn new(id: RunId, spec: Arc<Spec>, signature: Option<String>, now: Timestamp) -> Self {
        let not_before = spec.not_before;
        Self {
            id,
            spec,
            signature,
            epoch: Epoch(0),
            attempt: 1,
            state: State::Pending(Pending { since: now, not_before, reason: None }),
            cancel: None,
            progress: None,
            checkpoint: None,
            artifacts: Vec::new(),
            manifest_ref: None,
            reaps: 0,
            created_at: now,
            updated_at: now,
            archived: None,
            copied: false,
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

    /// Its owner, to be told when the store last heard of it.
    pub(crate) fn owner_mut(&mut self) -> Option<&mut Owner> {
        match &mut self.state {
            State::Running(running) => Some(&mut running.owner),
            _ => None,
        }
    }

    /// The keys it holds: those of its spec while it runs, none otherwise.
    pub fn held_keys(&self) -> &[Key] {
        if self.owner().is_some() { &self.spec.keys } else { &[] }
    }

    /// How its last attempt ended, if it has.
    pub fn ending(&self) -> Option<&Ending> {
        match &self.state {
            State::Ended(ending) => Some(ending),
            _ => None,
        }
    }
}

/// How a run stands, with what can be known only then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waiting to be claimed.
    Pending(Pending),
    /// Owned by a worker.
    Running(Running),
    /// Waiting by design, owned by nobody.
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
    /// Why it waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
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
    pub heard: Heard,
}

/// When a store last heard of a worker, by the store's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// How many beats there have been. Rises with each, so that a beat between a look and a write is noticed.
    pub beat: u64,
    /// When the last was.
    pub at: Timestamp,
    /// For how long the store could have heard of it, and did not.
    pub silent_for: Duration,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// In which way.
    pub how: End,
    /// When.
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

/// The ways to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It did what it was to do.
    Succeeded,
    /// It did not.
    Failed(Failure),
    /// It was stopped because somebody asked.
    Cancelled(CancelRequest),
    /// Its owner was asked to stop, by a signal or a graceful shutdown.
    Interrupted(Interruption),
    /// Its owner was gone.
    Dead(Reap),
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

/// Why it failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A class a policy can name: `exit`, `signal`, `spawn`, `timeout`, `panic`, `dropped`, `reaped`.
    pub error_type: String,
    /// For people.
    pub error_message: String,
    /// The reap behind it, where a policy made a failure of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap: Option<Reap>,
}

/// What asked the owner to stop.
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
            // A number tells nobody anything.
            Some(signal) if self.reason == format!("signal {signal}") => fmt::Display::fmt(&Exit::Signal(signal), f),
            _ => f.write_str(&self.reason),
        }
    }
}

/// A verdict on an owner, and on what it rests.
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

/// Somebody wants it stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Who.
    pub by: Actor,
    /// When.
    pub at: Timestamp,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it may take to stop by itself before it is killed; unset, as long as its owner sees fit.
    #[serde(default, rename = "grace_ms", with = "millis::option", skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
}

/// How far a run says it is.
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
    /// By whom.
    pub by: Actor,
    /// When.
    pub at: Timestamp,
}

/// One line of a run's story. Appended with the change it tells of, never edited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// What was done.
    pub action: String,
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
    /// On what a verdict rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

/// Text cut to [`MESSAGE_LIMIT`] at a character's border.
pub fn capped(mut text: String) -> String {
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
    fn bytes_that_are_not_utf8_survive() {
        let word = OsString::from_vec(vec![b'a', 0xff, 0x00, 0x7f]);
        let json = serde_json::to_string(&Arg::from(word.as_os_str())).unwrap();
        assert_eq!(serde_json::from_str::<Arg>(&json).unwrap().to_os(), word);
    }

    #[test]
    fn specs_that_no_store_should_hold_are_refused() {
        let refused = |change: &dyn Fn(&mut Spec)| {
            let mut spec = Spec::new("test", actor());
            change(&mut spec);
            spec.check().expect_err("a bad spec was taken").to_string()
        };
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("x".repeat(1 << 20))), @"a name of 1048576 bytes; the longest is 256");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("a\0b\x1b[2J".into())), @r"a control character in name `a\u{0}b\u{1b}[2J`");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some(String::new())), @"an empty name");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("@last".into())), @"the name `@last` begins with @, as `@last` and `@~2` do; choose another");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("01a1e1d5-a1d".into())), @"the name `01a1e1d5-a1d` could be taken for the beginning of an id; choose another");
        insta::assert_snapshot!(refused(&|spec| spec.kind.clear()), @"an empty kind");
        insta::assert_snapshot!(refused(&|spec| spec.keys.push(Key { name: "gpu".into(), limit: 0 })), @"a limit of 0 on key `gpu` would never let it run");
        insta::assert_snapshot!(refused(&|spec| spec.policy.retry.max_attempts = 0), @"`max_attempts` of 0 would never run anything");
    }

    #[test]
    fn names_that_only_resemble_ids_are_taken() {
        for name in ["01", "0123456", "20261116", "2026-11-16", "01-02-2026", "deadbeef", "01a1e1d5-backup", "a@b"] {
            let spec = Spec { name: Some(name.into()), ..Spec::new("test", actor()) };
            assert_eq!(spec.check(), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_cancel_request_of_an_earlier_version_reads_as_one_without_grace() {
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
