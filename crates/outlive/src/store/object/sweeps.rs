//! Marks of sweeps on records that are not ours to write: an object beside the records, made on a condition.
//!
//! Our own records bear the mark themselves. A record of another writer is its writer's alone, so two sweepers would both
//! delete its run, and both report all of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bucket::Landed;
use super::{ObjectStore, io_thread, yaml};
use crate::model::id::{RunId, Stamp, SystemEntropy};
use crate::model::owner::{HostContext, Identity, Liveness};
use crate::model::run::Actor;
use crate::model::time::Timestamp;
use crate::store::Error;

/// How long a sweeper has a run to itself, unless its process is seen to be gone.
const LASTS: Duration = Duration::from_secs(15 * 60);

#[derive(Serialize, Deserialize)]
struct SweepMark {
    nonce: Stamp,
    by: Actor,
    at: Timestamp,
    process: Identity,
}

impl SweepMark {
    fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.at) > LASTS || matches!(self.process.probe(&HostContext::here()), Liveness::Dead(_))
    }
}

impl ObjectStore {
    fn place_of_sweep(&self, id: RunId) -> String {
        self.own(&format!("sweeps/{id}.yaml"))
    }

    /// Marks a run of another writer as being swept by `by`. Answers with its present sweeper, if there is one.
    pub(crate) async fn mark_sweep(&self, id: RunId, by: &Actor) -> Result<Option<Actor>, Error> {
        let (store, by) = (self.clone(), by.clone());
        io_thread::spawn(move || async move { store.put_mark(id, by).await }).await
    }

    async fn put_mark(&self, id: RunId, by: Actor) -> Result<Option<Actor>, Error> {
        let (key, now) = (self.place_of_sweep(id), self.now()?);
        let mark = SweepMark { nonce: Stamp::draw(&SystemEntropy), by, at: now, process: Identity::own() };
        let (bytes, nonce) = (yaml::write(&json!(mark)), mark.nonce.to_string());
        let put = async |instead| self.bucket().put(&key, bytes.clone().into(), &nonce, instead).await;
        let found = match put(None).await? {
            Landed::Done(_) => return Ok(None),
            Landed::Other(found) => found,
        };
        let unreadable = |why: String| Error::Corrupt(format!("`{key}` cannot be read: {why}"));
        let Some(found) = found else { return Ok(Some(mark.by)) };
        let value = yaml::read(&found.bytes).map_err(|error| unreadable(error.to_string()))?;
        let other: SweepMark = serde_json::from_value(value).map_err(|error| unreadable(error.to_string()))?;
        if !other.is_over(now) {
            return Ok(Some(other.by));
        }
        match put(Some(&found.version)).await? {
            Landed::Done(_) => Ok(None),
            Landed::Other(_) => Ok(Some(other.by)),
        }
    }

    /// Removes the mark of a sweep that is done.
    pub(crate) async fn clear_sweep(&self, id: RunId) -> Result<(), Error> {
        let (store, key) = (self.clone(), self.place_of_sweep(id));
        let left = io_thread::spawn(move || async move { store.bucket().delete(&[key]).await }).await?;
        left.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}
