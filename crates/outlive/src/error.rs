//! What can go wrong for a caller, in a few kinds: each with a code for programs and a hint for people.

use crate::id::RunId;
use crate::store;
use crate::transition::Refusal;

/// Why a call on a registry failed. Nothing was changed, unless it says so.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// There is no such run.
    #[error("no run `{0}`")]
    NotFound(String),
    /// Several runs are meant.
    #[error("`{what}` names several runs: {}", .ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// What was asked for.
        what: String,
        /// The first few that it names.
        ids: Vec<RunId>,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The rules forbid it.
    #[error("run `{run}`: {refusal}")]
    Refused {
        /// Which run.
        run: RunId,
        /// Why.
        refusal: Refusal,
    },
    /// A key has no holder to spare.
    #[error("key `{key}` is held by {}", .holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    KeyBusy {
        /// The key.
        key: String,
        /// Who holds it.
        holders: Vec<RunId>,
    },
    /// Its spec was signed by nobody this user trusts.
    #[error("run `{0}` was made by somebody else: its command is shown, not executed")]
    Untrusted(RunId),
    /// Others kept changing the run.
    #[error("run `{0}` kept changing while it was to be changed")]
    Contended(RunId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
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
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 12] = [
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
        }
    }

    /// The exit status of a command that fails so. 2 is the shell's word for a wrong call; the others lie in a band of
    /// their own, so that they are told from the exit status of a command that was run.
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
        }
    }
}

impl Error {
    /// Its kind.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound(_) => Code::NotFound,
            Self::Ambiguous { .. } => Code::Ambiguous,
            Self::Invalid(_) => Code::Invalid,
            Self::Refused { refusal: Refusal::Lost { .. }, .. } => Code::Lost,
            Self::Refused { .. } => Code::Refused,
            Self::KeyBusy { .. } | Self::Contended(_) => Code::Busy,
            Self::Untrusted(_) => Code::Untrusted,
            Self::Store(error) => match error {
                store::Error::Unavailable(_) | store::Error::Unknown(_) => Code::Unavailable,
                store::Error::Full(_) => Code::Full,
                store::Error::Denied(_) | store::Error::Unsupported(_) => Code::Denied,
                store::Error::Newer { .. } => Code::Newer,
                store::Error::Corrupt(_) => Code::Corrupt,
            },
        }
    }

    /// What to type next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound(_) => "`outlive ps --all` lists every run of this registry".into(),
            Self::Ambiguous { .. } => "give more characters of the id".into(),
            Self::Refused { run, refusal } => match refusal {
                Refusal::LeftoversAlive(_) => format!("`outlive why {run}` names them"),
                Refusal::Lost { .. } | Refusal::WrongState { .. } => format!("`outlive why {run}` tells its story"),
                _ => return None,
            },
            Self::KeyBusy { holders, .. } => format!("`outlive show {}` tells about the holder", holders.first()?),
            Self::Untrusted(run) => {
                format!("read it with `outlive show {run}`, then allow it with `outlive trust {run}`")
            }
            Self::Contended(run) => format!("try again; `outlive why {run}` tells who changes it"),
            Self::Store(error) => match error {
                store::Error::Unavailable(_) | store::Error::Unknown(_) => {
                    "`outlive doctor` looks for the cause".into()
                }
                store::Error::Full(_) => "free some space; what ended meanwhile is spooled and delivered later".into(),
                store::Error::Denied(_) => {
                    "`outlive doctor` looks for the cause; `--registry` names another registry".into()
                }
                store::Error::Newer { .. } => "install the outlive that made it, or a later one".into(),
                store::Error::Corrupt(_) => {
                    "`outlive doctor --fix` keeps a copy and rebuilds it from the files of the runs".into()
                }
                store::Error::Unsupported(_) => "use a local directory: `--registry sqlite:PATH`".into(),
            },
            Self::Invalid(_) => return None,
        })
    }
}
