//! A registry in a bucket: how it is opened, and what its runs promise there.

use std::path::Path;
use std::sync::Arc;

use super::{Registry, Reopen};
use crate::error::Error;
#[cfg(any(test, feature = "testing"))]
use crate::model::id::Entropy;
use crate::model::id::SystemEntropy;
#[cfg(any(test, feature = "testing"))]
use crate::model::owner::Identity;
use crate::model::policy::Lease;
#[cfg(any(test, feature = "testing"))]
use crate::model::run::Actor;
#[cfg(any(test, feature = "testing"))]
use crate::model::time::Clock;
use crate::secrets::trust::Trust;
use crate::store::Store;
use crate::store::object::{BucketAddress, ObjectStore};

/// Caches ended records in the home, if there is one.
pub(super) fn cache_ended(store: &ObjectStore) {
    if let Some(home) = crate::host::home::home() {
        store.cache_ended(&home.join("cache"));
    }
}

impl Registry {
    pub(super) async fn open_bucket(url: &str) -> Result<Self, Error> {
        let address: BucketAddress = url.parse().map_err(|error| {
            let form = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME";
            Error::Invalid(format!("the registry's URL cannot be used: {error}; it is written `{form}`"))
        })?;
        let store = Arc::new(ObjectStore::open(&address).await?);
        cache_ended(&store);
        let (name, beating) = (store.id(), store.clone());
        let reopen: Reopen = Arc::new(move || Ok(beating.clone() as Arc<dyn Store>));
        let trust = |home: &Path| Trust::open(home, &SystemEntropy).map(Some);
        let registry = Self::assemble(url.into(), store.clone(), reopen, trust)?;
        Ok(Self { name: Some(name), lease: Some(Lease::far_away()), bucket: Some(store), ..registry })
    }

    /// A registry over an [`ObjectStore`], with injected clock and entropy and no heartbeat thread. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn over_bucket(
        store: Arc<ObjectStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        me: Actor,
        identity: Identity,
    ) -> Self {
        let over = Self::over(store.clone(), clock, entropy, me, identity);
        Self { bucket: Some(store), lease: Some(Lease::far_away()), ..over }
    }

    /// The bucket below, if it is one.
    pub fn bucket(&self) -> Option<&ObjectStore> {
        self.bucket.as_deref().filter(|_| self.opened_by.is_this_process())
    }
}
