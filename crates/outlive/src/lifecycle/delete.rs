//! Deletion: which runs may be deleted.

use super::{ActionKind, Refusal};
use crate::lifecycle::health::RunStatus;
use crate::model::id::RunId;
use crate::model::run::Run;

/// Refuses to delete a run that has not ended, whose processes live, that is a step, or that other runs wait for.
pub fn check_delete(seen: &RunStatus, awaited_by: Vec<RunId>) -> Result<(), Refusal> {
    let run = &seen.run;
    if let Some(step) = &run.spec.step {
        return Err(Refusal::DeletedWith(step.of));
    }
    if !seen.is_over() {
        return Err(Refusal::WrongState { action: ActionKind::Delete, state: run.state.name() });
    }
    if !seen.leftovers.is_empty() {
        return Err(Refusal::ProcessesAlive(seen.leftovers.clone()));
    }
    if awaited_by.is_empty() { Ok(()) } else { Err(Refusal::AwaitedBy(awaited_by)) }
}

/// Whether a run may be deleted because of its age alone: a dead or interrupted run may be resumed until it is archived.
pub fn deletes_unnamed(run: &Run) -> bool {
    run.archived.is_some() || run.state.name().is_final()
}
