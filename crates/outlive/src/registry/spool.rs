//! Ends that wait in the spool: which are this registry's, how a run looks with one, and their delivery.

use super::Registry;
use crate::error::Error;
use crate::lifecycle::apply;
use crate::model::id::RunId;
use crate::model::run::Run;
use crate::ownership::deferred::deliver_one;
use crate::ownership::spool::{Spool, Spooled};
use crate::store;

/// What became of the ends that waited to be recorded.
#[derive(Debug, Default)]
pub struct Delivered {
    /// How many are on record.
    pub recorded: usize,
    /// The runs whose ends still wait, and what is in their way.
    pub left: Vec<(RunId, store::Error)>,
}

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

    /// Records the ends that an earlier process could not. One that still cannot be recorded is left where it is, and
    /// the others do not wait for it.
    pub async fn deliver_spooled(&self) -> Result<Delivered, Error> {
        let mut delivered = Delivered::default();
        self.spool.iter().for_each(Spool::sort);
        for end in &self.spooled() {
            match deliver_one(&*self.store, end, &self.me).await {
                Ok(()) => {
                    if let Some(spool) = &self.spool {
                        spool.forget(end);
                    }
                    delivered.recorded += 1;
                }
                Err(error) if error.is_refused() || matches!(error, store::Error::Corrupt(_)) => {
                    delivered.left.push((end.run, error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(delivered)
    }
}

/// What the spool calls a registry that has a name of its own.
pub(super) fn spool_key(id: &str) -> String {
    format!("registry:{id}")
}
