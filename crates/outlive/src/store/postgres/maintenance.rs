//! Background maintenance: VACUUM of the hot tables, history partitions, stale worker rows.
//!
//! Every run that leaves a table leaves an entry in its indexes, which the next claim must pass. The server vacuums
//! once a minute at best, which is a million runs. So whenever a fleet has moved some thousands one of its processes has it
//! done: each counts its own part of them, and passes where another was first. History is given
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

/// How many runs a fleet moves between two vacuums.
const MOVED: u64 = 10_000;
/// The least that one process moves between two looks at whether one is due, however large its fleet is.
const LEAST_MOVED: u64 = 1_000;
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
    /// How many workers there are, as far as this process knows.
    workers: AtomicU64,
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
        // A fleet that moves few runs would never count enough of them to fold. Any role may do it that works.
        self.fold().await?;
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

    /// Notes how many workers share what is to be maintained.
    pub(super) fn note_workers(&self, count: u64) {
        self.maintenance().workers.store(count, Ordering::Relaxed);
    }

    /// Says that so many runs have been moved.
    pub(super) fn note_moved(&self, count: usize) {
        let maintenance = self.maintenance();
        let workers = maintenance.workers.load(Ordering::Relaxed).max(1);
        let share = (MOVED / workers).max(LEAST_MOVED);
        if maintenance.moved.fetch_add(count as u64, Ordering::Relaxed) + count as u64 >= share {
            maintenance.moved.store(0, Ordering::Relaxed);
            self.in_passing(move |store| async move {
                if workers > 1 && !store.is_vacuum_due().await? {
                    return Ok(());
                }
                let sql = store.sql("VACUUM (SKIP_LOCKED, TRUNCATE false) @.waiting, @.live, @.tally");
                store.fold().await?;
                if !store.has(Feature::Vacuum) {
                    return Ok(());
                }
                with_retry!(store.links(), |link| link.run_patiently(&sql))
            });
        }
    }

    /// Makes few rows of the many that changes have counted in.
    async fn fold(&self) -> Result<(), Error> {
        let sql = self.sql("SELECT @.fold()");
        with_retry!(self.links(), |link| link.write(&sql, &[])).map(drop)
    }

    /// Whether no other process has vacuumed since about as much was moved as is between two vacuums. Without `VACUUM` an
    /// engine does not count it: then each process does its part when it has moved its share.
    async fn is_vacuum_due(&self) -> Result<bool, Error> {
        if !self.has(Feature::Vacuum) {
            return Ok(true);
        }
        let sql = self.sql(
            "SELECT pg_stat_get_dead_tuples(to_regclass('@.waiting')) + pg_stat_get_dead_tuples(to_regclass('@.live')) >= $1",
        );
        // What a session has done is counted up to a second later.
        let least = (MOVED / 2).cast_signed();
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&least, Type::INT8)]))?;
        Ok(rows.first().is_none_or(|row| row.get::<_, Option<bool>>(0).unwrap_or(true)))
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
