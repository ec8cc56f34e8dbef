//! The server's side: how it answers clients of its store.
//!
//! A server knows nothing of who sends a write but their token. So it applies the lifecycle itself: a write that no action
//! makes of what is on record is refused, and what is written, with its event, is the server's own result. The author of
//! a run and of an event is the holder of the token. And a process of another machine is no process of this one: what
//! would prove here that an owner is dead, or have it signalled, is taken out of what it says of itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::FORMAT;
use super::wire::{
    Changes, Commit, Handshake, List, Listed, ObserveRequest, Offer, Offered, Reply, Select, WireRecord, WriteResult,
    wire_records,
};
use crate::lifecycle::health::Observation;
use crate::lifecycle::{Sent, Transition, has_passed, replay};
use crate::model::filter::Filter;
use crate::model::hex::hex;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::{HostContext, Identity, Liveness};
use crate::model::policy::Lease;
use crate::model::run::{Actor, Event, Key, Owner, Run, State, StateName};
use crate::model::time::Timestamp;
use crate::store::{Beat, Change, Error, Expect, Listing, Page, Record, Selection, Store, Write, WriteOutcome};
use crate::util::sync::lock;

/// The most bytes of a call: a run with all that it may keep, and as it was left, some times over.
pub const BODY_LIMIT: usize = 16 << 20;
/// The most runs that a rule is offered at a time.
pub(super) const OFFERED: usize = 256;

/// Which registry is served, and for which client.
#[derive(Debug, Clone, Default)]
pub struct ServeContext {
    /// What tells the registry from any other.
    pub registry: Option<String>,
    /// The name of the client in event logs; none for the server's own user.
    pub user: Option<String>,
    /// The lease of runs that ask for none.
    pub lease: Option<Lease>,
    /// The client may be on another machine.
    pub is_far: bool,
    /// The client may only read, and has no use for the signatures of runs.
    pub reads_only: bool,
}

impl ServeContext {
    /// Records without what the client has no use for.
    fn readable(&self, mut records: Vec<Record>) -> Vec<Record> {
        if self.reads_only {
            records.iter_mut().for_each(|record| record.run.signature = None);
        }
        records
    }

    /// Who a write is from, as far as the server knows.
    fn author(&self, run: &Run) -> Actor {
        let claimed = run.spec.created_by.clone();
        let user = self.user.as_deref().map_or(claimed.user, Into::into);
        let pid = run.owner().map_or(claimed.pid, |owner| owner.identity.pid);
        Actor { user, host: claimed.host, pid }
    }
}

/// Whether a call changes anything; none where there is no such call.
pub fn changes(call: &str) -> Option<bool> {
    match call {
        "hello" | "get" | "list" | "counts" | "workers" | "next_due" | "heads" | "starts" | "events" | "look"
        | "look_at_workers" => Some(false),
        "commit" | "select" | "change" | "beat" => Some(true),
        _ => None,
    }
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotUnderstood(String);

/// What a call is answered with.
#[derive(Debug)]
pub struct Answered {
    /// The answer, as JSON.
    pub body: Vec<u8>,
    /// How many writes were refused because their attempt no longer owned the run.
    pub stale: u64,
}

/// Answers a call.
pub async fn answer(
    store: &dyn Store,
    context: &ServeContext,
    call: &str,
    body: &[u8],
) -> Result<Answered, NotUnderstood> {
    let mut stale = 0;
    let body = match call {
        "hello" => say(Ok(hello(store, context))),
        "get" => {
            say(store.get(&read::<Vec<RunId>>(body)?).await.map(|records| wire_records(context.readable(records))))
        }
        "list" => {
            let List { filter, page } = read(body)?;
            let readable =
                |listing: Listing| Listing { records: context.readable(listing.records), next: listing.next };
            say(store.list(&filter, &page).await.map(readable).map(Listed::from))
        }
        "commit" => say(commit(store, context, read(body)?, &mut stale).await),
        "select" => say(select(store, read(body)?).await),
        "change" => say(change(store, context, read(body)?).await),
        "beat" => {
            let mut beat: Beat = read(body)?;
            if context.is_far {
                make_far(&mut beat.identity);
            }
            say(store.beat(&beat).await)
        }
        "counts" => say(store.counts().await),
        "workers" => say(store.workers().await),
        "next_due" => {
            let left = store.next_due(&read::<Filter>(body)?).await;
            say(left.map(|left| left.map(|left| u64::try_from(left.as_micros()).unwrap_or(u64::MAX))))
        }
        "heads" => say(store.heads(&read::<Filter>(body)?).await),
        "starts" => say(store.starts(&read::<Vec<Key>>(body)?).await),
        "events" => say(store.events(read(body)?).await),
        "look" => say(look(store, read(body)?).await),
        "look_at_workers" => say(look_at_workers(store, &read::<Vec<WorkerId>>(body)?).await),
        _ => Err(NotUnderstood(format!("there is no call `{}`", call.chars().take(40).collect::<String>()))),
    };
    Ok(Answered { body: body?, stale })
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, NotUnderstood> {
    serde_json::from_slice(body).map_err(|error| NotUnderstood(format!("the call cannot be understood: {error}")))
}

fn say<T: Serialize>(answer: Result<T, Error>) -> Result<Vec<u8>, NotUnderstood> {
    serde_json::to_vec(&Reply::from(answer)).map_err(|error| NotUnderstood(error.to_string()))
}

fn hello(store: &dyn Store, context: &ServeContext) -> Handshake {
    Handshake {
        format: FORMAT,
        registry: context.registry.clone(),
        user: context.user.clone(),
        lease: context.lease,
        sees: store.witness().is_some(),
        reads_only: context.reads_only,
    }
}

async fn commit(
    store: &dyn Store,
    context: &ServeContext,
    commit: Commit,
    stale: &mut u64,
) -> Result<Vec<WriteResult>, Error> {
    let claims: Vec<Epoch> = commit.writes.iter().map(|write| write.run.epoch).collect();
    let ids: Vec<RunId> = commit.writes.iter().map(|write| write.run.id).collect();
    let before: HashMap<RunId, Record> =
        store.get(&ids).await?.into_iter().map(|record| (record.run.id, record)).collect();
    let ended =
        ended_parents(store, commit.writes.iter().map(|write| (&write.run.id, &write.events[..])), &before).await?;
    let (mut became, mut writes) = (Vec::new(), Vec::new());
    for mut write in commit.writes {
        let before = before.get(&write.run.id);
        let is_meant = match write.expect {
            Expect::Absent => before.is_none(),
            Expect::Revision(expected) => before.is_some_and(|before| before.revision == expected),
        };
        // One that expects another version than there is was compared with nothing, and changes nothing.
        if is_meant {
            admit(context, before.map(|record| &record.run), &ended, &mut write)?;
            writes.push(write);
            became.push(None);
        } else {
            became.push(Some(WriteOutcome::Conflict(before.cloned().map(Box::new))));
        }
    }
    let mut written = store.commit(writes).await?.into_iter();
    let became: Vec<Option<WriteOutcome>> =
        became.into_iter().map(|conflict| conflict.or_else(|| written.next())).collect();
    let is_stale = |(written, claim): &(&Option<WriteOutcome>, Epoch)| match written {
        Some(WriteOutcome::Conflict(Some(found))) => has_passed(&found.run, *claim),
        _ => false,
    };
    *stale += became.iter().zip(claims).filter(is_stale).map(|_| 1).sum::<u64>();
    became
        .into_iter()
        .map(|written| written.map(WriteResult::from).ok_or_else(|| Error::Unknown("the store gave no answer".into())))
        .collect()
}

/// How the runs ended that released ones wait for.
async fn ended_parents<'a>(
    store: &dyn Store,
    writes: impl Iterator<Item = (&'a RunId, &'a [Event])>,
    before: &HashMap<RunId, Record>,
) -> Result<HashMap<RunId, StateName>, Error> {
    let is_release = |events: &[Event]| events.iter().any(|event| event.action == "release");
    let waiting = writes.filter(|(_, events)| is_release(events)).filter_map(|(id, _)| before.get(id));
    let parents = waiting.flat_map(|record| match &record.run.state {
        State::Pending(pending) => pending.waits_for.clone(),
        _ => Vec::new(),
    });
    let parents: Vec<RunId> = parents.collect();
    if parents.is_empty() {
        return Ok(HashMap::new());
    }
    let found = store.get(&parents).await?.into_iter();
    Ok(found.filter_map(|record| Some((record.run.id, record.run.ending()?.how.name()))).collect())
}

/// Has a write say no more than its sender can know, and puts what the lifecycle makes of it in its place. A write
/// that no action makes is refused.
fn admit(
    context: &ServeContext,
    before: Option<&Run>,
    ended: &HashMap<RunId, StateName>,
    write: &mut Write,
) -> Result<(), Error> {
    let known = before.and_then(owner_of).map(|owner| (owner.worker, owner.identity.clone()));
    for run in [&mut write.run].into_iter().chain(write.ended.as_deref_mut()) {
        admit_run(context, before, known.as_ref(), run);
    }
    if let Some(user) = &context.user {
        write.events.iter_mut().for_each(|event| event.by.user = user.as_str().into());
    }
    let (id, by) = (write.run.id, context.author(&write.run));
    let sent = Sent { run: &write.run, ended: write.ended.as_deref(), events: &write.events, by: &by };
    let replayed = replay(before, &sent, &|parent| ended.get(&parent).copied())
        .map_err(|why| Error::Denied(format!("run `{id}` cannot be written so: {why}")))?;
    (write.run, write.ended, write.events) = (replayed.run, replayed.ended, replayed.events);
    Ok(())
}

/// Puts what the server knows in place of what the sender of a run says of itself.
fn admit_run(context: &ServeContext, before: Option<&Run>, known: Option<&(WorkerId, Identity)>, run: &mut Run) {
    if let Some(user) = context.user.as_deref().filter(|user| before.is_none() && *run.spec.created_by.user != **user) {
        Arc::make_mut(&mut run.spec).created_by.user = user.into();
    }
    if !context.is_far {
        return;
    }
    if let Some(owner) = run.any_owner_mut() {
        match known {
            Some((worker, identity)) if *worker == owner.worker => owner.identity = identity.clone(),
            _ => make_far(&mut owner.identity),
        }
    }
}

fn owner_of(run: &Run) -> Option<&crate::model::run::Owner> {
    run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref()))
}

/// Leaves of a process of another machine, or of an earlier boot of this one, what tells people which it is, and nothing
/// that proves anything.
fn make_far(identity: &mut Identity) {
    if identity.vantage.boot_id == HostContext::here().boot_id {
        return;
    }
    identity.vantage.boot_id = "".into();
    (identity.pidfs_inode, identity.lock_inode) = (None, None);
}

/// What a run is known by as it stands, with what was heard of its owner.
fn mark(run: &Run) -> String {
    let heard = run.owner().map(|owner| (owner.heard.beat, owner.heard.at.as_micros()));
    let said = serde_json::to_vec(&(run, heard)).unwrap_or_default();
    hex(&Sha256::digest(said)[..16])
}

/// Looks at the runs of a selection as an update would, and changes none.
async fn select(store: &dyn Store, select: Select) -> Result<Offer, Error> {
    let Select { filter, order, due, after, limit } = select;
    let page = Page { after, limit: limit.clamp(1, OFFERED), order };
    let listing = store.list(&filter, &page).await?;
    if listing.records.is_empty() {
        return Ok(Offer { runs: Vec::new(), next: None });
    }
    let seen: Mutex<Vec<(Run, Timestamp)>> = Mutex::default();
    let look = |run: &Run, now: Timestamp| -> Option<Change> {
        lock(&seen).push((run.clone(), now));
        None
    };
    let ids: Vec<RunId> = listing.records.iter().map(|record| record.run.id).collect();
    let selection = Selection { limit: ids.len(), filter: Filter { ids: Some(ids), ..filter }, order, due };
    store.update(&selection, &look).await?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let offered = |(run, now): (Run, Timestamp)| Offered { now, mark: mark(&run), run: run.into() };
    Ok(Offer { runs: seen.into_iter().map(offered).collect(), next: listing.next })
}

/// Makes the changes of those runs that are as they were offered.
async fn change(store: &dyn Store, context: &ServeContext, changes: Changes) -> Result<Vec<WireRecord>, Error> {
    let Changes { order, due, changes } = changes;
    let ids: Vec<RunId> = changes.iter().map(|change| change.transition.run.id).collect();
    let limit = ids.len();
    let wanted: HashMap<RunId, _> = changes.into_iter().map(|change| (change.transition.run.id, change)).collect();
    let told_of =
        wanted.values().map(|change| (&change.transition.run.id, std::slice::from_ref(&change.transition.event)));
    let releases = |(_, events): &(&RunId, &[Event])| events.iter().any(|event| event.action == "release");
    let releasing: Vec<RunId> = told_of.clone().filter(releases).map(|(id, _)| *id).collect();
    let before = store.get(&releasing).await?.into_iter().map(|record| (record.run.id, record)).collect();
    let ended = ended_parents(store, told_of, &before).await?;
    let refused: Mutex<Option<Error>> = Mutex::default();
    let rule = |run: &Run, _: Timestamp| {
        let change = wanted.get(&run.id).filter(|change| change.mark == mark(run))?;
        let Transition { run: sent, event, ended: left } = change.transition.clone();
        let expect = Expect::Absent;
        let mut write = Write { expect, run: sent, events: vec![event], ended: left, stamp: change.stamp };
        match admit(context, Some(run), &ended, &mut write) {
            Ok(()) => {
                let event = write.events.pop()?;
                let transition = Transition { run: write.run, event, ended: write.ended };
                Some(Change { transition, stamp: change.stamp })
            }
            Err(error) => {
                *lock(&refused) = Some(error);
                None
            }
        }
    };
    let selection = Selection { filter: Filter::of(ids), order, limit, due };
    let changed = store.update(&selection, &rule).await?;
    match refused.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) if changed.is_empty() => Err(error),
        _ => Ok(wire_records(changed)),
    }
}

/// What can be seen here of the processes of runs. Of one that has changed hands since it was read, nothing.
async fn look(store: &dyn Store, look: ObserveRequest) -> Result<Vec<Observation>, Error> {
    let unknown = |why: &str| Observation { owner: Liveness::Unknown(why.into()), leftovers: Default::default() };
    let Some(witness) = store.witness() else {
        return Ok(look.runs.iter().map(|_| unknown("the server sees no processes")).collect());
    };
    let ids: Vec<RunId> = look.runs.iter().map(|(id, _)| *id).collect();
    let found: HashMap<RunId, Run> =
        store.get(&ids).await?.into_iter().map(|record| (record.run.id, record.run)).collect();
    let current: Vec<&Run> =
        look.runs.iter().filter_map(|(id, epoch)| found.get(id).filter(|run| run.epoch == *epoch)).collect();
    let mut sights: HashMap<RunId, Observation> =
        current.iter().map(|run| run.id).zip(witness.look(&current)).collect();
    Ok(look.runs.iter().map(|(id, _)| sights.remove(id).unwrap_or_else(|| unknown("it has changed hands"))).collect())
}

/// Which of these workers can be seen here.
async fn look_at_workers(store: &dyn Store, workers: &[WorkerId]) -> Result<Vec<Liveness>, Error> {
    let owners: Vec<Owner> = store.workers().await?.iter().map(Owner::from).collect();
    let seen = store.witness().map(|witness| witness.look_at_owners(&owners)).unwrap_or_default();
    let mut seen: HashMap<WorkerId, Liveness> = owners.iter().map(|owner| owner.worker).zip(seen).collect();
    let unknown = || Liveness::Unknown("the server does not see it".into());
    Ok(workers.iter().map(|worker| seen.remove(worker).unwrap_or_else(unknown)).collect())
}

#[cfg(test)]
mod tests;
