//! The calls of the store trait, on a local registry.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::updates::{Tried, recognised};
use super::{Access, OpenDirectory, SqliteStore, claims, observer, rows, run_files, shares, workers};
use crate::lifecycle::Start;
use crate::lifecycle::health::ProcessObserver;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Event, Key, QueueHead};
use crate::store::{
    Beat, BeatReply, Count, Cursor, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write,
    WriteOutcome, counts,
};

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.look(|inner| {
            let now = self.now();
            let mut records = Vec::with_capacity(ids.len());
            for id in ids {
                match inner.find(*id, &now) {
                    // Among others it is left out, so that it does not hide them; asked for alone it is reported.
                    Err(why @ Error::Corrupt(_)) if ids.len() > 1 => inner.damage.note(&id.to_string(), &why),
                    found => records.extend(found?),
                }
            }
            Ok(records)
        })
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        let limit = page.limit();
        // An end that only a file knows makes a running row match as ended.
        let mut wide = filter.clone();
        if let Some(states) = &mut wide.states {
            states.insert(crate::model::run::StateName::Running);
        }
        wide.owner = None;
        let mut records = self.look(|inner| {
            let (mut records, now) = (Vec::new(), self.now());
            inner.scan(&wide, page.order, page.after, |record| {
                let record = inner.read(record, &now)?;
                if filter.matches(&record.run) {
                    records.push(record);
                }
                Ok(records.len() <= limit)
            })?;
            Ok(records)
        })?;
        let next = page.cut(&mut records, |record| Cursor::at(&record.run));
        Ok(Listing { records, next })
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.write(|inner, again| {
            let now = self.now();
            let apply_all = |inner: &mut OpenDirectory| -> Result<Vec<WriteOutcome>, Error> {
                writes.iter().map(|write| Ok(recognised(inner.apply(write, &now)?, write, again))).collect()
            };
            inner.transaction(true, apply_all)
        })
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        // A worker that waits for work looks often, and mostly nothing is there: no writer waits for that.
        if self.access == Access::Write && !self.look(|inner| inner.may_update(selection, rule, &self.now()))? {
            return Ok(Vec::new());
        }
        let tried = Tried::default();
        self.write(|inner, _| {
            let now = self.now();
            inner.transaction(true, |inner| tried.update(inner, selection, rule, &now))
        })
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.write(|inner, _| inner.transaction(false, |inner| workers::beat(inner.connection(), beat, &self.now())))
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        let counted = self.look(|inner| {
            let Some(mut tally) = rows::counts(inner.connection())? else { return Ok(None) };
            // An end that only a file knows has not been counted yet.
            let (running, now) = (Filter::in_states([crate::model::run::StateName::Running]), self.now());
            inner.scan(&running, crate::store::Order::Oldest, None, |record| {
                let run = inner.read(record, &now)?.run;
                if run.owner().is_none() {
                    tally.add(&run);
                }
                Ok(true)
            })?;
            Ok(Some(tally))
        })?;
        match counted {
            Some(tally) => Ok(tally.counts()),
            // One of an earlier format that is only read.
            None => counts::read(self).await,
        }
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.look(|inner| workers::all(inner.connection(), &self.now()))
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.look(|inner| {
            let now = self.now().at;
            Ok(claims::next_due(inner.connection(), filter, now)?.map(|at| at.since(now)))
        })
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.look(|inner| shares::heads(inner.connection(), filter))
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.look(|inner| {
            let now = self.now().at;
            // One of an earlier format that is only read has counted none.
            let is_counting = rows::counts_starts(inner.connection())?;
            let of = |key| if is_counting { rows::starts(inner.connection(), key, now) } else { Ok(Vec::new()) };
            rates.iter().map(of).collect()
        })
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.look(|inner| {
            let mut events = rows::events(inner.connection(), id)?;
            if let Some(record) = rows::find(inner.connection(), id)?
                && let Some(filed) = record.run.owner().and_then(|_| run_files::filed_end(&inner.place, &record.run))
            {
                let missed: Vec<Event> = filed.events.into_iter().filter(|event| !events.contains(event)).collect();
                events.extend(missed);
            }
            Ok(events)
        })
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        let inner = self.lock().ok()?;
        let (dir, names) = (inner.place.dir.try_clone().ok()?, inner.place.names().cloned().collect());
        Some(Arc::new(observer::LocalWitness { dir, vantage: self.vantage.clone(), names }))
    }
}
