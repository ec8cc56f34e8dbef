//! Recovery of unknown writes: repeats a write until its outcome is known, or looks for what it has changed.
//!
//! A write whose answer was lost is unknown, neither done nor refused. Its writer looks for its write id, and never
//! reports a lost race that was won.

use std::sync::Mutex;

use crate::error::Error;
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Run, State};
use crate::model::time::Timestamp;
use crate::store::{self, Change, Expect, Record, Rule, Selection, Store, Write, WriteOutcome};
use crate::util::sync::lock;

/// How often a write is repeated whose answer was lost.
const REPEATS: usize = 4;

/// Writes whose answer was lost and whose outcome is unknown.
///
/// It outlives a repetition: the first copy may still be on its way. While there is any, no error may say that
/// nothing was written.
#[derive(Debug, Default)]
pub(crate) struct UnresolvedWrite(Option<store::Error>);

impl UnresolvedWrite {
    /// What is unknown after a write that failed so.
    #[cfg(feature = "sqlite")]
    pub(crate) fn after(error: store::Error) -> Self {
        Self(Some(error).filter(|error| matches!(error, store::Error::Unknown(_))))
    }

    /// The error to answer with: that of the lost answer, if there is one.
    pub(crate) fn or(&self, error: impl Into<Error>) -> Error {
        self.0.clone().map_or_else(|| error.into(), Error::Store)
    }

    /// Whether an own write may be on record without bearing its stamp any more.
    pub(crate) fn remains(&self) -> bool {
        self.0.is_some()
    }
}

/// Logs that a run whose attempt has ended goes on to another, and when that is due.
pub(crate) fn log_retry(run: &Run) {
    if let State::Pending(pending) = &run.state
        && run.attempt > 1
    {
        let due = tracing::field::display(pending.not_before.unwrap_or(run.updated_at));
        let why = pending.reason.as_deref().unwrap_or_default();
        tracing::info!(run = %run.id, attempt = run.attempt, due, why, "run is retried");
    }
}

/// Tries a write until it is known what became of it: the record it made, or, if it lost, what is there instead.
///
/// A write whose answer was lost is unknown. It is repeated as it was: it expects the same revision, so that at most one
/// of the repetitions takes effect, and each bears the same write id, by which the conflict with an earlier one is recognised. To
/// read would not do: what can be read need not be what lasts.
pub(crate) async fn commit_until_known(
    store: &dyn Store,
    write: Write,
    doubt: &mut UnresolvedWrite,
) -> Result<Result<Record, Option<Record>>, Error> {
    let expected = match write.expect {
        Expect::Absent => 0,
        Expect::Revision(revision) => revision.0,
    };
    let earlier = doubt.0.clone();
    for _ in 0..REPEATS {
        let found = match store.commit(vec![write.clone()]).await {
            Ok(written) => match written.into_iter().next() {
                Some(WriteOutcome::Done(revision)) => {
                    return Ok(Ok(Record { run: write.run, revision, stamp: write.stamp }));
                }
                Some(WriteOutcome::Conflict(found)) => found.map(|found| *found),
                Some(WriteOutcome::KeyBusy { key, holders, free_at }) => {
                    return Err(doubt.or(Error::KeyBusy { key, holders, free_at }));
                }
                None => return Err(doubt.or(store::Error::Unavailable("the store gave no answer".into()))),
            },
            Err(error @ store::Error::Unknown(_)) => {
                doubt.0 = Some(error);
                continue;
            }
            Err(error) => return Err(doubt.or(error)),
        };
        return Ok(match found {
            Some(found) if found.stamp == write.stamp => Ok(found),
            found => {
                // There is one next revision, and it is another's: no copy of this write took effect, nor ever can.
                if found.as_ref().is_some_and(|found| found.revision.0 == expected + 1) {
                    doubt.0 = earlier;
                }
                Err(found)
            }
        });
    }
    Err(doubt.or(store::Error::Unavailable("the store gave no answer".into())))
}

/// Changes runs by a rule. Where the answer was lost, those that bear a stamp of the rule's are found, as `is_own` says; where
/// none does, the change may still be under way, and its outcome stays unknown.
pub(crate) async fn update_until_known(
    store: &dyn Store,
    selection: &Selection,
    rule: Rule<'_>,
    is_own: impl Fn(&Record, Stamp) -> bool,
) -> Result<Vec<Record>, store::Error> {
    let tried = StampedChanges::default();
    let unknown = match store.update(selection, &tried.noting(rule)).await {
        Err(unknown @ store::Error::Unknown(_)) => unknown,
        updated => return updated,
    };
    let own = tried.found(store, is_own).await;
    if own.is_empty() { Err(unknown) } else { Ok(own) }
}

/// The changes that a rule has made, by the stamps that they bear.
#[derive(Debug, Default)]
pub(crate) struct StampedChanges(Mutex<Vec<(RunId, Stamp)>>);

impl StampedChanges {
    /// The rule, with what it changes noted.
    pub(crate) fn noting<'a>(
        &'a self,
        rule: Rule<'a>,
    ) -> impl Fn(&Run, Timestamp) -> Option<Change> + Send + Sync + 'a {
        move |run, now| {
            let change = rule(run, now)?;
            lock(&self.0).push((run.id, change.stamp));
            Some(change)
        }
    }

    /// The runs on record that bear such a stamp, as `is_own` says.
    pub(crate) async fn found(self, store: &dyn Store, is_own: impl Fn(&Record, Stamp) -> bool) -> Vec<Record> {
        let tried = std::mem::take(&mut *lock(&self.0));
        let ids: Vec<RunId> = tried.iter().map(|(id, _)| *id).collect();
        let bears_stamp =
            |record: &Record| tried.iter().any(|(id, stamp)| *id == record.run.id && is_own(record, *stamp));
        store.get(&ids).await.unwrap_or_default().into_iter().filter(bears_stamp).collect()
    }
}
