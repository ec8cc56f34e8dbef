//! Rows: how a run stands, in columns.
//!
//! Most runs stand plainly: they wait as they were made, run as they were claimed, or have succeeded. What the columns
//! tell of such a run is all there is to tell, and it has no body. Of any other the body tells it as JSON.

use std::sync::Arc;

use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::run::{End, Ending, Owner, Pending, Run, Running, Spec, State};
use crate::model::time::Timestamp;
use crate::store::Error;

/// What the columns of a row tell, besides the run's id.
pub(super) struct Row<'a> {
    pub(super) spec: &'a str,
    pub(super) signature: Option<&'a str>,
    pub(super) state: &'a str,
    pub(super) epoch: Epoch,
    pub(super) created_at: Timestamp,
    /// Of what runs or ran.
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
    /// Who owns it or did, as far as that is on record.
    pub(super) owner: Option<Owner>,
    /// Whose it is, of what runs.
    pub(super) worker: Option<WorkerId>,
    pub(super) body: Option<&'a str>,
}

pub(super) fn corrupt(id: &dyn std::fmt::Display, error: &dyn std::fmt::Display) -> Error {
    Error::Corrupt(format!("the record of run `{id}` cannot be understood: {error}"))
}

/// When the attempt of a run began, as far as it has.
pub(super) fn started_at(run: &Run) -> Option<Timestamp> {
    match &run.state {
        State::Running(running) => Some(running.started_at),
        State::Ended(ending) => ending.started_at,
        State::Pending(_) | State::Suspended(_) => None,
    }
}

/// Who owns a run, or did until it ended.
pub(super) fn owner(run: &Run) -> Option<&Owner> {
    run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref()))
}

/// What is to be said of a run besides its columns: nothing of one that stands plainly.
pub(super) fn body(run: &Run) -> Result<Option<String>, Error> {
    if is_plain(run) {
        return Ok(None);
    }
    let written = |error| corrupt(&run.id, &error);
    let serde_json::Value::Object(mut standing) = serde_json::to_value(run).map_err(written)? else {
        return Err(corrupt(&run.id, &"it is no object"));
    };
    // They are written once, with the spec.
    standing.remove("spec");
    standing.remove("signature");
    serde_json::to_string(&standing).map(Some).map_err(written)
}

/// Whether the columns tell all there is to tell of a run: [`plainly`] makes the same of them. Every field is named, so that
/// none is forgotten, and compared where it is: a second run to compare with would have to be made for every write.
fn is_plain(run: &Run) -> bool {
    let Run {
        id: _,
        spec,
        signature: _,
        epoch: _,
        attempt,
        state,
        priority,
        cancel,
        progress,
        usage,
        checkpoint,
        result,
        artifacts,
        manifest_ref,
        reaps,
        failures,
        created_at,
        updated_at,
        archived,
        swept,
        copied,
        foreign,
    } = run;
    let is_bare = priority.is_none()
        && cancel.is_none()
        && progress.is_none()
        && usage.is_none()
        && checkpoint.is_none()
        && result.is_none()
        && artifacts.is_empty()
        && manifest_ref.is_none()
        && archived.is_none()
        && swept.is_none();
    if !is_bare || (*attempt, *reaps, *failures, *copied, *foreign) != (1, 0, 0, false, false) {
        return false;
    }
    match state {
        State::Pending(Pending { since, not_before, slot, waits_for, reason, paused }) => {
            let is_fresh = since == created_at && updated_at == created_at && *not_before == spec.not_before;
            let waits = waits_for.iter().eq(spec.after.iter().map(|after| &after.run));
            is_fresh && waits && slot.is_none() && reason.is_none() && paused.is_none()
        }
        State::Running(Running { owner: _, started_at, progressed_at, started_by, ready_at, leash, ports }) => {
            let is_fresh = progressed_at == started_at && updated_at == started_at;
            is_fresh && started_by.is_none() && ready_at.is_none() && leash.is_none() && ports.is_empty()
        }
        State::Ended(Ending { how: End::Succeeded, at, started_at: Some(_), owner: _, exit: None }) => updated_at == at,
        State::Ended(_) | State::Suspended(_) => false,
    }
}

/// A run that stands as its columns say, if that is all there is to say.
fn plainly(
    fresh: Run,
    epoch: Epoch,
    state: &str,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    owner: Option<Owner>,
) -> Option<Run> {
    let (state, updated_at) = match (state, started_at, ended_at, owner) {
        ("pending", ..) => (fresh.state, fresh.created_at),
        ("running", Some(started_at), None, Some(owner)) => {
            (State::Running(Running::begun(owner, started_at, started_at)), started_at)
        }
        ("succeeded", Some(started_at), Some(at), owner) => {
            let started_at = Some(started_at);
            (State::Ended(Ending { how: End::Succeeded, at, started_at, owner, exit: None }), at)
        }
        _ => return None,
    };
    Some(Run { epoch, state, updated_at, ..fresh })
}

/// A run, from its row.
pub(super) fn run(id: RunId, row: Row<'_>) -> Result<Run, Error> {
    let odd = |error: &dyn std::fmt::Display| corrupt(&id, error);
    if let Some(body) = row.body {
        let rest = body.strip_prefix('{').unwrap_or(body);
        let json = format!("{{\"spec\":{},{rest}", row.spec);
        let run: Run = serde_json::from_str(&json).map_err(|error| odd(&error))?;
        if run.id != id {
            return Err(odd(&"it tells of another run"));
        }
        return Ok(Run { signature: row.signature.map(Into::into), ..run });
    }
    let spec: Spec = serde_json::from_str(row.spec).map_err(|error| odd(&error))?;
    let fresh = Run::new(id, Arc::new(spec), row.signature.map(Into::into), row.created_at);
    // What an unknown owner has is still its own, until its lease lapses.
    let owner = row.owner.or_else(|| row.worker.map(Owner::unknown));
    let plain = plainly(fresh, row.epoch, row.state, row.started_at, row.ended_at, owner);
    plain.ok_or_else(|| odd(&format!("`{}` without a word more", row.state)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::run::StateName;
    use crate::testing::{SeededEntropy, lifecycle, spec};

    #[test]
    fn a_run_is_read_back_as_it_was_whatever_its_state() {
        let worker = WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(2));
        for state in StateName::ALL {
            let mut before = lifecycle::specimen(state, spec("test"), worker).unwrap();
            before.signature = Some("signed".into());
            let body = body(&before).unwrap();
            let plain = [StateName::Pending, StateName::Running, StateName::Succeeded];
            assert_eq!(body.is_none(), plain.contains(&state), "{state}: {body:?}");
            let row = Row {
                spec: &serde_json::to_string(&before.spec).unwrap(),
                signature: Some("signed"),
                state: state.as_str(),
                epoch: before.epoch,
                created_at: before.created_at,
                started_at: started_at(&before),
                ended_at: before.ending().map(|ending| ending.at),
                owner: owner(&before).cloned(),
                worker: None,
                body: body.as_deref(),
            };
            assert_eq!(run(before.id, row).unwrap(), before, "{state}");
        }
    }

    #[test]
    fn w08_what_an_unknown_owner_has_or_had_is_read_without_it() {
        let worker = WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(2));
        for (state, left) in [(StateName::Running, Some(Owner::unknown(worker))), (StateName::Succeeded, None)] {
            let before = lifecycle::specimen(state, spec("test"), worker).unwrap();
            let row = Row {
                spec: &serde_json::to_string(&before.spec).unwrap(),
                signature: None,
                state: state.as_str(),
                epoch: before.epoch,
                created_at: before.created_at,
                started_at: started_at(&before),
                ended_at: before.ending().map(|ending| ending.at),
                owner: None,
                worker: before.owner().map(|owner| owner.worker),
                body: None,
            };
            let read = run(before.id, row).unwrap();
            assert_eq!((read.state.name(), owner(&read)), (state, left.as_ref()));
        }
    }

    #[test]
    fn whatever_columns_do_not_tell_is_in_the_body() {
        let worker = WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(2));
        let plain = lifecycle::specimen(StateName::Running, spec("test"), worker).unwrap();
        let changes: [fn(&mut Run); 6] = [
            |run| run.attempt = 2,
            |run| run.checkpoint = Some(1.into()),
            |run| run.failures = 1,
            |run| run.updated_at = Timestamp::from_micros(7),
            |run| run.copied = true,
            |run| run.artifacts.push("a".into()),
        ];
        for change in changes {
            let mut run = plain.clone();
            change(&mut run);
            assert!(body(&run).unwrap().is_some(), "{run:?}");
        }
    }
}
