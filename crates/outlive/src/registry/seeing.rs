//! Seeing: a run as a reader is told of it, with what can be seen of its processes.

use super::Registry;
use crate::error::Error;
use crate::health::{Seen, see};
use crate::id::RunId;
use crate::run::Run;

impl Registry {
    /// A run as it stands.
    pub async fn get(&self, id: RunId) -> Result<Seen, Error> {
        let found = self.store.get(&[id]).await?.pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        let seen = self.see(vec![found.run]).pop().ok_or_else(|| Error::NotFound(id.to_string()))?;
        Ok(self.look_behind(seen))
    }

    /// With what a run that has ended left alive.
    pub(super) fn look_behind(&self, mut seen: Seen) -> Seen {
        if seen.run.ending().is_some() && !seen.run.copied {
            let sight = self.look(&[&seen.run]).and_then(|mut sights| sights.pop());
            seen.leftovers = sight.map(|sight| sight.leftovers).unwrap_or_default();
        }
        seen
    }

    pub(super) fn see(&self, runs: Vec<Run>) -> Vec<Seen> {
        let now = self.clock.now();
        let spooled = self.spooled();
        // Only of an owned run does it depend on its processes how it stands.
        let owned: Vec<&Run> = runs.iter().filter(|run| run.owner().is_some()).collect();
        let mut sights = self.look(&owned).map(Vec::into_iter);
        let one = |run: Run| {
            let sight = run.owner().and_then(|_| sights.as_mut()?.next());
            match self.settled(&run, &spooled) {
                Some(settled) => {
                    Seen { reason: Some("its result is spooled, and on record soon".into()), ..see(settled, None, now) }
                }
                None => see(run, sight.as_ref(), now),
            }
        };
        runs.into_iter().map(one).collect()
    }
}
