//! Pausing: a person holds a queued run back, and with it the schedule that the run continues.
//!
//! A paused run stays pending with a time that never comes, so that no store needs a rule of its own. Slots of a schedule
//! that pass meanwhile are not made up for, whatever its policy for missed slots says: a person did not want them.

use super::{ActionContext, Change, Refusal};
use crate::model::run::{Paused, Pending, Run, State, truncate_message};
use crate::model::time::Timestamp;

/// Until when a paused run waits: the year 9999, which every store can hold.
const NEVER: Timestamp = Timestamp::from_micros(253_370_764_800_000_000);

impl ActionContext<'_> {
    /// Holds the run back. One that its owner retries by itself is not in a queue, and its owner does not look here.
    pub(super) fn pause(&self, pending: &Pending, reason: Option<String>) -> Result<Change, Refusal> {
        match (&pending.paused, self.run.spec.queued, &self.run.cancel) {
            (Some(_), ..) => return Err(Refusal::Paused),
            (_, false, _) => return Err(Refusal::NotQueued),
            (.., Some(_)) => return Err(Refusal::CancelRequested),
            (None, true, None) => {}
        }
        let (by, not_before) = (self.by.clone(), pending.not_before);
        let paused = Paused { by, at: self.now, not_before, reason: reason.map(truncate_message) };
        let reason = paused.reason.clone();
        let paused = Pending { not_before: Some(NEVER), paused: Some(Box::new(paused)), ..pending.clone() };
        Ok(self.in_state(State::Pending(paused)).because(reason))
    }

    /// Lets the run wait for its turn again.
    pub(super) fn unpause(&self, pending: &Pending) -> Result<Change, Refusal> {
        let Some(paused) = &pending.paused else { return Err(Refusal::NotPaused) };
        let later = paused.not_before.filter(|due| *due > self.now);
        let passed = paused.not_before.is_some_and(|due| due > paused.at) && later.is_none();
        let next = next_slot(self.run, self.now).filter(|_| passed);
        let slot = next.or(pending.slot);
        Ok(self.in_state(State::Pending(Pending { not_before: later.or(next), slot, paused: None, ..pending.clone() })))
    }
}

/// The next slot of the schedule of a run that missed its own while it was paused. A later attempt belongs to a slot
/// whose follower was made for the first.
fn next_slot(run: &Run, now: Timestamp) -> Option<Timestamp> {
    run.spec.schedule.as_ref().filter(|_| run.attempt == 1)?.upcoming(run.slot(), now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::lifecycle::{Action, Due, QueueEdit, Refusal, apply};
    use crate::model::id::WorkerId;
    use crate::model::policy::Lease;
    use crate::model::run::{Run, Spec, State};
    use crate::model::schedule::{Missed, Schedule};
    use crate::model::time::Timestamp;
    use crate::testing::{SeededEntropy, owner, pending, person, spec};

    const HOUR: Duration = Duration::from_secs(3_600);
    const MADE: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn hourly(missed: Missed) -> Run {
        let schedule = Schedule::every(HOUR, missed).unwrap();
        let spec = Spec { queued: true, not_before: Some(MADE.after(HOUR)), schedule: Some(schedule), ..spec("job") };
        pending(spec, MADE, &SeededEntropy::new(1))
    }

    fn act(run: &Run, action: &Action, at: Timestamp) -> Result<Run, Refusal> {
        apply(run, action, &person("ada"), at).map(|done| done.run)
    }

    fn paused(run: &Run, at: Timestamp) -> Run {
        act(run, &Action::Pause { reason: Some("holidays".into()) }, at).unwrap()
    }

    fn due(run: &Run) -> Option<Timestamp> {
        let State::Pending(pending) = &run.state else { panic!("{:?}", run.state) };
        pending.not_before
    }

    #[test]
    fn paused_run_is_not_claimed_even_early() {
        let held = paused(&hourly(Missed::Once), MADE);
        let worker = WorkerId::draw(MADE, &SeededEntropy::new(2));
        for early in [false, true] {
            let claim = Action::Claim { owner: owner(worker, Lease::default()), early, leftovers: Default::default() };
            assert_eq!(act(&held, &claim, MADE.after(HOUR * 9)), Err(Refusal::Paused));
        }
        assert_eq!(act(&held, &Action::Pause { reason: None }, MADE), Err(Refusal::Paused));
        let again = act(&held, &Action::Unpause, MADE).unwrap();
        assert_eq!(act(&again, &Action::Unpause, MADE), Err(Refusal::NotPaused));
        let claim =
            Action::Claim { owner: owner(worker, Lease::default()), early: false, leftovers: Default::default() };
        assert!(act(&again, &claim, MADE.after(HOUR)).is_ok());
    }

    #[test]
    fn slots_that_pass_during_a_pause_are_not_made_up_for() {
        for missed in [Missed::Once, Missed::All, Missed::Skip] {
            let held = paused(&hourly(missed), MADE);
            let unpaused = |at| due(&act(&held, &Action::Unpause, at).unwrap());
            assert_eq!(unpaused(MADE), Some(MADE.after(HOUR)), "{missed:?}: its slot is still to come");
            let late = MADE.after(HOUR * 5 / 2);
            assert_eq!(unpaused(late), Some(MADE.after(HOUR * 3)), "{missed:?}: the next slot");
        }
    }

    #[test]
    fn run_that_was_due_when_paused_is_due_at_once() {
        let held = paused(&hourly(Missed::Once), MADE.after(HOUR * 2));
        assert_eq!(due(&act(&held, &Action::Unpause, MADE.after(HOUR * 9)).unwrap()), None);
    }

    #[test]
    fn edited_time_outlives_a_pause() {
        let edited =
            |due| act(&hourly(Missed::Once), &Action::Edit(QueueEdit { priority: None, due: Some(due) }), MADE);
        let unpaused = |run: &Run, at| act(&paused(run, MADE), &Action::Unpause, at).unwrap();
        let later = edited(Due::At(MADE.after(HOUR * 5))).unwrap();
        let back = unpaused(&later, MADE.after(HOUR * 2));
        assert_eq!((due(&back), back.slot()), (Some(MADE.after(HOUR * 5)), MADE.after(HOUR)));
        let missed = unpaused(&later, MADE.after(HOUR * 11 / 2));
        assert_eq!((due(&missed), missed.slot()), (Some(MADE.after(HOUR * 6)), MADE.after(HOUR * 6)));
        let at_once = edited(Due::Now).unwrap();
        assert_eq!(due(&unpaused(&at_once, MADE)), None);
    }

    #[test]
    fn run_outside_the_queue_is_not_paused() {
        let run = pending(spec("job"), MADE, &SeededEntropy::new(1));
        assert_eq!(act(&run, &Action::Pause { reason: None }, MADE), Err(Refusal::NotQueued));
    }
}
