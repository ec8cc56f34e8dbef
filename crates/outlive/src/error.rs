//! What can go wrong for a caller, in a few kinds: each with a code for programs and a hint for people.

use std::fmt;
use std::time::Duration;

use crate::lifecycle::Refusal;
use crate::model::id::RunId;
use crate::model::run::{Key, StateName};
use crate::model::time::{Timestamp, show_duration};
use crate::secrets::trust::Denied;
use crate::store;

/// Why a call on a registry failed. Nothing was changed, unless it says so.
#[derive(Debug, Clone, thiserror::Error)]
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
    #[error("run `{0}` kept changing while it was to be changed")]
    Contended(RunId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

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

/// The kinds of failure, as programs see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// What it says to people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::NotFound => "no such run, registry or index",
            Self::Ambiguous => "the name or prefix matches several runs",
            Self::Invalid => "invalid arguments or input",
            Self::Refused => "the state of the run does not allow it",
            Self::Lost => "inside a run: this attempt no longer owns it",
            Self::Busy => "a key is held by other runs, or the run was modified concurrently",
            Self::Untrusted => "another user made the run, or its record was tampered with: `outlive trust`",
            Self::Unavailable => "the registry cannot be reached",
            Self::Full => "no space left for the registry",
            Self::Denied => "no permission to use the registry, or it lacks a needed capability",
            Self::Newer => "the registry was created by a newer version of outlive",
            Self::Corrupt => "the registry cannot be read",
            Self::Stale => "the index is not up to date: `registry show`",
            Self::Unreadable => "the run exists, but its source cannot be read",
            Self::Forbidden => "the role of the caller does not allow this",
            Self::Unauthorised => "invalid or missing credentials",
            Self::Throttled => "too many requests",
        }
    }

    /// The exit status of a command that fails so. 2 is the shell's word for a wrong call; the others lie in a band of
    /// their own, so that they differ from the exit status of a command that was run.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Invalid => 2,
            Self::NotFound => 101,
            Self::Ambiguous => 102,
            Self::Refused => 103,
            Self::Lost => 104,
            Self::Busy => 105,
            Self::Untrusted => 106,
            Self::Unavailable => 107,
            Self::Full => 108,
            Self::Denied => 109,
            Self::Newer => 110,
            Self::Corrupt => 111,
            Self::Stale => 112,
            Self::Unreadable => 113,
            Self::Forbidden => 114,
            Self::Unauthorised => 115,
            Self::Throttled => 116,
        }
    }

    /// The status of an HTTP answer that says so.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorised => 401,
            Self::Forbidden | Self::Untrusted => 403,
            Self::NotFound => 404,
            Self::Ambiguous | Self::Refused | Self::Busy | Self::Stale => 409,
            Self::Lost => 412,
            Self::Throttled => 429,
            // The store behind the server, none of which a caller could mend by asking otherwise.
            Self::Unavailable | Self::Full | Self::Denied | Self::Newer | Self::Corrupt | Self::Unreadable => 503,
        }
    }
}

impl Error {
    /// Its kind.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound(_) | Self::NoRegistry { .. } | Self::NoRepository { .. } | Self::Gone { .. } => {
                Code::NotFound
            }
            Self::Ambiguous { .. } | Self::AmbiguousRepository { .. } => Code::Ambiguous,
            Self::Unreadable { .. } => Code::Unreadable,
            Self::DamagedIndex(_) => Code::Corrupt,
            Self::Invalid(_) | Self::CannotDelete(_) => Code::Invalid,
            Self::Forbidden(_) => Code::Forbidden,
            Self::Refused { refusal: Refusal::Lost { .. }, .. } => Code::Lost,
            Self::Refused { .. } => Code::Refused,
            Self::KeyBusy { .. } | Self::Contended(_) => Code::Busy,
            Self::Untrusted { .. } => Code::Untrusted,
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

    /// What to type next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound(_) => "`outlive ps --all` lists every run of this registry".into(),
            Self::Ambiguous { .. } => "give more characters of the id".into(),
            Self::AmbiguousRepository { .. } => "name it as REPOSITORY:ID, as they are listed".into(),
            Self::DamagedIndex(_) => "`outlive registry refresh --rebuild` makes it anew from its sources".into(),
            Self::Gone { run, repo, .. } => format!("`outlive show {repo}:{run}` tells what was known of it"),
            Self::NoRepository { .. } => {
                "`outlive registry list` lists those that are; `outlive registry add` adds one".into()
            }
            Self::Unreadable { repo, .. } => format!("repair or remove it in `{repo}`, then `outlive registry refresh`"),
            Self::NoRegistry { sought: Some(_), .. } => {
                "the first `outlive run -- COMMAND` makes it; `outlive init` makes one in this directory".into()
            }
            Self::NoRegistry { sought: None, place } => format!("`outlive --registry sqlite:{place} init` makes it"),
            Self::Refused { run, refusal } => return next_step(*run, refusal),
            Self::KeyBusy { key, free_at: Some(_), .. } => {
                format!("`outlive queue add --rate {}=…` has a run wait for its turn", key.name)
            }
            Self::KeyBusy { holders, .. } => format!("`outlive show {}` tells about the holder", holders.first()?),
            Self::Untrusted { run, why } => why.hint(*run),
            Self::CannotDelete(_) => "`outlive archive` hides runs; `keep_history` deletes old runs of a database and \
                                      `[sweep] forget_after` those of a bucket"
                .into(),
            Self::Contended(run) => format!("try again; `outlive why {run}` tells who changes it"),
            Self::Store(error) => match error {
                store::Error::Unavailable(_) | store::Error::Unknown(_) => {
                    "`outlive doctor` looks for the cause".into()
                }
                store::Error::Full(_) => "free some space; what ended meanwhile is spooled and delivered later".into(),
                store::Error::Denied(_) => {
                    "`outlive doctor` looks for the cause; `--registry` names another registry".into()
                }
                store::Error::Forbidden(_) | store::Error::Unauthorised(_) => {
                    "`outlive token create NAME --role operate` on the server makes a token; `export OUTLIVE_TOKEN=…` has \
                     it shown"
                        .into()
                }
                store::Error::Throttled(_) => "try again in a minute".into(),
                store::Error::Newer { .. } => "install the outlive that made it, or a later one".into(),
                store::Error::Corrupt(_) => {
                    "`outlive doctor --fix` keeps a copy and rebuilds it from the files of the runs".into()
                }
                store::Error::Unsupported(_) => "use a local directory: `--registry sqlite:PATH`".into(),
                store::Error::Forked { .. } => "call `Registry::open` in the child, after the fork".into(),
            },
            Self::Invalid(_) | Self::Forbidden(_) => return None,
        })
    }
}

/// What to type next about a run that refused something.
fn next_step(run: RunId, refusal: &Refusal) -> Option<String> {
    Some(match refusal {
        Refusal::WrongState { action: "archive" | "delete", .. } => {
            format!("`outlive wait {run}` waits for its end, `outlive cancel {run}` stops it")
        }
        Refusal::WrongState { action: "rerun", .. } => {
            format!("`outlive wait {run}` waits for its end; `outlive rerun --force {run}` repeats it all the same")
        }
        Refusal::Lost { .. } | Refusal::WrongState { .. } => format!("`outlive why {run}` shows its event log"),
        Refusal::LeftoversAlive(_) => {
            format!("`outlive show {run}` names them; `outlive resume --end-leftovers {run}` ends them first")
        }
        Refusal::OwnerLives => {
            format!("`outlive show {run}` shows its state; `outlive cancel {run}` asks it to stop")
        }
        Refusal::IsStep(of) => format!("`outlive resume {of}` resumes the run that it is a step of"),
        Refusal::NothingLeft => "`outlive reap` marks it dead".into(),
        Refusal::Parked => {
            format!("`outlive why {run}` shows its event log; `outlive unpark {run}` allows it to be retried")
        }
        Refusal::WaitsFor(_) | Refusal::WaitsNot(_) | Refusal::NotParked => {
            format!("`outlive show {run}` shows its state")
        }
        Refusal::CancelRequested => {
            format!("`outlive cancel {run}` ends its processes and makes it final")
        }
        Refusal::NotAsked => format!("`outlive cancel {run}` asks for it"),
        Refusal::HeardOf | Refusal::LeaseHolds | Refusal::OwnRun | Refusal::NotYet(_) => {
            format!("`outlive show {run}` shows its state")
        }
        Refusal::NoAttemptsLeft(_) => format!("`outlive show {run}` has its command, to start a new run with"),
        Refusal::TooLarge { .. } | Refusal::TooMany { .. } => "keep it in a file, and name that".into(),
        Refusal::Copied => "change it in the registry that this one was copied from".into(),
        Refusal::Swept => format!("`outlive show {run}` has its command, to start a new run with"),
        Refusal::BeingSwept(_) => format!("`outlive why {run}` shows its event log"),
        Refusal::Archived => format!("`outlive unarchive {run}` shows it again"),
        Refusal::NotArchived => format!("`outlive archive {run}` hides it"),
        Refusal::ProcessesAlive(_) => format!("`outlive cancel {run}` ends them"),
        Refusal::AwaitedBy(runs) => format!("`outlive cancel {}` stops the waiting run", runs.first()?),
        Refusal::DeletedWith(of) => format!("`outlive rm {of}` deletes the run with its steps"),
    })
}
