//! Beats: one narrow row per process, rewritten in place, whatever the number of its runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::pool::{BEAT_TIMEOUT, CallError, PooledClient, with_retry};
use super::reads::{Table, heard};
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::Identity;
use crate::model::policy::Lease;
use crate::model::run::CancelRequest;
use crate::model::time::{Clock, SystemClock};
use crate::store::{Beat, BeatReply, Error, FleetReport, OwnershipView, WorkerCapacity, WorkerRecord};

#[derive(Serialize, Deserialize)]
struct Body {
    identity: Identity,
    lease: Lease,
    #[serde(default = "WorkerCapacity::unsaid")]
    offer: Arc<WorkerCapacity>,
}

/// What is written down of a worker once.
pub(super) fn body(worker: &WorkerRecord) -> Result<String, Error> {
    let body = Body { identity: worker.identity.clone(), lease: worker.lease, offer: worker.offer.clone() };
    serde_json::to_string(&body)
        .map_err(|error| Error::Corrupt(format!("worker `{}` cannot be written down: {error}", worker.id)))
}

/// A beat that is lost with a server's crash is followed by another: none waits for it to be on the disk. A row without
/// beats only notes since when the worker was missed.
const BEAT: &str = "UPDATE @.worker SET beat = beat + 1, beat_at = @.clock(), room = @.room(worker.ctid)
    FROM (SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', $2, true)) AS settings
    WHERE id = $1 AND beat > 0 RETURNING attention, @.reachable_since(), beat_at, (SELECT count(*) FROM @.worker),
        ARRAY(SELECT w.id FROM @.worker w WHERE w.id <> $1 AND w.beat_at < (SELECT @.clock()) - $3::int8 ORDER BY w.id),
        ARRAY(SELECT w.beat FROM @.worker w WHERE w.id <> $1 AND w.beat_at < (SELECT @.clock()) - $3::int8 ORDER BY w.id)";
const FIRST_BEAT: &str = "WITH said AS (INSERT INTO @.process VALUES ($1, $2)
        ON CONFLICT (id) DO UPDATE SET body = excluded.body)
    INSERT INTO @.worker VALUES ($1, 1, @.clock(), 0, @.room(NULL))
    ON CONFLICT (id) DO UPDATE SET beat = worker.beat + 1, beat_at = @.clock(), room = @.room(worker.ctid)
    RETURNING attention, @.reachable_since(), beat_at";
const LEAVE: &str = "WITH gone AS (DELETE FROM @.worker WHERE id = $1
        AND NOT EXISTS (SELECT 1 FROM @.live WHERE owner = $1) RETURNING id),
    unsaid AS (DELETE FROM @.process WHERE id IN (SELECT id FROM gone))
    SELECT EXISTS (SELECT 1 FROM @.live WHERE owner = $1)";

/// Rows of workers that have said nothing for an hour and own nothing. One that beats meanwhile keeps its row.
pub(super) const FORGET_SILENT: &str = "WITH gone AS (DELETE FROM @.worker WHERE id IN (
            SELECT w.id FROM @.worker w WHERE w.beat_at < (SELECT @.clock()) - 3600000000
                AND (SELECT @.reachable_since()) < (SELECT @.clock()) - 3600000000
                AND NOT EXISTS (SELECT 1 FROM @.live WHERE owner = w.id) FOR UPDATE SKIP LOCKED)
        RETURNING id)
    DELETE FROM @.process WHERE id IN (SELECT id FROM gone)";

/// How long a beat is waited for: no longer than until the next, so that one that is held up can be tried again while the
/// lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Patience {
    /// For the holder of the row, by the server.
    lock: Duration,
    /// For an answer.
    answer: Duration,
}

impl Patience {
    /// A connection that is given up for a server that is a little slow costs more than it saves.
    const LEAST: Duration = Duration::from_millis(500);

    fn of(lease: &Lease) -> Self {
        let answer = lease.beat().clamp(Self::LEAST, BEAT_TIMEOUT);
        Self { lock: answer * 3 / 4, answer }
    }
}

impl PostgresStore {
    pub(super) async fn beat_once(&self, beat: &Beat) -> Result<BeatReply, Error> {
        let worker = beat.worker.as_uuid();
        let Patience { lock, answer } = Patience::of(&beat.lease);
        if beat.leaving {
            let rows = self.links().beat(&self.sql(LEAVE), &[(&worker, Type::UUID)], answer).await?;
            if !rows.first().is_some_and(|row| row.get(0)) {
                self.own().remove(&beat.worker);
                return Ok(BeatReply::default());
            }
        }
        // Changes that come after the count is read make it rise again.
        let changes = *self.own().entry(beat.worker).or_default();
        // One that became known by a claim has not said yet what it offers.
        let asked = SystemClock.now();
        let says_so = beat.attention.is_none() && beat.offer.slots > 0;
        let mut rows = Vec::new();
        if !says_so {
            let (lock, late) = (lock.as_millis().to_string(), (beat.lease.beat() * 3 / 2).as_micros() as i64);
            let bound: [super::pool::Bound<'_>; 3] = [(&worker, Type::UUID), (&lock, Type::TEXT), (&late, Type::INT8)];
            rows = self.links().beat(&self.sql(BEAT), &bound, answer).await?;
        }
        let known = !rows.is_empty();
        let fleet = rows.first().and_then(fleet);
        if !known {
            let bound: [super::pool::Bound<'_>; 2] = [(&worker, Type::UUID), (&body(&beat.into())?, Type::TEXT)];
            rows = self.links().beat(&self.sql(FIRST_BEAT), &bound, answer).await?;
            // A new worker clears away rows of workers that vanished. The next one does what fails now.
            let _ = self.links().beat(&self.sql(FORGET_SILENT), &[], answer).await;
        }
        if let Some(row) = rows.first() {
            self.inner.clock.heard(row.get(2), asked);
        }
        self.maybe_maintain();
        let (version, reachable_since): (i64, i64) = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
        // A server that was away may have come back with an older state, whose counts have been before: all is compared.
        let attention = (reachable_since.unsigned_abs() << 12).wrapping_add(version.unsigned_abs() + changes);
        if let Some(fleet) = &fleet {
            self.note_workers(fleet.workers);
        }
        if known && beat.attention == Some(attention) {
            return Ok(BeatReply { attention, fleet, ..BeatReply::default() });
        }
        match self.compare(beat, attention, lock).await {
            // The lease is renewed whatever others do to the tables of runs. The next beat compares again: the count that
            // it names has been, and never comes back.
            Err(Error::Unavailable(_)) => {
                Ok(BeatReply { attention: attention.wrapping_sub(1), fleet, ..BeatReply::default() })
            }
            compared => compared.map(|reply| BeatReply { fleet, ..reply }),
        }
    }

    /// Compares what a worker holds with what it owns, waiting for no lock for longer than `timeout`.
    async fn compare(&self, beat: &Beat, attention: u64, timeout: Duration) -> Result<BeatReply, Error> {
        let (owned, others) = with_retry!(self.links(), |link| self.compared(&mut link, beat, timeout))?;
        BeatReply::compare(beat, attention, owned, |id| Ok(others.get(&id).cloned()))
    }

    /// The runs that a worker owns, and those that it holds and does not own.
    async fn compared(
        &self,
        link: &mut PooledClient<'_>,
        beat: &Beat,
        timeout: Duration,
    ) -> Result<(HashMap<RunId, OwnershipView>, HashMap<RunId, OwnershipView>), CallError> {
        let ms = timeout.as_millis();
        let deadline = format!("SET LOCAL lock_timeout = {ms}; SET LOCAL statement_timeout = {ms}");
        let owned = self.owned(link, &deadline, beat.worker).await?;
        let missing: Vec<Uuid> =
            beat.held.iter().map(|(id, _)| *id).filter(|id| !owned.contains_key(id)).map(|id| id.as_uuid()).collect();
        let others = if missing.is_empty() { HashMap::new() } else { self.standings(link, &missing).await? };
        link.roll_back().await?;
        Ok((owned, others))
    }

    async fn owned(
        &self,
        link: &mut PooledClient<'_>,
        deadline: &str,
        worker: WorkerId,
    ) -> Result<HashMap<RunId, OwnershipView>, CallError> {
        // The body only of those with a cancel request.
        let sql = self.sql(
            "SELECT id, epoch, nullif(body, body) FROM @.live WHERE owner = $1 AND NOT cancel
                            UNION ALL SELECT id, epoch, body FROM @.live WHERE owner = $1 AND cancel",
        );
        let rows = link.begin_with(Some(deadline), &sql, &[(&worker.as_uuid(), Type::UUID)]).await?;
        let mut owned = HashMap::new();
        for row in rows {
            let cancel = row.get::<_, Option<&str>>(2).and_then(cancel_in);
            let epoch = Epoch(row.get::<_, i64>(1).unsigned_abs());
            owned.insert(RunId::from_uuid(row.get(0)), OwnershipView { epoch, owner: Some(worker), cancel });
        }
        Ok(owned)
    }

    async fn standings(
        &self,
        link: &mut PooledClient<'_>,
        ids: &[Uuid],
    ) -> Result<HashMap<RunId, OwnershipView>, CallError> {
        let of = |table: Table| {
            let owner = if table == Table::Live { "owner" } else { "NULL::uuid" };
            format!("SELECT id, epoch, {owner} FROM @.{} WHERE id = ANY($1)", table.name())
        };
        let sql = self.sql(&Table::ALL.map(of).join(" UNION ALL "));
        let rows = link.then(&sql, &[(&ids, Type::UUID_ARRAY)]).await?;
        let standing = |row: &tokio_postgres::Row| OwnershipView {
            epoch: Epoch(row.get::<_, i64>(1).unsigned_abs()),
            owner: row.get::<_, Option<Uuid>>(2).map(WorkerId::from_uuid),
            cancel: None,
        };
        Ok(rows.iter().map(|row| (RunId::from_uuid(row.get(0)), standing(row))).collect())
    }

    pub(super) async fn all_workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        let sql = self.sql(
            "SELECT id, body, @.clock(), @.reachable_since(), beat, beat_at FROM @.worker JOIN @.process USING (id) ORDER BY id",
        );
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[]))?;
        // One that cannot be understood says nothing of its worker.
        let worker = |row: &tokio_postgres::Row| {
            let Body { identity, lease, offer } = serde_json::from_str(row.get(1)).ok()?;
            let heard = heard(row.get(2), row.get(3), row.get(4), row.get(5));
            Some(WorkerRecord { id: WorkerId::from_uuid(row.get(0)), identity, lease, heard, offer })
        };
        let workers: Vec<WorkerRecord> = rows.iter().filter_map(worker).collect();
        self.note_workers(workers.len() as u64);
        Ok(workers)
    }
}

/// How the other workers do, as a beat that is not the first tells.
fn fleet(row: &tokio_postgres::Row) -> Option<FleetReport> {
    let (late, beats): (Vec<Uuid>, Vec<i64>) = (row.get(4), row.get(5));
    // What they have done between the two is no reason to say less than there is to see.
    let late = late.into_iter().zip(beats).map(|(id, beat)| (WorkerId::from_uuid(id), beat.unsigned_abs()));
    Some(FleetReport { workers: row.get::<_, i64>(3).unsigned_abs(), late: late.collect() })
}

/// The request in what is written down of a run, if it can be understood.
fn cancel_in(body: &str) -> Option<Box<CancelRequest>> {
    #[derive(Deserialize)]
    struct CancelField {
        cancel: Option<Box<CancelRequest>>,
    }
    serde_json::from_str::<CancelField>(body).ok()?.cancel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f_63_blocked_heartbeat_is_given_up_before_the_next_is_due() {
        let fast = Lease::new(Duration::from_millis(500), Duration::from_secs(2)).unwrap();
        for lease in [Lease::default(), fast] {
            let Patience { lock, answer } = Patience::of(&lease);
            assert!(
                Duration::ZERO < lock && lock < answer && answer <= lease.beat(),
                "{lock:?}, {answer:?}: {lease:?}"
            );
        }
    }
}
