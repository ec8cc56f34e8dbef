//! The cache of records, by object key and version: only what has changed is read again.
//!
//! A cached record may be outdated, and no decision rests on it: a write names the version it was made from. Eviction says
//! nothing of the record itself. There are no tombstones here either: whether a missing record was deleted is asked of the
//! bucket ([`ObjectStore::is_still_there`]), which answers alike for every process, restarted ones included.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::bucket::{AT_ONCE, ListedObject, Object, Version};
use super::record::{Document, closed_at};
use super::{ObjectStore, RECORD};
use crate::model::id::RunId;
use crate::model::run::State;
use crate::model::time::Timestamp;
use crate::store::Error;
use crate::util::sync::lock;

/// The most records that are cached. Ended runs are evicted first; runs in flight stay, as heartbeats rest on them.
const LIMIT: usize = 20_000;

/// The records that were read or written here.
#[derive(Default)]
pub(super) struct Cache {
    records: HashMap<String, CachedRecord>,
    /// The keys of records whose run ids do not give them.
    foreign: HashMap<RunId, String>,
}

/// A record in one of its versions.
#[derive(Clone)]
pub(super) struct CachedRecord {
    pub(super) version: Version,
    /// When it was put, by the server's word; none where it was put here and not read since.
    pub(super) modified: Option<Timestamp>,
    /// What it says, or why that cannot be known.
    pub(super) document: Result<Arc<Document>, Error>,
    /// Since when nothing may be put there any more, if that is what it says.
    pub(super) closed: Option<Timestamp>,
    /// The document lacks its events: no write is made from it.
    pub(super) partial: bool,
}

impl CachedRecord {
    fn order(&self) -> (u64, u64) {
        self.document.as_ref().map_or((0, 0), |document| (document.revision.0, document.beats.count))
    }
}

impl CachedRecord {
    pub(super) fn has_ended(&self) -> bool {
        self.document.as_ref().is_ok_and(|document| matches!(document.run.state, State::Ended(_)))
    }
}

impl Cache {
    /// Inserts a version, unless a later one is cached.
    pub(super) fn insert(&mut self, key: &str, entry: CachedRecord) {
        let is_late = |cached: &CachedRecord| cached.document.is_ok() && cached.order() > entry.order();
        if self.records.get(key).is_some_and(is_late) && entry.document.as_ref().is_ok_and(|document| !document.foreign)
        {
            return;
        }
        if let Ok(document) = &entry.document
            && document.foreign
        {
            self.foreign.insert(document.run.id, key.to_owned());
        }
        self.records.insert(key.to_owned(), entry);
        if self.records.len() > LIMIT {
            self.shrink(LIMIT / 4 * 3);
        }
    }

    /// Evicts ended runs, oldest first, until no more than `limit` records are left.
    fn shrink(&mut self, limit: usize) {
        let mut ended: Vec<String> =
            self.records.iter().filter(|(_, entry)| entry.has_ended()).map(|(key, _)| key.clone()).collect();
        // Keys begin with the time at which their run was made.
        ended.sort_unstable();
        ended.truncate(self.records.len().saturating_sub(limit));
        for key in &ended {
            self.evict(key);
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<CachedRecord> {
        self.records.get(key).cloned()
    }

    pub(super) fn evict(&mut self, key: &str) {
        if let Some(Ok(document)) = self.records.remove(key).map(|entry| entry.document) {
            self.foreign.remove(&document.run.id);
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &CachedRecord> {
        self.records.values()
    }
}

impl ObjectStore {
    /// Where the record of a run is, as far as is known.
    pub(super) fn place_of(&self, id: RunId) -> String {
        lock(&self.inner.cache).foreign.get(&id).cloned().unwrap_or_else(|| self.key_of(id))
    }

    /// Takes note of an object.
    pub(super) fn note(&self, key: &str, object: &Object) -> CachedRecord {
        let document = Document::read(key, &object.bytes).map(Arc::new);
        let closed = if document.is_err() { closed_at(&object.bytes) } else { None };
        let entry = CachedRecord {
            version: object.version.clone(),
            modified: Some(object.modified),
            document,
            closed,
            partial: false,
        };
        lock(&self.inner.cache).insert(key, entry.clone());
        entry
    }

    /// The record as it is; none where there is none.
    pub(super) async fn fetch(&self, key: &str) -> Result<Option<CachedRecord>, Error> {
        match self.bucket().get(key).await? {
            Some(object) => Ok(Some(self.note(key, &object))),
            None => {
                lock(&self.inner.cache).evict(key);
                Ok(None)
            }
        }
    }

    /// Whether there is a record, of whatever writer.
    pub async fn has_records(&self) -> Result<bool, Error> {
        let store = self.clone();
        super::io_thread::spawn(move || async move {
            let listed = store.bucket().list_all(&store.runs()).await?;
            Ok(listed.iter().any(|object| is_record(&store.runs(), &object.key)))
        })
        .await
    }

    /// Lists all records, reads those that have changed, and answers with all that there are.
    pub(super) async fn refresh(&self) -> Result<Vec<(String, CachedRecord)>, Error> {
        self.refresh_with(true).await
    }

    /// Lists all records, and reads those that have changed. Without `ended`, records that are cached as ended are left out.
    pub(super) async fn refresh_with(&self, ended: bool) -> Result<Vec<(String, CachedRecord)>, Error> {
        let runs = self.runs();
        let mut listed: Vec<ListedObject> = Vec::new();
        self.bucket()
            .list(&runs, async |page| {
                listed.extend(page.into_iter().filter(|object| is_record(&runs, &object.key)));
                Ok(())
            })
            .await?;
        let (mut fresh, mut changed) = (Vec::new(), Vec::new());
        {
            let mut cache = lock(&self.inner.cache);
            for object in &listed {
                match cache.records.get_mut(&object.key) {
                    Some(entry) if object.tag.is_some() && entry.version.tag == object.tag => {
                        entry.modified = Some(object.modified);
                        fresh.push((object.key.clone(), entry.clone()));
                    }
                    _ => changed.push(object.clone()),
                }
            }
            if cache.records.len() > listed.len() + changed.len() {
                let names: HashSet<&String> = listed.iter().map(|object| &object.key).collect();
                cache.records.retain(|key, _| names.contains(key));
                cache.foreign.retain(|_, key| names.contains(key));
            }
        }
        let cached = self.take_ended(&mut changed, ended);
        {
            let mut cache = lock(&self.inner.cache);
            cached.iter().for_each(|(key, entry)| cache.insert(key, entry.clone()));
        }
        fresh.extend(cached);
        let already = fresh.len();
        let reading = stream::iter(changed).map(async |object| (object.key.clone(), self.fetch(&object.key).await));
        let read: Vec<(String, Result<Option<CachedRecord>, Error>)> =
            reading.buffer_unordered(AT_ONCE).collect().await;
        for (key, entry) in read {
            // One that has gone since it was listed is none.
            fresh.extend(entry?.map(|entry| (key, entry)));
        }
        self.keep_ended(fresh[already..].iter(), listed.iter().map(|object| object.key.as_str()));
        Ok(fresh)
    }
}

/// Whether this is the name of a run's record: right below what the runs are in, and nothing else of a run's.
fn is_record(runs: &str, key: &str) -> bool {
    let below = key.strip_prefix(runs).and_then(|rest| rest.strip_prefix('/'));
    below.and_then(|rest| rest.split_once('/')).is_some_and(|(run, file)| run.contains("_run_id=") && file == RECORD)
}
