//! Editing: a person changes when a queued run is claimed, not what it does.
//!
//! The spec is signed and never changes, so a priority that was given later is kept beside it, with every later attempt
//! too. A time belongs to the attempt that waits.

use super::{ActionContext, Change, Refusal};
use crate::model::run::{Pending, Run, State};
use crate::model::time::Timestamp;

/// What a person changes about the place of a run in the queue. Unset parts stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueEdit {
    /// Its priority: lower ones are claimed first.
    pub priority: Option<i32>,
    /// When it may be claimed.
    pub due: Option<Due>,
}

/// When a queued run may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// When its turn comes.
    Now,
    /// Not before this time.
    At(Timestamp),
}

impl Due {
    /// The time that is still to come.
    fn not_before(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Now => None,
            Self::At(at) => Some(at).filter(|at| *at > now),
        }
    }
}

impl QueueEdit {
    /// The edit that makes one record of another, where both wait.
    #[cfg(feature = "http")]
    pub(super) fn between(before: &Run, after: &Run) -> Option<Self> {
        let (State::Pending(was), State::Pending(is)) = (&before.state, &after.state) else { return None };
        let due = (was.not_before != is.not_before).then(|| is.not_before.map_or(Due::Now, Due::At));
        Some(Self { priority: after.priority.filter(|_| after.priority != before.priority), due })
    }

    /// What it changes, for the event log.
    fn summary(self) -> Option<String> {
        let priority = self.priority.map(|priority| format!("priority {priority}"));
        let due = self.due.map(|due| match due {
            Due::Now => "due now".into(),
            Due::At(at) => format!("not before {at}"),
        });
        let parts: Vec<String> = priority.into_iter().chain(due).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl ActionContext<'_> {
    /// Changes when the run is claimed. A paused run has no time until it is unpaused.
    pub(super) fn edit(&self, pending: &Pending, edit: &QueueEdit) -> Result<Change, Refusal> {
        match (&pending.paused, self.run.spec.queued, &self.run.cancel) {
            (Some(_), ..) if edit.due.is_some() => return Err(Refusal::Paused),
            (_, false, _) => return Err(Refusal::NotQueued),
            (.., Some(_)) => return Err(Refusal::CancelRequested),
            _ => {}
        }
        let not_before = edit.due.map_or(pending.not_before, |due| due.not_before(self.now));
        let next = self.with(|next| {
            next.priority = edit.priority.or(next.priority);
            next.state = State::Pending(Pending { not_before, ..pending.clone() });
        });
        Ok(next.because(edit.summary()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lifecycle::{Action, ActionKind, Transition, apply};
    use crate::model::id::WorkerId;
    use crate::model::run::{Spec, StateName};
    use crate::testing::lifecycle::specimen;
    use crate::testing::{SeededEntropy, person, spec};

    fn queued(state: StateName) -> Run {
        let worker = WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(2));
        specimen(state, Spec { queued: true, priority: 5, ..spec("job") }, worker).unwrap()
    }

    fn act(run: &Run, action: &Action) -> Result<Transition, Refusal> {
        apply(run, action, &person("ada"), run.updated_at)
    }

    #[test]
    fn edited_priority_outlives_the_attempt_and_the_spec_stays() {
        let made = queued(StateName::Pending);
        let edit = QueueEdit { priority: Some(-1), due: None };
        let edited = act(&made, &Action::Edit(edit)).unwrap();
        assert_eq!((made.priority(), edited.run.priority(), edited.run.spec.priority), (5, -1, 5));
        assert_eq!(edited.event.reason.as_deref(), Some("priority -1"));
        let cancel = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
        assert_eq!(act(&edited.run, &cancel).unwrap().run.priority(), -1);
    }

    #[test]
    fn edited_time_replaces_the_one_before() {
        let made = queued(StateName::Pending);
        let due = |run: &Run| match &run.state {
            State::Pending(pending) => pending.not_before,
            _ => None,
        };
        let at = made.created_at.after(Duration::from_secs(60));
        let later = act(&made, &Action::Edit(QueueEdit { priority: None, due: Some(Due::At(at)) })).unwrap().run;
        assert_eq!((due(&later), later.priority()), (Some(at), 5));
        for due_now in [Due::Now, Due::At(made.updated_at)] {
            let now = act(&later, &Action::Edit(QueueEdit { priority: None, due: Some(due_now) })).unwrap().run;
            assert_eq!(due(&now), None);
        }
        assert_eq!(later.slot(), made.slot(), "the slot of a schedule stays");
    }

    #[test]
    fn paused_run_takes_a_priority_and_no_time() {
        let paused = act(&queued(StateName::Pending), &Action::Pause { reason: None }).unwrap().run;
        let edit = |due| act(&paused, &Action::Edit(QueueEdit { priority: Some(1), due }));
        assert_eq!(edit(None).unwrap().run.priority(), 1);
        assert_eq!(edit(Some(Due::Now)), Err(Refusal::Paused));
    }

    #[test]
    fn run_that_is_not_queued_is_not_edited() {
        let mut made = queued(StateName::Pending);
        std::sync::Arc::make_mut(&mut made.spec).queued = false;
        assert_eq!(act(&made, &Action::Edit(QueueEdit::default())), Err(Refusal::NotQueued));
        let running = act(&queued(StateName::Running), &Action::Edit(QueueEdit::default()));
        assert_eq!(running, Err(Refusal::WrongState { action: ActionKind::Edit, state: StateName::Running }));
    }
}
