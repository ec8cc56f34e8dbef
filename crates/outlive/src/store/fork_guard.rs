//! A store that refuses calls in a forked child of the process that opened it.
//!
//! Connections, locks and the threads behind them belong to that process. A child that used them would speak on its
//! parent's connections, and a child that closed them would close them for its parent.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Beat, BeatReply, Count, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write, WriteOutcome,
};
use crate::host::MadeBy;
use crate::lifecycle::Start;
use crate::lifecycle::health::ProcessObserver;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, QueueHead};

/// Refuses in a process that is not the one that made the value.
pub(crate) fn check(made_by: MadeBy) -> Result<(), Error> {
    if made_by.is_this_process() { Ok(()) } else { Err(Error::Forked { opened_by: made_by.pid() }) }
}

/// A store, for the process that opened it.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    opened_by: MadeBy,
    store: Arc<dyn Store>,
}

impl ForkGuard {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { opened_by: MadeBy::this_process(), store }
    }

    fn store(&self) -> Result<&dyn Store, Error> {
        check(self.opened_by).map(|()| &*self.store)
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if !self.opened_by.is_this_process() {
            // The count never reaches zero, so that nothing of the parent's is closed here.
            std::mem::forget(self.store.clone());
        }
    }
}

#[async_trait]
impl Store for ForkGuard {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.store()?.get(ids).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        self.store()?.list(filter, page).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.store()?.commit(writes).await
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        self.store()?.update(selection, rule).await
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.store()?.beat(beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.store()?.counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.store()?.workers().await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.store()?.next_due(filter).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.store()?.heads(filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.store()?.starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.store()?.events(id).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        self.store().ok()?.witness()
    }
}
