//! The calls of the store trait, on a registry in a bucket.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use super::bucket::AT_ONCE;
use super::cache::CachedRecord;
use super::{ObjectStore, io_thread};
use crate::lifecycle::Start;
use crate::lifecycle::health::ProcessObserver;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, QueueHead, StateName};
use crate::model::time::Timestamp;
use crate::store::{
    Beat, BeatReply, Count, Cursor, Error, Listing, Order, PAGE_LIMIT, Page, Record, Rule, Selection, Store,
    WorkerRecord, Write, WriteOutcome, counts, heads_of, next_due_of,
};
use crate::util::sync::lock;

impl ObjectStore {
    /// The records of these runs, each with the version it was read from.
    pub(super) async fn find(&self, ids: &[RunId]) -> Result<Vec<(String, CachedRecord)>, Error> {
        let keys: HashSet<String> = ids.iter().map(|id| self.place_of(*id)).collect();
        let reading = stream::iter(keys).map(async |key| (key.clone(), self.fetch(&key).await));
        let mut found = Vec::new();
        for (key, entry) in reading.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
            match entry? {
                // Among others it is left out, so that it does not hide them; asked for alone it is reported.
                Some(CachedRecord { document: Err(error), .. }) if ids.len() == 1 => return Err(error),
                Some(entry) => found.push((key, entry)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Records as they are returned: those that can be understood, with the last heartbeats of their owners.
    pub(super) async fn tell(&self, entries: &[(String, CachedRecord)]) -> Result<Vec<Record>, Error> {
        let now = self.now()?;
        let tell = || -> Vec<Record> {
            let current = |(_, entry): &(String, CachedRecord)| {
                let document = entry.document.as_ref().ok()?;
                Some(document.record(self.heard(document, entry.modified, now)))
            };
            entries.iter().filter_map(current).collect()
        };
        let records = tell();
        let is_lapsed =
            |record: &Record| record.run.owner().is_some_and(|owner| owner.lease.lapsed(owner.heard.silent_for));
        if !records.iter().any(is_lapsed) {
            return Ok(records);
        }
        // Before an owner is called silent: could a heartbeat have arrived?
        self.learn_reachable_since().await?;
        Ok(tell())
    }

    async fn get_all(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        let found = self.find(ids).await?;
        let wanted: HashSet<RunId> = ids.iter().copied().collect();
        let mut records = self.tell(&found).await?;
        records.retain(|record| wanted.contains(&record.run.id));
        if records.len() < wanted.len() && ids.iter().any(RunId::is_foreign) {
            // Their ids do not tell where they are.
            let all = self.refresh().await?;
            records = self.tell(&all).await?;
            records.retain(|record| wanted.contains(&record.run.id));
        }
        Ok(records)
    }

    /// All records, where those are that cannot be read, and the server's time before they were.
    pub async fn everything(&self) -> Result<(Vec<Record>, Vec<(String, Error)>, Timestamp), Error> {
        let store = self.clone();
        io_thread::spawn(move || async move {
            let now = store.now()?;
            let all = store.refresh().await?;
            let date =
                |(_, entry): &(String, CachedRecord)| Some((entry.document.as_ref().ok()?.run.id, entry.modified?));
            *lock(&store.inner.dates) = all.iter().filter_map(date).collect();
            // One that was closed says so: it is none that cannot be read.
            let is_run = |(_, entry): &&(String, CachedRecord)| entry.closed.is_none();
            let unreadable =
                |(key, entry): &(String, CachedRecord)| Some((key.clone(), entry.document.as_ref().err()?.clone()));
            let unreadable = all.iter().filter(is_run).filter_map(unreadable).collect();
            Ok((store.tell(&all).await?, unreadable, now))
        })
        .await
    }

    /// When the record of a run was put that its writer dates `claimed`, as of the last call of [`ObjectStore::everything`]:
    /// by the server's clock, for the writer may have a wrong one.
    pub fn put_at(&self, id: RunId, claimed: Timestamp) -> Timestamp {
        let put = lock(&self.inner.dates).get(&id).copied();
        put.map_or(claimed, |put| self.bucket().time.put_at(put, claimed))
    }

    async fn all(&self, filter: &Filter) -> Result<Vec<(String, CachedRecord)>, Error> {
        match &filter.ids {
            Some(ids) if ids.len() <= PAGE_LIMIT => self.find(ids).await,
            // What is in flight is read however many have ended.
            _ => {
                let ended = filter.states.as_ref().is_none_or(|states| states.iter().any(|state| state.is_ended()));
                self.refresh_with(ended).await
            }
        }
    }

    async fn list_page(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let all = self.all(filter).await?;
        let mut records = self.tell(&all).await?;
        records.retain(|record| filter.matches(&record.run));
        sort(&mut records, page.order);
        Ok(Listing::of(records, page))
    }

    /// The runs of a selection in order, and the server's time.
    async fn selected(&self, filter: &Filter, order: Order) -> Result<(Vec<Record>, Timestamp), Error> {
        let all = self.all(filter).await?;
        let mut records = self.tell(&all).await?;
        records.retain(|record| filter.matches(&record.run));
        sort(&mut records, order);
        Ok((records, self.now()?))
    }

    async fn read_events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        let key = self.place_of(id);
        let Some(entry) = self.fetch(&key).await? else { return Ok(Vec::new()) };
        let document = entry.document?;
        let mut events = Vec::new();
        for part in &document.parts {
            let object = self.bucket().get(&self.part_of(&key, part)).await?;
            let bytes = object.map(|object| object.bytes).unwrap_or_default();
            let lines = String::from_utf8_lossy(&bytes).into_owned();
            // One that cannot be understood hides no other.
            events.extend(lines.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok()));
        }
        events.extend(document.events.iter().cloned());
        Ok(events)
    }
}

fn sort(records: &mut [Record], order: Order) {
    records.sort_by_key(|record| Cursor::at(&record.run).sort_key(order));
}

#[async_trait]
impl Store for ObjectStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let (store, ids) = (self.clone(), ids.to_vec());
        io_thread::spawn(move || async move { store.get_all(&ids).await }).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let (store, filter, page) = (self.clone(), filter.clone(), page.clone());
        io_thread::spawn(move || async move { store.list_page(&filter, &page).await }).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let store = self.clone();
        io_thread::spawn(move || async move { store.commit_all(writes).await }).await
    }

    /// A bucket locks nothing: a run that has changed since it was looked at is one that others hold.
    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        if selection.limit == 0 {
            return Ok(Vec::new());
        }
        let (store, filter, order) = (self.clone(), selection.filter.clone(), selection.order);
        let (records, now) = io_thread::spawn(move || async move { store.selected(&filter, order).await }).await?;
        let (mut changed, mut records) = (Vec::new(), records.into_iter().peekable());
        while changed.len() < selection.limit && records.peek().is_some() {
            let mut writes = Vec::new();
            while changed.len() + writes.len() < selection.limit
                && writes.len() < AT_ONCE
                && let Some(record) = records.next()
            {
                if selection.takes(&record.run, now)
                    && let Some(change) = rule(&record.run, now)
                {
                    writes.push((Write::change(&record, change.transition, change.stamp), record));
                }
            }
            let store = self.clone();
            let done = io_thread::spawn(move || async move { store.change_all(writes).await }).await;
            match done {
                Ok(done) => changed.extend(done),
                // Those before it were changed, and no other call will return them.
                Err(Error::Unavailable(why)) if !changed.is_empty() => return Err(Error::Unknown(why)),
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        let (store, beat) = (self.clone(), beat.clone());
        io_thread::spawn(move || async move { store.beat_once(&beat).await }).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        counts::read(self).await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        let store = self.clone();
        io_thread::spawn(move || async move { store.all_workers().await }).await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        let (store, filter) = (self.clone(), Filter { states: Some([StateName::Pending].into()), ..filter.clone() });
        let (records, now) =
            io_thread::spawn(move || async move { store.selected(&filter, Order::Claim).await }).await?;
        Ok(next_due_of(records.iter().map(|record| &record.run), now))
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        let (store, filter) = (self.clone(), Filter { states: Some([StateName::Pending].into()), ..filter.clone() });
        let (records, now) =
            io_thread::spawn(move || async move { store.selected(&filter, Order::Claim).await }).await?;
        Ok(heads_of(records.iter().map(|record| &record.run), now))
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        let (store, rates) = (self.clone(), rates.to_vec());
        io_thread::spawn(move || async move { store.all_starts(&rates).await }).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        let store = self.clone();
        io_thread::spawn(move || async move { store.read_events(id).await }).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        None
    }
}
