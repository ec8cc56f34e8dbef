//! Replaying a change: which action of the lifecycle makes one record of another.
//!
//! A server is sent records, not actions. It takes a change only where an action, applied to the record that it has,
//! yields what was sent. What it then writes, with its event, is its own result: a sender of records
//! can do no more than a caller of [`apply`].

use std::sync::Arc;

use serde_json::Value;

use super::{Action, Fence, Observed, Outcome, QueueEdit, Refusal, Report, apply, enqueued, follows, note_usage};
use crate::model::id::RunId;
use crate::model::owner::LiveProcesses;
use crate::model::run::{
    Actor, End, Event, GaveUp, Interruption, LastHeartbeat, Owner, Pending, Run, Running, State, StateName,
};

/// A change as it was sent.
pub(crate) struct Sent<'a> {
    /// The run after it.
    pub(crate) run: &'a Run,
    /// The run as its attempt was left, where the change ended one.
    pub(crate) ended: Option<&'a Run>,
    /// What tells of it.
    pub(crate) events: &'a [Event],
    /// Who sends it.
    pub(crate) by: &'a Actor,
}

/// A change as the lifecycle makes it.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) run: Run,
    pub(crate) ended: Option<Box<Run>>,
    pub(crate) events: Vec<Event>,
}

/// Applies the actions that the events of a change name, to what is on record or to nothing. `parents` tells how the runs
/// ended that others wait for.
pub(crate) fn replay(
    before: Option<&Run>,
    sent: &Sent<'_>,
    parents: &dyn Fn(RunId) -> Option<StateName>,
) -> Result<Replayed, String> {
    follows(before, sent.run)?;
    let Some((first, others)) = sent.events.split_first() else {
        return before.and_then(|before| noted(before, sent)).map_or_else(|| restored(before, sent), Ok);
    };
    let (mut run, rest, mut events) = match before {
        Some(before) => (before.clone(), sent.events, Vec::new()),
        None if first.action == "enqueue" => {
            let new = sent.run;
            let fresh = Run::new(new.id, new.spec.clone(), new.signature.clone(), new.created_at);
            let made = enqueued(&fresh, &first.by);
            (fresh, others, vec![made])
        }
        None => return Err("the event log of a run begins with `enqueue`".into()),
    };
    if let Some(first) = rest.first().filter(|event| OWNERS.contains(&event.action.as_ref())) {
        run = with_usage(run, sent).map_err(|refusal| format!("`{}`: {refusal}", first.action))?;
    }
    let mut ended = None;
    for event in rest {
        let unknown = || format!("no action `{}` of the lifecycle makes this of it", event.action);
        let action = infer(&run, sent, event, parents).ok_or_else(unknown)?;
        let mut made = apply(&run, &action, &event.by, event.at).map_err(|refusal| refusal.to_string())?;
        if matches!(action, Action::Adopt { .. }) {
            // It names processes, which only the process that adopts them can see.
            made.event.reason.clone_from(&event.reason);
        }
        events.push(made.event);
        (run, ended) = (made.run, made.ended);
    }
    if is_same(&run, sent.run) {
        let ended = ended.map(|ended| Box::new(unheard(&ended)));
        Ok(Replayed { run: unheard(&run), ended, events })
    } else {
        Err("the lifecycle makes something else of it".into())
    }
}

/// The actions of an owner, with which it may say what its attempt has used.
const OWNERS: [&str; 4] = ["report", "suspend", "finish", "interrupt"];

/// The run with what its owner says with a change that its attempt has used.
fn with_usage(run: Run, sent: &Sent<'_>) -> Result<Run, Refusal> {
    let said = sent.ended.unwrap_or(sent.run).usage.as_ref().filter(|usage| run.usage.as_ref() != Some(usage));
    match (said, run.owner()) {
        (Some(usage), Some(owner)) => note_usage(&run, &Fence { worker: owner.worker, epoch: run.epoch }, usage),
        _ => Ok(run),
    }
}

/// An owner says what its attempt has used, and nothing else. That is no event.
fn noted(before: &Run, sent: &Sent<'_>) -> Option<Replayed> {
    let run = with_usage(before.clone(), sent).ok()?;
    if run.usage == before.usage || !is_same(&run, sent.run) {
        return None;
    }
    Some(Replayed { run: unheard(&run), ended: None, events: Vec::new() })
}

/// An owner brings its run back on record that the store lost, or lost the last changes of. The server tells of it.
fn restored(before: Option<&Run>, sent: &Sent<'_>) -> Result<Replayed, String> {
    let was_open = before.is_none_or(|before| before.ending().is_none());
    let Some(owner) = sent.run.owner().filter(|_| was_open) else {
        return Err("a change is written with the event that tells of it".into());
    };
    if sent.run.result.is_some() {
        return Err("a run has a result when it has succeeded, and not before".into());
    }
    let event = Event {
        at: sent.run.updated_at,
        action: "restore".into(),
        by: sent.by.clone(),
        from: before.map(|before| before.state.name()),
        to: sent.run.state.name(),
        epoch: sent.run.epoch,
        attempt: sent.run.attempt,
        worker: Some(owner.worker),
        reason: Some("its owner registered it again".into()),
        evidence: None,
        usage: None,
    };
    Ok(Replayed { run: sent.run.clone(), ended: None, events: vec![event] })
}

/// The action that an event names, with what the records say of it. What only its caller could know, and nothing is
/// recorded of, is assumed in favour of the caller, who could have said so.
fn infer(run: &Run, sent: &Sent<'_>, event: &Event, parents: &dyn Fn(RunId) -> Option<StateName>) -> Option<Action> {
    let left = sent.ended.unwrap_or(sent.run);
    let owner = || owner_of(sent.run).or_else(|| owner_of(left)).cloned();
    let fence = || Some(Fence { worker: run.owner()?.worker, epoch: run.epoch });
    let observed = || Some(Observed { epoch: run.epoch, beat: run.owner()?.heard.beat });
    Some(match event.action.as_ref() {
        "claim" => Action::Claim { owner: owner()?, early: true, leftovers: LiveProcesses::default() },
        "release" => return released(run, sent, event, parents),
        "unpark" => Action::Unpark,
        "pause" => match &sent.run.state {
            State::Pending(Pending { paused: Some(paused), .. }) => Action::Pause { reason: paused.reason.clone() },
            _ => return None,
        },
        "unpause" => Action::Unpause,
        "edit" => Action::Edit(QueueEdit::between(run, sent.run)?),
        "report" => Action::Report { fence: fence()?, report: reported(run, left, event) },
        "suspend" => match &sent.run.state {
            State::Suspended(suspended) => Action::Suspend { fence: fence()?, reason: suspended.reason.clone() },
            _ => return None,
        },
        "wake" => Action::Wake { owner: owner() },
        "finish" => {
            let ending = left.ending()?;
            Action::Finish {
                fence: fence()?,
                outcome: outcome(&ending.how, sent.run.result.clone())?,
                exit: ending.exit,
            }
        }
        "interrupt" => {
            let ending = left.ending()?;
            let interruption = match &ending.how {
                End::Interrupted(interruption) => interruption.clone(),
                _ => Interruption { signal: None, reason: event.reason.clone().unwrap_or_default() },
            };
            Action::Interrupt { fence: fence()?, interruption, exit: ending.exit }
        }
        "request cancel" => {
            let request = sent.run.cancel.as_ref();
            let grace = request.and_then(|request| request.grace);
            // The event of a request without a reason bears the reason of the state that the run was in.
            let reason = if run.cancel.is_some() { event.reason.clone() } else { request?.reason.clone() };
            let is_over = matches!(sent.run.ending().map(|ending| &ending.how), Some(End::Cancelled(_)));
            let live = LiveProcesses { pids: Vec::new(), unseen: !is_over };
            Action::RequestCancel { reason, grace, live }
        }
        "reap" => Action::Reap { observed: observed()?, evidence: event.evidence.clone()?, reaper: None },
        "adopt" => Action::Adopt {
            observed: observed()?,
            evidence: event.evidence.clone(),
            leftovers: LiveProcesses { pids: Vec::new(), unseen: true },
            owner: owner()?,
        },
        "resume" => {
            Action::Resume { failed_too: true, leftovers: LiveProcesses::default(), owner: sent.run.owner().cloned() }
        }
        "archive" => {
            Action::Archive { reason: sent.run.archived.as_ref().and_then(|archived| archived.reason.clone()) }
        }
        "unarchive" => Action::Unarchive,
        "sweep" => {
            let swept = sent.run.swept.as_deref()?;
            Action::Sweep {
                seen: run.swept.as_deref().cloned(),
                done: swept.done,
                reason: event.reason.clone().unwrap_or_default(),
                process: swept.process.clone(),
                gone: true,
            }
        }
        _ => return None,
    })
}

/// The release by a parent that has ended, and of which that makes what was sent.
fn released(run: &Run, sent: &Sent<'_>, event: &Event, parents: &dyn Fn(RunId) -> Option<StateName>) -> Option<Action> {
    let State::Pending(pending) = &run.state else { return None };
    let by_parent = |parent: &RunId| Some(Action::Release { parent: *parent, ended: parents(*parent)? });
    let is_meant = |action: &Action| {
        apply(run, action, &event.by, event.at).is_ok_and(|released| is_same(&released.run, sent.run))
    };
    pending.waits_for.iter().filter_map(by_parent).find(is_meant)
}

/// What a report changed. One that repeats what is on record says nothing but that there is progress.
fn reported(before: &Run, after: &Run, event: &Event) -> Report {
    let progressed = matches!(&after.state, State::Running(running) if running.progressed_at == event.at);
    let progress = after.progress.as_ref().filter(|_| progressed || after.progress != before.progress);
    let is_longer = after.artifacts.len() > before.artifacts.len();
    let running = |run: &Run| match &run.state {
        State::Running(running) => Some(running.clone()),
        _ => None,
    };
    let (was, is) = (running(before), running(after));
    let ready = |running: &Option<Running>| running.as_ref().is_some_and(|running| running.ready_at.is_some());
    let leash = |running: &Option<Running>| running.as_ref().and_then(|running| running.leash.clone());
    let ports = |running: &Option<Running>| running.as_ref().map(|running| running.ports.clone()).unwrap_or_default();
    let was_tied = leash(&was);
    Report {
        ready: ready(&is) && !ready(&was),
        leash: leash(&is).filter(|leash| Some(leash) != was_tied.as_ref()),
        ports: Some(ports(&is)).filter(|is| *is != ports(&was)).unwrap_or_default(),
        progress: progress.map(|progress| (**progress).clone()),
        checkpoint: after.checkpoint.clone().filter(|_| after.checkpoint != before.checkpoint),
        artifact: after.artifacts.last().filter(|_| is_longer).cloned(),
        manifest_ref: after.manifest_ref.clone().filter(|_| after.manifest_ref != before.manifest_ref),
    }
}

fn outcome(how: &End, result: Option<Arc<Value>>) -> Option<Outcome> {
    match how {
        End::Succeeded => Some(Outcome::Succeeded { result }),
        End::Failed(failure) => Some(Outcome::Failed {
            error_type: failure.error_type.clone(),
            error_message: failure.error_message.clone(),
            permanent: failure.gave_up == Some(GaveUp::Permanent),
        }),
        End::Cancelled(_) => Some(Outcome::Cancelled),
        End::Interrupted(_) | End::Dead(_) => None,
    }
}

fn owner_of(run: &Run) -> Option<&Owner> {
    run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref()))
}

/// Whether two records are the same.
fn is_same(one: &Run, other: &Run) -> bool {
    unheard(one) == unheard(other)
}

/// A run without what the store heard of its owner, which is part of no record.
fn unheard(run: &Run) -> Run {
    let mut run = run.clone();
    if let Some(owner) = run.any_owner_mut() {
        owner.heard = LastHeartbeat::default();
    }
    run
}
