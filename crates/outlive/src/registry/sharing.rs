//! One store for many callers: a server opens its registry once, and gives each call a view of its own.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::Registry;

impl From<&Registry> for Registry {
    /// As [`Registry::again`].
    fn from(registry: &Registry) -> Self {
        registry.again()
    }
}

impl From<&Arc<Registry>> for Registry {
    /// As [`Registry::again`], for a registry that tasks share.
    fn from(registry: &Arc<Registry>) -> Self {
        registry.again()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("url", &self.shown()).finish_non_exhaustive()
    }
}

impl Registry {
    /// Another registry over the same store and its connections. It owns no run of this one.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            url: self.url.clone(),
            opened_by: self.opened_by,
            store: self.store.clone(),
            #[cfg(feature = "sqlite")]
            local: self.local.clone(),
            #[cfg(feature = "object")]
            bucket: self.bucket.clone(),
            #[cfg(feature = "postgres")]
            database: self.database.clone(),
            name: self.name.clone(),
            lease: self.lease,
            policies: self.policies.clone(),
            reopen: self.reopen.clone(),
            listen: self.listen.clone(),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            me: self.me.clone(),
            trust: self.trust.clone(),
            identities: Mutex::new(self.identities()),
            artifacts: self.artifacts.clone(),
            signatures_withheld: self.signatures_withheld,
            redactor: self.redactor.clone(),
            log_redactor: self.log_redactor.clone(),
            unsigned: self.unsigned.clone(),
            spool: self.spool.clone(),
            worker: Mutex::new(None),
            offer: self.offer.clone(),
            beats_later: self.beats_later,
            recognise: self.recognise,
        }
    }

    /// Changes are recorded as made by `user`, on whose behalf this process acts.
    #[doc(hidden)]
    #[must_use]
    pub fn acting_for(mut self, user: &str) -> Self {
        self.me.user = user.into();
        self
    }
}
