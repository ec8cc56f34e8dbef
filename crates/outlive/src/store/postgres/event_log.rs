//! Stories: what was done to a run, a line for each event.
//!
//! Most lines are of runs that are made, claimed and done. They are written in few words, separated by tabs; any other
//! line is JSON.

use std::fmt::Write as _;

use uuid::Uuid;

use super::owner_cache::{InternedOwner, Owners};
use crate::model::id::Epoch;
use crate::model::run::{Actor, Event, StateName};
use crate::model::time::Timestamp;
use crate::store::Error;

/// The words of an owner's event, in the order of its line, with the letter that it begins with.
const OWNED: [(&str, StateName, StateName, &str); 2] =
    [("C", StateName::Pending, StateName::Running, "claim"), ("S", StateName::Running, StateName::Succeeded, "finish")];

/// Appends the line of an event. `owner` is who owns the run, or did until then.
pub(super) fn tell(events: &mut String, event: &Event, owner: Option<&InternedOwner>) -> Result<(), Error> {
    if !tell_shortly(events, event, owner) {
        let unwritable = |error| Error::Corrupt(format!("an event cannot be written down: {error}"));
        events.push_str(&serde_json::to_string(event).map_err(unwritable)?);
    }
    events.push('\n');
    Ok(())
}

/// Appends an event in its short form. Answers whether it has one.
fn tell_shortly(events: &mut String, event: &Event, owner: Option<&InternedOwner>) -> bool {
    let Event { at, action, by, from, to, epoch, attempt, worker, reason, evidence, usage } = event;
    let is_word = |text: &str| !text.contains(['\t', '\n', '\r']);
    if reason.is_some() || evidence.is_some() || usage.is_some() || !is_word(&by.user) || !is_word(&by.host) {
        return false;
    }
    let (at, Actor { user, host, pid }) = (at.as_micros(), by);
    if (&**action, *from, *to, *epoch, *attempt, worker) == ("enqueue", None, StateName::Pending, Epoch(0), 1, &None) {
        return write!(events, "E\t{at}\t{user}\t{host}\t{pid}").is_ok();
    }
    let is_told = |(_, before, after, name): &&(&str, StateName, StateName, &str)| {
        (*from, to, &**action) == (Some(*before), after, *name)
    };
    let (Some(InternedOwner { id, owner, .. }), Some((letter, ..))) = (owner, OWNED.iter().find(is_told)) else {
        return false;
    };
    let is_owners = (*worker, *pid, host) == (Some(owner.worker), owner.identity.pid, &owner.identity.vantage.host);
    is_owners && write!(events, "{letter}\t{at}\t{epoch}\t{attempt}\t{}\t{user}", id.simple()).is_ok()
}

/// The owners that an event log refers to.
pub(super) fn owners(events: &str) -> impl Iterator<Item = Uuid> {
    events.lines().filter(|line| line.starts_with(['C', 'S'])).filter_map(|line| line.split('\t').nth(4)?.parse().ok())
}

/// The event of a line, if it can be understood.
pub(super) fn event(line: &str, owners: &Owners) -> Option<Event> {
    if line.starts_with('{') {
        return serde_json::from_str(line).ok();
    }
    let words: Vec<&str> = line.split('\t').collect();
    let at = Timestamp::from_micros(words.get(1)?.parse().ok()?);
    let plain = |action: &'static str, by, from, to, epoch, attempt, worker| Event {
        at,
        action: action.into(),
        by,
        from,
        to,
        epoch,
        attempt,
        worker,
        reason: None,
        evidence: None,
        usage: None,
    };
    match words.as_slice() {
        ["E", _, user, host, pid] => {
            let by = Actor { user: (*user).into(), host: (*host).into(), pid: pid.parse().ok()? };
            Some(plain("enqueue", by, None, StateName::Pending, Epoch(0), 1, None))
        }
        [letter, _, epoch, attempt, owner, user] => {
            let (_, from, to, action) = OWNED.iter().find(|(known, ..)| known == letter)?;
            // What was done was done, also by a worker that is not on record.
            let owner = owners.get(owner.parse().ok()?);
            let process = owner.as_ref().map(|owner| (owner.identity.vantage.host.clone(), owner.identity.pid));
            let (host, pid) = process.unwrap_or_else(|| ("unknown".into(), 0));
            let by = Actor { user: (*user).into(), host, pid };
            let (epoch, attempt) = (Epoch(epoch.parse().ok()?), attempt.parse().ok()?);
            Some(plain(action, by, Some(*from), *to, epoch, attempt, owner.map(|owner| owner.worker)))
        }
        _ => None,
    }
}
