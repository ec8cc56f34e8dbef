//! Changes of one run: the lifecycle decides, and a lost race is run again.

use super::{Registry, TRIES};
use crate::error::Error;
use crate::lifecycle::{Action, Transition, apply};
use crate::model::id::{RunId, Stamp};
use crate::model::run::Run;
use crate::ownership::commit::{UnresolvedWrite, commit_until_known};
use crate::store::{Record, Write};

impl Registry {
    /// Applies an action to a run, again if it changes meanwhile.
    pub(crate) async fn change(
        &self,
        id: RunId,
        action: impl Fn(&Run) -> Action,
    ) -> Result<(Record, Transition), Error> {
        self.change_from(None, id, action).await
    }

    /// Changes a run that was just read: it is read again only where it has changed since.
    pub(crate) async fn change_from(
        &self,
        mut known: Option<Record>,
        id: RunId,
        action: impl Fn(&Run) -> Action,
    ) -> Result<(Record, Transition), Error> {
        let mut doubt = UnresolvedWrite::default();
        for _ in 0..TRIES {
            let found = match known.take() {
                Some(record) => Some(record),
                None => self.store.get(&[id]).await.map_err(|error| doubt.or(error))?.pop(),
            };
            let record = found.ok_or_else(|| doubt.or(Error::NotFound(id.to_string())))?;
            let transition = apply(&record.run, &action(&record.run), &self.me, self.clock.now())
                .map_err(|refusal| doubt.or(Error::Refused { run: id, refusal }))?;
            let write = Write::change(&record, transition.clone(), Stamp::draw(&*self.entropy));
            if let Ok(record) = commit_until_known(&*self.store, write, &mut doubt).await? {
                return Ok((record, transition));
            }
        }
        Err(doubt.or(Error::Contended(id)))
    }
}
