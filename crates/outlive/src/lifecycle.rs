//! The lifecycle: every rule about how a run may change, as one pure function.
//!
//! [`apply`] takes a run, an action and the time, and answers with the changed run and the event that tells of it, or
//! with the reason why not. It reads no clock, no store and no process: what it must know of those arrives inside the
//! run (when the store last heard of its owner) or inside the action (what evidence was found). Stores make the change
//! conditional on the revision it was computed from, so the rule holds under any race. No rule lives anywhere else;
//! `docs/lifecycle.md` is generated from this function.

mod action_kind;
mod can;
mod cancel;
mod capacity;
pub(crate) mod checks;
mod delete;
mod edit;
pub mod fairness;
pub mod health;
mod next_attempt;
mod owner_end;
mod pause;
mod refusal;
#[cfg(feature = "http")]
mod replay;
mod succession;
mod usage;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::action_kind::ActionKind;
pub use self::can::{Operation, can, resumes_unnamed};
pub(crate) use self::capacity::moved_keys;
pub use self::capacity::{Start, has_room, is_start, starts_at};
use self::checks::{
    check_adopt, check_claim, check_fence, check_reap, check_report_fence, check_resume, check_size, check_sweep, lost,
    take_report,
};
pub use self::delete::{check_delete, deletes_unnamed};
pub use self::edit::{Due, QueueEdit};
use self::next_attempt::close;
pub use self::next_attempt::{is_duplicate_finish, rerun, survives_reap};
pub use self::owner_end::{Outcome, OwnerEnd};
pub use self::refusal::Refusal;
#[cfg(feature = "http")]
pub(crate) use self::replay::{Sent, replay};
pub use self::succession::{follows, has_passed};
pub(crate) use self::usage::note_usage;

use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::LiveProcesses;
use crate::model::owner::{Evidence, Identity};
use crate::model::policy::OrphanPolicy;
use crate::model::run::{
    Actor, Archived, End, Ending, Event, Exit, Failure, GaveUp, Interruption, Owner, Pending, Progress, Reap, Release,
    Run, Running, State, StateName, Suspended, Swept, truncate_message,
};
use crate::model::time::Timestamp;

/// What an owner presents with every write: its worker and the epoch of its claim. Use it where the work writes to a
/// system of its own, to refuse the writes of an owner that was declared dead.
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

/// What an owner says of a run in flight, for [`Job::report`](crate::Job::report): several parts with one write.
/// Unset parts stay as they are.
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
    /// The attempt is ready, as its spec says when it is.
    pub ready: bool,
    /// The process that the attempt ends with.
    pub leash: Option<Box<Identity>>,
    /// The ports that the attempt was leased, by name; none where they are those of its spec.
    pub ports: BTreeMap<String, u16>,
}

/// Everything that can be done to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A worker takes a waiting run.
    Claim {
        /// The worker.
        owner: Owner,
        /// Also before its time: a person wants it now, or its last owner goes on with it.
        early: bool,
        /// Processes of an earlier attempt that are still alive on this host.
        leftovers: LiveProcesses,
    },
    /// A run that it waits for has ended.
    Release {
        /// The run that has ended.
        parent: RunId,
        /// In which state.
        ended: StateName,
    },
    /// A person allows it to be retried after it was parked.
    Unpark,
    /// A person holds a queued run back, and with it its schedule.
    Pause {
        /// Why, where that was said.
        reason: Option<String>,
    },
    /// A person lets a paused run wait for its turn again.
    Unpause,
    /// A person changes when a queued run is claimed.
    Edit(QueueEdit),
    /// The owner tells how far it is.
    Report {
        /// The owner's claim.
        fence: Fence,
        /// What it says.
        report: Report,
    },
    /// The owner lets go until the run is woken.
    Suspend {
        /// The owner's claim.
        fence: Fence,
        /// What it waits for.
        reason: String,
    },
    /// A suspended run continues.
    Wake {
        /// The worker that takes it; none where it waits in the queue for one.
        owner: Option<Owner>,
    },
    /// The owner says how the work came out.
    Finish {
        /// The owner's claim.
        fence: Fence,
        /// How it came out.
        outcome: Outcome,
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
    /// Requests that the run be cancelled. It becomes `cancelled` only where it has no owner and no live process.
    RequestCancel {
        /// The reason, for people.
        reason: Option<String>,
        /// The grace period before its processes are killed; unset, the owner's own.
        grace: Option<Duration>,
        /// Live processes of its last attempt, as far as the caller can observe them.
        live: LiveProcesses,
    },
    /// A reaper found its owner gone.
    Reap {
        /// What was seen.
        observed: Observed,
        /// What it proves.
        evidence: Evidence,
        /// The worker that reaps, if it is one: none may reap its own runs.
        reaper: Option<WorkerId>,
    },
    /// A worker takes over what lives on of a run whose owner is gone.
    Adopt {
        /// What was seen.
        observed: Observed,
        /// What proves that the owner is gone; nothing, where nothing does.
        evidence: Option<Evidence>,
        /// Processes of the attempt that are still alive on this host.
        leftovers: LiveProcesses,
        /// The worker.
        owner: Owner,
    },
    /// A caller asks for the next attempt.
    Resume {
        /// Also a run that failed.
        failed_too: bool,
        /// Processes of the old attempt that are still alive on this host.
        leftovers: LiveProcesses,
        /// The worker that goes on with it at once; without one it waits to be claimed.
        owner: Option<Owner>,
    },
    /// Hide an ended run.
    Archive {
        /// Why, where that was said.
        reason: Option<String>,
    },
    /// Show it again.
    Unarchive,
    /// A sweeper deletes artifacts of it that no run needs.
    Sweep {
        /// The mark that was seen: the sweeper has listed what was there then.
        seen: Option<Swept>,
        /// It is done, for now: what comes late is for the next sweep.
        done: bool,
        /// What is deleted, for people.
        reason: String,
        /// The process that does it.
        process: Option<Identity>,
        /// The process that had begun is proven to be gone.
        gone: bool,
    },
}

impl Action {
    /// The action's word.
    pub fn name(&self) -> &'static str {
        self.kind().as_str()
    }

    /// Which action it is, without its details.
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Claim { .. } => ActionKind::Claim,
            Self::Release { .. } => ActionKind::Release,
            Self::Unpark => ActionKind::Unpark,
            Self::Pause { .. } => ActionKind::Pause,
            Self::Unpause => ActionKind::Unpause,
            Self::Edit(_) => ActionKind::Edit,
            Self::Report { .. } => ActionKind::Report,
            Self::Suspend { .. } => ActionKind::Suspend,
            Self::Wake { .. } => ActionKind::Wake,
            Self::Finish { .. } => ActionKind::Finish,
            Self::Interrupt { .. } => ActionKind::Interrupt,
            Self::RequestCancel { .. } => ActionKind::RequestCancel,
            Self::Reap { .. } => ActionKind::Reap,
            Self::Adopt { .. } => ActionKind::Adopt,
            Self::Resume { .. } => ActionKind::Resume,
            Self::Archive { .. } => ActionKind::Archive,
            Self::Unarchive => ActionKind::Unarchive,
            Self::Sweep { .. } => ActionKind::Sweep,
        }
    }
}

/// A change that the rules allow, and the event to be written with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// The run after it.
    pub run: Run,
    /// What the run's event log says of it.
    pub event: Event,
    /// The run as its attempt left it, where this ended one. The same as `run`, unless the run goes on to another
    /// attempt at once.
    pub ended: Option<Box<Run>>,
}

/// What `action` by `by` at `now` makes of `run`, or why it is refused.
pub fn apply(run: &Run, action: &Action, by: &Actor, now: Timestamp) -> Result<Transition, Refusal> {
    if run.copied && !matches!(action, Action::Archive { .. } | Action::Unarchive) {
        return Err(Refusal::Copied);
    }
    cancel::check_not_requested(run, action)?;
    let step = ActionContext { run, by, now };
    let next = match (action, &run.state) {
        (Action::Claim { owner, early, leftovers }, State::Pending(pending)) => {
            check_claim(pending, *early, leftovers, now)?;
            Ok(step.taken(owner, now))
        }
        (Action::Release { parent, ended }, State::Pending(pending)) => step.release(pending, *parent, *ended),
        (Action::Unpark, State::Suspended(suspended)) => step.unpark(suspended),
        (Action::Pause { reason }, State::Pending(pending)) => step.pause(pending, reason.clone()),
        (Action::Unpause, State::Pending(pending)) => step.unpause(pending),
        (Action::Edit(edit), State::Pending(pending)) => step.edit(pending, edit),
        (Action::Report { fence, report }, State::Running(held)) => step.report(held, fence, report),
        (Action::Suspend { fence, reason }, State::Running(held)) => step.suspend(held, fence, reason),
        (Action::Wake { owner }, State::Suspended(suspended)) => step.wake(suspended, owner.as_ref()),
        (Action::Finish { fence, outcome, exit }, State::Running(held)) => step.finish(held, fence, outcome, *exit),
        (Action::Interrupt { fence, interruption, exit }, State::Running(held)) => {
            step.interrupt(held, fence, interruption, *exit)
        }
        (Action::RequestCancel { reason, grace, live }, _) => step.request_cancel(reason.clone(), *grace, live),
        (Action::Reap { observed, evidence, reaper }, State::Running(held)) => {
            check_reap(run, held, observed, evidence, *reaper)?;
            Ok(step.reap(held, evidence))
        }
        (Action::Adopt { observed, evidence, leftovers, owner }, State::Running(held)) => {
            let evidence = check_adopt(run, held, observed, evidence.as_ref(), leftovers)?;
            Ok(step.adopt(held, evidence, leftovers, owner))
        }
        (Action::Resume { failed_too, leftovers, owner }, State::Ended(ending)) => {
            check_resume(run, ending, *failed_too, leftovers)?;
            Ok(step.resume(owner.as_ref()))
        }
        (Action::Archive { reason }, State::Ended(_)) => step.archive(reason.as_deref()),
        (Action::Unarchive, State::Ended(_)) => step.unarchive(),
        (Action::Sweep { seen, done, reason, process, gone }, State::Ended(ending)) => {
            check_sweep(run, ending, seen.as_ref(), *gone, by, now)?;
            Ok(step.sweep(*done, reason, process.clone()))
        }
        (
            Action::Report { fence, .. }
            | Action::Suspend { fence, .. }
            | Action::Finish { fence, .. }
            | Action::Interrupt { fence, .. },
            _,
        ) => Err(lost(run, fence)),
        (
            Action::Claim { .. }
            | Action::Release { .. }
            | Action::Unpark
            | Action::Pause { .. }
            | Action::Unpause
            | Action::Edit(_)
            | Action::Wake { .. }
            | Action::Reap { .. }
            | Action::Adopt { .. }
            | Action::Resume { .. }
            | Action::Archive { .. }
            | Action::Unarchive
            | Action::Sweep { .. },
            _,
        ) => Err(Refusal::WrongState { action: action.kind(), state: run.state.name() }),
    }?;
    Ok(step.tell(action, next))
}

/// One action on one run: what every rule may look at.
struct ActionContext<'a> {
    run: &'a Run,
    by: &'a Actor,
    now: Timestamp,
}

/// What a rule makes of a run, and what it has to say about it.
struct Change {
    run: Run,
    reason: Option<String>,
    evidence: Option<Evidence>,
    /// The end of the attempt, where the run goes on to another one at once.
    last_attempt: Option<Box<Run>>,
}

impl Change {
    fn because(self, reason: impl Into<Option<String>>) -> Self {
        Self { reason: reason.into(), ..self }
    }
}

impl ActionContext<'_> {
    /// The run with `change` made to it.
    fn with(&self, change: impl FnOnce(&mut Run)) -> Change {
        let mut run = Run { updated_at: self.now, ..self.run.clone() };
        change(&mut run);
        Change { run, reason: None, evidence: None, last_attempt: None }
    }

    /// The run in another state.
    fn in_state(&self, state: State) -> Change {
        self.with(|next| next.state = state)
    }

    /// The run in the hands of another owner.
    fn taken(&self, owner: &Owner, started_at: Timestamp) -> Change {
        self.with(|next| {
            next.epoch = next.epoch.next();
            next.state = running(owner, started_at, self.now);
        })
    }

    /// The run with its attempt over, and gone on to another where its policy says so.
    fn ended(&self, held: &Running, how: End, exit: Option<Exit>) -> Change {
        self.ended_by(held, how, exit, |_| {})
    }

    /// Ends the attempt, after `prepare` has changed the run.
    fn ended_by(&self, held: &Running, how: End, exit: Option<Exit>, prepare: impl FnOnce(&mut Run)) -> Change {
        // A clock set back during the run must not make it end before it began.
        let at = self.now.max(held.started_at);
        let ending = Ending { how, at, started_at: Some(held.started_at), owner: Some(held.owner.clone()), exit };
        let mut last_attempt = None;
        let next = self.with(|next| {
            prepare(next);
            last_attempt = close(next, ending, self.now);
        });
        Change { last_attempt, ..next }
    }

    fn release(&self, pending: &Pending, parent: RunId, ended: StateName) -> Result<Change, Refusal> {
        let waits_for: Vec<RunId> = pending.waits_for.iter().copied().filter(|run| *run != parent).collect();
        let after = self.run.spec.after.iter().find(|after| after.run == parent);
        let Some(after) = after.filter(|_| waits_for.len() < pending.waits_for.len()) else {
            return Err(Refusal::WaitsNot(parent));
        };
        match (after.release, ended) {
            (_, StateName::Succeeded) | (Release::End, _) if ended.is_ended() => {
                Ok(self.in_state(State::Pending(Pending { waits_for, ..pending.clone() })))
            }
            (_, StateName::Failed | StateName::Cancelled) => {
                let error_message = format!("run `{parent}`, which it waited for, {}", refusal::ended_as(ended));
                let failure = Failure { error_type: "parent".into(), error_message, reap: None, gave_up: None };
                let (how, at) = (End::Failed(failure), self.now);
                Ok(self.in_state(State::Ended(Ending { how, at, started_at: None, owner: None, exit: None })))
            }
            _ => Err(Refusal::WaitsFor(vec![parent])),
        }
    }

    fn unpark(&self, suspended: &Suspended) -> Result<Change, Refusal> {
        if !suspended.parked {
            return Err(Refusal::NotParked);
        }
        Ok(self.with(|next| {
            next.reaps = 0;
            next.state = waiting(self.now, None, "unparked");
        }))
    }

    fn report(&self, held: &Running, fence: &Fence, report: &Report) -> Result<Change, Refusal> {
        check_report_fence(self.run, held, fence)?;
        let progressed_at = if report.progress.is_some() { self.now } else { held.progressed_at };
        let ready_at = held.ready_at.or(report.ready.then_some(self.now));
        let leash = report.leash.clone().or_else(|| held.leash.clone());
        let ports = if report.ports.is_empty() { &held.ports } else { &report.ports }.clone();
        let running = Running { progressed_at, ready_at, leash, ports, ..held.clone() };
        let mut next = self.in_state(State::Running(running));
        take_report(&mut next.run, report)?;
        Ok(next)
    }

    fn suspend(&self, held: &Running, fence: &Fence, reason: &str) -> Result<Change, Refusal> {
        check_fence(self.run, held, fence)?;
        let suspended = Suspended {
            since: self.now,
            started_at: held.started_at,
            reason: truncate_message(reason.to_owned()),
            parked: false,
        };
        Ok(self.in_state(State::Suspended(suspended)).because(reason.to_owned()))
    }

    fn wake(&self, suspended: &Suspended, owner: Option<&Owner>) -> Result<Change, Refusal> {
        match owner {
            _ if suspended.parked => Err(Refusal::Parked),
            Some(owner) => Ok(self.taken(owner, suspended.started_at)),
            None => Ok(self.in_state(waiting(self.now, None, "woken"))),
        }
    }

    fn finish(&self, held: &Running, fence: &Fence, outcome: &Outcome, exit: Option<Exit>) -> Result<Change, Refusal> {
        check_fence(self.run, held, fence)?;
        let mut result = None;
        let how = match outcome {
            Outcome::Succeeded { result: returned } => {
                check_size("result", returned.as_deref())?;
                result = returned.clone();
                End::Succeeded
            }
            Outcome::Failed { error_type, error_message, permanent } => End::Failed(Failure {
                error_type: truncate_message(error_type.clone()),
                error_message: truncate_message(error_message.clone()),
                reap: None,
                gave_up: permanent.then_some(GaveUp::Permanent),
            }),
            Outcome::Cancelled => End::Cancelled(self.run.cancel.clone().ok_or(Refusal::NotAsked)?),
        };
        Ok(self.ended_by(held, how, exit, |next| next.result = result))
    }

    fn interrupt(
        &self,
        held: &Running,
        fence: &Fence,
        interruption: &Interruption,
        exit: Option<Exit>,
    ) -> Result<Change, Refusal> {
        check_fence(self.run, held, fence)?;
        let how = match &self.run.cancel {
            Some(request) => End::Cancelled(request.clone()),
            None => End::Interrupted(interruption.clone()),
        };
        Ok(self.ended(held, how, exit).because(interruption.to_string()))
    }

    /// Ends the attempt by the run's policy.
    fn reap(&self, held: &Running, evidence: &Evidence) -> Change {
        let last_heard = held.owner.heard.at;
        let reap = Box::new(Reap { evidence: evidence.clone(), by: self.by.clone(), last_heard });
        let how = match (&self.run.cancel, self.run.spec.policy.orphans) {
            // What a person asked to stop has stopped: nothing revives it.
            (Some(request), _) => End::Cancelled(request.clone()),
            (None, OrphanPolicy::Fail) => End::Failed(Failure {
                error_type: "reaped".into(),
                error_message: evidence.to_string(),
                reap: Some(reap),
                gave_up: None,
            }),
            (None, OrphanPolicy::Dead | OrphanPolicy::Requeue) => End::Dead(reap),
        };
        let next = self.ended_by(held, how, None, |next| {
            next.epoch = next.epoch.next();
            next.reaps = next.reaps.saturating_add(1);
        });
        Change { evidence: Some(evidence.clone()), ..next }
    }

    /// Gives the attempt to another owner. What it has done so far is kept.
    fn adopt(&self, held: &Running, evidence: &Evidence, leftovers: &LiveProcesses, owner: &Owner) -> Change {
        let next = self.with(|next| {
            next.epoch = next.epoch.next();
            let started_by = Some(held.started_by.unwrap_or(self.run.epoch));
            next.state = State::Running(Running { owner: owner.clone(), started_by, ..held.clone() });
        });
        let before = format!("worker {}, pid {}", held.owner.worker, held.owner.identity.pid);
        let reason = format!("taken over from {before}: {evidence}; alive: {leftovers}");
        Change { evidence: Some(evidence.clone()), ..next }.because(reason)
    }

    fn resume(&self, owner: Option<&Owner>) -> Change {
        self.with(|next| {
            next.epoch = next.epoch.next();
            next.attempt = next.attempt.saturating_add(1);
            (next.progress, next.usage) = (None, None);
            next.cancel = None;
            next.archived = None;
            next.state = match owner {
                Some(owner) => running(owner, self.now, self.now),
                None => waiting(self.now, None, "resumed"),
            };
        })
    }

    fn archive(&self, reason: Option<&str>) -> Result<Change, Refusal> {
        if self.run.archived.is_some() {
            return Err(Refusal::Archived);
        }
        let archived = Archived { by: self.by.clone(), at: self.now, reason: reason.map(Into::into) };
        let next = self.with(|next| next.archived = Some(Box::new(archived)));
        Ok(Change { reason: reason.map(str::to_owned), ..next })
    }

    fn unarchive(&self) -> Result<Change, Refusal> {
        match self.run.archived {
            Some(_) => Ok(self.with(|next| next.archived = None)),
            None => Err(Refusal::NotArchived),
        }
    }

    fn sweep(&self, done: bool, reason: &str, process: Option<Identity>) -> Change {
        let swept = Swept { by: self.by.clone(), at: self.now, done, process };
        self.with(|next| next.swept = Some(Box::new(swept))).because(reason.to_owned())
    }

    /// The change with the event that tells of it.
    fn tell(&self, action: &Action, next: Change) -> Transition {
        let (before, after) = (self.run, next.run);
        let has_ended = before.ending().is_none() && after.ending().is_some();
        let ended = next.last_attempt.or_else(|| has_ended.then(|| Box::new(after.clone())));
        let usage = ended.as_ref().and_then(|ended| ended.usage.as_ref());
        let event = Event {
            at: self.now,
            action: action.name().into(),
            by: self.by.clone(),
            from: Some(before.state.name()),
            to: after.state.name(),
            epoch: after.epoch,
            attempt: after.attempt,
            worker: after.owner().or_else(|| before.owner()).map(|owner| owner.worker),
            reason: next.reason.or_else(|| event_reason(&after)).map(truncate_message),
            evidence: next.evidence,
            usage: usage.map(|usage| Box::new(usage.without_points())),
        };
        Transition { run: after, event, ended }
    }
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
        usage: None,
    }
}

fn running(owner: &Owner, started_at: Timestamp, now: Timestamp) -> State {
    State::Running(Running::begun(owner.clone(), started_at, now))
}

/// Waiting for another attempt.
fn waiting(now: Timestamp, not_before: Option<Timestamp>, reason: impl Into<String>) -> State {
    State::Pending(Pending {
        since: now,
        not_before,
        slot: None,
        waits_for: Vec::new(),
        reason: Some(truncate_message(reason.into())),
        paused: None,
    })
}

/// What the new state has to say for itself.
fn event_reason(run: &Run) -> Option<String> {
    match &run.state {
        State::Pending(pending) => pending.reason.clone(),
        State::Suspended(suspended) => suspended.parked.then(|| suspended.reason.clone()),
        State::Running(_) => None,
        State::Ended(ending) => match &ending.how {
            End::Succeeded => None,
            End::Failed(failure) => {
                let gave_up = failure.gave_up.map(|gave_up| format!(" ({gave_up})")).unwrap_or_default();
                Some(format!("{}: {}{gave_up}", failure.error_type, failure.error_message))
            }
            End::Cancelled(request) => request.reason.clone(),
            End::Interrupted(interruption) => Some(interruption.to_string()),
            End::Dead(reap) => Some(reap.evidence.to_string()),
        },
    }
}
