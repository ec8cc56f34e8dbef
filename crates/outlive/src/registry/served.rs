//! A registry that a server lends.

use std::path::Path;
use std::sync::Arc;

use super::{Registry, Reopen};
use crate::error::Error;
use crate::model::id::SystemEntropy;
use crate::secrets::trust::Trust;
use crate::store::Store;
use crate::store::http::{HttpStore, ServerAddress};

impl Registry {
    pub(super) async fn open_served(url: &str) -> Result<Self, Error> {
        let address: ServerAddress = url.parse().map_err(|error| {
            Error::Invalid(format!(
                "the registry's URL cannot be used: {error}; it is written `{}`",
                ServerAddress::FORM
            ))
        })?;
        let store = HttpStore::open(&address).await?;
        let (name, lease, user) = (store.id().map(str::to_owned), store.lease(), store.user().map(str::to_owned));
        let (beating, reads_only) = (store.clone(), store.reads_only());
        let reopen: Reopen = Arc::new(move || Ok(Arc::new(beating.clone()) as Arc<dyn Store>));
        let trust = |home: &Path| Trust::open(home, &SystemEntropy).map(Some);
        let assembled = Self::assemble(url.into(), Arc::new(store), reopen, trust)?;
        let registry = Self { name, lease, signatures_withheld: reads_only, ..assembled };
        Ok(match user {
            Some(user) => registry.acting_for(&user),
            None => registry,
        })
    }
}
