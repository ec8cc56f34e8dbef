//! Stores: where runs live, behind one small trait.
//!
//! A store keeps records and compares revisions; it knows no lifecycle. What a change may be is decided by the rules of the
//! library, and what a store must do is said here and checked by `outlive::conformance` (feature `testing`).

#[cfg(any(test, feature = "testing"))]
pub mod called;
pub(crate) mod counts;
pub(crate) mod fork_guard;
#[cfg(feature = "postgres")]
mod history;
#[cfg(feature = "http")]
#[doc(hidden)]
pub mod http;
#[cfg(any(feature = "http", feature = "object"))]
mod io_thread;
pub mod memory;
#[cfg(feature = "object")]
#[doc(hidden)]
pub mod object;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod postgres;
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub mod sqlite;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use self::counts::{Count, RunCounts};
pub use crate::lifecycle::Start;
pub use crate::lifecycle::health::ProcessObserver;
use crate::lifecycle::{Transition, is_start, moved_keys};
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::owner::Identity;
#[doc(hidden)]
pub use crate::model::page::PAGE_LIMIT;
pub use crate::model::page::{Cursor, InvalidCursor, Order, Page};
use crate::model::policy::Lease;
pub use crate::model::run::QueueHead;
use crate::model::run::{CancelRequest, Event, Key, LastHeartbeat, Owner, Run, State};
use crate::model::time::Timestamp;

/// A store of runs, behind which all backends look alike. Implement it, with the `async_trait` crate, to keep runs in a
/// database of your own: [`Registry::with_store`](crate::Registry::with_store) opens a registry over it. Programs that use
/// runs call a [`Registry`](crate::Registry) instead.
///
/// The conformance suite (feature `testing`) holds a store to this contract; `examples/own_store.rs` is a whole store with
/// its suite. Rules about states are not the store's matter: it writes what it is given, if the record is as expected.
///
/// # Contract
///
/// 1. **Atomic and conditional.** A [`Write`] takes effect only if the record still has the revision it expects, and
///    then wholly: the run, its event, its keys and its place among its owner's runs change together. Revisions of a
///    run only rise. A record that was written is read by every later call.
/// 2. **Keys.** A write after which a run newly holds keys takes effect only if each has a holder to spare. Whatever
///    makes a run hold no keys frees them in the same write. A write by which an attempt starts takes effect only if
///    each rate of the run lets one more start, by the store's own clock, and counts as one from then on.
/// 3. **Owners are heard of.** A write that makes a worker an owner counts as a beat of that worker. Reading a running
///    run tells when its owner was last heard of ([`LastHeartbeat`]), by one clock, the store's own. Time in which the store
///    could not have received a heartbeat is not silence.
/// 4. **Beats are cheap and powerless.** A beat moves nothing but its worker's own record; no run's revision changes.
///    Its answer names what the worker must know: runs it holds and does not own, is asked to cancel, or owns and does
///    not hold. A deleted run is lost, and is not registered again; one that the store has lost itself is unknown.
/// 5. **Stamps are kept.** A record bears the stamp of its last write.
/// 6. **Stories only grow.** Events are read back in the order of their writes, each once.
/// 7. **Lists and counts are exact.** [`Store::list`] returns the runs that [`Filter::matches`], in order, each on one page.
///    [`Store::counts`] counts every run that is not running once, as it is on record.
/// 8. **Errors are honest.** [`Error::Unknown`] says that a write may have taken effect; any other error says that it
///    has not. A missing run is an absence, never an error.
/// 9. **Due times.** [`Store::next_due`] leaves out what is due already and what waits for other runs, and names no later
///    time than the first of the rest.
/// 10. **Heads of the queue.** [`Store::heads`] names the oldest due run of every kind, share and priority, and no other. Of
///     a run whose time has come since runs were last claimed it need not know.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The records of these runs, in any order; unknown ids are left out.
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error>;

    /// A page of the records that match.
    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error>;

    /// Tries each write, and tells what became of it, in order. Writes are independent of each other.
    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error>;

    /// Locks the runs of a selection, applies a rule to each with the store's time, and writes what it answers. Runs
    /// that others hold are skipped. Ends after `limit` changes and returns the changed records.
    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error>;

    /// Renews a worker's lease.
    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error>;

    /// How many runs there are that are not running, by what a [`Count`] tells of them.
    async fn counts(&self) -> Result<Vec<Count>, Error>;

    /// The workers known, each with when it was last heard of.
    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error>;

    /// How long it is, by the store's own clock, until the next pending run that matches is due: one that waits for no
    /// other run and for a time that has not come. None where there is none.
    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error>;

    /// The oldest due run of every kind, share and priority among the pending runs that match.
    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error>;

    /// The starts that count for each of these rates, by the store's own clock.
    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error>;

    /// A run's event log from its first event; none for an unknown run.
    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error>;

    /// The observer of the processes that own these runs. A store that several hosts share has none.
    fn witness(&self) -> Option<Arc<dyn ProcessObserver>>;
}

/// A pure rule over a run and the store's time.
pub type Rule<'a> = &'a (dyn Fn(&Run, Timestamp) -> Option<Change> + Send + Sync);

/// What a rule answers for a run that is to change.
#[derive(Debug, Clone)]
pub struct Change {
    /// How it changes.
    #[doc(hidden)]
    pub transition: Transition,
    /// Marks the write.
    pub stamp: Stamp,
}

/// How often a record was written: what a conditional [`Write`] compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// A run as a store keeps it, with its revision and the stamp of its last write.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The run.
    pub run: Run,
    /// Which version of it this is.
    pub revision: Revision,
    /// The stamp of the write that made it so.
    pub stamp: Stamp,
}

/// What a [`Write`] expects on record, in order to replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Nothing: the run is new.
    Absent,
    /// This version.
    Revision(Revision),
}

/// One conditional change of a run, for [`Store::commit`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Write {
    /// What it replaces.
    pub expect: Expect,
    /// The run from then on, and its events: one for a change, two for a run that is made and claimed at once.
    pub run: Run,
    /// What the event log says.
    pub events: Vec<Event>,
    /// The run as its attempt left it, if this ends one.
    pub ended: Option<Box<Run>>,
    /// Marks the write.
    pub stamp: Stamp,
}

impl Write {
    /// The change of `record` that the rules allowed.
    #[doc(hidden)]
    pub fn change(record: &Record, transition: Transition, stamp: Stamp) -> Self {
        Self {
            expect: Expect::Revision(record.revision),
            run: transition.run,
            events: vec![transition.event],
            ended: transition.ended,
            stamp,
        }
    }

    /// This write, with the end that it records no later than `now`, if it frees keys: the next holder of a key starts
    /// after that by the store's clock, whatever the clock of the owner says.
    #[cfg(feature = "postgres")]
    pub(crate) fn ended_by(&self, now: Timestamp) -> Self {
        let mut write = self.clone();
        if write.moved_keys().1.is_empty() || write.events.iter().all(|event| event.at <= now) {
            return write;
        }
        let (run, events) = (&mut write.run, &mut write.events);
        events.iter_mut().for_each(|event| event.at = event.at.min(now));
        run.updated_at = run.updated_at.min(now);
        if let State::Ended(ending) = &mut run.state {
            ending.at = ending.at.min(now).max(ending.started_at.unwrap_or(now.min(ending.at)));
        }
        write
    }

    /// The keys that it has the run hold newly, and those that it frees.
    pub(crate) fn moved_keys(&self) -> (Vec<&Key>, Vec<&Key>) {
        moved_keys(&self.run, self.events.first())
    }

    /// The rates that count it: none, unless an attempt starts by it.
    pub(crate) fn counted(&self) -> Vec<(&Key, Duration)> {
        if self.events.iter().any(is_start) { self.run.rates().collect() } else { Vec::new() }
    }
}

/// What became of a [`Write`]: done, or refused for another revision or a busy key.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteOutcome {
    /// It took effect, and this is the version it made.
    Done(Revision),
    /// The record is another than expected: this one, or none.
    Conflict(Option<Box<Record>>),
    /// A key has no holder to spare.
    KeyBusy {
        /// The key.
        key: Key,
        /// Who holds it.
        holders: Vec<RunId>,
        /// When it is free, where a clock alone frees it.
        free_at: Option<Timestamp>,
    },
}

impl WriteOutcome {
    /// Others hold a key.
    pub(crate) fn held(key: &Key, holders: Vec<RunId>) -> Self {
        Self::KeyBusy { key: key.clone(), holders, free_at: None }
    }

    /// A rate lets nothing start before a moment.
    pub(crate) fn not_before(key: &Key, free_at: Timestamp) -> Self {
        Self::KeyBusy { key: key.clone(), holders: Vec::new(), free_at: Some(free_at) }
    }
}

/// A page of records: the answer of [`Store::list`].
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

impl Listing {
    /// The page of records that all match and are in its order.
    pub(crate) fn of(mut records: Vec<Record>, page: &Page) -> Self {
        if let Some(after) = page.after {
            let after = after.sort_key(page.order);
            records.retain(|record| Cursor::at(&record.run).sort_key(page.order) > after);
        }
        let next = page.cut(&mut records, |record| Cursor::at(&record.run));
        Self { records, next }
    }
}

/// A walk through a listing, page by page, to its end.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Pages {
    filter: Filter,
    /// The next page; none behind the last.
    page: Option<Page>,
}

impl Pages {
    /// A walk over the runs that match, beginning with `page`.
    pub fn from(filter: Filter, page: Page) -> Self {
        Self { filter, page: Some(page) }
    }

    /// The records of the next page; none behind the last.
    pub async fn next(&mut self, store: &dyn Store) -> Result<Option<Vec<Record>>, Error> {
        let Some(page) = &self.page else { return Ok(None) };
        let listing = store.list(&self.filter, page).await?;
        self.page = listing.next.map(|next| Page { after: Some(next), ..page.clone() });
        Ok(Some(listing.records))
    }

    /// Where the next page begins.
    pub fn place(&self) -> Option<Cursor> {
        self.page.as_ref().and_then(|page| page.after)
    }
}

/// Which runs [`Store::update`] takes, and how many.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Selection {
    /// Those that match.
    pub filter: Filter,
    /// In this order.
    pub order: Order,
    /// Until this many have changed.
    pub limit: usize,
    /// Of those that wait, only those that wait neither for another run nor for a time that has not come by the store's
    /// clock.
    pub due: bool,
}

impl Selection {
    /// Whether a run is one of them at `now` by the store's clock.
    pub(crate) fn takes(&self, run: &Run, now: Timestamp) -> bool {
        let is_due = match &run.state {
            State::Pending(pending) => pending.is_due(now),
            _ => true,
        };
        self.filter.matches(run) && (is_due || !self.due)
    }
}

/// The heartbeat of a worker: what [`Store::beat`] is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Beat {
    /// The worker that beats.
    pub worker: WorkerId,
    /// Which process it is, for a store that has not heard of it yet.
    pub identity: Identity,
    /// How long it counts as alive without another beat.
    pub lease: Lease,
    /// The runs it holds, by which claim.
    pub held: Arc<[(RunId, Epoch)]>,
    /// What the last answer said of its attention; none asks for a full comparison.
    pub attention: Option<u64>,
    /// It is about to end and is not to be waited for.
    pub leaving: bool,
    /// What it takes from the queue.
    pub offer: Arc<WorkerCapacity>,
}

/// What a worker takes from the queue, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerCapacity {
    /// The outlive that it is; empty where it did not say.
    pub version: String,
    /// How many runs it executes at a time; none, if it only looks after what it has started.
    pub slots: u32,
    /// Of which kinds; of any, if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// What people call it: a label, never an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl WorkerCapacity {
    /// Takes so many runs at a time of these kinds.
    pub fn new(slots: u32, kinds: Vec<String>) -> Self {
        Self { version: env!("CARGO_PKG_VERSION").into(), slots, kinds, name: None }
    }

    /// The capacity of a worker that people call so.
    #[must_use]
    pub fn named(self, name: Option<String>) -> Self {
        Self { name, ..self }
    }

    /// Of a worker that did not say.
    pub(crate) fn unsaid() -> Arc<Self> {
        Arc::new(Self { version: String::new(), slots: 0, kinds: Vec::new(), name: None })
    }

    /// Whether it takes runs of that kind.
    pub fn takes(&self, kind: &str) -> bool {
        self.slots > 0 && (self.kinds.is_empty() || self.kinds.iter().any(|taken| taken == kind))
    }
}

impl Default for WorkerCapacity {
    /// Takes nothing.
    fn default() -> Self {
        Self::new(0, Vec::new())
    }
}

/// What a heartbeat learns of its runs: the answer of [`Store::beat`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BeatReply {
    /// Rises whenever the set of runs that the worker owns, or a cancel request among them, changes.
    pub attention: u64,
    /// Held, but no longer owned, or deleted.
    pub lost: Vec<RunId>,
    /// Held, but not on record, and not known to have been deleted: its holder registers it again.
    pub unknown: Vec<RunId>,
    /// Held, and asked to be cancelled.
    pub cancelled: Vec<(RunId, CancelRequest)>,
    /// Owned, but not held.
    pub forgotten: Vec<RunId>,
    /// How the other workers do, where the store tells a worker without being asked. A store of others leaves it out.
    #[doc(hidden)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
}

/// How the workers of a registry do, as a heartbeat found them: a worker that looks for the dead need not ask as well.
#[doc(hidden)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReport {
    /// How many there are, the one that beats included.
    pub workers: u64,
    /// Which of the others have not beaten for one and a half beats of the one that beats, with how often they have.
    pub late: Vec<(WorkerId, u64)>,
}

/// What a beat must know of one run.
#[derive(Debug, Clone)]
pub(crate) struct OwnershipView {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<WorkerId>,
    pub(crate) cancel: Option<Box<CancelRequest>>,
}

impl From<&Run> for OwnershipView {
    fn from(run: &Run) -> Self {
        Self { epoch: run.epoch, owner: run.owner().map(|owner| owner.worker), cancel: run.cancel.clone() }
    }
}

impl BeatReply {
    /// Compares what a worker holds with the runs it owns, and looks for those that it holds and does not own.
    pub(crate) fn compare(
        beat: &Beat,
        attention: u64,
        mut owned: HashMap<RunId, OwnershipView>,
        find: impl Fn(RunId) -> Result<Option<OwnershipView>, Error>,
    ) -> Result<Self, Error> {
        let mut reply = Self { attention, ..Self::default() };
        for (id, epoch) in beat.held.iter() {
            let standing = match owned.remove(id) {
                Some(standing) => Some(standing),
                None => find(*id)?,
            };
            match standing {
                None => reply.unknown.push(*id),
                Some(run) if run.epoch != *epoch || run.owner != Some(beat.worker) => reply.lost.push(*id),
                Some(run) => reply.cancelled.extend(run.cancel.map(|request| (*id, *request))),
            }
        }
        reply.forgotten = owned.into_keys().collect();
        reply.forgotten.sort();
        Ok(reply)
    }
}

/// A worker as a store keeps it, from [`Store::workers`] and [`Registry::workers`](crate::Registry::workers).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Which incarnation.
    pub id: WorkerId,
    /// Which process.
    pub identity: Identity,
    /// What it promised.
    pub lease: Lease,
    /// When it was last heard of.
    pub heard: LastHeartbeat,
    /// What it takes.
    pub offer: Arc<WorkerCapacity>,
}

impl From<&Owner> for WorkerRecord {
    fn from(owner: &Owner) -> Self {
        let (id, identity) = (owner.worker, owner.identity.clone());
        Self { id, identity, lease: owner.lease, heard: owner.heard, offer: Arc::default() }
    }
}

impl From<&WorkerRecord> for Owner {
    fn from(worker: &WorkerRecord) -> Self {
        Self { worker: worker.id, identity: worker.identity.clone(), lease: worker.lease, heard: worker.heard }
    }
}

impl From<&Beat> for WorkerRecord {
    fn from(beat: &Beat) -> Self {
        let (id, identity, offer) = (beat.worker, beat.identity.clone(), beat.offer.clone());
        Self { id, identity, lease: beat.lease, heard: LastHeartbeat::default(), offer }
    }
}

/// A notification of a store (ADR 0019). It may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// A run may have become claimable.
    Work,
    /// Others changed a run that this worker owns.
    Request(WorkerId),
}

/// The time until the first of these pending runs is due that wait for a time to come, and for nothing else.
pub(crate) fn next_due_of<'a>(runs: impl Iterator<Item = &'a Run>, now: Timestamp) -> Option<Duration> {
    let due_at = |run: &Run| match &run.state {
        State::Pending(pending) if pending.waits_for.is_empty() => pending.not_before,
        _ => None,
    };
    runs.filter_map(due_at).filter(|at| *at > now).min().map(|at| at.since(now))
}

/// The heads of the queue that these runs make up.
pub(crate) fn heads_of<'a>(runs: impl Iterator<Item = &'a Run>, now: Timestamp) -> Vec<QueueHead> {
    let mut heads: BTreeMap<(String, String, i32), QueueHead> = BTreeMap::new();
    for run in runs.filter(|run| matches!(&run.state, State::Pending(pending) if pending.is_due(now))) {
        let (kind, priority, created_at) = (run.spec.kind.clone(), run.priority(), run.created_at);
        let head = QueueHead { kind: kind.clone(), share: run.spec.share.clone(), priority, created_at };
        let known = heads.entry((kind, run.tenant().to_owned(), priority)).or_insert_with(|| head.clone());
        if created_at < known.created_at {
            *known = head;
        }
    }
    heads.into_values().collect()
}

/// How a store fails: what an implementation of [`Store`] answers with, and [`Error::Store`](crate::Error::Store)
/// carries. Match it to tell an outage from a damaged record.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Error {
    /// It cannot be reached now. Nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// It did not answer. What was to be written may have been.
    #[error("no answer whether it was written: {0}")]
    Unknown(String),
    /// It has no room. Nothing was written.
    #[error("{0}")]
    Full(String),
    /// It may not be written, or not even read.
    #[error("{0}")]
    Denied(String),
    /// The server has no permission for the caller. Nothing was written.
    #[error("{0}")]
    Forbidden(String),
    /// The server does not know the caller's credentials. Nothing was written.
    #[error("{0}")]
    Unauthorised(String),
    /// The server refuses more calls at once. Nothing was written.
    #[error("{0}")]
    Throttled(String),
    /// It was made by a later version of outlive.
    #[error("`{what}` has format {found}; this outlive knows formats up to {known}")]
    Newer {
        /// The file or schema that has the format.
        what: String,
        /// The format it has.
        found: i64,
        /// The last one known.
        known: i64,
    },
    /// What it holds cannot be read.
    #[error("{0}")]
    Corrupt(String),
    /// It cannot do what is relied on.
    #[error("{0}")]
    Unsupported(String),
    /// A process forked, and its child used what the parent had opened. Nothing was written.
    #[error("process {opened_by} opened it, and this process is a fork of that one: it must open its own")]
    Forked {
        /// The process that may use it.
        opened_by: u32,
    },
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_) | Self::Full(_) | Self::Throttled(_))
    }

    /// Whether it is this caller, as things are, who may not make the call.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Forbidden(_) | Self::Unauthorised(_))
    }
}

/// The silence of an owner, given by the store's clock when it was last heard and since when the store could hear.
pub(crate) fn silence(now: Duration, heard: Duration, could_hear_since: Duration) -> Duration {
    now.saturating_sub(heard.max(could_hear_since))
}
