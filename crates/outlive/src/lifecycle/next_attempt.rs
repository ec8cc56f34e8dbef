//! What follows the end of an attempt: rest, another attempt, or waiting for a person. And what follows a run that is
//! over: another like it.

use super::{ActionKind, Outcome, Refusal, waiting};
use crate::model::id::Epoch;
use crate::model::policy::{FailureClass, OrphanPolicy};
use crate::model::run::{
    End, Ending, Exit, Failure, GaveUp, Lineage, Run, State, StateName, Suspended, truncate_message,
};
use crate::model::time::Timestamp;

/// The signal of a keyboard: a person stopped it.
const SIGINT: i32 = 2;

enum Next {
    /// Nothing, until a caller asks.
    Rest,
    /// Another attempt, not before this.
    Attempt(Option<Timestamp>),
    /// A person must look at it first.
    Person,
}

/// Ends the attempt of a run, which goes on to another where its policy says so. Answers with the attempt's own end where
/// it does.
pub(super) fn close(run: &mut Run, mut ending: Ending, now: Timestamp) -> Option<Box<Run>> {
    let next = match &mut ending.how {
        End::Succeeded | End::Cancelled(_) => Next::Rest,
        End::Failed(failure) => after_failure(run, failure, ending.exit, now),
        End::Interrupted(interruption) => {
            let by_person = interruption.signal == Some(SIGINT);
            if run.spec.policy.retry.on_interrupt && !by_person { Next::Attempt(None) } else { Next::Rest }
        }
        End::Dead(_) => after_reap(run, now),
    };
    let why = match &ending.how {
        End::Failed(failure) => after_failed(&failure.error_message),
        End::Interrupted(interruption) => format!("interrupted: {interruption}"),
        End::Dead(reap) => format!("reaped: {}", reap.evidence),
        End::Succeeded | End::Cancelled(_) => String::new(),
    };
    let started_at = ending.started_at.unwrap_or(now);
    run.state = State::Ended(ending);
    let state = match next {
        Next::Rest => return None,
        Next::Attempt(not_before) => waiting(now, not_before, why),
        Next::Person => {
            let reason = format!("parked: {} of its attempts were reaped; the last was {why}", run.reaps);
            State::Suspended(Suspended { since: now, started_at, reason, parked: true })
        }
    };
    let attempt = Box::new(run.clone());
    run.attempt = run.attempt.saturating_add(1);
    (run.progress, run.usage) = (None, None);
    run.state = state;
    Some(attempt)
}

/// Whether a run goes on when its running attempt is reaped: to another one, or to a person.
pub fn survives_reap(run: &Run) -> bool {
    // What a person asked to stop has stopped: nothing revives it.
    run.cancel.is_none() && run.spec.policy.orphans == OrphanPolicy::Requeue
}

/// What a run that failed says while it waits for its next attempt.
fn after_failed(error_message: &str) -> String {
    format!("failed: {error_message}")
}

/// Whether this finish is a duplicate of one already recorded for this claim: the first reply was lost, so
/// that the owner finishes again.
pub fn is_duplicate_finish(run: &Run, claimed: Epoch, outcome: &Outcome) -> bool {
    if run.epoch != claimed {
        return false;
    }
    match (&run.state, outcome) {
        // Without an owner it was ended by another process, before or after that claim.
        (State::Ended(Ending { owner: None, .. }), _) => false,
        (State::Ended(ending), Outcome::Succeeded { result }) => ending.how == End::Succeeded && run.result == *result,
        (State::Ended(ending), Outcome::Cancelled) => matches!(ending.how, End::Cancelled(_)),
        (State::Ended(ending), Outcome::Failed { error_type, error_message, .. }) => {
            let is_same = |failure: &Failure| {
                failure.error_type == truncate_message(error_type.clone())
                    && failure.error_message == truncate_message(error_message.clone())
            };
            matches!(&ending.how, End::Failed(failure) if is_same(failure))
        }
        (State::Pending(pending), Outcome::Failed { error_message, .. }) => {
            let expected = truncate_message(after_failed(&truncate_message(error_message.clone())));
            pending.reason.as_ref() == Some(&expected)
        }
        _ => false,
    }
}

fn after_failure(run: &mut Run, failure: &mut Failure, exit: Option<Exit>, now: Timestamp) -> Next {
    run.failures = run.failures.saturating_add(1);
    // The owner may have called it permanent; that matters only where it would be tried again.
    let is_permanent = failure.gave_up.take() == Some(GaveUp::Permanent);
    let retry = &run.spec.policy.retry;
    let code = match exit {
        Some(Exit::Code(code)) => Some(code),
        Some(Exit::Signal(_)) | None => None,
    };
    // What a person asked to stop is not tried again, even where it failed before it could be stopped.
    if !retry.on_failure || run.cancel.is_some() {
        return Next::Rest;
    }
    let is_named = |class: &FailureClass| class.covers(&failure.error_type, code);
    failure.gave_up = if is_permanent || retry.permanent.iter().any(is_named) {
        Some(GaveUp::Permanent)
    } else if run.failures >= retry.max_attempts {
        Some(GaveUp::MaxAttempts)
    } else {
        None
    };
    match failure.gave_up {
        Some(_) => Next::Rest,
        None => Next::Attempt(Some(now.after(retry.wait_after(run.failures, jitter(run))))),
    }
}

/// The first reap costs no time: most often a machine went down, and it was not the run's doing.
fn after_reap(run: &Run, now: Timestamp) -> Next {
    let retry = &run.spec.policy.retry;
    match run.spec.policy.orphans {
        OrphanPolicy::Dead | OrphanPolicy::Fail => Next::Rest,
        OrphanPolicy::Requeue if run.reaps >= retry.max_reaps => Next::Person,
        OrphanPolicy::Requeue if run.reaps <= 1 => Next::Attempt(None),
        OrphanPolicy::Requeue => Next::Attempt(Some(now.after(retry.wait_after(run.reaps - 1, jitter(run))))),
    }
}

/// Where a run comes from that repeats `run`, or why it may not be repeated. One that goes on is repeated only where that
/// is forced; `stands` is how it is seen to stand.
pub fn rerun(run: &Run, stands: StateName, forced: bool, reason: Option<String>) -> Result<Lineage, Refusal> {
    if let Some(step) = &run.spec.step {
        return Err(Refusal::IsStep(step.of));
    }
    if !stands.is_ended() && !forced {
        return Err(Refusal::WrongState { action: ActionKind::Rerun, state: stands });
    }
    let before = run.spec.lineage.as_ref();
    Ok(Lineage {
        rerun_of: run.id,
        origin: before.map_or(run.id, |lineage| lineage.origin),
        generation: before.map_or(0, |lineage| lineage.generation).saturating_add(1),
        reason,
    })
}

/// Spreads the waits of many runs that something went wrong with at once: no two have the same id.
fn jitter(run: &Run) -> u8 {
    let bytes = run.id.as_bytes();
    bytes.iter().fold(run.attempt as u8, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(*byte))
}
