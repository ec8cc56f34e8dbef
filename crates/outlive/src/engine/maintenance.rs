//! Maintenance: what some process of a registry must do and any can. Dead owners are found and their runs reaped; runs that
//! wait for others are released.
//!
//! A pass costs the same whatever runs report. Where processes can be seen, owners are watched by pidfd, and only the runs
//! of one that ended, is late or cannot be watched are probed, the last with a growing pause. Elsewhere workers are looked
//! at, not runs: only the runs of a worker that is late are read.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::run::{Run, StateName};
use crate::ownership::reaper::{Reaped, Reaper};
use crate::registry::Registry;
use crate::store::{self, Order, Page, Pages};
use crate::util::backoff::Backoff;

/// How often all running runs of a shared registry are looked at, of all owners, by some worker of the fleet.
const FULL_PASS_EVERY: Duration = Duration::from_secs(60);
/// How soon a run is probed again that was probed and not reaped.
const PROBES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(10));

/// The state of a process that maintains a registry.
#[derive(Debug, Default)]
pub struct Maintenance {
    reaper: Reaper,
    worker: Option<WorkerId>,
    /// Owners of this host, each as a pidfd that becomes readable when the process ends.
    owners: BTreeMap<WorkerId, OwnedFd>,
    /// Runs that were probed and not reaped.
    probed: BTreeMap<RunId, Probed>,
    /// The workers, as they were when they were last looked at.
    fleet: Fleet,
    /// Workers that are silent and own nothing, by their last beat.
    silent: BTreeMap<WorkerId, u64>,
    /// When all running runs are looked at next, in time awake; none before the first look.
    next_full: Option<Duration>,
}

/// What a look at all workers has found.
#[derive(Debug, Default)]
struct Fleet {
    known: u64,
    /// How many of them were not late.
    living: u32,
    /// The shortest time between two beats of any.
    beat: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Probed {
    epoch: Epoch,
    /// When it is probed next, in time awake.
    again_at: Duration,
    backoff: Backoff,
}

impl Maintenance {
    /// Maintenance by the process of `worker`, whose own runs are left alone.
    pub fn new(worker: Option<WorkerId>) -> Self {
        Self { reaper: Reaper::new(worker), worker, ..Self::default() }
    }

    /// The owners that are watched: one that becomes readable has ended, and [`Maintenance::reap`] has something to do.
    pub fn owners(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.owners.values().map(AsFd::as_fd)
    }

    /// Whether an owner that is watched has ended.
    pub fn has_ended_owners(&self) -> bool {
        !self.ended_owners().is_empty()
    }

    /// Whether a run was probed and not reaped: it is orphaned, or its owner is silent or cannot be watched.
    pub fn is_suspect(&self, run: RunId) -> bool {
        self.probed.contains_key(&run)
    }

    /// Finds owners that are gone, and reaps their runs.
    pub async fn reap(&mut self, registry: &Registry) -> Result<Reaped, Error> {
        let mut reaped = if registry.store().witness().is_some() {
            self.reap_seen(registry).await?
        } else {
            self.reap_silent(registry).await?
        };
        registry.end_unleashed_of(&mut reaped).await?;
        Ok(reaped)
    }

    /// Reaps runs of owners whose processes can be seen.
    async fn reap_seen(&mut self, registry: &Registry) -> Result<Reaped, Error> {
        let now = registry.clock().awake();
        let ended = self.take_ended();
        let (mut suspects, mut running, mut workers) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut walk = Pages::from(Filter::in_states([StateName::Running]), Page::default());
        while let Some(records) = walk.next(registry.store()).await? {
            for run in records.into_iter().map(|record| record.run) {
                let Some(owner) = run.owner().filter(|owner| Some(owner.worker) != self.worker && !run.copied) else {
                    continue;
                };
                running.insert(run.id);
                workers.insert(owner.worker);
                let is_late = owner.lease.lapsed(owner.heard.silent_for);
                if ended.contains(&owner.worker) {
                    self.probed.remove(&run.id);
                }
                if (is_late || !self.watch(&run, &ended)) && self.is_due(&run, now) {
                    suspects.push(run);
                }
            }
        }
        self.owners.retain(|worker, _| workers.contains(worker));
        self.probed.retain(|run, _| running.contains(run));
        if suspects.is_empty() {
            return Ok(Reaped::default());
        }
        let reaped = self.reaper.pass_over(registry, Filter::of(suspects.iter().map(|run| run.id))).await?;
        for run in &suspects {
            self.note_probed(run, now);
        }
        Ok(reaped)
    }

    /// The owners that have ended since they were watched.
    fn take_ended(&mut self) -> BTreeSet<WorkerId> {
        let ended = self.ended_owners();
        self.owners.retain(|worker, _| !ended.contains(worker));
        ended
    }

    fn ended_owners(&self) -> BTreeSet<WorkerId> {
        let mut fds: Vec<PollFd<'_>> = self.owners.values().map(|owner| PollFd::new(owner, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let has_ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ended = self.owners.keys().zip(has_ended).filter(|(_, has_ended)| *has_ended).map(|(worker, _)| *worker);
        ended.collect()
    }

    /// Whether the owner of a run is watched from now on.
    fn watch(&mut self, run: &Run, ended: &BTreeSet<WorkerId>) -> bool {
        let Some(owner) = run.owner().filter(|owner| !ended.contains(&owner.worker)) else { return false };
        if self.owners.contains_key(&owner.worker) {
            return true;
        }
        // One that could not be watched before is tried again when it is probed.
        if self.probed.get(&run.id).is_some_and(|probed| probed.epoch == run.epoch) {
            return false;
        }
        owner.identity.watch().map(|living| self.owners.insert(owner.worker, living)).is_some()
    }

    fn is_due(&self, run: &Run, now: Duration) -> bool {
        self.probed.get(&run.id).is_none_or(|probed| probed.epoch != run.epoch || probed.again_at <= now)
    }

    fn note_probed(&mut self, run: &Run, now: Duration) {
        let before = self.probed.get(&run.id).filter(|probed| probed.epoch == run.epoch);
        let mut backoff = before.map_or(PROBES, |probed| probed.backoff);
        let again_at = now + backoff.pause();
        self.probed.insert(run.id, Probed { epoch: run.epoch, again_at, backoff });
    }

    /// Reaps runs of workers that were not heard of for too long.
    async fn reap_silent(&mut self, registry: &Registry) -> Result<Reaped, Error> {
        let now = registry.clock().awake();
        if self.next_full.is_some_and(|next_full| now < next_full) && self.has_nothing_to_look_at(registry) {
            return Ok(Reaped::default());
        }
        let workers = registry.store().workers().await?;
        // The more there are who do it, the more seldom each of them does, and not all when they begin.
        let turn = FULL_PASS_EVERY * u32::try_from(workers.len()).unwrap_or(u32::MAX).max(1);
        let part = |time: Duration| time / 255 * u32::from((registry.entropy().draw() & 0xff) as u8);
        let next_full = *self.next_full.get_or_insert_with(|| now + part(turn));
        if now >= next_full {
            self.next_full = Some(now + turn * 3 / 4 + part(turn / 2));
            return self.reaper.pass(registry).await;
        }
        let known = workers.len();
        let beat = workers.iter().map(|worker| worker.lease.beat()).min().unwrap_or_default();
        let late: Vec<store::WorkerRecord> = workers.into_iter().filter(is_late).collect();
        self.fleet = Fleet { known: known as u64, living: u32::try_from(known - late.len()).unwrap_or(u32::MAX), beat };
        self.silent.retain(|id, beat| late.iter().any(|worker| worker.id == *id && worker.heard.beat == *beat));
        let mut all = Reaped::default();
        for worker in late {
            if self.silent.contains_key(&worker.id) {
                continue;
            }
            let owned = Filter { owner: Some(worker.id), ..Filter::default() };
            let reaped = match self.reaper.pass_over(registry, owned).await {
                // No other reaper reports those that were ended before the store failed.
                Err(_) if !all.ended.is_empty() => return Ok(all),
                reaped => reaped?,
            };
            let owns_nothing = reaped.live == 0 && reaped.unjudged.is_empty() && reaped.orphaned.is_empty();
            if owns_nothing && reaped.unresponsive.is_empty() {
                self.silent.insert(worker.id, worker.heard.beat);
            }
            all.ended.extend(reaped.ended);
        }
        Ok(all)
    }

    /// Whether the last heartbeat of this process tells as much as a look at all workers would: they are those that are known,
    /// and none is late but those that own nothing. None of them may beat more often than this process, which would find it
    /// late too late.
    fn has_nothing_to_look_at(&self, registry: &Registry) -> bool {
        registry.fleet().is_some_and(|(report, lease)| {
            report.workers == self.fleet.known
                && lease.beat() <= self.fleet.beat
                && report.late.iter().all(|(id, beat)| self.silent.get(id) == Some(beat))
        })
    }

    /// How many workers share the maintenance of the registry; one where that is not known.
    pub fn living_workers(&self) -> u32 {
        self.fleet.living.max(1)
    }

    /// Tells runs that wait for others of their ends. Answers with how many have changed.
    pub async fn release(&self, registry: &Registry) -> Result<usize, Error> {
        let waits = Filter { waits: Some(true), ..Filter::in_states([StateName::Pending]) };
        let mut walk = Pages::from(waits, Page { order: Order::Claim, ..Page::default() });
        let mut changed = 0;
        while let Some(records) = walk.next(registry.store()).await? {
            let waiting: Vec<Run> = records.into_iter().map(|record| record.run).collect();
            if !waiting.is_empty() {
                changed += registry.release(&waiting).await?;
            }
        }
        Ok(changed)
    }
}

/// Whether a worker has said nothing for longer than it should.
fn is_late(worker: &store::WorkerRecord) -> bool {
    worker.heard.silent_for > worker.lease.beat() * 3 / 2
}
