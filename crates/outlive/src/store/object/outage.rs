//! Outages: time in which no process could reach the bucket is not an owner's silence.
//!
//! A bucket does not say that it was away. A process whose requests failed, and then are answered, looks for heartbeats of
//! other processes in between. Where there are none, it records in the charter since when the bucket is reachable again.
//! A host that was cut off alone finds the heartbeats of others, and records nothing. A store that was opened for reading
//! keeps what it learnt to itself: reads need no write permission.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ObjectStore;
use super::charter::Charter;
use crate::model::time::Timestamp;
use crate::store::Error;

/// Shorter outages than this are forgiven by every lease.
const SHORTEST: Duration = Duration::from_secs(3);

impl ObjectStore {
    pub(super) fn reachable_since(&self) -> Timestamp {
        Timestamp::from_micros(self.inner.reachable_since.load(Ordering::Relaxed))
    }

    pub(super) fn learn_from(&self, charter: &Charter) {
        if let Some(since) = charter.reachable_since {
            self.inner.reachable_since.fetch_max(since.as_micros(), Ordering::Relaxed);
        }
    }

    /// Reads since when the bucket is reachable.
    pub(super) async fn learn_reachable_since(&self) -> Result<(), Error> {
        self.note_outage().await?;
        if let Some((charter, ..)) = self.charter().await? {
            self.learn_from(&charter);
        }
        Ok(())
    }

    /// Records an outage that this process met, if no other process reached the bucket meanwhile.
    pub(super) async fn note_outage(&self) -> Result<(), Error> {
        let Some(outage) = self.bucket().wire.outage(SHORTEST) else { return Ok(()) };
        let (now, up) = (self.now()?, self.bucket().time.since_boot());
        let at = |moment: Duration| {
            let ago = i64::try_from(up.saturating_sub(moment).as_micros()).unwrap_or(i64::MAX);
            Timestamp::from_micros(now.as_micros() - ago)
        };
        // What came just before or after it says nothing of it.
        let between = at(outage.began).after(SHORTEST / 3)..at(outage.ended);
        for (_, entry) in self.refresh().await? {
            let Ok(document) = &entry.document else { continue };
            if document.beats.fresh && between.contains(&self.heard(document, entry.modified, now).at) {
                return Ok(());
            }
        }
        if self.inner.read_only {
            self.inner.reachable_since.fetch_max(now.as_micros(), Ordering::Relaxed);
            return Ok(());
        }
        let Some((mut charter, version, _)) = self.charter().await? else { return Ok(()) };
        if charter.reachable_since.is_none_or(|known| known < now) {
            charter.reachable_since = Some(now);
            self.amend(&charter, &version).await?;
        }
        self.learn_from(&charter);
        Ok(())
    }
}
