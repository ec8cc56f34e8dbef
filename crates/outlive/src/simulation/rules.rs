//! What must be true of any single write, given what was on record before it.

use crate::model::id::WorkerId;
use crate::model::run::{Event, Run, State, StateName};
use crate::store::Record;

/// A write that took effect.
pub(super) struct Wrote<'a> {
    /// The process that made it, as a worker.
    pub(super) worker: WorkerId,
    pub(super) after: &'a Record,
    pub(super) events: &'a [Event],
    /// The attempt that it ended, if any.
    pub(super) ended: Option<&'a Run>,
}

impl Wrote<'_> {
    /// The word of the last thing it did.
    pub(super) fn action(&self) -> &str {
        self.events.last().map_or("nothing", |event| &event.action)
    }
}

fn demand(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

/// Checks a write against the record that it replaced.
pub(super) fn check(before: Option<&Record>, wrote: &Wrote<'_>) -> Result<(), String> {
    let (after, action) = (&wrote.after.run, wrote.action());
    let revision = before.map_or(0, |before| before.revision.0);
    demand(wrote.after.revision.0 == revision + 1, || {
        format!("revisions do not chain: {revision}, then {}", wrote.after.revision.0)
    })?;
    let (epoch, attempt) = before.map_or((0, 1), |before| (before.run.epoch.0, before.run.attempt));
    let takes = matches!(action, "claim" | "wake" | "resume" | "adopt");
    let rises = u64::from(takes || action == "reap");
    demand(after.epoch.0 == epoch + rises, || format!("`{action}` moved the epoch from {epoch} to {}", after.epoch))?;
    let requeued = action == "reap" && matches!(after.state, State::Pending(_));
    let next = u32::from(action == "resume" || requeued);
    demand(after.attempt == attempt + next, || {
        format!("`{action}` moved the attempt from {attempt} to {}", after.attempt)
    })?;
    for ended in wrote.ended.into_iter().chain([after]) {
        if let Some((ending, started)) = ended.ending().and_then(|ending| Some((ending, ending.started_at?))) {
            demand(ending.at >= started, || format!("it ended at {}, before it started at {started}", ending.at))?;
        }
    }
    if let Some(event) = wrote.events.last() {
        let logged = (event.to, event.epoch, event.attempt);
        let is = (after.state.name(), after.epoch, after.attempt);
        demand(logged == is, || format!("its event log says {logged:?} and it is {is:?}"))?;
    }
    if takes && let Some(owner) = after.owner() {
        demand(owner.worker == wrote.worker, || format!("`{action}` made another process the owner"))?;
    }
    match before {
        Some(before) => check_from(&before.run, wrote),
        None => demand(matches!(action, "enqueue" | "claim"), || format!("a run began with `{action}`")),
    }
}

/// Checks who may do this to a run that stands so.
fn check_from(before: &Run, wrote: &Wrote<'_>) -> Result<(), String> {
    let (after, action, state) = (&wrote.after.run, wrote.action(), before.state.name());
    demand(before.spec == after.spec && before.created_at == after.created_at, || "its spec changed".into())?;
    match action {
        "report" | "suspend" | "finish" | "interrupt" => {
            let owner = before.owner().map(|owner| owner.worker);
            demand(owner == Some(wrote.worker), || {
                format!("fence: a process that does not own the run could `{action}` it while it was {state}")
            })
        }
        "archive" | "unarchive" => {
            let unmarked = |run: &Run| Run { archived: None, updated_at: before.updated_at, ..run.clone() };
            demand(before.ending().is_some() && unmarked(before) == unmarked(after), || {
                format!("final is final: `{action}` changed more than a mark of a {state} run")
            })
        }
        "sweep" => {
            let unmarked = |run: &Run| Run { swept: None, updated_at: before.updated_at, ..run.clone() };
            let is_over = before.ending().is_some() && state != StateName::Interrupted;
            demand(is_over && unmarked(before) == unmarked(after), || {
                format!("sweep: a {state} run was marked, or more of it changed than the mark")
            })
        }
        "resume" => {
            let resumable = matches!(state, StateName::Interrupted | StateName::Dead | StateName::Failed);
            demand(resumable && before.swept.is_none(), || format!("a run that was {state} was resumed"))
        }
        "claim" => demand(state == StateName::Pending, || format!("a run that was {state} was claimed")),
        "wake" => demand(state == StateName::Suspended, || format!("a run that was {state} was woken")),
        "reap" => demand(state == StateName::Running, || format!("a run that was {state} was reaped")),
        "adopt" => {
            let (owner, adopter) = (before.owner().map(|owner| owner.worker), wrote.worker);
            demand(owner.is_some_and(|owner| owner != adopter), || {
                format!("a run that was {state} was adopted from {owner:?} by {adopter}")
            })
        }
        "request cancel" => {
            let is_final = matches!(state, StateName::Succeeded | StateName::Failed | StateName::Cancelled);
            demand(!is_final, || format!("final is final: a cancel request changed a {state} run"))?;
            let is_resumable = matches!(state, StateName::Interrupted | StateName::Dead);
            demand(!is_resumable || after.state.name() == StateName::Cancelled, || {
                format!("a {state} run without processes was not cancelled on request")
            })
        }
        other => Err(format!("`{other}` is nothing that can be done to a run")),
    }
}
