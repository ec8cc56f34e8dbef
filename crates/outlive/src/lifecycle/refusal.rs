//! Refusals: why an action on a run is not done, in words for people.

use super::ActionKind;
use crate::model::id::{Epoch, RunId};
use crate::model::owner::LiveProcesses;
use crate::model::run::{Actor, StateName};
use crate::model::time::Timestamp;

/// Why the rules refuse an action: what [`Error::Refused`](crate::Error::Refused) carries. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The caller no longer owns the run.
    #[error("{}", lost(*state, *epoch, *claimed))]
    Lost {
        /// How it stands.
        state: StateName,
        /// Its fence.
        epoch: Epoch,
        /// The caller's.
        claimed: Epoch,
    },
    /// The action does not apply to this state.
    #[error("{}", wrong_state(*action, *state))]
    WrongState {
        /// What was tried.
        #[doc(hidden)]
        action: ActionKind,
        /// How it stands.
        state: StateName,
    },
    /// It waits for a time.
    #[error("it may not be claimed before {0}")]
    NotYet(Timestamp),
    /// It waits for other runs.
    #[error("it waits for {}", names(.0))]
    WaitsFor(Vec<RunId>),
    /// It does not wait for that run.
    #[error("it does not wait for run `{0}`")]
    WaitsNot(RunId),
    /// It waits for a person.
    #[error("it is parked until a person unparks it")]
    Parked,
    /// It is suspended by design, not parked.
    #[error("it is not parked; only a parked run can be unparked")]
    NotParked,
    /// A person holds it back.
    #[error("it is paused until a person unpauses it")]
    Paused,
    /// No person holds it back.
    #[error("it is not paused")]
    NotPaused,
    /// It waits for its own owner, not in a queue.
    #[error("it is not queued; only a queued run can be paused or edited")]
    NotQueued,
    /// Its cancellation was requested, and processes of it live.
    #[error("its cancellation was requested; it is not started again")]
    CancelRequested,
    /// There is no cancel request.
    #[error("no cancellation was requested")]
    NotAsked,
    /// Its owner was heard of, or changed, since it was looked at.
    #[error("its owner was heard of since it was looked at")]
    HeardOf,
    /// Its lease has not lapsed.
    #[error("the lease of its owner has not lapsed")]
    LeaseHolds,
    /// The reaper owns it.
    #[error("a worker does not reap its own runs")]
    OwnRun,
    /// Its owner is not proven gone.
    #[error("its owner lives, as far as anyone can tell from here")]
    OwnerLives,
    /// There is nothing to take over.
    #[error("its owner is gone, and nothing of it is left")]
    NothingLeft,
    /// The old attempt is not over.
    #[error("processes of its last attempt are still alive: {0}")]
    LeftoversAlive(LiveProcesses),
    /// It is a part of that run, and goes on with it alone.
    #[error("it is a step of run `{0}`, and is done again only with that")]
    IsStep(RunId),
    /// It was tried often enough.
    #[error("no attempts left: {0} have failed")]
    NoAttemptsLeft(u32),
    /// It is too large to keep.
    #[error("a {what} of {size} bytes is too large; the most is {limit}")]
    TooLarge {
        /// What is.
        what: &'static str,
        /// How large.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// It is nested too deeply to be read back everywhere.
    #[error("a {what} that is nested more than {limit} levels deep")]
    TooDeep {
        /// What is.
        what: &'static str,
        /// How many levels it may have.
        limit: usize,
    },
    /// There are too many to keep.
    #[error("it has {limit} {what}, and no room for more")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// It belongs to the registry that this one was copied from.
    #[error("it came with a copied registry and belongs to the original")]
    Copied,
    /// What it had made is deleted.
    #[error("what it had made was swept; it can only be done anew, as another run")]
    Swept,
    /// Another sweeper deletes what it made.
    #[error("{0} sweeps it, or has just done so")]
    BeingSwept(Actor),
    /// It is archived already.
    #[error("it is archived already")]
    Archived,
    /// It is not archived.
    #[error("it is not archived")]
    NotArchived,
    /// Processes of it are alive, and it is to be deleted.
    #[error("processes of it are still alive: {0}")]
    ProcessesAlive(LiveProcesses),
    /// These runs wait for it, and it is to be deleted.
    #[error("{} for it", wait(.0))]
    AwaitedBy(Vec<RunId>),
    /// It is a step of this run, and is to be deleted.
    #[error("it is a step of run `{0}`, and is deleted only with that run")]
    DeletedWith(RunId),
}

fn lost(state: StateName, epoch: Epoch, claimed: Epoch) -> String {
    let stands = stands(state);
    if epoch == claimed {
        return format!("lost: it {stands}, and the caller's claim (epoch {claimed}) is over");
    }
    format!("lost: it {stands} (epoch {epoch}), and the caller's claim is from epoch {claimed}")
}

fn names(runs: &[RunId]) -> String {
    let names: Vec<String> = runs.iter().map(|run| format!("run `{run}`")).collect();
    names.join(", ")
}

fn wait(runs: &[RunId]) -> String {
    format!("{} {}", names(runs), if runs.len() == 1 { "waits" } else { "wait" })
}

/// How a run ended, to follow its name.
pub(super) fn ended_as(state: StateName) -> &'static str {
    match state {
        StateName::Failed => "failed",
        StateName::Cancelled => "was cancelled",
        StateName::Dead => "is dead",
        StateName::Interrupted => "was interrupted",
        StateName::Succeeded => "succeeded",
        StateName::Pending | StateName::Running | StateName::Suspended => "has not ended",
    }
}

/// How a run stands, to follow "it".
fn stands(state: StateName) -> &'static str {
    match state {
        StateName::Pending => "is pending",
        StateName::Running => "is running",
        StateName::Suspended => "is suspended",
        StateName::Interrupted => "was already interrupted",
        StateName::Dead => "is already dead",
        StateName::Succeeded => "has already succeeded",
        StateName::Failed => "has already failed",
        StateName::Cancelled => "was already cancelled",
    }
}

fn wrong_state(action: ActionKind, state: StateName) -> String {
    let only = match action {
        ActionKind::Claim => "only a pending run can be claimed",
        ActionKind::Release => "only a pending run waits for others",
        ActionKind::Unpark => "only a parked run can be unparked",
        ActionKind::Pause | ActionKind::Unpause => "only a pending run can be paused",
        ActionKind::Edit => "only a pending run can be edited",
        ActionKind::Wake => "only a suspended run can be woken",
        ActionKind::Reap => "only a running run can be reaped",
        ActionKind::Adopt => "only a running run can be adopted",
        ActionKind::Sweep => "only runs that can no longer be resumed are swept",
        ActionKind::Rerun => "only a run that is over is repeated, unless that is forced",
        ActionKind::Delete => "only a run that has ended can be deleted",
        ActionKind::Archive | ActionKind::Unarchive => "only a run that has ended can be archived",
        ActionKind::Resume if state == StateName::Failed => "a failed run is resumed only where that is asked for",
        ActionKind::Resume => "only an interrupted or dead run can be resumed",
        // What is over needs no stopping, and nothing more to be said.
        _ => return format!("it {}", stands(state)),
    };
    format!("it {}; {only}", stands(state))
}
