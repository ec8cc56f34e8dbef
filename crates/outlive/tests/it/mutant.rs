//! Stores with one defect each, to hold the conformance suite to account.
//!
//! A mutant is the memory store behind a wrapper that does one thing wrong. Most defects are ones that real stores had.

mod defect;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outlive::conformance::Ground;
use outlive::filter::Filter;
use outlive::id::{RunId, Stamp, WorkerId};
use outlive::lifecycle::health::ProcessObserver;
use outlive::lifecycle::{Start, is_start};
use outlive::run::{Event, Hold, Key, LastHeartbeat, QueueHead, Run, Spec, State};
use outlive::store::memory::MemoryStore;
use outlive::store::{
    Beat, BeatReply, Change, Count, Error, Expect, Listing, Order, Page, Record, Rule, Selection, Store, WorkerRecord,
    Write, WriteOutcome,
};
use outlive::testing::ManualClock;
use outlive::time::{Clock, Timestamp};

pub(crate) use self::defect::DEFECTS;
use self::defect::{Defect, News, Part};
use crate::ground::MemoryGround;

/// How often a mutant lets others go first between its check and its write.
const GAP: usize = 2_000;

pub(crate) struct MutantGround {
    clock: Arc<ManualClock>,
    memory: MemoryGround,
    defect: Defect,
    last: Mutex<Option<Arc<Mutant>>>,
}

impl MutantGround {
    pub(crate) fn new(defect: Defect) -> Self {
        let clock = ManualClock::new();
        Self { memory: MemoryGround::new(clock.clone()), clock, defect, last: Mutex::default() }
    }
}

#[async_trait]
impl Ground for MutantGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        let (inner, clock) = (self.memory.make(), self.clock.clone());
        let mutant = Arc::new(Mutant { inner, clock, defect: self.defect, notes: Mutex::default() });
        *self.last.lock().unwrap() = Some(mutant.clone());
        mutant
    }

    async fn again(&self) -> Arc<dyn Store> {
        self.last.lock().unwrap().clone().unwrap()
    }

    async fn pass(&self, duration: Duration) {
        self.memory.pass(duration).await;
    }

    async fn deafen(&self, duration: Duration) {
        self.memory.deafen(duration).await;
    }

    fn stretch(&self) -> Duration {
        self.memory.stretch()
    }
}

struct Mutant {
    inner: MemoryStore,
    clock: Arc<ManualClock>,
    defect: Defect,
    notes: Mutex<Notes>,
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutant").finish_non_exhaustive()
    }
}

/// What a mutant keeps beside its memory, to be wrong by.
#[derive(Default)]
struct Notes {
    specs: HashMap<RunId, Arc<Spec>>,
    stamps: HashMap<RunId, Stamp>,
    stuck: Vec<(String, RunId)>,
    started: HashMap<String, u32>,
    heard: HashMap<WorkerId, LastHeartbeat>,
    awake: HashMap<WorkerId, Duration>,
    anyone: LastHeartbeat,
    left: HashSet<WorkerId>,
}

impl Mutant {
    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap()
    }

    async fn current(&self, id: RunId) -> Option<Record> {
        self.inner.get(&[id]).await.ok()?.pop()
    }

    fn note_beat(&self, worker: WorkerId) {
        let mut notes = self.notes();
        notes.awake.insert(worker, self.clock.awake());
        notes.heard.entry(worker).or_default().beat += 1;
        notes.anyone.beat += 1;
        notes.anyone.at = self.clock.now();
    }

    /// What this store would have a reader believe about an owner.
    fn hear(&self, worker: WorkerId, heard: &mut LastHeartbeat) {
        let notes = self.notes();
        let since = |worker| notes.awake.get(&worker).map_or(heard.silent_for, |last| self.clock.awake() - *last);
        match self.defect {
            Defect::ClaimIsNoBeat => {
                heard.silent_for = since(worker);
                heard.beat = notes.heard.get(&worker).map_or(0, |heard| heard.beat);
            }
            Defect::NobodyIsEverSilent => heard.silent_for = Duration::ZERO,
            Defect::BeatsAreNotCounted => heard.beat = 1,
            Defect::DeafTimeIsSilence => heard.silent_for = since(worker),
            Defect::BeatOfAnyoneCounts if notes.anyone.beat > 0 => {
                heard.silent_for = heard.silent_for.min(self.clock.now().since(notes.anyone.at));
            }
            _ => {}
        }
    }

    /// A record as this store tells it.
    fn tell(&self, mut record: Record) -> Record {
        if let State::Running(running) = &mut record.run.state {
            self.hear(running.owner.worker, &mut running.owner.heard);
        }
        let notes = self.notes();
        if let Some(spec) = notes.specs.get(&record.run.id) {
            record.run.spec = spec.clone();
        }
        if self.is(Defect::KeepsTheFirstStamp)
            && let Some(stamp) = notes.stamps.get(&record.run.id)
        {
            record.stamp = *stamp;
        }
        if self.is(Defect::LosesTheCheckpoint) {
            record.run.checkpoint = None;
        }
        record
    }

    fn hide_keys(&self, run: &mut Run, hidden: impl Fn(&Key) -> bool) {
        let mut spec = (*run.spec).clone();
        self.notes().specs.entry(run.id).or_insert_with(|| run.spec.clone());
        spec.keys.retain(|key| !hidden(key));
        run.spec = Arc::new(spec);
    }

    /// Hides what this store does not heed.
    fn hide_some_keys(&self, write: &mut Write) {
        let (runs, is_change) = (write.run.owner().is_some(), write.expect != Expect::Absent);
        let is_hidden = |key: &Key| match self.defect {
            Defect::IgnoresKeys => key.hold == Hold::Running,
            Defect::IgnoresUniqueKeys => key.is_unique(),
            Defect::UniqueKeysEndWithTheClaim => runs && key.is_unique(),
            Defect::IgnoresRates => key.per().is_some(),
            Defect::CountsRunsInsteadOfStarts => is_change && key.per().is_some(),
            _ => false,
        };
        if write.run.spec.keys.iter().any(is_hidden) {
            self.hide_keys(&mut write.run, is_hidden);
        }
    }

    fn used_up_for_ever(&self, run: &Run) -> Option<WriteOutcome> {
        let mut notes = self.notes();
        run.rates().find_map(|(key, _)| {
            let started = notes.started.entry(key.slot()).or_default();
            *started += 1;
            let free_at = Some(self.clock.now());
            (*started > key.limit).then(|| WriteOutcome::KeyBusy { key: key.clone(), holders: Vec::new(), free_at })
        })
    }

    fn busy(&self, run: &Run) -> Option<WriteOutcome> {
        let notes = self.notes();
        let key = run.held_keys().next()?.clone();
        let is_stuck = |(stuck, _): &&(String, RunId)| *stuck == key.slot();
        let holders: Vec<RunId> = notes.stuck.iter().filter(is_stuck).map(|(_, id)| *id).collect();
        (!holders.is_empty()).then_some(WriteOutcome::KeyBusy { key, holders, free_at: None })
    }

    /// The record, once somebody has written it in between or had every chance to.
    async fn in_between(&self, seen: &Record) -> Record {
        let mut latest = self.current(seen.run.id).await.unwrap();
        for _ in 0..GAP {
            if latest.revision != seen.revision {
                break;
            }
            std::thread::yield_now();
            latest = self.current(seen.run.id).await.unwrap();
        }
        latest
    }

    async fn commit_one(&self, mut write: Write) -> Result<WriteOutcome, Error> {
        let id = write.run.id;
        let current = self.current(id).await;
        self.hide_some_keys(&mut write);
        match (self.defect, &current) {
            (Defect::OverwritesDuplicates, Some(current)) if write.expect == Expect::Absent => {
                write.expect = Expect::Revision(current.revision);
            }
            (Defect::IgnoresRevisions, Some(current)) if write.expect != Expect::Absent => {
                write.expect = Expect::Revision(current.revision);
            }
            (Defect::ChecksThenWrites, Some(current)) if write.expect == Expect::Revision(current.revision) => {
                let latest = self.in_between(current).await;
                write.expect = Expect::Revision(latest.revision);
            }
            (Defect::CountsStartsForEver, _) if write.events.iter().any(is_start) => {
                if let Some(busy) = self.used_up_for_ever(&write.run) {
                    return Ok(busy);
                }
            }
            (Defect::KeepsKeysAfterTheEnd | Defect::HoldersBlockThemselves, _) => {
                if let Some(busy) = self.busy(&write.run) {
                    return Ok(busy);
                }
            }
            _ => {}
        }
        let held: Vec<String> = current.iter().flat_map(|current| current.run.held_keys()).map(Key::slot).collect();
        let claims =
            write.run.owner().is_some() && current.as_ref().is_none_or(|current| current.run.owner().is_none());
        let (worker, after, events) =
            (write.run.owner().map(|owner| owner.worker), write.run.clone(), write.events.clone());
        self.notes().stamps.entry(id).or_insert(write.stamp);
        let written = self.inner.commit(vec![write]).await?.remove(0);
        match &written {
            WriteOutcome::Done(_) => {
                let mut notes = self.notes();
                if self.is(Defect::KeepsKeysAfterTheEnd) && after.held_keys().next().is_none() {
                    notes.stuck.extend(held.into_iter().map(|key| (key, id)));
                }
                if self.is(Defect::HoldersBlockThemselves) {
                    notes.stuck.retain(|(_, holder)| *holder != id);
                    notes.stuck.extend(after.held_keys().map(|key| (key.slot(), id)));
                }
                drop(notes);
                let first = worker.is_some_and(|worker| !self.notes().awake.contains_key(&worker));
                if let Some(worker) = worker.filter(|_| claims && (first || !self.is(Defect::ClaimIsNoBeat))) {
                    self.note_beat(worker);
                }
            }
            WriteOutcome::Conflict(Some(current)) if self.is(Defect::TellsOfWritesThatLost) => {
                let current = (**current).clone();
                let expect = Expect::Revision(current.revision);
                let write = Write { expect, run: current.run, events, ended: None, stamp: current.stamp };
                self.inner.commit(vec![write]).await?;
            }
            _ => {}
        }
        Ok(match written {
            WriteOutcome::Conflict(found) => WriteOutcome::Conflict(found.map(|found| Box::new(self.tell(*found)))),
            written => written,
        })
    }

    /// The update of a store that reads, thinks, and writes whatever has happened meanwhile.
    async fn read_then_write(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        let page = Page { after: None, limit: 1_000, order: selection.order };
        let found = self.inner.list(&selection.filter, &page).await?.records;
        let mut changed = Vec::new();
        for record in found {
            if changed.len() == selection.limit {
                break;
            }
            let Some(change) = rule(&record.run, self.clock.now()) else { continue };
            let mut latest = self.in_between(&record).await;
            if latest.run.owner().is_some() {
                latest.run.state = record.run.state.clone();
            }
            let write = Write::change(&latest, change.transition, change.stamp);
            if let [WriteOutcome::Done(_)] = self.inner.commit(vec![write]).await?.as_slice() {
                changed.extend(self.current(record.run.id).await.map(|record| self.tell(record)));
            }
        }
        Ok(changed)
    }
}

fn without(part: Part, filter: &Filter) -> Filter {
    let mut filter = filter.clone();
    match part {
        Part::Ids => filter.ids = None,
        Part::IdPrefix => filter.id_prefix = None,
        Part::States => filter.states = None,
        Part::Name => filter.name = None,
        Part::Kind => filter.kind = None,
        Part::Labels => filter.labels.clear(),
        Part::Owner => filter.owner = None,
        Part::Since => filter.since = None,
        Part::Until => filter.until = None,
        Part::Text => filter.text = None,
        Part::Archived => filter.archived = None,
        Part::IsStep => filter.is_step = None,
        Part::StepOf => filter.step_of = None,
        Part::Kinds => filter.kinds = None,
    }
    filter
}

#[async_trait]
impl Store for Mutant {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        let found = self.inner.get(ids).await?;
        if self.is(Defect::MissingIsAnError) && found.len() < ids.len() {
            return Err(Error::Unavailable("no such run".into()));
        }
        Ok(found.into_iter().map(|record| self.tell(record)).collect())
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let mut page = page.clone();
        let filter = match self.defect {
            Defect::ListIgnores(part) => without(part, filter),
            _ => filter.clone(),
        };
        if self.is(Defect::ListIgnoresOrder) {
            page.order = Order::Oldest;
        }
        let mut listing = self.inner.list(&filter, &page).await?;
        match self.defect {
            Defect::ListDropsTheLastOfAPage if listing.next.is_some() => drop(listing.records.pop()),
            Defect::ListRepeatsTheLastOfAPage => {
                if let Some(after) = page.after {
                    listing.records.extend(self.current(after.id).await);
                    listing.records.rotate_right(1);
                    listing.records.truncate(page.limit.max(1));
                }
            }
            Defect::ListEndsAtOnePage => listing.next = None,
            Defect::ListSortsByThePriorityOfTheSpec if page.order == Order::Claim => {
                listing.records.sort_by_key(|record| (record.run.spec.priority, record.run.created_at, record.run.id));
            }
            Defect::ListSortsByIdAlone => listing.records.sort_by_key(|record| record.run.id),
            _ => {}
        }
        listing.records = listing.records.into_iter().map(|record| self.tell(record)).collect();
        Ok(listing)
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let ids: Vec<RunId> = writes.iter().map(|write| write.run.id).collect();
        if self.is(Defect::RefusesManyForOne) && ids.len() > 32 && !self.inner.get(&ids).await?.is_empty() {
            return Ok(ids.iter().map(|_| WriteOutcome::Conflict(None)).collect());
        }
        let mut written = Vec::new();
        for write in writes {
            let stopped =
                self.is(Defect::StopsABatchAtAConflict) && matches!(written.last(), Some(WriteOutcome::Conflict(_)));
            written.push(if stopped { WriteOutcome::Conflict(None) } else { self.commit_one(write).await? });
        }
        Ok(written)
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        if self.is(Defect::UpdateReadsThenWrites) {
            return self.read_then_write(selection, rule).await;
        }
        let mut selection = selection.clone();
        match self.defect {
            Defect::UpdateIgnoresLimit => selection.limit = usize::MAX,
            Defect::UpdateIgnoresOrder => selection.order = Order::Oldest,
            Defect::IgnoresTheShareOfAnUpdate => selection.filter.share = None,
            Defect::UpdateIgnoresFilter => selection.filter = Filter::default(),
            Defect::UpdateIgnoresWhatIsDue => selection.due = false,
            Defect::UpdateLeavesOutWhatIsNotDue => selection.due = true,
            _ => {}
        }
        let refused = Mutex::new(false);
        let told = |run: &Run, now: Timestamp| -> Option<Change> {
            let mut run = run.clone();
            if let State::Running(running) = &mut run.state {
                let heard = &mut running.owner.heard;
                self.hear(running.owner.worker, heard);
                if self.is(Defect::RulesHearNothing) {
                    *heard = LastHeartbeat::default();
                }
            }
            if *refused.lock().unwrap() {
                return None;
            }
            let mut change = rule(&run, now);
            match (self.defect, &mut change) {
                (Defect::UpdateIgnoresKeys, Some(change)) => {
                    self.hide_keys(&mut change.transition.run, |key| key.hold == Hold::Running);
                }
                (Defect::UpdateIgnoresRates, Some(change)) => {
                    self.hide_keys(&mut change.transition.run, |key| key.per().is_some());
                }
                _ => {}
            }
            *refused.lock().unwrap() = change.is_none() && self.is(Defect::UpdateStopsAtARefusal);
            change
        };
        let changed = self.inner.update(&selection, &told).await?;
        for worker in changed.iter().filter_map(|record| record.run.owner()).map(|owner| owner.worker) {
            self.note_beat(worker);
        }
        Ok(changed.into_iter().map(|record| self.tell(record)).collect())
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        let mut beat = beat.clone();
        match self.defect {
            Defect::LeaversStay => beat.leaving = false,
            Defect::OwnersLeave if beat.leaving => drop(self.notes().left.insert(beat.worker)),
            _ => {}
        }
        self.note_beat(beat.worker);
        let mut reply = self.inner.beat(&beat).await?;
        for (id, _) in beat.held.iter() {
            let Some(record) = self.current(*id).await else { continue };
            let (mut run, revision, stamp) = (record.run, record.revision, record.stamp);
            let revived = self.is(Defect::BeatRevives) && run.ending().is_some();
            if let (true, State::Ended(ending)) = (revived, run.state.clone()) {
                let owner = ending.owner.unwrap();
                let started_at = ending.at;
                run.state = State::Running(outlive::run::Running::begun(owner, started_at, started_at));
            }
            if revived || self.is(Defect::BeatMovesRevisions) {
                let write = Write { expect: Expect::Revision(revision), run, events: Vec::new(), ended: None, stamp };
                self.inner.commit(vec![write]).await?;
            }
        }
        match self.defect {
            Defect::BeatKeepsQuiet(News::Lost) => reply.lost.clear(),
            Defect::BeatKeepsQuiet(News::Unknown) => reply.unknown.clear(),
            Defect::BeatKeepsQuiet(News::Cancelled) => reply.cancelled.clear(),
            Defect::BeatKeepsQuiet(News::Forgotten) => reply.forgotten.clear(),
            Defect::BeatTrustsOldAttention if beat.attention.is_some() => {
                reply = BeatReply { attention: reply.attention, ..BeatReply::default() };
            }
            _ => {}
        }
        Ok(reply)
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        let mut counts = self.inner.counts().await?;
        match self.defect {
            Defect::CountsLeaveOutTheEnded => counts.retain(|count| !count.state.is_ended()),
            Defect::CountsForgetClaims => counts.iter_mut().for_each(|count| count.claims = count.runs),
            _ => {}
        }
        Ok(counts)
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        let mut workers = self.inner.workers().await?;
        workers.retain(|worker| !self.notes().left.contains(&worker.id));
        for worker in &mut workers {
            self.hear(worker.id, &mut worker.heard);
        }
        Ok(workers)
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let left = self.inner.next_due(filter).await?;
        if self.is(Defect::ForgetsWhatIsDueNext) {
            return Ok(None);
        }
        Ok(if self.is(Defect::IsDueTooLate) { left.map(|left| left * 2) } else { left })
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        let mut heads = self.inner.heads(filter).await?;
        if self.is(Defect::ForgetsShares) {
            heads.retain(|head| head.share.is_none());
        }
        if self.is(Defect::NamesTheYoungestHead) {
            heads.iter_mut().for_each(|head| head.created_at = head.created_at.after(Duration::from_secs(1)));
        }
        Ok(heads)
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.inner.starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        let mut events = self.inner.events(id).await?;
        match self.defect {
            Defect::ForgetsTheLastEvent if events.len() > 2 => drop(events.pop()),
            Defect::DoublesEvents if events.len() > 2 => events.extend(events.last().cloned()),
            Defect::ReversesEvents if events.len() > 2 => events.reverse(),
            Defect::MixesStories if !events.is_empty() => {
                let all = self.inner.list(&Filter::default(), &Page::default()).await?.records;
                for other in all.iter().filter(|record| record.run.id != id) {
                    events.extend(self.inner.events(other.run.id).await?);
                }
            }
            Defect::MissingHasNoEvents if self.current(id).await.is_none() => {
                return Err(Error::Corrupt("no event log".into()));
            }
            _ => {}
        }
        Ok(events)
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        None
    }
}
