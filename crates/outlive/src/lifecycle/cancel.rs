//! Cancelling: what a request makes of a run that has an owner, live processes, or neither.

use std::time::Duration;

use super::{Action, ActionContext, ActionKind, Change, Refusal};
use crate::model::owner::LiveProcesses;
use crate::model::run::{CancelRequest, End, Ending, Run, State, truncate_message};

impl ActionContext<'_> {
    /// Keeps the request with the run, and ends the run where nothing of it is left that could go on.
    ///
    /// An owner ends its own run, with its processes. Without an owner the live processes of the last attempt decide: while
    /// there are any, the run keeps its state and the request, so that nothing starts another attempt.
    pub(super) fn request_cancel(
        &self,
        reason: Option<String>,
        grace: Option<Duration>,
        live: &LiveProcesses,
    ) -> Result<Change, Refusal> {
        let request = CancelRequest { by: self.by.clone(), at: self.now, reason: reason.map(truncate_message), grace };
        let reason = request.reason.clone();
        // The first request stands: a second one neither moves its time nor takes its name.
        let request = self.run.cancel.clone().unwrap_or_else(|| Box::new(request));
        let how = End::Cancelled(request.clone());
        let ended = match &self.run.state {
            State::Running(_) => None,
            State::Pending(_) => Some(Ending { how, at: self.now, started_at: None, owner: None, exit: None }),
            State::Suspended(suspended) => {
                // The attempt that a parked run waits for has not started.
                let started_at = Some(suspended.started_at).filter(|_| !suspended.parked);
                // A clock set back since must not make it end before it began.
                let at = started_at.map_or(self.now, |started_at| self.now.max(started_at));
                Some(Ending { how, at, started_at, owner: None, exit: None })
            }
            // Its attempt ended when and as it did; only what follows is decided here.
            State::Ended(ending) if is_resumable(&ending.how) => Some(Ending { how, ..ending.clone() }),
            State::Ended(ending) => {
                return Err(Refusal::WrongState { action: ActionKind::RequestCancel, state: ending.how.name() });
            }
        };
        let next = self.with(|next| {
            next.cancel = Some(request);
            if let Some(ending) = ended.filter(|_| live.is_empty()) {
                next.state = State::Ended(ending);
            }
        });
        Ok(next.because(reason))
    }
}

/// Refuses another attempt of a run whose cancellation was requested, and whose processes have yet to end.
pub(super) fn check_not_requested(run: &Run, action: &Action) -> Result<(), Refusal> {
    let begins = matches!(action, Action::Claim { .. } | Action::Wake { .. } | Action::Unpark | Action::Resume { .. });
    let may_begin = match &run.state {
        State::Pending(_) | State::Suspended(_) => true,
        State::Ended(ending) => is_resumable(&ending.how),
        State::Running(_) => false,
    };
    if begins && may_begin && run.cancel.is_some() { Err(Refusal::CancelRequested) } else { Ok(()) }
}

/// Whether an attempt that ended so may be followed by another.
fn is_resumable(how: &End) -> bool {
    matches!(how, End::Interrupted(_) | End::Dead(_))
}
