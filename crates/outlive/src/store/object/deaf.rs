//! Outages: time in which the bucket could be reached by nobody is no owner's silence.
//!
//! A bucket does not tell that it was away. Whoever asked it in vain, and then is answered, looks whether anybody else was
//! heard in between. If nobody was, it writes down in the charter since when the bucket hears again, for those who were
//! not there. A host that was cut off alone finds the beats of others, and writes nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ObjectStore;
use super::charter::Charter;
use crate::store::Error;
use crate::time::Timestamp;

/// Shorter outages than this are forgiven by every lease.
const SHORTEST: Duration = Duration::from_secs(3);

impl ObjectStore {
    pub(super) fn hears_since(&self) -> Timestamp {
        Timestamp::from_micros(self.inner.hears_since.load(Ordering::Relaxed))
    }

    pub(super) fn hear(&self, charter: &Charter) {
        if let Some(since) = charter.hears_since {
            self.inner.hears_since.fetch_max(since.as_micros(), Ordering::Relaxed);
        }
    }

    /// Asks since when anybody could be heard.
    pub(super) async fn learn_since_when_it_hears(&self) -> Result<(), Error> {
        self.note_outage().await?;
        if let Some((charter, ..)) = self.charter().await? {
            self.hear(&charter);
        }
        Ok(())
    }

    /// Writes an outage down that was lived through here, if it was everybody's.
    pub(super) async fn note_outage(&self) -> Result<(), Error> {
        let Some(outage) = self.bucket().wire.outage(SHORTEST) else { return Ok(()) };
        let (now, awake) = (self.now()?, self.bucket().time.awake());
        let at = |moment: Duration| {
            let ago = i64::try_from(awake.saturating_sub(moment).as_micros()).unwrap_or(i64::MAX);
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
        let Some((mut charter, version, _)) = self.charter().await? else { return Ok(()) };
        if charter.hears_since.is_none_or(|known| known < now) {
            charter.hears_since = Some(now);
            self.amend(&charter, &version).await?;
        }
        self.hear(&charter);
        Ok(())
    }
}
