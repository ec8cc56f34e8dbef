//! Deleting: a tombstone replaces a record before it is deleted, so that writes meanwhile are refused.
//!
//! A bucket deletes on no condition. What takes the place of the record first is put on one; from then on nothing can be
//! put there, and what is deleted is what was decided on. A process that dies in between leaves the
//! tombstone, which others clear away.

use super::bucket::Landed;
use super::cache::CachedRecord;
use super::record::closed;
use super::{ObjectStore, RECORD, io_thread};
use crate::model::id::{RunId, Stamp, SystemEntropy};
use crate::model::time::Timestamp;
use crate::store::{Error, Revision};
use crate::util::sync::lock;

impl ObjectStore {
    /// Deletes the record of a run and its event log, if it is at that revision. Whether it was.
    pub async fn forget(&self, id: RunId, revision: Revision) -> Result<bool, Error> {
        let store = self.clone();
        io_thread::spawn(move || async move { store.forget_one(id, revision).await }).await
    }

    async fn forget_one(&self, id: RunId, revision: Revision) -> Result<bool, Error> {
        let key = self.place_of(id);
        let Some(entry) = self.fetch(&key).await? else { return Ok(false) };
        let document = entry.document?;
        if document.foreign || document.revision != revision {
            return Ok(false);
        }
        let nonce = Stamp::draw(&SystemEntropy);
        let mark = closed(nonce, self.now()?);
        match self.bucket().put(&key, mark.into(), &nonce.to_string(), Some(&entry.version)).await? {
            Landed::Done(_) => self.clear_away(&key).await.map(|()| true),
            Landed::Other(_) => Ok(false),
        }
    }

    /// Where marks are left of records that are no more, put before `before`.
    pub async fn closed_before(&self, before: Timestamp) -> Result<Vec<String>, Error> {
        let store = self.clone();
        let old = move |(key, entry): (String, CachedRecord)| {
            let at = store.bucket().time.put_at(entry.modified?, entry.closed?);
            (at < before).then_some(key)
        };
        let store = self.clone();
        io_thread::spawn(move || async move { Ok(store.refresh().await?.into_iter().filter_map(old).collect()) }).await
    }

    /// Deletes such a mark, and what it left.
    pub async fn clear_closed(&self, key: &str) -> Result<(), Error> {
        let (store, key) = (self.clone(), key.to_owned());
        io_thread::spawn(move || async move { store.clear_away(&key).await }).await
    }

    async fn clear_away(&self, key: &str) -> Result<(), Error> {
        let events = self.part_of(key, "");
        let parts = self.bucket().list_all(events.trim_end_matches('/')).await?.into_iter().map(|part| part.key);
        // The mark last: what it stands for is gone then.
        for keys in [parts.collect::<Vec<_>>(), vec![key.to_owned()]] {
            if let Some((_, error)) = self.bucket().delete(&keys).await?.into_iter().next() {
                return Err(error);
            }
        }
        debug_assert!(key.ends_with(RECORD));
        lock(&self.inner.cache).evict(key);
        Ok(())
    }
}
