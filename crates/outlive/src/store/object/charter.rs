//! The charter: what a registry in a bucket says of itself, in one object that is made once.
//!
//! The process that makes it tries out the server before any other uses it; others wait for the result.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::bucket::{Landed, Version};
use super::{ObjectStore, yaml};
use crate::model::id::{Stamp, SystemEntropy};
use crate::model::time::Timestamp;
use crate::store::Error;
use crate::util::sync::lock;

/// The version of charters.
const FORMAT: i64 = 1;
/// How long to wait for the check of another process before this one makes its own.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(45);
/// How often it is looked at whether that is done.
const LOOK: std::time::Duration = std::time::Duration::from_millis(300);

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Charter {
    format: i64,
    id: String,
    nonce: Stamp,
    /// The server that was found to keep to its conditions; none before that is known.
    #[serde(default)]
    checked: Option<Checked>,
    /// Since when the bucket is reachable again, after an outage that every process met.
    #[serde(default)]
    pub(super) reachable_since: Option<Timestamp>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Checked {
    server: String,
    at: Timestamp,
}

impl ObjectStore {
    /// Reads the charter, or makes it; with `probes` on a server that was tried out.
    pub(super) async fn open_charter(&self, probes: bool) -> Result<(), Error> {
        let made = match self.charter().await? {
            Some(found) => found,
            None => self.make_charter().await?,
        };
        let (mut charter, mut version, is_ours) = made;
        let until = self.bucket().time.since_boot() + TIMEOUT;
        while probes && charter.checked.is_none() {
            if is_ours || self.bucket().time.since_boot() > until {
                self.probe().await?.outcome()?;
                let checked = Checked { server: self.bucket().wire.server().unwrap_or_default(), at: self.now()? };
                charter.checked = Some(checked);
                self.amend(&charter, &version).await?;
                break;
            }
            tokio::time::sleep(LOOK).await;
            match self.charter().await? {
                Some((found, found_version, _)) => (charter, version) = (found, found_version),
                None => return Err(Error::Unavailable("the registry went while it was opened".into())),
            }
        }
        *lock(&self.inner.id) = charter.id.clone();
        self.learn_from(&charter);
        Ok(())
    }

    /// Reads the charter, if there is one. Records of other writers need none.
    pub(super) async fn read_charter(&self) -> Result<(), Error> {
        if let Some((charter, ..)) = self.charter().await? {
            *lock(&self.inner.id) = charter.id.clone();
            self.learn_from(&charter);
        }
        Ok(())
    }

    /// Whether the registry that was opened is still there. Where it is, a missing record was deleted; where it is not,
    /// the whole registry was.
    pub(super) async fn is_still_there(&self) -> Result<bool, Error> {
        let id = lock(&self.inner.id).clone();
        Ok(self.charter().await?.is_some_and(|(charter, ..)| charter.id == id))
    }

    fn place_of_charter(&self) -> String {
        self.own("registry.yaml")
    }

    pub(super) async fn charter(&self) -> Result<Option<(Charter, Version, bool)>, Error> {
        let place = self.place_of_charter();
        let Some(object) = self.bucket().get(&place).await? else { return Ok(None) };
        let corrupt = |why: String| Error::Corrupt(format!("`{place}` cannot be read: {why}"));
        let value = yaml::read(&object.bytes).map_err(|error| corrupt(error.to_string()))?;
        if let Some(found) = value.get("format").and_then(serde_json::Value::as_i64).filter(|format| *format > FORMAT) {
            return Err(Error::Newer { what: place, found, known: FORMAT });
        }
        let charter = serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
        Ok(Some((charter, object.version, false)))
    }

    /// The charter, and whether it was made here.
    async fn make_charter(&self) -> Result<(Charter, Version, bool), Error> {
        let id = Stamp::draw(&SystemEntropy).to_string();
        let charter =
            Charter { format: FORMAT, id, nonce: Stamp::draw(&SystemEntropy), checked: None, reachable_since: None };
        match self.put_charter(&charter, None).await? {
            Landed::Done(version) => Ok((charter, version, true)),
            Landed::Other(_) => {
                let gone = || Error::Unavailable("the registry went while it was opened".into());
                self.charter().await?.ok_or_else(gone)
            }
        }
    }

    /// Writes the charter anew. One that another has written meanwhile says the same, or will be asked again.
    pub(super) async fn amend(&self, charter: &Charter, version: &Version) -> Result<(), Error> {
        let charter = Charter { nonce: Stamp::draw(&SystemEntropy), ..charter.clone() };
        self.put_charter(&charter, Some(version)).await.map(drop)
    }

    async fn put_charter(&self, charter: &Charter, instead: Option<&Version>) -> Result<Landed, Error> {
        let bytes = Bytes::from(yaml::write(&json!(charter)));
        self.bucket().put(&self.place_of_charter(), bytes, &charter.nonce.to_string(), instead).await
    }
}
