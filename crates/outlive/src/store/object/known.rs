//! What is known of the bucket's records, by their names and versions: only what has changed is read again.
//!
//! What is known may be old, and is never what a decision rests on: a write names the version it was made from.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::bucket::{AT_ONCE, Listed, Object, Version};
use super::record::{Document, closed_at};
use super::{ObjectStore, RECORD, lock};
use crate::id::RunId;
use crate::store::Error;
use crate::time::Timestamp;

/// The records that were read or written here.
#[derive(Default)]
pub(super) struct Known {
    records: HashMap<String, Entry>,
    /// Where the records are whose ids do not tell.
    foreign: HashMap<RunId, String>,
    /// Those that were there and are no more. Whoever held such a run is not to make it again: it was deleted by somebody
    /// who knows what became of it since.
    gone: HashSet<String>,
}

/// A record in one of its versions.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) version: Version,
    /// When it was put, by the server's word; none where it was put here and not read since.
    pub(super) modified: Option<Timestamp>,
    /// What it says, or why that cannot be known.
    pub(super) document: Result<Arc<Document>, Error>,
    /// Since when nothing may be put there any more, if that is what it says.
    pub(super) closed: Option<Timestamp>,
}

impl Entry {
    fn order(&self) -> (u64, u64) {
        self.document.as_ref().map_or((0, 0), |document| (document.revision.0, document.beats.count))
    }
}

impl Known {
    /// Takes a version in, unless a later one is known.
    pub(super) fn take(&mut self, key: &str, entry: Entry) {
        let is_late = |known: &Entry| known.document.is_ok() && known.order() > entry.order();
        if self.records.get(key).is_some_and(is_late) && entry.document.as_ref().is_ok_and(|document| !document.foreign)
        {
            return;
        }
        if let Ok(document) = &entry.document
            && document.foreign
        {
            self.foreign.insert(document.run.id, key.to_owned());
        }
        self.gone.remove(key);
        self.records.insert(key.to_owned(), entry);
    }

    pub(super) fn find(&self, key: &str) -> Option<Entry> {
        self.records.get(key).cloned()
    }

    pub(super) fn forget(&mut self, key: &str) {
        if self.records.remove(key).is_some() {
            self.gone.insert(key.to_owned());
        }
    }

    /// Whether the record was there, and is no more.
    pub(super) fn is_gone(&self, key: &str) -> bool {
        self.gone.contains(key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.records.values()
    }
}

impl ObjectStore {
    /// Where the record of a run is, as far as is known.
    pub(super) fn place_of(&self, id: RunId) -> String {
        lock(&self.inner.known).foreign.get(&id).cloned().unwrap_or_else(|| self.key_of(id))
    }

    /// Takes note of an object.
    pub(super) fn note(&self, key: &str, object: &Object) -> Entry {
        let document = Document::read(key, &object.bytes).map(Arc::new);
        let closed = if document.is_err() { closed_at(&object.bytes) } else { None };
        let entry = Entry { version: object.version.clone(), modified: Some(object.modified), document, closed };
        lock(&self.inner.known).take(key, entry.clone());
        entry
    }

    /// The record as it is; none where there is none.
    pub(super) async fn fetch(&self, key: &str) -> Result<Option<Entry>, Error> {
        match self.bucket().get(key).await? {
            Some(object) => Ok(Some(self.note(key, &object))),
            None => {
                lock(&self.inner.known).forget(key);
                Ok(None)
            }
        }
    }

    /// Lists all records, reads those that have changed, and answers with all that there are.
    pub(super) async fn refresh(&self) -> Result<Vec<(String, Entry)>, Error> {
        let runs = self.runs();
        let mut listed: Vec<Listed> = Vec::new();
        self.bucket()
            .list(&runs, async |page| {
                listed.extend(page.into_iter().filter(|object| is_record(&runs, &object.key)));
                Ok(())
            })
            .await?;
        let (mut fresh, mut changed) = (Vec::new(), Vec::new());
        {
            let mut known = lock(&self.inner.known);
            for object in &listed {
                match known.records.get_mut(&object.key) {
                    Some(entry) if object.tag.is_some() && entry.version.tag == object.tag => {
                        entry.modified = Some(object.modified);
                        fresh.push((object.key.clone(), entry.clone()));
                    }
                    _ => changed.push(object.key.clone()),
                }
            }
            if known.records.len() > listed.len() + changed.len() {
                let names: HashSet<&String> = listed.iter().map(|object| &object.key).collect();
                known.records.retain(|key, _| names.contains(key));
            }
        }
        let reading = stream::iter(changed).map(async |key| (key.clone(), self.fetch(&key).await));
        let read: Vec<(String, Result<Option<Entry>, Error>)> = reading.buffer_unordered(AT_ONCE).collect().await;
        for (key, entry) in read {
            // One that has gone since it was listed is none.
            fresh.extend(entry?.map(|entry| (key, entry)));
        }
        Ok(fresh)
    }
}

/// Whether this is the name of a run's record: right below what the runs are in, and nothing else of a run's.
fn is_record(runs: &str, key: &str) -> bool {
    let below = key.strip_prefix(runs).and_then(|rest| rest.strip_prefix('/'));
    below.and_then(|rest| rest.split_once('/')).is_some_and(|(run, file)| run.contains("_run_id=") && file == RECORD)
}
