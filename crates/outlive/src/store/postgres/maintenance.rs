//! Background maintenance: VACUUM of the hot tables, history partitions, stale worker rows.
//!
//! Every run that leaves a table leaves an entry in its indexes, which the next claim must pass. The server vacuums
//! once a minute at best, which is a million runs. So a process that has moved some thousands has it done. History is given
//! tables for the time to come, and loses those that are too old. No call waits for any of it, and what fails is done by
//! the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::types::Type;

use super::beats::FORGET_SILENT;
use super::pool::{self, CallError, PooledClient, with_retry};
use super::{Feature, PostgresStore};
use crate::model::time::{Clock, SystemClock};
use crate::store::Error;

/// How many runs are moved between two vacuums.
const MOVED: u64 = 10_000;
/// How often history is looked after.
const EVERY: u64 = 3_600;
/// How long a process has been about before it does so for the first time: most are over by then. Both in seconds.
const FIRST: u64 = 60;
/// How many runs of history one call deletes where it is in no tables of their own, as the layout has it.
const DELETED: u64 = 5_000;

/// Tables are locked in another order than others lock them. So maintenance gives way to a waiting transaction, long before the
/// server would call it a deadlock.
pub(super) const GIVE_WAY: &str = "SET LOCAL lock_timeout = '100ms'";

/// What is to be maintained.
#[derive(Default)]
pub(super) struct MaintenanceState {
    moved: AtomicU64,
    is_at_it: AtomicBool,
    /// When history is to be looked after next, in seconds of the time awake.
    due: AtomicU64,
}

impl PostgresStore {
    /// For how long what has ended is kept; for ever, if for no time. It goes a table at a time, as soon as all that was
    /// made in the table's time has been over for that long.
    pub async fn keep_history(&self, keep: Option<Duration>) -> Result<(), Error> {
        let Some(keep) = keep else {
            let sql = self.sql("DELETE FROM @.meta WHERE name = 'keep_days'");
            return with_retry!(self.links(), |link| link.write(&sql, &[])).map(drop);
        };
        let days = keep.as_secs().div_ceil(86_400).max(1).to_string();
        let sql = self.sql(
            "INSERT INTO @.meta VALUES ('keep_days', $1)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE meta.value <> excluded.value",
        );
        with_retry!(self.links(), |link| link.write(&sql, &[(&days, Type::TEXT)])).map(drop)
    }

    /// Looks after history now. Answers with how many of its tables have gone; without partitions, with how many runs.
    pub async fn maintain(&self) -> Result<u64, Error> {
        let mut gone = 0;
        loop {
            let some: u64 = with_retry!(self.links(), |link| self.maintain_on(&mut link))?;
            gone += some;
            if self.has(Feature::Partitions) || some < DELETED {
                return Ok(gone);
            }
        }
    }

    async fn maintain_on(&self, link: &mut PooledClient<'_>) -> Result<u64, CallError> {
        // One at a time; the second process has nothing to do.
        let name = format!("outlive maintains {}", self.id());
        let lock = self.sql(match self.has(Feature::AdvisoryLocks) {
            true => "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))",
            false => "SELECT $1 <> '' FROM @.meta WHERE name = 'id' FOR UPDATE SKIP LOCKED",
        });
        let rows = link.begin_with(None, &lock, &[(&name, Type::TEXT)]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            link.roll_back().await?;
            return Ok(0);
        }
        link.then(&self.sql(FORGET_SILENT), &[]).await?;
        link.run(GIVE_WAY).await?;
        let rows = link.commit_with(&self.sql("SELECT @.maintain()"), &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// Says that so many runs have been moved.
    pub(super) fn note_moved(&self, count: usize) {
        let maintenance = self.maintenance();
        if maintenance.moved.fetch_add(count as u64, Ordering::Relaxed) + count as u64 >= MOVED {
            maintenance.moved.store(0, Ordering::Relaxed);
            self.in_passing(|store| async move {
                let sql = store.sql("VACUUM (SKIP_LOCKED, TRUNCATE false) @.waiting, @.live, @.tally");
                let fold = store.sql("SELECT @.fold()");
                let folded: Result<(), Error> = with_retry!(store.links(), |link| link.write(&fold, &[])).map(drop);
                folded?;
                if !store.has(Feature::Vacuum) {
                    return Ok(());
                }
                with_retry!(store.links(), |link| link.run_patiently(&sql))
            });
        }
    }

    /// Maintains history where no process has for a while.
    pub(super) fn maybe_maintain(&self) {
        let now = SystemClock.awake().as_secs();
        let due = self.maintenance().due.load(Ordering::Relaxed);
        if due == 0 {
            self.maintenance().due.store(now + FIRST, Ordering::Relaxed);
        } else if now >= due {
            self.maintenance().due.store(now + EVERY, Ordering::Relaxed);
            self.in_passing(move |store| async move {
                let maintained = store.maintain().await;
                if maintained.is_err() {
                    store.maintenance().due.store(now + FIRST, Ordering::Relaxed);
                }
                maintained.map(drop)
            });
        }
    }

    fn in_passing<F>(&self, work: impl FnOnce(Self) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        if self.maintenance().is_at_it.swap(true, Ordering::Relaxed) {
            return;
        }
        let (store, ending) = (self.clone(), self.clone());
        drop(pool::in_passing(async move {
            // The next one does what fails now.
            let _ = work(store).await;
            ending.maintenance().is_at_it.store(false, Ordering::Relaxed);
        }));
    }
}
