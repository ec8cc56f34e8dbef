//! Who a registry is: the identity that signatures are made for, and what `trust` decides by.

use super::Registry;
use crate::error::Error;
#[cfg(any(test, feature = "testing"))]
use crate::secrets::trust::Trust;
use crate::secrets::trust::{ArtifactLocation, NamedLocation, Origin};
use crate::util::sync::lock;

/// The identity of a registry that ends with its process.
const NAMELESS: &str = "memory";

impl Registry {
    /// The identities of this registry, its own first and then those of the registries it stands for. None of a copy that has
    /// not been written to.
    ///
    /// A rule that runs inside the store asks too. The store is locked then, so what it last said counts.
    #[doc(hidden)]
    pub fn identities(&self) -> Vec<String> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            // Asked before the lock is taken, which a rule inside the store waits for.
            let names = local.names_unless_busy();
            let mut known = lock(&self.identities);
            if let Some(names) = names {
                *known = names;
            }
            return known.clone();
        }
        #[cfg(feature = "object")]
        if let Some(bucket) = &self.bucket {
            // A bucket is copied with the name in it, so where it is belongs to who it is.
            let address = bucket.address();
            return vec![format!("{} {address} {}", bucket.id(), address.runs)];
        }
        vec![self.name.clone().unwrap_or_else(|| NAMELESS.into())]
    }

    /// The identity that a new run is signed for. A copy becomes a registry of its own first.
    pub(super) fn identity_to_sign(&self) -> Result<Option<String>, Error> {
        #[cfg(feature = "sqlite")]
        if let (Some(local), true) = (&self.local, self.identities().is_empty()) {
            local.fork_identity()?;
        }
        Ok(self.identities().into_iter().next())
    }

    /// Names the locations of artifacts that records of this registry may have read and deleted, no matter who wrote them.
    #[doc(hidden)]
    #[must_use]
    pub fn naming_artifacts(mut self, locations: impl IntoIterator<Item = NamedLocation>) -> Self {
        self.artifacts = locations.into_iter().collect();
        self
    }

    /// What `trust` decides by, of records that are read here.
    #[doc(hidden)]
    pub fn origin(&self) -> Origin<'_> {
        #[cfg(feature = "object")]
        let prefix =
            self.bucket.as_ref().and_then(|bucket| ArtifactLocation::parse(&bucket.address().to_string()).ok());
        #[cfg(not(feature = "object"))]
        let prefix: Option<ArtifactLocation> = None;
        Origin { trust: self.trust.as_ref(), identities: self.identities(), prefix, named: &self.artifacts }
    }

    /// Signs with a key that is given, as the registry of that name.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn signing_as(mut self, trust: Trust, name: &str) -> Self {
        self.trust = Some(trust);
        self.name = Some(name.into());
        self
    }
}
