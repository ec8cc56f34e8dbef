//! What may be done to a run now: the one answer that every surface shows.
//!
//! It is found by trying each action on the run with [`apply`], so no condition is written down twice. What the record
//! alone does not say comes from how a reader sees the run: whether its owner is gone, and which processes live.

use serde::Serialize;

use super::{Action, QueueEdit, Refusal, apply, rerun};
use crate::lifecycle::health::{Health, RunStatus};
use crate::model::owner::LiveProcesses;
use crate::model::run::{End, Run, State, StateName, Withheld};

/// An operation that a user may apply to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Take over its live processes.
    Adopt,
    /// Hide it from lists.
    Archive,
    /// Stop it, end its processes, and make it final.
    Cancel,
    /// Change its place in the queue.
    Edit,
    /// Hold it back, and with it its schedule.
    Pause,
    /// Mark it dead.
    Reap,
    /// Repeat it as a new run.
    Rerun,
    /// Start its next attempt, or have a worker continue it after it was suspended.
    Resume,
    /// Show it in lists again.
    Unarchive,
    /// Allow further attempts after it was parked.
    Unpark,
    /// Let it wait for its turn again after it was paused.
    Unpause,
}

/// The operations that would not be refused now, in alphabetical order.
///
/// `is_executable` says whether this user may execute the run's command; it is asked only where that decides.
pub fn can(seen: &RunStatus, is_executable: impl Fn() -> bool) -> Vec<Operation> {
    let run = &seen.run;
    let is_allowed = |action: &Action| apply(run, action, &run.spec.created_by, run.updated_at).is_ok();
    let is_orphaned = seen.health == Some(Health::Orphaned);
    let is_dead_unrecorded = seen.state == StateName::Dead && run.owner().is_some();
    let request = Action::RequestCancel { reason: None, grace: None, live: seen.leftovers.clone() };
    // Live processes of a run that is cancelled already are ended by another request.
    let is_unfinished = seen.state == StateName::Cancelled && !seen.leftovers.is_empty() && !run.copied;
    let offers = [
        (Operation::Adopt, is_orphaned && run.spec.step.is_none() && !run.copied),
        (Operation::Archive, is_allowed(&Action::Archive { reason: None })),
        (Operation::Cancel, is_allowed(&request) || is_unfinished),
        (Operation::Edit, is_allowed(&Action::Edit(QueueEdit::default()))),
        (Operation::Pause, is_allowed(&Action::Pause { reason: None })),
        (Operation::Reap, is_dead_unrecorded && !run.copied),
        (Operation::Rerun, may_rerun(seen) && is_executable()),
        (Operation::Resume, may_wake(run) || may_resume(seen) && is_executable()),
        (Operation::Unarchive, is_allowed(&Action::Unarchive)),
        (Operation::Unpark, is_allowed(&Action::Unpark)),
        (Operation::Unpause, is_allowed(&Action::Unpause)),
    ];
    offers.into_iter().filter(|(_, is_offered)| *is_offered).map(|(operation, _)| operation).collect()
}

/// Whether a worker would continue a run that is suspended. Nothing is executed here.
fn may_wake(run: &Run) -> bool {
    let wake = Action::Wake { owner: None };
    run.spec.queued && apply(run, &wake, &run.spec.created_by, run.updated_at).is_ok()
}

/// Whether the next attempt of a run whose processes are gone could start; also of one that failed, where that is asked for.
fn may_resume(seen: &RunStatus) -> bool {
    let run = &seen.run;
    if run.copied || run.spec.step.is_some() || !has_command(run) || !seen.leftovers.is_empty() {
        return false;
    }
    match &run.state {
        // It is marked dead first.
        State::Running(_) => seen.state == StateName::Dead,
        // It waits for its next attempt, which may start before its time.
        State::Pending(pending) => run.attempt > 1 && pending.waits_for.is_empty() && run.cancel.is_none(),
        State::Suspended(_) => false,
        State::Ended(_) => {
            let resume = Action::Resume { failed_too: true, leftovers: LiveProcesses::default(), owner: None };
            apply(run, &resume, &run.spec.created_by, run.updated_at).is_ok()
        }
    }
}

fn may_rerun(seen: &RunStatus) -> bool {
    let is_allowed: Result<_, Refusal> = rerun(&seen.run, seen.state, false, None);
    is_allowed.is_ok() && (seen.run.spec.command.is_none() || has_command(&seen.run))
}

/// Whether the words of its command are known.
fn has_command(run: &Run) -> bool {
    run.spec.command.is_some() && run.spec.withheld != Some(Withheld::Arguments)
}

/// The signal of a keyboard: a person stopped the run.
const SIGINT: i32 = 2;

/// Whether a run is resumed where no run is named: not one that a person stopped from a keyboard, nor one of
/// `--resume-on never`, nor a step, nor one without a command.
pub fn resumes_unnamed(run: &Run) -> bool {
    let by_keyboard = run.ending().is_some_and(|ending| match &ending.how {
        End::Interrupted(interruption) => interruption.signal == Some(SIGINT),
        _ => false,
    });
    let spec = &run.spec;
    spec.command.is_some() && spec.step.is_none() && !spec.policy.retry.never && !by_keyboard && !run.copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::health::see;
    use crate::model::id::WorkerId;
    use crate::model::run::{Arg, Command, Spec, Swept};
    use crate::model::time::Timestamp;
    use crate::testing::lifecycle::specimen;
    use crate::testing::{SeededEntropy, spec};

    fn seen(state: StateName) -> RunStatus {
        let worker = WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(2));
        let command = Command::new(vec![Arg::Text("true".into())], Arg::Text("/".into()));
        let run = specimen(state, Spec { command: Some(command), ..spec("job") }, worker).unwrap();
        let now = run.updated_at;
        see(run, None, now)
    }

    fn words(seen: &RunStatus, is_executable: bool) -> Vec<String> {
        can(seen, || is_executable)
            .iter()
            .map(|one| serde_json::to_value(one).unwrap().as_str().unwrap().into())
            .collect()
    }

    #[test]
    fn t1_17_one_function_answers_what_may_be_done() {
        let expected: [(StateName, &[&str]); 8] = [
            (StateName::Pending, &["cancel"]),
            (StateName::Running, &["cancel"]),
            (StateName::Suspended, &["cancel"]),
            (StateName::Interrupted, &["archive", "cancel", "rerun", "resume"]),
            (StateName::Dead, &["archive", "cancel", "rerun", "resume"]),
            (StateName::Succeeded, &["archive", "rerun"]),
            (StateName::Failed, &["archive", "rerun", "resume"]),
            (StateName::Cancelled, &["archive", "rerun"]),
        ];
        for (state, operations) in expected {
            assert_eq!(words(&seen(state), true), operations, "{state}");
        }
    }

    #[test]
    fn suspended_run_is_resumed_only_where_a_worker_may_claim_it() {
        let mut queued = seen(StateName::Suspended);
        std::sync::Arc::make_mut(&mut queued.run.spec).queued = true;
        assert_eq!(words(&queued, false), ["cancel", "resume"], "its worker executes it, not this user");
        queued.run.copied = true;
        assert_eq!(words(&queued, true), [""; 0]);
    }

    #[test]
    fn t1_17_live_processes_and_strangers_are_not_resumed() {
        let mut live = seen(StateName::Interrupted);
        live.leftovers.pids = vec![7];
        assert_eq!(words(&live, true), ["archive", "cancel", "rerun"]);
        assert_eq!(words(&seen(StateName::Dead), false), ["archive", "cancel"], "of another user");
        let mut unfinished = seen(StateName::Cancelled);
        unfinished.leftovers.pids = vec![7];
        assert_eq!(words(&unfinished, true), ["archive", "cancel", "rerun"]);
        let mut copied = seen(StateName::Dead);
        copied.run.copied = true;
        assert_eq!(words(&copied, false), ["archive"]);
        let mut swept = seen(StateName::Dead);
        let (by, at) = (swept.run.spec.created_by.clone(), swept.run.updated_at);
        swept.run.swept = Some(Box::new(Swept { by, at, done: true, process: None }));
        assert_eq!(words(&swept, true), ["archive", "cancel", "rerun"], "what it made is deleted");
        let mut unrecorded = seen(StateName::Running);
        unrecorded.state = StateName::Dead;
        assert_eq!(words(&unrecorded, true), ["cancel", "reap", "rerun", "resume"]);
    }
}
