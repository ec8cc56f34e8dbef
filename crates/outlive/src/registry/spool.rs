//! Ends that wait in the spool: which are this registry's, how a run looks with one, and their delivery.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::apply;
use crate::model::run::Run;
pub use crate::ownership::deferred::Delivered;
use crate::ownership::deferred::deliver_waiting;
use crate::ownership::spool::Spooled;

impl Registry {
    /// Its own name, which it keeps wherever it is moved to, if it has one.
    pub fn id(&self) -> Option<String> {
        self.names().into_iter().next()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            return local.names();
        }
        self.name.iter().cloned().collect()
    }

    /// The run as it is once its spooled end is delivered.
    pub(super) fn settled(&self, run: &Run, spooled: &[Spooled]) -> Option<Run> {
        run.owner()?;
        let end = spooled.iter().find(|end| end.run == run.id && end.epoch == run.epoch)?;
        apply(&end.noted(run), &end.action(), &self.me, end.at).ok().map(|transition| transition.run)
    }

    pub(super) fn spooled(&self) -> Vec<Spooled> {
        let keys: Vec<String> = self.names().iter().map(|id| spool_key(id)).chain([self.url.clone()]).collect();
        // An earlier outlive named a local registry by its path, by whatever links that led to it.
        let is_same_path = |registry: &str| {
            let path = |url: &str| std::fs::canonicalize(url.strip_prefix("sqlite:")?).ok();
            path(registry).is_some_and(|found| path(&self.url) == Some(found))
        };
        let is_meant = |registry: &str| keys.iter().any(|key| key == registry) || is_same_path(registry);
        self.spool.as_ref().map(|spool| spool.waiting(&keys, is_meant)).unwrap_or_default()
    }

    /// Delivers the outcomes of this registry that wait in the spool of the home, because the store would not take them when
    /// their runs ended. A [`Worker`](crate::Worker) does so when it starts and from time to time, and so does the first
    /// heartbeat of a process that owns runs: call it where a program only reads, or is to say what is left. An outcome that
    /// still cannot be written is left where it is, and the others do not wait for it.
    pub async fn deliver_spooled(&self) -> Result<Delivered, Error> {
        let Some(spool) = &self.spool else { return Ok(Delivered::default()) };
        spool.sort();
        Ok(deliver_waiting(&*self.store, spool, &self.spooled(), &self.me).await?)
    }
}

/// What the spool calls a registry that has a name of its own.
pub(super) fn spool_key(id: &str) -> String {
    format!("registry:{id}")
}
