//! What can go wrong for a caller, in a few kinds: each with a code for programs.

mod hint;

use std::fmt;
use std::time::Duration;

use crate::lifecycle::Refusal;
use crate::model::id::InvalidId;
use crate::model::id::RunId;
use crate::model::page::InvalidCursor;
use crate::model::policy::InvalidPolicy;
use crate::model::run::{InvalidOutput, InvalidShare, InvalidSpec, InvalidTraceParent, Key, StateName};
use crate::model::schedule::InvalidSchedule;
use crate::model::time::{InvalidDuration, InvalidMoment, InvalidTime, Timestamp, show_duration};
use crate::secrets::trust::Denied;
use crate::store;

/// Why a call on a registry failed. Nothing was changed, unless it says so.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such run.
    #[error("no run `{0}`")]
    NotFound(String),
    /// Several runs are meant.
    #[error("`{what}` names several runs: {}{}", joined(candidates, "; "), if *more { "; and more" } else { "" })]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// The newest few that it names.
        candidates: Vec<Candidate>,
        /// There are others.
        more: bool,
    },
    /// Runs of several repositories are meant.
    #[error("`{what}` names several runs: {}{}", candidates.join("; "), if *more { "; and more" } else { "" })]
    AmbiguousRepository {
        /// What was asked for.
        what: String,
        /// The first few that it names, each as it can be asked for, and what it is.
        candidates: Vec<String>,
        /// There are others.
        more: bool,
    },
    /// A run was named behind a repository that is not registered.
    #[error("no run `{sought}`: no repository `{repo}` is known")]
    NoRepository {
        /// The run that was to be found.
        sought: String,
        /// The repository.
        repo: String,
    },
    /// There is no such thing, where that is no run.
    #[error("no {what} `{name}`")]
    NoSuch {
        /// What was to be found: `token`, `repository`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The command that lists those that are there.
        list: &'static str,
    },
    /// The index cannot be read.
    #[error("the index of the runs of all repositories is damaged: {0}")]
    DamagedIndex(String),
    /// A run was there and is no more.
    #[error("run `{run}` of `{repo}` is gone: {reason}")]
    Gone {
        /// Its name there.
        run: String,
        /// The repository.
        repo: String,
        /// What tells so.
        reason: String,
    },
    /// A run is not in a database, and may be in files that it was exported to.
    #[error("run `{run}` is not in the database; runs of that time were exported to `{place}`")]
    Exported {
        /// Its id.
        run: String,
        /// Where to, as the database has it on record.
        place: String,
    },
    /// A run is there and cannot be understood.
    #[error("run `{run}` of `{repo}` cannot be understood: {reason}")]
    Unreadable {
        /// Its name there.
        run: String,
        /// The repository.
        repo: String,
        /// Why not.
        reason: String,
    },
    /// There is no registry where one is looked for.
    #[error("{}there is no registry at `{place}`", .sought.iter().map(|run| format!("no run `{run}`: ")).collect::<String>())]
    NoRegistry {
        /// The run that was to be found in it.
        sought: Option<String>,
        /// Where it was looked for.
        place: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The rules forbid it.
    #[error("run `{run}`: {refusal}")]
    Refused {
        /// Which run.
        run: RunId,
        /// The rule that forbids it.
        refusal: Refusal,
    },
    /// A key has no holder to spare.
    #[error("{}", busy(key, holders, *free_at))]
    KeyBusy {
        /// The key.
        key: Key,
        /// Who holds it.
        holders: Vec<RunId>,
        /// When it is free, where a clock alone frees it.
        free_at: Option<Timestamp>,
    },
    /// The registry at this URL cannot delete single runs.
    #[error("deleting runs is not supported yet in `{0}`, only in a registry directory of this machine")]
    CannotDelete(String),
    /// The caller has no permission for the call.
    #[error("{0}")]
    Forbidden(String),
    /// This user may not execute the run: its command is shown.
    #[error("run `{run}` is not executed: {why}")]
    Untrusted {
        /// The run.
        run: RunId,
        /// What speaks against it.
        why: Denied,
    },
    /// Others kept changing the run.
    #[error("run `{0}` was modified concurrently again and again; nothing was changed")]
    Contended(RunId),
    /// Another process of outlive, which was to do it, reported this.
    #[error("{message}")]
    Reported {
        /// Its kind.
        code: Code,
        /// What it says.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What a caller wrote cannot hold: `?` makes an [`Error::Invalid`] of what says why.
macro_rules! from_invalid {
    ($($invalid:ty),+) => {
        $(impl From<$invalid> for Error {
            fn from(error: $invalid) -> Self {
                Self::Invalid(error.to_string())
            }
        })+
    };
}

from_invalid!(
    InvalidCursor,
    InvalidDuration,
    InvalidId,
    InvalidMoment,
    InvalidOutput,
    InvalidPolicy,
    InvalidSchedule,
    InvalidShare,
    InvalidSpec,
    InvalidTime,
    InvalidTraceParent
);

/// A run that may have been meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: RunId,
    /// What people call it.
    pub title: String,
    /// How it stands.
    pub state: StateName,
    /// How long ago it was made.
    pub age: Duration,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}, made {} ago)", self.id, self.title, self.state, show_duration(self.age))
    }
}

/// Why a key cannot be had.
fn busy(key: &Key, holders: &[RunId], free_at: Option<Timestamp>) -> String {
    match free_at {
        Some(free_at) => format!("{key} is used up; the next may start at {free_at}"),
        None => format!("{key} is held by {}", joined(holders, ", ")),
    }
}

fn joined(parts: &[impl fmt::Display], between: &str) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

/// The kind of an [`Error`](crate::Error) as one word, for programs that pass errors on: HTTP answers, exit statuses,
/// logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// There is no such thing.
    NotFound,
    /// Several are meant.
    Ambiguous,
    /// The request makes no sense.
    Invalid,
    /// The rules forbid it.
    Refused,
    /// The caller no longer owns the run.
    Lost,
    /// Something that is needed is taken.
    Busy,
    /// A signature is missing.
    Untrusted,
    /// The store cannot be reached.
    Unavailable,
    /// The store has no room.
    Full,
    /// The store may not be used.
    Denied,
    /// The store was made by a later outlive.
    Newer,
    /// The store cannot be understood.
    Corrupt,
    /// What is known is not up to date.
    Stale,
    /// A run cannot be understood.
    Unreadable,
    /// The caller has no permission for the call.
    Forbidden,
    /// The credentials are missing or invalid.
    Unauthorised,
    /// Too much is asked for at once.
    Throttled,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::NotFound,
        Self::Ambiguous,
        Self::Invalid,
        Self::Refused,
        Self::Lost,
        Self::Busy,
        Self::Untrusted,
        Self::Unavailable,
        Self::Full,
        Self::Denied,
        Self::Newer,
        Self::Corrupt,
        Self::Stale,
        Self::Unreadable,
        Self::Forbidden,
        Self::Unauthorised,
        Self::Throttled,
    ];

    /// The code that a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == word)
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Ambiguous => "ambiguous",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::Busy => "busy",
            Self::Untrusted => "untrusted",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Denied => "denied",
            Self::Newer => "newer",
            Self::Corrupt => "corrupt",
            Self::Stale => "stale",
            Self::Unreadable => "unreadable",
            Self::Forbidden => "forbidden",
            Self::Unauthorised => "unauthorised",
            Self::Throttled => "throttled",
        }
    }
}

impl Error {
    /// Whether the same call may succeed later, without any change by the caller: the store could not be reached or has
    /// no room, another holds the key, or others kept changing the run.
    ///
    /// ```
    /// use outlive::{Error, store};
    ///
    /// assert!(Error::from(store::Error::Unavailable("connection refused".into())).is_transient());
    /// assert!(!Error::NotFound("train".into()).is_transient());
    /// ```
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            other => matches!(other.code(), Code::Busy | Code::Unavailable | Code::Full | Code::Throttled),
        }
    }

    /// Its kind.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound(_)
            | Self::NoRegistry { .. }
            | Self::NoRepository { .. }
            | Self::NoSuch { .. }
            | Self::Gone { .. }
            | Self::Exported { .. } => Code::NotFound,
            Self::Ambiguous { .. } | Self::AmbiguousRepository { .. } => Code::Ambiguous,
            Self::Unreadable { .. } => Code::Unreadable,
            Self::DamagedIndex(_) => Code::Corrupt,
            Self::Invalid(_) | Self::CannotDelete(_) => Code::Invalid,
            Self::Forbidden(_) => Code::Forbidden,
            Self::Refused { refusal: Refusal::Lost { .. }, .. } => Code::Lost,
            Self::Refused { .. } => Code::Refused,
            Self::KeyBusy { .. } | Self::Contended(_) => Code::Busy,
            Self::Untrusted { .. } => Code::Untrusted,
            Self::Reported { code, .. } => *code,
            Self::Store(error) => match error {
                store::Error::Unavailable(_) | store::Error::Unknown(_) => Code::Unavailable,
                store::Error::Full(_) => Code::Full,
                store::Error::Denied(_) | store::Error::Unsupported(_) => Code::Denied,
                store::Error::Forbidden(_) => Code::Forbidden,
                store::Error::Unauthorised(_) => Code::Unauthorised,
                store::Error::Throttled(_) => Code::Throttled,
                store::Error::Newer { .. } => Code::Newer,
                store::Error::Corrupt(_) => Code::Corrupt,
                store::Error::Forked { .. } => Code::Lost,
            },
        }
    }
}
