//! Registries that are opened for reading, wherever they are: nothing is created and nothing is written.

use std::sync::Arc;

use super::{Registry, Reopen};
use crate::error::Error;
use crate::redact::Redactor;
use crate::secrets::trust::Trust;
use crate::store::{self, Store};

/// How long a reader of many registries tries to reach a bucket.
#[cfg(feature = "object")]
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

impl Registry {
    /// Opens the registry that `url` names for reading, among many others: a bucket that does not answer is given up
    /// soon, and one without a registry is refused. Nothing is written there; what has ended in a bucket is cached in the
    /// home.
    pub async fn read(url: &str) -> Result<Self, Error> {
        #[cfg(feature = "sqlite")]
        if let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Self::read_local(std::path::Path::new(path));
        }
        #[cfg(feature = "postgres")]
        if crate::store::postgres::DatabaseAddress::is_meant(url) {
            use crate::store::postgres::PostgresStore;
            let store = PostgresStore::read(&url.parse().map_err(|error| unusable(url, error))?).await?;
            let name = store.id().to_owned();
            return Self::over_read(url, Arc::new(store), name);
        }
        #[cfg(feature = "object")]
        if crate::store::object::BucketAddress::is_meant(url) {
            use crate::store::object::ObjectStore;
            let address = url.parse().map_err(|error| unusable(url, error))?;
            let store = ObjectStore::read(&address, Some(PATIENCE)).await?;
            if store.id().is_empty() && !store.has_records().await? {
                return Err(Error::NoRegistry { sought: None, place: address.to_string() });
            }
            return Self::over_read_bucket(url, store);
        }
        Err(super::schemes::refusal(url).map_or_else(|| unusable(url, "it names none"), Error::Invalid))
    }

    /// Opens the bucket that `url` names for reading. Read permission suffices, and nothing is written there: where there
    /// is no registry yet, it has no runs, or those of other writers.
    #[cfg(feature = "object")]
    pub async fn read_bucket(url: &str) -> Result<Self, Error> {
        let address = url.parse().map_err(|error| unusable(url, error))?;
        Self::over_read_bucket(url, crate::store::object::ObjectStore::read(&address, None).await?)
    }

    #[cfg(feature = "object")]
    fn over_read_bucket(url: &str, store: crate::store::object::ObjectStore) -> Result<Self, Error> {
        super::bucket::cache_ended(&store);
        let (store, name) = (Arc::new(store.clone()), store.id());
        let registry = Self::over_read(url, store.clone(), name)?;
        Ok(Self { bucket: Some(store), ..registry })
    }

    fn over_read(url: &str, store: Arc<dyn Store>, name: String) -> Result<Self, Error> {
        // A reader sends no heartbeats.
        let reopen: Reopen = Arc::new(|| Err(store::Error::Unsupported("it was opened to be read".into())));
        let registry = Self::assemble(url.into(), store, reopen, Trust::read)?;
        Ok(Self { name: Some(name).filter(|name| !name.is_empty()), ..registry })
    }
}

fn unusable(url: &str, why: impl std::fmt::Display) -> Error {
    // A URL may bear a password.
    Error::Invalid(format!("`{}` cannot be used as a registry: {why}", Redactor::default().text(url)))
}
