//! Hints: what a person may type next about an error. The command and the Python package show them.

use super::Error;
use crate::lifecycle::Refusal;
use crate::model::id::RunId;
use crate::store;

impl Error {
    /// The command to type next, or another remedy; none where the error says all there is.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound(_) => "`outlive ps --all` lists every run of this registry".into(),
            Self::Ambiguous { .. } => "give more characters of the id".into(),
            Self::AmbiguousRepository { .. } => "name it as REPOSITORY:ID, as they are listed".into(),
            Self::DamagedIndex(_) => "`outlive registry refresh --rebuild` makes it anew from its sources".into(),
            Self::Gone { run, repo, .. } => format!("`outlive show {repo}:{run}` tells what was known of it"),
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
            Self::KeyBusy { holders, .. } => format!("`outlive show {}` tells about the holder", holders.first()?),
            Self::Untrusted { run, why } => why.hint(*run),
            Self::Reported { hint, .. } => return hint.clone(),
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
