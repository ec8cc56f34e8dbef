//! The lifecycle: every rule about how a run may change, as one pure function.
//!
//! [`apply`] takes a run, an action and the time, and answers with the changed run and the event that tells of it, or
//! with the reason why not. It reads no clock, no store and no process: what it must know of those arrives inside the
//! run (when the store last heard of its owner) or inside the action (what evidence was found). Stores make the change
//! conditional on the revision it was computed from, so the rule holds under any race. No rule lives anywhere else;
//! `docs/lifecycle.md` is generated from this function.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::health::Leftovers;
use crate::id::{Epoch, WorkerId};
use crate::policy::OrphanPolicy;
use crate::process::Evidence;
use crate::run::{
    Actor, Archived, CHECKPOINT_LIMIT, CancelRequest, End, Ending, Event, Exit, Failure, Interruption, Key, LIST_LIMIT,
    Owner, Pending, Progress, Reap, Run, Running, State, StateName, Suspended, capped,
};
use crate::time::Timestamp;

/// What an owner presents with every write: who it is, and by which claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The worker.
    pub worker: WorkerId,
    /// The epoch of its claim.
    pub epoch: Epoch,
}

/// What a reaper had seen when it made up its mind. The reap holds only if nothing has changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// The run's epoch.
    pub epoch: Epoch,
    /// The owner's last beat.
    pub beat: u64,
}

/// What an owner says of a run in flight. Unset parts stay as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// How far it is.
    pub progress: Option<Progress>,
    /// What the next attempt is to be handed.
    pub checkpoint: Option<Value>,
    /// One more thing it has made.
    pub artifact: Option<String>,
    /// The manifest that names its winners.
    pub manifest_ref: Option<String>,
}

/// How an owner says its work came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It did what it was to do.
    Succeeded,
    /// It did not.
    Failed {
        /// A class that a policy can name.
        error_type: String,
        /// For people.
        error_message: String,
    },
    /// It stopped because somebody had asked.
    Cancelled,
}

/// Everything that can be done to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A worker takes a waiting run.
    Claim {
        /// The worker.
        owner: Owner,
    },
    /// The owner tells how far it is.
    Report {
        /// The owner's claim.
        fence: Fence,
        /// What it says.
        report: Report,
    },
    /// The owner lets go until somebody wakes the run.
    Suspend {
        /// The owner's claim.
        fence: Fence,
        /// What it waits for.
        reason: String,
    },
    /// A worker takes a suspended run.
    Wake {
        /// The worker.
        owner: Owner,
    },
    /// The owner says how the work came out.
    Finish {
        /// The owner's claim.
        fence: Fence,
        /// How it came out.
        verdict: Verdict,
        /// The exit status, where a process had one.
        exit: Option<Exit>,
    },
    /// The owner was asked to stop and does.
    Interrupt {
        /// The owner's claim.
        fence: Fence,
        /// What asked it.
        interruption: Interruption,
        /// The exit status, where a process had one.
        exit: Option<Exit>,
    },
    /// Somebody wants it stopped.
    RequestCancel {
        /// Why.
        reason: Option<String>,
    },
    /// Somebody found its owner gone.
    Reap {
        /// What was seen.
        observed: Observed,
        /// What it proves.
        evidence: Evidence,
        /// The worker that reaps, if it is one: none may reap its own runs.
        reaper: Option<WorkerId>,
        /// Spreads the wait of a requeued run.
        jitter: u8,
    },
    /// Somebody has it tried again.
    Resume {
        /// Also a run that failed.
        failed_too: bool,
        /// Processes of the old attempt that are still alive on this host.
        leftovers: Leftovers,
        /// The worker that goes on with it at once; without one it waits to be claimed.
        owner: Option<Owner>,
    },
    /// Hide an ended run.
    Archive,
    /// Show it again.
    Unarchive,
}

impl Action {
    /// The action's word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim { .. } => "claim",
            Self::Report { .. } => "report",
            Self::Suspend { .. } => "suspend",
            Self::Wake { .. } => "wake",
            Self::Finish { .. } => "finish",
            Self::Interrupt { .. } => "interrupt",
            Self::RequestCancel { .. } => "request cancel",
            Self::Reap { .. } => "reap",
            Self::Resume { .. } => "resume",
            Self::Archive => "archive",
            Self::Unarchive => "unarchive",
        }
    }
}

/// A change that the rules allow, and the event to be written with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// The run after it.
    pub run: Run,
    /// What the run's story says of it.
    pub event: Event,
    /// The run as its attempt left it, where this ended one. The same as `run`, unless the run goes on to another
    /// attempt at once.
    pub ended: Option<Run>,
}

/// Why an action is refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller no longer owns the run.
    #[error("lost: the run is {state} at epoch {epoch}, the caller's claim is from epoch {claimed}")]
    Lost {
        /// How it stands.
        state: StateName,
        /// Its fence.
        epoch: Epoch,
        /// The caller's.
        claimed: Epoch,
    },
    /// The action does not apply to this state.
    #[error("cannot {action} a run that is {state}")]
    WrongState {
        /// What was tried.
        action: &'static str,
        /// How it stands.
        state: StateName,
    },
    /// It waits for a time.
    #[error("not before {0}")]
    NotYet(Timestamp),
    /// Nobody asked for it to be cancelled.
    #[error("nobody asked for it to be cancelled")]
    NotAsked,
    /// Its owner was heard of, or changed, since it was looked at.
    #[error("its owner was heard of since it was looked at")]
    HeardOf,
    /// Its lease has not lapsed.
    #[error("its lease has not lapsed")]
    LeaseHolds,
    /// The reaper owns it.
    #[error("a worker does not reap its own runs")]
    OwnRun,
    /// The old attempt is not over.
    #[error("processes of its last attempt are still alive: {0}")]
    LeftoversAlive(Leftovers),
    /// It was tried often enough.
    #[error("all {0} attempts are used up")]
    NoAttemptsLeft(u32),
    /// It is too large to keep.
    #[error("a {what} of {size} bytes; the most is {limit}")]
    TooLarge {
        /// What is.
        what: &'static str,
        /// How large.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// It belongs to the registry that this one was copied from.
    #[error("it came with a copied registry and belongs to the original")]
    Copied,
    /// It is archived already.
    #[error("it is archived already")]
    Archived,
    /// It is not archived.
    #[error("it is not archived")]
    NotArchived,
}

/// What `action` by `by` at `now` makes of `run`, or why it is refused.
pub fn apply(run: &Run, action: &Action, by: &Actor, now: Timestamp) -> Result<Transition, Refusal> {
    if run.copied && !matches!(action, Action::Archive | Action::Unarchive) {
        return Err(Refusal::Copied);
    }
    let mut next = run.clone();
    next.updated_at = now;
    let mut evidence = None;
    let mut reason = None;
    let mut last_attempt = None;
    match (action, &run.state) {
        (Action::Claim { owner }, State::Pending(pending)) => {
            if let Some(not_before) = pending.not_before.filter(|not_before| *not_before > now) {
                return Err(Refusal::NotYet(not_before));
            }
            next.epoch = run.epoch.next();
            next.state = running(owner, now, now);
        }
        (Action::Report { fence, report }, State::Running(held)) => {
            check_fence(run, held, fence)?;
            next.state = State::Running(Running {
                progressed_at: if report.progress.is_some() { now } else { held.progressed_at },
                ..held.clone()
            });
            take_report(&mut next, report)?;
        }
        (Action::Suspend { fence, reason: why }, State::Running(held)) => {
            check_fence(run, held, fence)?;
            reason = Some(why.clone());
            next.state =
                State::Suspended(Suspended { since: now, started_at: held.started_at, reason: capped(why.clone()) });
        }
        (Action::Wake { owner }, State::Suspended(suspended)) => {
            next.epoch = run.epoch.next();
            next.state = running(owner, suspended.started_at, now);
        }
        (Action::Finish { fence, verdict, exit }, State::Running(held)) => {
            check_fence(run, held, fence)?;
            let how = match verdict {
                Verdict::Succeeded => End::Succeeded,
                Verdict::Failed { error_type, error_message } => End::Failed(Failure {
                    error_type: capped(error_type.clone()),
                    error_message: capped(error_message.clone()),
                    reap: None,
                }),
                Verdict::Cancelled => End::Cancelled(run.cancel.clone().ok_or(Refusal::NotAsked)?),
            };
            next.state = ended(how, held, *exit, now);
        }
        (Action::Interrupt { fence, interruption, exit }, State::Running(held)) => {
            check_fence(run, held, fence)?;
            reason = Some(interruption.reason.clone());
            let how = match &run.cancel {
                Some(request) => End::Cancelled(request.clone()),
                None => End::Interrupted(interruption.clone()),
            };
            next.state = ended(how, held, *exit, now);
        }
        (Action::RequestCancel { reason: why }, State::Pending(_) | State::Running(_) | State::Suspended(_)) => {
            let request = CancelRequest { by: by.clone(), at: now, reason: why.clone().map(capped) };
            reason = request.reason.clone();
            // The first request stands: a second one neither moves its time nor takes its name.
            let request = run.cancel.clone().unwrap_or(request);
            next.cancel = Some(request.clone());
            let started_at = match &run.state {
                State::Suspended(suspended) => Some(suspended.started_at),
                _ => None,
            };
            if run.owner().is_none() {
                // A clock set back since must not make it end before it began.
                let at = started_at.map_or(now, |started_at| now.max(started_at));
                next.state =
                    State::Ended(Ending { how: End::Cancelled(request), at, started_at, owner: None, exit: None });
            }
        }
        (Action::Reap { observed, evidence: found, reaper, jitter }, State::Running(held)) => {
            check_reap(run, held, observed, found, *reaper)?;
            evidence = Some(found.clone());
            last_attempt = reap(&mut next, held, found, by, *jitter, now);
        }
        (Action::Resume { failed_too, leftovers, owner }, State::Ended(ending)) => {
            check_resume(run, ending, *failed_too, leftovers)?;
            next.epoch = run.epoch.next();
            next.attempt = next.attempt.saturating_add(1);
            next.progress = None;
            next.cancel = None;
            next.archived = None;
            next.state = match owner {
                Some(owner) => running(owner, now, now),
                None => State::Pending(Pending { since: now, not_before: None, reason: Some("resumed".into()) }),
            };
        }
        (Action::Archive, State::Ended(_)) => {
            if run.archived.is_some() {
                return Err(Refusal::Archived);
            }
            next.archived = Some(Archived { by: by.clone(), at: now });
        }
        (Action::Unarchive, State::Ended(_)) => {
            next.archived.take().ok_or(Refusal::NotArchived)?;
        }
        (
            Action::Report { fence, .. }
            | Action::Suspend { fence, .. }
            | Action::Finish { fence, .. }
            | Action::Interrupt { fence, .. },
            _,
        ) => return Err(lost(run, fence)),
        (
            Action::Claim { .. }
            | Action::Wake { .. }
            | Action::RequestCancel { .. }
            | Action::Reap { .. }
            | Action::Resume { .. }
            | Action::Archive
            | Action::Unarchive,
            _,
        ) => {
            let action = if matches!(action, Action::RequestCancel { .. }) { "cancel" } else { action.name() };
            return Err(Refusal::WrongState { action, state: run.state.name() });
        }
    }
    let event = Event {
        at: now,
        action: action.name().into(),
        by: by.clone(),
        from: Some(run.state.name()),
        to: next.state.name(),
        epoch: next.epoch,
        attempt: next.attempt,
        worker: next.owner().or_else(|| run.owner()).map(|owner| owner.worker),
        reason: reason.or_else(|| told(&next)).map(capped),
        evidence,
    };
    let ended = last_attempt.or_else(|| (run.ending().is_none() && next.ending().is_some()).then(|| next.clone()));
    Ok(Transition { run: next, event, ended })
}

/// Whether a key has room for one more holder. Everybody who holds it, and whoever wants it, must be content: the
/// smallest of their limits counts.
pub fn has_room(wanted: &Key, holders: &[&Run]) -> bool {
    let theirs = holders.iter().flat_map(|run| &run.spec.keys).filter(|key| key.name == wanted.name);
    let limit = theirs.map(|key| key.limit).chain([wanted.limit]).min().unwrap_or(0);
    holders.len() < limit as usize
}

/// The event of a run that has just been made, before anything was done to it.
pub fn enqueued(run: &Run, by: &Actor) -> Event {
    Event {
        at: run.created_at,
        action: "enqueue".into(),
        by: by.clone(),
        from: None,
        to: run.state.name(),
        epoch: run.epoch,
        attempt: run.attempt,
        worker: None,
        reason: None,
        evidence: None,
    }
}

fn running(owner: &Owner, started_at: Timestamp, now: Timestamp) -> State {
    State::Running(Running { owner: owner.clone(), started_at, progressed_at: now })
}

fn ended(how: End, held: &Running, exit: Option<Exit>, now: Timestamp) -> State {
    // A clock set back during the run must not make it end before it began.
    let at = now.max(held.started_at);
    State::Ended(Ending { how, at, started_at: Some(held.started_at), owner: Some(held.owner.clone()), exit })
}

fn lost(run: &Run, fence: &Fence) -> Refusal {
    Refusal::Lost { state: run.state.name(), epoch: run.epoch, claimed: fence.epoch }
}

fn check_fence(run: &Run, held: &Running, fence: &Fence) -> Result<(), Refusal> {
    if run.epoch == fence.epoch && held.owner.worker == fence.worker { Ok(()) } else { Err(lost(run, fence)) }
}

fn take_report(next: &mut Run, report: &Report) -> Result<(), Refusal> {
    if let Some(progress) = &report.progress {
        check_size("progress document", progress.data.as_ref())?;
        next.progress = Some(Progress { message: progress.message.clone().map(capped), ..progress.clone() });
    }
    if let Some(checkpoint) = &report.checkpoint {
        check_size("checkpoint", Some(checkpoint))?;
        next.checkpoint = Some(checkpoint.clone());
    }
    if let Some(artifact) = &report.artifact {
        if next.artifacts.len() >= LIST_LIMIT {
            return Err(Refusal::TooLarge {
                what: "list of artifacts",
                size: next.artifacts.len() + 1,
                limit: LIST_LIMIT,
            });
        }
        next.artifacts.push(capped(artifact.clone()));
    }
    if let Some(manifest_ref) = &report.manifest_ref {
        next.manifest_ref = Some(capped(manifest_ref.clone()));
    }
    Ok(())
}

fn check_size(what: &'static str, document: Option<&Value>) -> Result<(), Refusal> {
    let size = document.map_or(0, |document| document.to_string().len());
    if size > CHECKPOINT_LIMIT { Err(Refusal::TooLarge { what, size, limit: CHECKPOINT_LIMIT }) } else { Ok(()) }
}

fn check_reap(
    run: &Run,
    held: &Running,
    observed: &Observed,
    evidence: &Evidence,
    reaper: Option<WorkerId>,
) -> Result<(), Refusal> {
    if reaper == Some(held.owner.worker) {
        Err(Refusal::OwnRun)
    } else if observed.epoch != run.epoch || observed.beat != held.owner.heard.beat {
        Err(Refusal::HeardOf)
    } else if matches!(evidence, Evidence::LeaseLapsed { .. }) && !held.owner.lease.lapsed(held.owner.heard.silent_for)
    {
        Err(Refusal::LeaseHolds)
    } else {
        Ok(())
    }
}

/// Ends the attempt by the run's policy. Answers with the attempt's own end where the run itself goes on.
fn reap(next: &mut Run, held: &Running, evidence: &Evidence, by: &Actor, jitter: u8, now: Timestamp) -> Option<Run> {
    next.epoch = next.epoch.next();
    next.reaps = next.reaps.saturating_add(1);
    let reap = Reap { evidence: evidence.clone(), by: by.clone(), last_heard: held.owner.heard.at };
    let retry = next.spec.policy.retry;
    let tries_left = next.attempt < retry.max_attempts && next.reaps < retry.max_reaps;
    next.state = match (&next.cancel, next.spec.policy.orphans) {
        // What a person asked to stop has stopped: nobody revives it.
        (Some(request), _) => ended(End::Cancelled(request.clone()), held, None, now),
        (None, OrphanPolicy::Requeue) if tries_left => {
            let attempt = Run { state: ended(End::Dead(reap), held, None, now), ..next.clone() };
            next.attempt = next.attempt.saturating_add(1);
            next.progress = None;
            let not_before = Some(now.after(retry.wait_before(next.attempt, jitter)));
            next.state =
                State::Pending(Pending { since: now, not_before, reason: Some(format!("reaped: {evidence}")) });
            return Some(attempt);
        }
        (None, OrphanPolicy::Fail | OrphanPolicy::Requeue) => ended(
            End::Failed(Failure { error_type: "reaped".into(), error_message: evidence.to_string(), reap: Some(reap) }),
            held,
            None,
            now,
        ),
        (None, OrphanPolicy::Dead) => ended(End::Dead(reap), held, None, now),
    };
    None
}

fn check_resume(run: &Run, ending: &Ending, failed_too: bool, leftovers: &Leftovers) -> Result<(), Refusal> {
    let resumable = match ending.how {
        End::Interrupted(_) | End::Dead(_) => true,
        End::Failed(_) => failed_too,
        End::Succeeded | End::Cancelled(_) => false,
    };
    if !resumable {
        Err(Refusal::WrongState { action: "resume", state: ending.how.name() })
    } else if !leftovers.is_empty() {
        Err(Refusal::LeftoversAlive(leftovers.clone()))
    } else if run.attempt >= run.spec.policy.retry.max_attempts {
        Err(Refusal::NoAttemptsLeft(run.attempt))
    } else {
        Ok(())
    }
}

/// What the new state has to say for itself.
fn told(run: &Run) -> Option<String> {
    match &run.state {
        State::Pending(pending) => pending.reason.clone(),
        State::Running(_) | State::Suspended(_) => None,
        State::Ended(ending) => match &ending.how {
            End::Succeeded => None,
            End::Failed(failure) => Some(format!("{}: {}", failure.error_type, failure.error_message)),
            End::Cancelled(request) => request.reason.clone(),
            End::Interrupted(interruption) => Some(interruption.reason.clone()),
            End::Dead(reap) => Some(reap.evidence.to_string()),
        },
    }
}
