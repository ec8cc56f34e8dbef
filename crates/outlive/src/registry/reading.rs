//! Registries that are only read, wherever they are: nothing is made where there is none.

use std::sync::Arc;

use super::{Registry, Reopen};
use crate::error::Error;
use crate::redact::Redactor;
use crate::store::{self, Store};
use crate::trust::Trust;

impl Registry {
    /// Opens the registry that `url` names to be read. Nothing is written, there or in the home.
    pub async fn read(url: &str) -> Result<Self, Error> {
        #[cfg(feature = "sqlite")]
        if let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Self::read_local(std::path::Path::new(path));
        }
        #[cfg(feature = "postgres")]
        if crate::store::postgres::Address::is_meant(url) {
            use crate::store::postgres::PostgresStore;
            let store = PostgresStore::read(&url.parse().map_err(|error| unusable(url, error))?).await?;
            let name = store.id().to_owned();
            return Self::over_read(url, Arc::new(store), name);
        }
        #[cfg(feature = "object")]
        if crate::store::object::Address::is_meant(url) {
            use crate::store::object::ObjectStore;
            let store = Arc::new(ObjectStore::read(&url.parse().map_err(|error| unusable(url, error))?).await?);
            let registry = Self::over_read(url, store.clone(), store.id())?;
            return Ok(Self { bucket: Some(store), ..registry });
        }
        Err(unusable(url, "it names none"))
    }

    fn over_read(url: &str, store: Arc<dyn Store>, name: String) -> Result<Self, Error> {
        // Nobody beats who only reads.
        let reopen: Reopen = Arc::new(|| Err(store::Error::Unsupported("it was opened to be read".into())));
        let registry = Self::assemble(url.into(), store, reopen, Trust::read)?;
        Ok(Self { name: Some(name), ..registry })
    }
}

fn unusable(url: &str, why: impl std::fmt::Display) -> Error {
    // A URL may bear a password.
    Error::Invalid(format!("`{}` cannot be used as a registry: {why}", Redactor::default().text(url)))
}
