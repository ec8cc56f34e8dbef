//! Hints: what a person may type next about an error. The command and the Python package show them.

use super::Error;
use crate::lifecycle::{ActionKind, Refusal};
use crate::model::id::RunId;
use crate::model::run::StateName;
use crate::model::time::Timestamp;
use crate::store;

impl Error {
    /// The command to type next, or another remedy; none where the error says all there is.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound(_) => "`outlive ps --all` lists every run of this registry".into(),
            Self::NoSuch { what, list, .. } => format!("`{list}` lists every {what}"),
            Self::Ambiguous { .. } => "give more characters of the id".into(),
            Self::AmbiguousRepository { .. } => "name it as REPOSITORY:ID, as they are listed".into(),
            Self::DamagedIndex(_) => "`outlive registry refresh --rebuild` makes it anew from its sources".into(),
            Self::Gone { run, repo, .. } => format!("`outlive show {repo}:{run}` shows the last that is recorded of it"),
            Self::Exported { place, .. } => {
                format!("`outlive history export --to {place} --remember` has this home look there")
            }
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
            Self::KeyBusy { holders, .. } => format!("`outlive show {}` shows the holder; `outlive queue add` waits until the key is free", holders.first()?),
            Self::Untrusted { run, why } => why.hint(*run),
            Self::Reported { hint, .. } => return hint.clone(),
            Self::CannotDelete(_) => "`outlive archive` hides runs; `keep_history` deletes old runs of a database and \
                                      `[sweep] forget_after` those of a bucket"
                .into(),
            Self::Contended(run) => format!("try again; `outlive why {run}` shows what changes it"),
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

impl Error {
    /// The runs that the error and its hint name by their ids, for a program that knows better names for them.
    pub fn runs(&self) -> Vec<RunId> {
        match self {
            Self::Refused { run, refusal } => {
                let others = match refusal {
                    Refusal::WaitsFor(runs) | Refusal::AwaitedBy(runs) => runs.clone(),
                    Refusal::WaitsNot(run) | Refusal::IsStep(run) | Refusal::DeletedWith(run) => vec![*run],
                    _ => Vec::new(),
                };
                [vec![*run], others].concat()
            }
            Self::KeyBusy { holders, .. } => holders.clone(),
            Self::Untrusted { run, .. } | Self::Contended(run) => vec![*run],
            _ => Vec::new(),
        }
    }

    /// The time that the error names, for a program that shows times in another form.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::KeyBusy { free_at, .. } => *free_at,
            Self::Refused { refusal: Refusal::NotYet(at), .. } => Some(*at),
            _ => None,
        }
    }
}

/// What to type next about a run that refused something.
fn next_step(run: RunId, refusal: &Refusal) -> Option<String> {
    Some(match refusal {
        Refusal::WrongState { action: ActionKind::Resume, state: StateName::Failed } => {
            format!("`outlive resume --failed {run}` starts its next attempt; `outlive why {run}` shows why it failed")
        }
        Refusal::WrongState { action: ActionKind::Archive | ActionKind::Delete, .. } => {
            format!("`outlive wait {run}` waits for its end, `outlive cancel {run}` stops it")
        }
        Refusal::WrongState { action: ActionKind::Rerun, .. } => {
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
        Refusal::Paused => format!("`outlive unpause {run}` lets it wait for its turn again"),
        Refusal::NotPaused => format!("`outlive pause {run}` holds it back"),
        Refusal::WaitsFor(_) | Refusal::WaitsNot(_) | Refusal::NotParked | Refusal::NotQueued => {
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
        Refusal::TooLarge { .. } | Refusal::TooDeep { .. } | Refusal::TooMany { .. } => {
            "keep it in a file, and name that".into()
        }
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
