//! What must be so before a run may change: the conditions of the single rules.

use std::time::Duration;

use serde_json::Value;

use super::{ActionKind, Fence, Observed, Refusal, Report};
use crate::model::id::WorkerId;
use crate::model::owner::Evidence;
use crate::model::owner::LiveProcesses;
use crate::model::run::{
    Actor, DEPTH_LIMIT, DOCUMENT_LIMIT, End, Ending, LIST_LIMIT, Pending, Progress, Run, Running, Swept, is_deeper,
    truncate_message,
};
use crate::model::time::Timestamp;

pub(super) fn lost(run: &Run, fence: &Fence) -> Refusal {
    Refusal::Lost { state: run.state.name(), epoch: run.epoch, claimed: fence.epoch }
}

/// A person may have a run started before its time, but not before those that it waits for, nor beside what is left of it.
pub(super) fn check_claim(
    pending: &Pending,
    early: bool,
    leftovers: &LiveProcesses,
    now: Timestamp,
) -> Result<(), Refusal> {
    match pending.not_before.filter(|not_before| *not_before > now) {
        _ if pending.paused.is_some() => Err(Refusal::Paused),
        _ if !leftovers.is_empty() => Err(Refusal::LeftoversAlive(leftovers.clone())),
        _ if !pending.waits_for.is_empty() => Err(Refusal::WaitsFor(pending.waits_for.clone())),
        Some(not_before) if !early => Err(Refusal::NotYet(not_before)),
        _ => Ok(()),
    }
}

pub(super) fn check_fence(run: &Run, held: &Running, fence: &Fence) -> Result<(), Refusal> {
    if run.epoch == fence.epoch && held.owner.worker == fence.worker { Ok(()) } else { Err(lost(run, fence)) }
}

/// A caller that speaks for the processes of an attempt presents the epoch that they were started with, and it counts for as
/// long as the attempt lasts, also in the hands of another owner.
pub(super) fn check_report_fence(run: &Run, held: &Running, fence: &Fence) -> Result<(), Refusal> {
    let same_worker = held.owner.worker == fence.worker;
    if same_worker && run.is_current(fence.epoch) { Ok(()) } else { Err(lost(run, fence)) }
}

pub(super) fn take_report(next: &mut Run, report: &Report) -> Result<(), Refusal> {
    if let Some(progress) = &report.progress {
        check_size("progress document", progress.data.as_ref())?;
        let message = progress.message.clone().map(truncate_message);
        next.progress = Some(Box::new(Progress { message, ..progress.clone() }));
    }
    if let Some(checkpoint) = &report.checkpoint {
        check_size("checkpoint", Some(checkpoint))?;
        next.checkpoint = Some(checkpoint.clone());
    }
    if let Some(artifact) = &report.artifact {
        if next.artifacts.len() >= LIST_LIMIT {
            return Err(Refusal::TooMany { what: "artifacts", limit: LIST_LIMIT });
        }
        next.artifacts.push(truncate_message(artifact.clone()));
    }
    if let Some(manifest_ref) = &report.manifest_ref {
        next.manifest_ref = Some(truncate_message(manifest_ref.clone()));
    }
    Ok(())
}

pub(crate) fn check_size(what: &'static str, document: Option<&Value>) -> Result<(), Refusal> {
    if document.is_some_and(|document| is_deeper(document, DEPTH_LIMIT)) {
        return Err(Refusal::TooDeep { what, limit: DEPTH_LIMIT });
    }
    let size = document.map_or(0, |document| document.to_string().len());
    if size > DOCUMENT_LIMIT { Err(Refusal::TooLarge { what, size, limit: DOCUMENT_LIMIT }) } else { Ok(()) }
}

pub(super) fn check_reap(
    run: &Run,
    held: &Running,
    observed: &Observed,
    evidence: &Evidence,
    reaper: Option<WorkerId>,
) -> Result<(), Refusal> {
    let is_heard = observed.epoch != run.epoch || observed.beat != held.owner.heard.beat;
    // One that is on record after all is judged anew, by what it promised.
    let is_known = matches!(evidence, Evidence::OwnerUnknown { .. }) && !held.owner.identity.is_unknown();
    if reaper == Some(held.owner.worker) {
        Err(Refusal::OwnRun)
    } else if is_heard || is_known {
        Err(Refusal::HeardOf)
    } else if evidence.is_silence() && !held.owner.lease.lapsed(held.owner.heard.silent_for) {
        Err(Refusal::LeaseHolds)
    } else {
        Ok(())
    }
}

/// What a step brought about is for the attempt that began it. Resuming it alone would bring nothing to
/// any attempt.
fn check_no_step(run: &Run) -> Result<(), Refusal> {
    run.spec.step.as_ref().map_or(Ok(()), |step| Err(Refusal::IsStep(step.of)))
}

/// Only where the owner is proven gone, and something of its attempt is not. Silence proves nothing.
pub(super) fn check_adopt<'a>(
    run: &Run,
    held: &Running,
    observed: &Observed,
    evidence: Option<&'a Evidence>,
    leftovers: &LiveProcesses,
) -> Result<&'a Evidence, Refusal> {
    check_no_step(run)?;
    if observed.epoch != run.epoch || observed.beat != held.owner.heard.beat {
        return Err(Refusal::HeardOf);
    }
    match evidence {
        None => Err(Refusal::OwnerLives),
        Some(evidence) if evidence.is_silence() => Err(Refusal::OwnerLives),
        Some(_) if leftovers.is_empty() => Err(Refusal::NothingLeft),
        Some(evidence) => Ok(evidence),
    }
}

pub(super) fn check_resume(
    run: &Run,
    ending: &Ending,
    failed_too: bool,
    leftovers: &LiveProcesses,
) -> Result<(), Refusal> {
    check_no_step(run)?;
    let resumable = match ending.how {
        End::Interrupted(_) | End::Dead(_) => true,
        End::Failed(_) => failed_too,
        End::Succeeded | End::Cancelled(_) => false,
    };
    if !resumable {
        Err(Refusal::WrongState { action: ActionKind::Resume, state: ending.how.name() })
    } else if run.swept.is_some() {
        Err(Refusal::Swept)
    } else if !leftovers.is_empty() {
        Err(Refusal::LeftoversAlive(leftovers.clone()))
    } else if matches!(ending.how, End::Failed(_)) && run.failures >= run.spec.policy.retry.max_attempts {
        Err(Refusal::NoAttemptsLeft(run.failures))
    } else {
        Ok(())
    }
}

/// How long a sweeper has a run to itself.
const SWEEPS: Duration = Duration::from_secs(15 * 60);

/// Refuses runs that can resume, and runs that another sweeper marked a short while ago, unless that sweeper is gone.
pub(super) fn check_sweep(
    run: &Run,
    ending: &Ending,
    seen: Option<&Swept>,
    gone: bool,
    by: &Actor,
    now: Timestamp,
) -> Result<(), Refusal> {
    match &run.swept {
        _ if matches!(ending.how, End::Interrupted(_)) => {
            Err(Refusal::WrongState { action: ActionKind::Sweep, state: ending.how.name() })
        }
        Some(swept) if seen != Some(swept) => Err(Refusal::BeingSwept(swept.by.clone())),
        Some(swept) if !swept.done && !gone && swept.by != *by && now.since(swept.at) < SWEEPS => {
            Err(Refusal::BeingSwept(swept.by.clone()))
        }
        _ => Ok(()),
    }
}
