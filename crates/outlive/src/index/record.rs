//! What the index knows of a run, whatever source it comes from.
//!
//! A record is a function of its source: two rebuilds give equal records. The names are those of the control plane that
//! cool-workflow has, so that who knows one knows the other.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::run::StateName;
use crate::model::time::Timestamp;

/// The sorts of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A registry of outlive.
    Outlive,
    /// A repository with runs of cool-workflow.
    CoolWorkflow,
}

impl Kind {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outlive => "outlive",
            Self::CoolWorkflow => "cool-workflow",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a run stands, in the words of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are the words of their sources")]
pub enum Lifecycle {
    Queued,
    Pending,
    Running,
    Suspended,
    Blocked,
    Interrupted,
    Dead,
    Failed,
    Cancelled,
    Completed,
    Succeeded,
    Archived,
    Reclaimed,
}

impl Lifecycle {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 13] = [
        Self::Queued,
        Self::Pending,
        Self::Running,
        Self::Suspended,
        Self::Blocked,
        Self::Interrupted,
        Self::Dead,
        Self::Failed,
        Self::Cancelled,
        Self::Completed,
        Self::Succeeded,
        Self::Archived,
        Self::Reclaimed,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Blocked => "blocked",
            Self::Interrupted => "interrupted",
            Self::Dead => "dead",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Completed => "completed",
            Self::Succeeded => "succeeded",
            Self::Archived => "archived",
            Self::Reclaimed => "reclaimed",
        }
    }

    /// Whether nothing goes on in it.
    pub fn is_ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Pending | Self::Running | Self::Suspended | Self::Blocked)
    }
}

impl From<StateName> for Lifecycle {
    fn from(state: StateName) -> Self {
        match state {
            StateName::Pending => Self::Pending,
            StateName::Running => Self::Running,
            StateName::Suspended => Self::Suspended,
            StateName::Interrupted => Self::Interrupted,
            StateName::Dead => Self::Dead,
            StateName::Succeeded => Self::Succeeded,
            StateName::Failed => Self::Failed,
            StateName::Cancelled => Self::Cancelled,
        }
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Lifecycle {
    type Err = UnknownLifecycle;

    fn from_str(text: &str) -> Result<Self, UnknownLifecycle> {
        let found = Self::ALL.into_iter().find(|lifecycle| lifecycle.as_str() == text);
        found.ok_or_else(|| UnknownLifecycle(text.chars().take(64).collect()))
    }
}

/// Text that is no lifecycle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a status: {words}", words = Lifecycle::ALL.map(Lifecycle::as_str).join(", "))]
pub struct UnknownLifecycle(String);

/// How much the index can be believed about a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// Its source is as it was when it was indexed.
    Valid,
    /// Its source has changed since; what is known was read from it just now.
    Stale,
    /// It is not indexed yet; what is known was read from its source just now.
    New,
    /// Its source is gone; what is known is the last that was.
    Missing,
    /// Its source is there and cannot be understood.
    Unreadable,
}

impl Freshness {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Stale => "stale",
            Self::New => "new",
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How many tasks a run has, by how they stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "they are counts of what they are called")]
pub struct Tasks {
    pub total: u64,
    pub pending: u64,
    pub running: u64,
    pub failed: u64,
    pub completed: u64,
}

/// Where a run comes from that repeats another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Provenance {
    /// The run it repeats.
    pub rerun_of: Option<String>,
    /// The repository of that run.
    pub rerun_of_repo: Option<String>,
    /// The first of the line.
    pub origin_run_id: Option<String>,
    /// 1 for a rerun, 2 for a rerun of a rerun.
    pub generation: Option<u64>,
    /// Why it was repeated.
    pub reason: Option<String>,
}

/// A run, as the index knows it. Fields that do not apply are null, never missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IndexRecord {
    /// Its id, in its source.
    pub run_id: String,
    /// The sort of its source.
    pub source: Kind,
    /// The repository it belongs to: the canonical path of its root, or the address of its registry.
    pub repo: String,
    /// What people call it.
    pub title: String,
    /// What sort of work it is.
    pub kind: Option<String>,
    /// The app of the workflow.
    pub app_id: Option<String>,
    /// Its version.
    pub app_version: Option<String>,
    /// The workflow.
    pub workflow_id: Option<String>,
    /// Its marks.
    pub labels: BTreeMap<String, String>,
    /// How it stands, its marks included.
    pub lifecycle: Lifecycle,
    /// How it stands, its marks left out.
    pub derived_lifecycle: Lifecycle,
    /// Where in its loop the workflow is.
    pub loop_stage: Option<String>,
    /// It is hidden.
    pub archived: bool,
    /// Since when.
    pub archived_at: Option<String>,
    /// The reason for archiving it, if one was given.
    pub archive_reason: Option<String>,
    /// When it was made, as its source says it.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// When its last attempt began.
    pub started_at: Option<Timestamp>,
    /// When its last attempt ended.
    pub ended_at: Option<Timestamp>,
    /// The processor time of its last attempt, in milliseconds, where its owner has said.
    pub cpu_ms: Option<u64>,
    /// The most memory of its last attempt, in bytes, where its owner has said.
    pub peak_memory_bytes: Option<u64>,
    /// Which attempt it is at.
    pub attempt: Option<u32>,
    /// Its tasks or steps.
    pub tasks: Tasks,
    /// How many commits it has made.
    pub commit_count: u64,
    /// How many of them a verifier has let through.
    pub verifier_gated_commit_count: u64,
    /// What is still under correction.
    pub open_feedback_count: u64,
    /// What has executed it.
    pub backends: Vec<String>,
    /// What it was asked to do, in a few words.
    pub inputs_digest: String,
    /// What it repeats.
    pub provenance: Option<Provenance>,
    /// What tells whether its parts changed, as cool-workflow computes it.
    pub source_fingerprint: Option<String>,
    /// A digest of its source, byte for byte.
    pub fingerprint: String,
    /// Where its source is.
    pub state_path: Option<String>,
    /// Where the run is.
    pub run_dir: Option<String>,
}

impl IndexRecord {
    /// When it was made; 1970 where its source has no date that can be parsed.
    pub fn made(&self) -> Timestamp {
        self.created_at.parse().unwrap_or_default()
    }

    /// How long its last attempt took, in milliseconds, where that is known.
    pub fn duration_ms(&self) -> Option<u64> {
        let (started, ended) = (self.started_at?, self.ended_at?);
        u64::try_from(ended.since(started).as_millis()).ok()
    }

    /// Its place among others: by when it was made, then by id, then by repository.
    pub(crate) fn sort_key(&self) -> (Timestamp, &str, &str) {
        (self.made(), &self.run_id, &self.repo)
    }

    /// Whether these are its marks, but for one that its own files tell of.
    pub(crate) fn bears(&self, marks: &Marks) -> bool {
        let reclaimed = self.lifecycle == Lifecycle::Reclaimed;
        self.clone().marked(&Marks { reclaimed, ..marks.clone() }) == *self
    }

    /// The run with the marks that its source keeps beside it.
    #[must_use]
    pub(crate) fn marked(mut self, marks: &Marks) -> Self {
        let archived = marks.archived.as_ref();
        self.archived = archived.is_some();
        self.archived_at = archived.and_then(|mark| mark.at.clone());
        self.archive_reason = archived.and_then(|mark| mark.reason.clone());
        self.provenance.clone_from(&marks.provenance);
        self.lifecycle = match (marks.reclaimed, self.archived) {
            (true, _) => Lifecycle::Reclaimed,
            (false, true) => Lifecycle::Archived,
            (false, false) => self.derived_lifecycle,
        };
        self
    }
}

/// What a source keeps of a run beside the run itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Marks {
    pub(crate) archived: Option<ArchiveMark>,
    pub(crate) provenance: Option<Provenance>,
    pub(crate) reclaimed: bool,
}

impl Marks {
    /// Those that a record bears.
    pub(crate) fn of(record: &IndexRecord) -> Self {
        let mark = || ArchiveMark { at: record.archived_at.clone(), reason: record.archive_reason.clone() };
        Self {
            archived: record.archived.then(mark),
            provenance: record.provenance.clone(),
            reclaimed: record.lifecycle == Lifecycle::Reclaimed,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ArchiveMark {
    pub(crate) at: Option<String>,
    pub(crate) reason: Option<String>,
}
