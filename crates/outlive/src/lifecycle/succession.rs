//! Whether one record may follow another, as far as the records alone can tell.
//!
//! A caller that applies an action knows from the rules what comes of it. A server that is sent a record has only that: it
//! holds it to what is true of every action.

use crate::model::id::Epoch;
use crate::model::run::{End, Ending, Run, State};

/// Whether a run has gone on from the claim that a writer presents.
pub fn has_passed(run: &Run, claim: Epoch) -> bool {
    run.epoch > claim
}

/// Refuses a record that no action makes of `before`, or of nothing.
pub fn follows(before: Option<&Run>, after: &Run) -> Result<(), &'static str> {
    let Some(before) = before else {
        let is_new = after.epoch.0 <= 1 && after.attempt <= 1;
        return if is_new { Ok(()) } else { Err("a run begins with its first attempt") };
    };
    let is_same = before.id == after.id && before.spec == after.spec && before.created_at == after.created_at;
    if !is_same || before.signature != after.signature {
        return Err("what a run was made with never changes");
    }
    if after.epoch < before.epoch || after.attempt < before.attempt {
        return Err("epochs and attempts only rise");
    }
    if after.epoch.0 > before.epoch.0.saturating_add(1) || after.attempt > before.attempt.saturating_add(1) {
        return Err("epochs and attempts rise by one");
    }
    match (&before.state, &after.state) {
        (State::Ended(was), State::Ended(is)) if was != is && !is_given_up(was, is) => Err("an end stays as it is"),
        (State::Ended(_), State::Ended(_)) => Ok(()),
        (State::Ended(_), _) if after.attempt == before.attempt => Err("an attempt that has ended does not continue"),
        (State::Running(was), State::Running(is))
            if was.owner.worker != is.owner.worker && after.epoch == before.epoch =>
        {
            Err("another owner takes another epoch")
        }
        (State::Pending(_) | State::Suspended(_), State::Running(_)) if after.epoch == before.epoch => {
            Err("an owner takes an epoch")
        }
        _ => Ok(()),
    }
}

/// Whether an attempt that could have been followed by another is cancelled, and nothing else of its end has changed.
fn is_given_up(was: &Ending, is: &Ending) -> bool {
    let before = Ending { how: was.how.clone(), ..is.clone() };
    matches!((&was.how, &is.how), (End::Interrupted(_) | End::Dead(_), End::Cancelled(_))) && before == *was
}
