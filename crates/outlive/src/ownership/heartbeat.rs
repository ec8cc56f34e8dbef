//! The keeper: beats for a worker, tells the holders of its runs what the store says of them, and delivers ends that
//! the store would not take at first.
//!
//! It has a thread and a store connection of its own, so that work which blocks, burns all processors or holds a
//! transaction open never keeps it from beating. What one beat does is [`WorkerState::tick`], which the thread calls in a
//! loop and the simulation calls by itself.

mod reports;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use self::thread::HeartbeatThread;
use super::claims_in_flight::ClaimsInFlight;
use super::deferred::{deliver_one, deliver_waiting};
use super::event_fd::EventFd;
use super::held::{Held, Stop};
use crate::host::MadeBy;
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::{Action, Fence, Outcome, apply};
use crate::model::id::{Entropy, Epoch, RunId, Stamp, WorkerId};
use crate::model::owner::Identity;
use crate::model::policy::Lease;
use crate::model::run::{Actor, Interruption, LastHeartbeat, Owner};
use crate::model::time::Clock;
use crate::ownership::spool::{Spool, Spooled};
use crate::store::{self, Beat, Expect, FleetReport, Store, WorkerCapacity, Write, WriteOutcome};
use crate::util::sync::lock;

/// The least time between two beats that a bell asked for.
const BELL_REST: Duration = Duration::from_millis(20);
/// How long to wait before an end that was not taken is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// What a worker holds and owes. Shared by its run handles and the thread that beats.
pub(crate) struct WorkerState {
    /// The process that beats. In a forked child of it every handle is inert.
    pub(crate) made_by: MadeBy,
    pub(crate) worker: WorkerId,
    pub(crate) identity: Identity,
    pub(crate) me: Actor,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) registry: String,
    pub(crate) spool: Option<Spool>,
    state: Mutex<OwnershipState>,
    wake: EventFd,
    /// A caller asks for a heartbeat now.
    asked: AtomicBool,
}

#[derive(Default)]
struct OwnershipState {
    held: Arc<BTreeMap<RunId, Arc<Held>>>,
    /// The beat that the thread waits for.
    awaited_beat: Option<Duration>,
    /// What a beat says of the runs held, put together when they have changed.
    summary: Option<Summary>,
    /// Ends that the store has not taken.
    owed: Vec<Spooled>,
    attention: Option<u64>,
    /// Owned but not held, as far as was last compared.
    suspects: ClaimsInFlight,
    /// When the store last took a beat, by time since boot.
    heard: Option<Duration>,
    /// What it told with that of other workers.
    fleet: Option<(FleetReport, Lease)>,
    leaving: bool,
    /// The lease of the worker while it holds no run.
    idle_lease: Lease,
    /// What it takes from the queue.
    offer: Arc<WorkerCapacity>,
    /// The thread is at a beat.
    beating: bool,
    /// Since when heartbeats fail, by time since boot; absent while the store takes them.
    outage: Option<Duration>,
    /// Until when the end of the thread is waited for, by time awake; absent while that has no limit.
    joined_until: Option<Duration>,
}

impl OwnershipState {
    /// Lets go of this claim. A later claim of the same run, by this worker again, stays.
    fn release(&mut self, held: &Held) {
        let id = lock(&held.record).run.id;
        if self.held.get(&id).is_some_and(|kept| kept.epoch == held.epoch) {
            Arc::make_mut(&mut self.held).remove(&id);
            self.summary = None;
        }
    }
}

/// What is the same for every beat until the runs held change.
#[derive(Clone)]
struct Summary {
    named: Arc<[(RunId, Epoch)]>,
    /// The shortest lease of all.
    lease: Lease,
    /// The runs that a clock alone may stop.
    limited: Arc<[Arc<Held>]>,
}

impl OwnershipState {
    fn summary(&mut self) -> Summary {
        let held = &self.held;
        let make = || Summary {
            named: held.values().map(|held| (held.id, held.epoch)).collect(),
            lease: held
                .values()
                .map(|held| held.lease)
                .min_by_key(|lease| (lease.beat(), lease.lasts()))
                .unwrap_or(self.idle_lease),
            limited: held.values().filter(|held| held.is_limited()).cloned().collect(),
        };
        self.summary.get_or_insert_with(make).clone()
    }
}

/// A claim whose answer is awaited. Kept until the run it brings is held.
pub(crate) struct Taking {
    keeping: Arc<WorkerState>,
    number: u64,
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.keeping.keep().suspects.taken(self.number);
    }
}

impl WorkerState {
    pub(crate) fn new(
        worker: WorkerId,
        identity: Identity,
        me: Actor,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        registry: String,
        spool: Option<Spool>,
    ) -> Self {
        Self {
            made_by: MadeBy::this_process(),
            worker,
            identity,
            me,
            clock,
            entropy,
            registry,
            spool,
            state: Mutex::default(),
            wake: EventFd::new(),
            asked: AtomicBool::default(),
        }
    }

    /// This worker as the owner of a run with that lease.
    pub(crate) fn owner(&self, lease: Lease) -> Owner {
        Owner { worker: self.worker, identity: self.identity.clone(), lease, heard: LastHeartbeat::default() }
    }

    pub(crate) fn fence(&self, epoch: Epoch) -> Fence {
        Fence { worker: self.worker, epoch }
    }

    pub(crate) fn hold(&self, held: &Arc<Held>) {
        let mut keep = self.keep();
        keep.heard.get_or_insert_with(|| self.clock.since_boot());
        let id = held.id;
        // The answer to a claim may arrive after this very worker has claimed the run again.
        if keep.held.get(&id).is_some_and(|kept| kept.epoch > held.epoch) {
            held.tell(Stop::Lost);
            return;
        }
        Arc::make_mut(&mut keep.held).insert(id, held.clone());
        keep.summary = None;
        // Only what is due before the thread wakes by itself needs to wake it.
        let sooner = keep.awaited_beat.is_none_or(|awaited| held.lease.beat() < awaited);
        if sooner || held.is_limited() {
            self.nudge(keep);
        }
    }

    /// Allows a run that is held at most `timeout`, whatever its policy says.
    pub(crate) fn limit(&self, held: &Held, timeout: Duration) {
        held.limit(timeout);
        let mut keep = self.keep();
        keep.summary = None;
        self.nudge(keep);
    }

    /// From now on beats as that lease says, also while nothing is held.
    pub(crate) fn set_idle_lease(&self, lease: Lease) {
        let mut keep = self.keep();
        (keep.idle_lease, keep.summary) = (lease, None);
        self.nudge(keep);
    }

    /// Says with its beats what it takes from the queue.
    pub(crate) fn offer(&self, offer: Arc<WorkerCapacity>) {
        self.keep().offer = offer;
    }

    /// Says that a claim is about to be sent.
    pub(crate) fn take(self: &Arc<Self>) -> Taking {
        Taking { number: self.keep().suspects.take(), keeping: self.clone() }
    }

    /// Lets go of a run that has ended or is to end otherwise.
    pub(crate) fn release(&self, held: &Held) {
        self.keep().release(held);
    }

    /// Takes over an end that the store did not take: on the disk at once, in the store as soon as it can be.
    pub(crate) fn owe(
        &self,
        held: &Held,
        end: OwnerEnd,
        exit: Option<crate::model::run::Exit>,
        stamp: Stamp,
    ) -> std::io::Result<()> {
        let run = held.id;
        let (registry, at) = (self.registry.clone(), self.clock.now());
        let (worker, epoch, usage) = (self.worker, held.epoch, held.usage());
        let spooled = Spooled { registry, run, worker, epoch, stamp, at, end, exit, usage };
        tracing::warn!(run = %run, epoch = held.epoch.0, on_disk = self.spool.is_some(), "outcome spooled");
        let kept = self.spool.as_ref().map_or(Ok(()), |spool| spool.keep(&spooled));
        let mut keep = self.keep();
        keep.release(held);
        keep.owed.push(spooled);
        self.nudge(keep);
        kept
    }

    /// Whether ends are still to be delivered.
    pub(crate) fn owes(&self) -> bool {
        !self.keep().owed.is_empty()
    }

    /// Has the thread beat at once.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.wake.call();
    }

    fn keep(&self) -> MutexGuard<'_, OwnershipState> {
        lock(&self.state)
    }

    fn nudge(&self, keep: MutexGuard<'_, OwnershipState>) {
        drop(keep);
        self.wake.call();
    }

    /// What the last beat told of other workers, with the lease that they were measured by. None where it told nothing, or is
    /// as old as a worker may get before it counts as late.
    pub(crate) fn fleet(&self) -> Option<(FleetReport, Lease)> {
        let keep = self.keep();
        let age = self.clock.since_boot().saturating_sub(keep.heard?);
        keep.fleet.clone().filter(|(_, lease)| age <= lease.beat() * 3 / 2)
    }

    /// One beat: renews the lease, passes on what the store says, and delivers what is owed.
    pub(crate) async fn tick(&self, store: &dyn Store) -> Result<(), store::Error> {
        // Before the store is asked, which may take its time, and after it has answered.
        self.check_limits(false);
        // What cannot be written of it waits on; the beat says what is wrong with the store.
        let _ = self.write_progress(store).await;
        let _ = self.write_usage(store).await;
        let ticked = self.beat(store).await;
        self.note_outage(ticked.as_ref().err());
        self.check_limits(ticked.is_err());
        ticked.and(self.deliver(store).await)
    }

    /// Logs a heartbeat that the store took so much later than it was due.
    fn log_late(&self, late: Duration) {
        tracing::warn!(worker = %self.worker, late_ms = late.as_millis() as u64, "heartbeat late");
    }

    /// Logs failed heartbeats, and where an outage begins and ends.
    fn note_outage(&self, error: Option<&store::Error>) {
        let (now, worker) = (self.clock.since_boot(), self.worker);
        let mut keep = self.keep();
        match error {
            Some(error) => {
                tracing::warn!(%worker, held = keep.held.len(), %error, "heartbeat failed");
                if error.is_transient() && keep.outage.is_none() {
                    keep.outage = Some(now);
                    tracing::warn!(%worker, %error, "outage began");
                }
            }
            None => {
                if let Some(began) = keep.outage.take() {
                    let lasted_ms = now.saturating_sub(began).as_millis() as u64;
                    tracing::info!(%worker, lasted_ms, "outage ended");
                }
            }
        }
    }

    async fn beat(&self, store: &dyn Store) -> Result<(), store::Error> {
        // Ends that are owed are written after the beat, so that one that cannot be written keeps no lease from being
        // renewed. A worker that leaves owns nothing once they are.
        if self.keep().leaving {
            self.deliver(store).await?;
        }
        let (beat, held) = {
            let mut keep = self.keep();
            let Summary { named, lease, .. } = keep.summary();
            let beat = Beat {
                worker: self.worker,
                identity: self.identity.clone(),
                lease,
                held: named,
                attention: keep.attention,
                leaving: keep.leaving && keep.held.is_empty(),
                offer: keep.offer.clone(),
            };
            (beat, keep.held.clone())
        };
        let (started, lease) = (self.clock.since_boot(), beat.lease);
        let reply = store.beat(&beat).await?;
        let took = self.clock.since_boot().saturating_sub(started);
        if took > lease.beat() {
            self.log_late(took);
        }
        // From when it was sent: the store may have heard it no later than that.
        {
            let mut keep = self.keep();
            (keep.heard, keep.fleet) = (Some(started), reply.fleet.map(|fleet| (fleet, lease)));
        }
        for id in &reply.lost {
            self.lose(&held, *id);
        }
        for (id, request) in &reply.cancelled {
            if let Some(held) = held.get(id) {
                held.tell(Stop::Cancelled(request.clone()));
            }
        }
        for id in &reply.unknown {
            if let Some(held) = held.get(id) {
                self.register_again(store, held).await?;
            }
        }
        // What was not passed on, because a holder panicked or the store failed, is asked for again.
        self.keep().attention = Some(reply.attention);
        self.end_forgotten(store, reply.forgotten).await
    }

    fn lose(&self, held: &BTreeMap<RunId, Arc<Held>>, id: RunId) {
        // A run that was ended or claimed again while the beat was under way has not been lost.
        let is_held = |held: &&Arc<Held>| self.keep().held.get(&id).is_some_and(|kept| kept.epoch == held.epoch);
        if let Some(held) = held.get(&id).filter(is_held) {
            tracing::warn!(run = %id, epoch = held.epoch.0, worker = %self.worker, "claim lost");
            self.release(held);
            held.tell(Stop::Lost);
        }
    }

    /// Brings a run back on record that the store knew and does not know any more, or knows less of than we do.
    pub(crate) async fn register_again(&self, store: &dyn Store, held: &Held) -> Result<(), store::Error> {
        let known = held.record();
        let found = store.get(&[known.run.id]).await?.pop();
        let expect = match &found {
            None => Expect::Absent,
            Some(record) if record.revision < known.revision => Expect::Revision(record.revision),
            Some(_) => return Ok(()),
        };
        let write =
            Write { expect, run: known.run, events: Vec::new(), ended: None, stamp: Stamp::draw(&*self.entropy) };
        let stamp = write.stamp;
        if let Some(WriteOutcome::Done(revision)) = store.commit(vec![write]).await?.pop() {
            tracing::warn!(run = %held.id, epoch = held.epoch.0, "run registered again: its record was missing");
            let mut record = lock(&held.record);
            record.revision = revision;
            record.stamp = stamp;
        }
        Ok(())
    }

    /// Ends runs that the store says are ours and that no handle holds: their claim was lost on the way, or their
    /// handle was.
    async fn end_forgotten(&self, store: &dyn Store, forgotten: Vec<RunId>) -> Result<(), store::Error> {
        let suspects: Vec<RunId> = {
            let mut keep = self.keep();
            let owed: BTreeSet<RunId> = keep.owed.iter().map(|spooled| spooled.run).collect();
            let unheld = forgotten.into_iter().filter(|id| !keep.held.contains_key(id) && !owed.contains(id));
            let suspects: Vec<RunId> = unheld.collect();
            keep.suspects.retain(&suspects);
            if !suspects.is_empty() {
                keep.attention = None;
            }
            suspects
        };
        if suspects.is_empty() {
            return Ok(());
        }
        for record in store.get(&suspects).await? {
            let forgotten = {
                let mut keep = self.keep();
                let id = record.run.id;
                let known = keep.held.contains_key(&id) || keep.owed.iter().any(|owed| owed.run == id);
                !known && keep.suspects.suspect(id, record.run.epoch)
            };
            if !forgotten {
                continue;
            }
            let fence = self.fence(record.run.epoch);
            let interruption = Interruption { signal: None, reason: "its worker did not know that it owned it".into() };
            let action = Action::Interrupt { fence, interruption, exit: None };
            if let Ok(transition) = apply(&record.run, &action, &self.me, self.clock.now()) {
                store.commit(vec![Write::change(&record, transition, Stamp::draw(&*self.entropy))]).await?;
            }
        }
        Ok(())
    }

    /// Ends runs that are past their time, and tells those to stop whose lease is about to run out unheard.
    fn check_limits(&self, unheard: bool) {
        let (limited, heard) = {
            let mut keep = self.keep();
            (keep.summary().limited, keep.heard)
        };
        let now = self.clock.since_boot();
        let unheard_for = heard.filter(|_| unheard).map_or(Duration::ZERO, |heard| now.saturating_sub(heard));
        for held in limited.iter() {
            if held.must_stop(unheard_for) {
                held.tell(Stop::LeaseOver);
            }
            if held.is_over(now) {
                let watched = held.is_watched();
                held.tell(Stop::TimedOut);
                // A holder that watches ends its work first and then says so, and so does a future that is aborted, which frees its
                // keys after it is gone. Any other is ended here, and a future that blocks its thread in the end.
                if !watched && (!held.abort() || held.is_long_over(now)) {
                    let outcome = Outcome::failed("timeout", "it ran for longer than its timeout");
                    // A spool that cannot be written leaves the end to be delivered from memory.
                    let _ = self.owe(held, OwnerEnd::Finished(outcome), None, Stamp::draw(&*self.entropy));
                }
            }
        }
    }

    /// Writes the ends that are owed. One that the rules refuse has been made void by another owner or end.
    pub(crate) async fn deliver(&self, store: &dyn Store) -> Result<(), store::Error> {
        let owed = self.keep().owed.clone();
        let mut left = Ok(());
        for next in owed {
            match deliver_one(store, &next, &self.me).await {
                Ok(()) => {
                    tracing::info!(run = %next.run, epoch = next.epoch.0, "spooled outcome delivered");
                    if let Some(spool) = &self.spool {
                        spool.forget(&next);
                    }
                    self.keep().owed.retain(|owed| owed.stamp != next.stamp);
                }
                // One that blocks only itself waits, and the others do not wait for it.
                Err(error) if error.is_refused() || matches!(error, store::Error::Corrupt(_)) => left = Err(error),
                Err(error) => return Err(error),
            }
        }
        left
    }

    /// Delivers the outcomes of this registry that an earlier process spooled. One that cannot be written waits on.
    async fn deliver_spooled(&self, store: &dyn Store) -> Result<(), store::Error> {
        let Some(spool) = &self.spool else { return Ok(()) };
        deliver_waiting(
            store,
            spool,
            &spool.waiting(slice::from_ref(&self.registry), |name| name == self.registry),
            &self.me,
        )
        .await
        .map(drop)
    }

    /// Limits how long the end of the thread is waited for, from now on.
    pub(crate) fn limit_join(&self, limit: Duration) {
        self.keep().joined_until = Some(self.clock.awake().saturating_add(limit));
    }

    /// How long the end of the thread may still be waited for; absent where that has no limit.
    fn join_limit(&self) -> Option<Duration> {
        self.keep().joined_until.map(|until| until.saturating_sub(self.clock.awake()))
    }

    /// Has the thread end where this worker holds nothing any more. Answers whether it does.
    pub(crate) fn retire(&self) -> bool {
        let holds_nothing = self.keep().held.is_empty();
        if holds_nothing {
            self.leave();
            self.wake.call();
        }
        holds_nothing
    }

    /// Has the thread end. Answers whether nothing more will come of it.
    fn leave(&self) -> bool {
        let mut keep = self.keep();
        keep.leaving = true;
        !keep.beating && keep.owed.is_empty()
    }

    /// Says that the thread beats now. False if it must not any more.
    fn begin_beat(&self) -> bool {
        let mut keep = self.keep();
        keep.beating = !keep.leaving || !keep.owed.is_empty();
        keep.beating
    }

    fn interval(&self) -> Duration {
        let mut keep = self.keep();
        let summary = keep.summary();
        let beat = summary.lease.beat();
        keep.awaited_beat = Some(beat);
        let spread = u32::from((self.entropy.draw() & 0x3f) as u8);
        // Between 0.9 and 1.0 of the beat, so that many workers do not beat in step.
        let jittered = beat - beat * spread / 630;
        let now = self.clock.since_boot();
        let next_limit = summary.limited.iter().filter_map(|held| held.time_left(now)).min().unwrap_or(beat);
        // A moment later, so that it is over by then.
        let due = jittered.min(next_limit + Duration::from_millis(1));
        if keep.owed.is_empty() { due } else { due.min(RETRY) }
    }
}
