//! Writing: a change of a run is a conditional write on its one object.
//!
//! A revision tells one change from the next; a version tells one object from the next, and beats make versions without
//! making revisions. A change is put in place of the version it was made from. If only beats came between, it is made
//! again from what is there; a reap is not, for it rests on there having been no heartbeat.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::bucket::{AT_ONCE, Landed, Version};
use super::cache::CachedRecord;
use super::record::{self, Beats, Document};
use super::{ObjectStore, RECORD};
use crate::model::id::{Stamp, SystemEntropy};
use crate::model::run::{Event, LastHeartbeat, Run};
use crate::store::{Error, Expect, Record, Revision, Write, WriteOutcome};
use crate::util::sync::lock;

/// How often a change is made again because beats came between.
const TRIES: usize = 16;
/// An event log that is longer than this, in bytes, is put aside before it grows.
const LONG_LOG: usize = 16 << 10;

/// What a write is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// The run as it is, whatever was heard of its owner meanwhile.
    Run,
    /// The very version that was looked at.
    Version,
}

impl ObjectStore {
    pub(super) async fn commit_all(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        let tried = stream::iter(writes).map(async |write| self.write(&write, Base::Run).await);
        let tried: Vec<Result<WriteOutcome, Error>> = tried.buffered(AT_ONCE).collect().await;
        let done = tried.iter().filter(|written| matches!(written, Ok(WriteOutcome::Done(_)))).count();
        tried.into_iter().collect::<Result<Vec<WriteOutcome>, Error>>().map_err(|error| unless_some(done, error))
    }

    /// Makes changes that were decided on the records as they were looked at. Answers with those that were made.
    pub(super) async fn change_all(&self, changes: Vec<(Write, Record)>) -> Result<Vec<Record>, Error> {
        let tried = stream::iter(changes).map(async |(write, seen)| {
            let written = self.write_if_unheard(&write, &seen).await;
            (write, written)
        });
        let tried: Vec<(Write, Result<WriteOutcome, Error>)> = tried.buffered(AT_ONCE).collect().await;
        let (mut changed, mut failed) = (Vec::new(), None);
        for (write, written) in tried {
            match written {
                Ok(WriteOutcome::Done(revision)) => {
                    changed.push(Record { run: write.run, revision, stamp: write.stamp });
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), |error| Err(unless_some(changed.len(), error)))?;
        Ok(changed)
    }

    /// Writes only where no heartbeat of the owner has arrived since `seen` was read.
    async fn write_if_unheard(&self, write: &Write, seen: &Record) -> Result<WriteOutcome, Error> {
        let key = self.place_of(write.run.id);
        let cached = lock(&self.inner.cache).get(&key);
        let beats = cached.and_then(|entry| entry.document.ok()).map(|document| document.beats.count);
        let heard = seen.run.owner().map(|owner| owner.heard.beat);
        if heard.is_some() && heard != beats {
            return Ok(WriteOutcome::Conflict(None));
        }
        self.write(write, Base::Version).await
    }

    async fn write(&self, write: &Write, base: Base) -> Result<WriteOutcome, Error> {
        let written = match write.expect {
            Expect::Absent => self.create(write).await,
            Expect::Revision(revision) => self.change(write, revision, base).await,
        };
        match &written {
            Err(Error::Unknown(_)) => self.doubt(&write.run),
            Ok(WriteOutcome::Done(_)) => self.renew_other_leases(&write.run).await,
            _ => {}
        }
        written
    }

    async fn create(&self, write: &Write) -> Result<WriteOutcome, Error> {
        let key = self.key_of(write.run.id);
        // A run that is made has an event to tell of it. Without one it is registered again by its holder.
        if write.events.is_empty() && self.is_still_there().await? {
            return Err(Error::Denied(format!("the record of run `{}` was deleted", write.run.id)));
        }
        if let Some(busy) = self.take_keys(None, write).await? {
            return Ok(busy);
        }
        let count = u64::from(write.run.owner().is_some());
        let document = Document {
            run: recorded(&write.run),
            revision: Revision(1),
            stamp: write.stamp,
            beats: Beats { count, at: self.now()?, fresh: count > 0 },
            first_started_at: record::started(&write.run),
            events: write.events.clone(),
            parts: Vec::new(),
            others: Default::default(),
            foreign: false,
        };
        match self.put(&key, document, None).await? {
            Ok(()) => Ok(WriteOutcome::Done(Revision(1))),
            Err(found) => {
                self.free_unless_own(None, write, found.as_ref()).await;
                self.conflict(found).await
            }
        }
    }

    async fn change(&self, write: &Write, expected: Revision, base: Base) -> Result<WriteOutcome, Error> {
        let key = self.place_of(write.run.id);
        let cached = lock(&self.inner.cache).get(&key);
        let is_meant =
            |entry: &CachedRecord| entry.document.as_ref().is_ok_and(|document| document.revision == expected);
        let mut found = match cached.filter(|entry| is_meant(entry) && !entry.partial) {
            Some(entry) => Some(entry),
            None => self.fetch(&key).await?,
        };
        for _ in 0..TRIES {
            let Some(entry) = found.take_if(|entry| entry.document.is_err() || is_meant(entry)) else {
                return self.conflict(found).await;
            };
            let before = entry.document.clone()?;
            if before.foreign {
                let whose = &before.run.spec.kind;
                return Err(Error::Denied(format!(
                    "run `{}` is of `{whose}`, which writes its record alone",
                    write.run.id
                )));
            }
            if let Some(busy) = self.take_keys(Some(&before.run), write).await? {
                return Ok(busy);
            }
            let document = self.changed(&key, &before, &entry, write).await?;
            match self.put(&key, document, Some(&entry.version)).await? {
                Ok(()) => return Ok(WriteOutcome::Done(Revision(expected.0 + 1))),
                Err(now) => found = now,
            }
            if base == Base::Version || found.as_ref().is_none_or(|entry| !is_meant(entry)) {
                self.free_unless_own(Some(&before.run), write, found.as_ref()).await;
                return self.conflict(found).await;
            }
        }
        Err(Error::Unavailable(format!("run `{}` changes faster than it can be written", write.run.id)))
    }

    /// Frees what a write was to take, unless an earlier copy of it, whose answer was lost, has taken it.
    async fn free_unless_own(&self, before: Option<&Run>, write: &Write, found: Option<&CachedRecord>) {
        let is_own = |entry: &CachedRecord| entry.document.as_ref().is_ok_and(|document| document.stamp == write.stamp);
        if !found.is_some_and(is_own) {
            self.free_keys(before, write).await;
        }
    }

    /// What a record becomes by a write.
    async fn changed(
        &self,
        key: &str,
        before: &Document,
        entry: &CachedRecord,
        write: &Write,
    ) -> Result<Document, Error> {
        let now = self.now()?;
        let owner = |run: &Run| run.owner().map(|owner| (owner.worker, run.epoch));
        let takes = owner(&write.run).is_some() && owner(&write.run) != owner(&before.run);
        let beats = if takes {
            Beats { count: before.beats.count + 1, at: now, fresh: true }
        } else {
            // No matter who writes it, the owner was heard of when it was: the date of this object says nothing of that.
            let heard = self.heard(before, entry.modified, now);
            Beats { count: before.beats.count, at: heard.at, fresh: false }
        };
        let (mut events, mut parts) = (before.events.clone(), before.parts.clone());
        if events.iter().map(length).sum::<usize>() > LONG_LOG {
            parts.push(self.put_aside(key, &events).await?);
            events.clear();
        }
        events.extend(write.events.iter().cloned());
        Ok(Document {
            run: recorded(&write.run),
            revision: Revision(before.revision.0 + 1),
            stamp: write.stamp,
            beats,
            first_started_at: before.first_started_at.or_else(|| record::started(&write.run)),
            events,
            parts,
            others: before.others.clone(),
            foreign: false,
        })
    }

    /// Puts a part of an event log into an object of its own, which the record then names. One that no record names is nothing.
    async fn put_aside(&self, key: &str, events: &[Event]) -> Result<String, Error> {
        let name = format!("{}.jsonl", Stamp::draw(&SystemEntropy));
        let lines = events.iter().filter_map(|event| serde_json::to_string(event).ok()).map(|line| line + "\n");
        self.bucket().overwrite(&self.part_of(key, &name), lines.collect::<String>().into()).await?;
        Ok(name)
    }

    pub(super) fn part_of(&self, key: &str, name: &str) -> String {
        format!("{}events/{name}", key.strip_suffix(RECORD).unwrap_or(key))
    }

    /// Puts a document where `instead` is. Answers with what is there if that is something else.
    pub(super) async fn put(
        &self,
        key: &str,
        document: Document,
        instead: Option<&Version>,
    ) -> Result<Result<(), Option<CachedRecord>>, Error> {
        let nonce = Stamp::draw(&SystemEntropy);
        let bytes = Bytes::from(document.write(nonce, self.now()?, &self.inner.address)?);
        match self.bucket().put(key, bytes, &nonce.to_string(), instead).await? {
            Landed::Done(version) => {
                let entry = CachedRecord {
                    version,
                    modified: None,
                    document: Ok(Arc::new(document)),
                    closed: None,
                    partial: false,
                };
                lock(&self.inner.cache).insert(key, entry);
                Ok(Ok(()))
            }
            Landed::Other(found) => {
                if found.is_none() {
                    lock(&self.inner.cache).evict(key);
                }
                Ok(Err(found.map(|object| self.note(key, &object))))
            }
        }
    }

    async fn conflict(&self, found: Option<CachedRecord>) -> Result<WriteOutcome, Error> {
        let Some(entry) = found else { return Ok(WriteOutcome::Conflict(None)) };
        entry.document.as_ref().map_err(Clone::clone)?;
        let current = self.tell(&[(String::new(), entry)]).await?;
        Ok(WriteOutcome::Conflict(current.into_iter().next().map(Box::new)))
    }
}

/// A run without what a store only tells of it.
fn recorded(run: &Run) -> Run {
    let mut run = run.clone();
    if let Some(owner) = run.owner_mut() {
        owner.heard = LastHeartbeat::default();
    }
    run
}

fn length(event: &Event) -> usize {
    serde_json::to_string(event).map_or(0, |text| text.len())
}

/// An error says that nothing was written, unless something was.
fn unless_some(done: usize, error: Error) -> Error {
    if done == 0 { error } else { Error::Unknown(error.to_string()) }
}
