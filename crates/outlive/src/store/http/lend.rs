//! The other side: what a server answers to whoever borrows its store.
//!
//! A server knows nothing of who sends a write but their token. So what a write says is compared with what is on record:
//! a spec never changes, epochs never fall, an end stays. And nobody far away is a process of this machine: what would
//! prove here that their owner is dead, or have it signalled, is taken out of what they say of themselves.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::FORMAT;
use super::wire::{
    Answer, Became, Changes, Commit, Hello, List, Listed, Look, Offer, Offered, Select, ToldRecord, told,
};
use crate::filter::Filter;
use crate::health::Sight;
use crate::hex::hex;
use crate::id::{Epoch, RunId, WorkerId};
use crate::policy::Lease;
use crate::process::{Identity, Liveness, Vantage};
use crate::run::{Event, Key, Owner, Run};
use crate::store::{Beat, Change, Error, Expect, Page, Record, Selection, Store, Write, Written};
use crate::time::Timestamp;
use crate::transition::{follows, has_passed};

/// The most bytes of a call: a run with all that it may keep, and as it was left, some times over.
pub const BODY_LIMIT: usize = 16 << 20;
/// The most runs that a rule is offered at a time.
pub(super) const OFFERED: usize = 256;

/// What is lent, and to whom.
#[derive(Debug, Clone, Default)]
pub struct Lending {
    /// What tells the registry from any other.
    pub registry: Option<String>,
    /// What stories call whoever borrows it; none for the server's own user.
    pub user: Option<String>,
    /// The lease of runs that ask for none.
    pub lease: Option<Lease>,
    /// Whoever borrows it may be on another machine.
    pub is_far: bool,
}

/// Whether a call changes anything; none where there is no such call.
pub fn changes(call: &str) -> Option<bool> {
    match call {
        "hello" | "get" | "list" | "workers" | "starts" | "events" | "look" | "look_at_workers" => Some(false),
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
pub async fn answer(store: &dyn Store, lending: &Lending, call: &str, body: &[u8]) -> Result<Answered, NotUnderstood> {
    let mut stale = 0;
    let body = match call {
        "hello" => say(Ok(hello(store, lending))),
        "get" => say(store.get(&read::<Vec<RunId>>(body)?).await.map(told)),
        "list" => {
            let List { filter, page } = read(body)?;
            say(store.list(&filter, &page).await.map(Listed::from))
        }
        "commit" => say(commit(store, lending, read(body)?, &mut stale).await),
        "select" => say(select(store, read(body)?).await),
        "change" => say(change(store, lending, read(body)?).await),
        "beat" => {
            let mut beat: Beat = read(body)?;
            if lending.is_far {
                make_far(&mut beat.identity);
            }
            say(store.beat(&beat).await)
        }
        "workers" => say(store.workers().await),
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
    serde_json::to_vec(&Answer::from(answer)).map_err(|error| NotUnderstood(error.to_string()))
}

fn hello(store: &dyn Store, lending: &Lending) -> Hello {
    Hello {
        format: FORMAT,
        registry: lending.registry.clone(),
        user: lending.user.clone(),
        lease: lending.lease,
        sees: store.witness().is_some(),
    }
}

async fn commit(store: &dyn Store, lending: &Lending, commit: Commit, stale: &mut u64) -> Result<Vec<Became>, Error> {
    let claims: Vec<Epoch> = commit.writes.iter().map(|write| write.run.epoch).collect();
    let ids: Vec<RunId> = commit.writes.iter().map(|write| write.run.id).collect();
    let before: HashMap<RunId, Record> =
        store.get(&ids).await?.into_iter().map(|record| (record.run.id, record)).collect();
    let (mut became, mut writes) = (Vec::new(), Vec::new());
    for mut write in commit.writes {
        let before = before.get(&write.run.id);
        let is_meant = match write.expect {
            Expect::Absent => before.is_none(),
            Expect::Revision(expected) => before.is_some_and(|before| before.revision == expected),
        };
        // One that expects another version than there is was compared with nothing, and changes nothing.
        if is_meant {
            admit(lending, before.map(|record| &record.run), &mut write)?;
            writes.push(write);
            became.push(None);
        } else {
            became.push(Some(Written::Conflict(before.cloned().map(Box::new))));
        }
    }
    let mut written = store.commit(writes).await?.into_iter();
    let became: Vec<Option<Written>> = became.into_iter().map(|conflict| conflict.or_else(|| written.next())).collect();
    let is_stale = |(written, claim): &(&Option<Written>, Epoch)| match written {
        Some(Written::Conflict(Some(found))) => has_passed(&found.run, *claim),
        _ => false,
    };
    *stale += became.iter().zip(claims).filter(is_stale).map(|_| 1).sum::<u64>();
    became
        .into_iter()
        .map(|written| written.map(Became::from).ok_or_else(|| Error::Unknown("the store gave no answer".into())))
        .collect()
}

/// Refuses what no rule makes of a run, and has the rest say no more than whoever sends it can know.
fn admit(lending: &Lending, before: Option<&Run>, write: &mut Write) -> Result<(), Error> {
    admit_run(lending, before, &mut write.run, &mut write.events)?;
    write.ended.iter_mut().try_for_each(|ended| admit_run(lending, before, ended, &mut []))
}

fn admit_run(lending: &Lending, before: Option<&Run>, run: &mut Run, events: &mut [Event]) -> Result<(), Error> {
    let refused = |why| Error::Denied(format!("run `{}` cannot be written so: {why}", run.id));
    follows(before, run).map_err(refused)?;
    if let Some(user) = &lending.user {
        events.iter_mut().for_each(|event| event.by.user = user.as_str().into());
    }
    if lending.is_far {
        let known = before.and_then(owner_of).map(|owner| (owner.worker, owner.identity.clone()));
        if let Some(owner) = run.any_owner_mut() {
            match known {
                Some((worker, identity)) if worker == owner.worker => owner.identity = identity,
                _ => make_far(&mut owner.identity),
            }
        }
    }
    Ok(())
}

fn owner_of(run: &Run) -> Option<&crate::run::Owner> {
    run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref()))
}

/// Leaves of a process of another machine, or of an earlier boot of this one, what tells people which it is, and nothing
/// that proves anything.
fn make_far(identity: &mut Identity) {
    if identity.vantage.boot_id == Vantage::here().boot_id {
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
        seen.lock().unwrap_or_else(PoisonError::into_inner).push((run.clone(), now));
        None
    };
    let ids: Vec<RunId> = listing.records.iter().map(|record| record.run.id).collect();
    let selection = Selection { limit: ids.len(), filter: Filter { ids: Some(ids), ..filter }, order, due };
    store.update(&selection, &look).await?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let offered = |(run, now): (Run, Timestamp)| Offered { now, mark: mark(&run), told: run.into() };
    Ok(Offer { runs: seen.into_iter().map(offered).collect(), next: listing.next })
}

/// Makes the changes of those runs that are as they were offered.
async fn change(store: &dyn Store, lending: &Lending, changes: Changes) -> Result<Vec<ToldRecord>, Error> {
    let Changes { order, due, changes } = changes;
    let ids: Vec<RunId> = changes.iter().map(|change| change.transition.run.id).collect();
    let limit = ids.len();
    let wanted: HashMap<RunId, _> = changes.into_iter().map(|change| (change.transition.run.id, change)).collect();
    let refused: Mutex<Option<Error>> = Mutex::default();
    let rule = |run: &Run, _: Timestamp| {
        let change = wanted.get(&run.id).filter(|change| change.mark == mark(run))?;
        let mut transition = change.transition.clone();
        let mut events = [transition.event];
        let admitted = admit_run(lending, Some(run), &mut transition.run, &mut events).and_then(|()| {
            transition.ended.iter_mut().try_for_each(|ended| admit_run(lending, Some(run), ended, &mut []))
        });
        [transition.event] = events;
        match admitted {
            Ok(()) => Some(Change { transition, stamp: change.stamp }),
            Err(error) => {
                *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                None
            }
        }
    };
    let selection = Selection { filter: Filter::of(ids), order, limit, due };
    let changed = store.update(&selection, &rule).await?;
    match refused.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) if changed.is_empty() => Err(error),
        _ => Ok(told(changed)),
    }
}

/// What can be seen here of the processes of runs. Of one that has changed hands since it was read, nothing.
async fn look(store: &dyn Store, look: Look) -> Result<Vec<Sight>, Error> {
    let unknown = |why: &str| Sight { owner: Liveness::Unknown(why.into()), leftovers: Default::default() };
    let Some(witness) = store.witness() else {
        return Ok(look.runs.iter().map(|_| unknown("the server sees no processes")).collect());
    };
    let ids: Vec<RunId> = look.runs.iter().map(|(id, _)| *id).collect();
    let found: HashMap<RunId, Run> =
        store.get(&ids).await?.into_iter().map(|record| (record.run.id, record.run)).collect();
    let current: Vec<&Run> =
        look.runs.iter().filter_map(|(id, epoch)| found.get(id).filter(|run| run.epoch == *epoch)).collect();
    let mut sights: HashMap<RunId, Sight> = current.iter().map(|run| run.id).zip(witness.look(&current)).collect();
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
