//! A run of which the record alone shows its state, as much of it as a list shows.
//!
//! A list may show thousands, and most of what is on record of each is not in it. Of a run that is final, and of one that
//! waits for nothing but its first turn, nothing has to be looked at beside it. A dead or interrupted run may have live
//! processes, so its record alone does not tell how it stands.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Arg, End, StateName};
use crate::model::id::RunId;
use crate::model::page::Cursor;
use crate::model::time::Timestamp;

/// A run that is final or waits for its first turn, as much of it as a list shows. See [`super::Run`] for what the fields
/// mean.
#[allow(missing_docs, reason = "they are those of a run")]
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Stored")]
pub struct RunSummary {
    pub id: RunId,
    pub name: Option<String>,
    pub kind: String,
    pub argv: Option<Vec<Arg>>,
    pub priority: i32,
    /// What it is called as a step.
    pub step: Option<String>,
    /// The step whose result it repeats.
    pub replays: Option<RunId>,
    pub attempt: u32,
    /// How it ended; none where it waits.
    pub end: Option<SummaryEnd>,
    pub done: Option<u64>,
    pub total: Option<u64>,
    pub cpu_ms: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub created_at: Timestamp,
    pub archived: bool,
}

/// The end of a run, as much of it as a list shows.
#[allow(missing_docs, reason = "they are those of an ending")]
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryEnd {
    pub how: End,
    pub at: Timestamp,
    pub started_at: Option<Timestamp>,
    /// Where its last owner was.
    pub host: Option<String>,
}

impl RunSummary {
    /// How it stands.
    pub fn state(&self) -> StateName {
        self.end.as_ref().map_or(StateName::Pending, |end| end.how.name())
    }

    /// Its place in a listing.
    pub fn place(&self) -> Cursor {
        Cursor { priority: self.priority, created_at: self.created_at, id: self.id }
    }
}

#[derive(Deserialize)]
struct Stored {
    id: RunId,
    spec: Spec,
    attempt: u32,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    ended: Option<Ending>,
    #[serde(default)]
    pending: Option<Pending>,
    #[serde(default)]
    progress: Progress,
    #[serde(default)]
    usage: Usage,
    created_at: Timestamp,
    #[serde(default)]
    archived: Option<IgnoredAny>,
    #[serde(default)]
    copied: bool,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    name: Option<String>,
    kind: String,
    #[serde(default)]
    command: Option<Command>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    keys: Option<IgnoredAny>,
    #[serde(default)]
    step: Option<StepSummary>,
}

/// Whatever it says but since when it waits, it waits for.
#[derive(Deserialize)]
struct Pending {
    #[serde(default)]
    not_before: Option<IgnoredAny>,
    #[serde(default)]
    waits_for: Option<IgnoredAny>,
    #[serde(default)]
    reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Command {
    argv: Vec<Arg>,
}

#[derive(Deserialize)]
struct StepSummary {
    name: String,
    #[serde(default)]
    replays: Option<RunId>,
}

#[derive(Deserialize)]
struct Ending {
    how: End,
    at: Timestamp,
    #[serde(default)]
    started_at: Option<Timestamp>,
    #[serde(default)]
    owner: Option<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    identity: Identity,
}

#[derive(Deserialize)]
struct Identity {
    host: String,
}

#[derive(Default, Deserialize)]
struct Progress {
    #[serde(default)]
    done: Option<u64>,
    #[serde(default)]
    total: Option<u64>,
}

/// The sums of what its attempt has used.
#[derive(Default, Deserialize)]
struct Usage {
    #[serde(default)]
    cpu_ms: Option<u64>,
    #[serde(default)]
    peak_memory_bytes: Option<u64>,
}

impl Stored {
    /// Whether it waits for nothing but its first turn: of any other run more must be asked than its record.
    fn waits_plainly(&self) -> bool {
        let waits_for_nothing =
            |pending: &Pending| pending.not_before.is_none() && pending.waits_for.is_none() && pending.reason.is_none();
        self.attempt == 1
            && !self.copied
            && self.spec.keys.is_none()
            && self.pending.as_ref().is_some_and(waits_for_nothing)
    }
}

impl TryFrom<Stored> for RunSummary {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let is_final = stored.ended.as_ref().is_some_and(|ended| ended.how.name().is_final());
        if !is_final && !stored.waits_plainly() {
            return Err("its record alone does not tell how it stands");
        }
        let Stored { id, spec, attempt, priority, ended, pending: _, progress, usage, created_at, archived, copied: _ } =
            stored;
        let (step, replays) = spec.step.map_or((None, None), |step| (Some(step.name), step.replays));
        let end = ended.map(|ended| SummaryEnd {
            how: ended.how,
            at: ended.at,
            started_at: ended.started_at,
            host: ended.owner.map(|owner| owner.identity.host),
        });
        Ok(Self {
            id,
            name: spec.name,
            kind: spec.kind,
            argv: spec.command.map(|command| command.argv),
            priority: priority.unwrap_or(spec.priority),
            step,
            replays,
            attempt,
            end,
            done: progress.done,
            total: progress.total,
            cpu_ms: usage.cpu_ms,
            peak_memory_bytes: usage.peak_memory_bytes,
            created_at,
            archived: archived.is_some(),
        })
    }
}
