//! The workers of a local registry: one narrow row for each, which is all that a beat touches.
//!
//! Silence is measured in time that the machine was awake. Everybody who could beat slept when it slept.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::rows::{cached, find};
use super::schema::from_sqlite;
use crate::model::id::{Entropy, RunId, WorkerId};
use crate::model::owner::{HostContext, Identity};
use crate::model::policy::Lease;
use crate::model::run::{LastHeartbeat, Owner};
use crate::model::time::{Clock, Timestamp};
use crate::store::{Beat, BeatReply, Error, OwnershipView, WorkerCapacity, WorkerRecord, silence};

/// Attention below this many bits counts changes; above them stands the generation of the database.
const GENERATION_SHIFT: u32 = 32;

/// A moment by the clocks of this machine, with what the second of them is relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    pub(super) awake: Duration,
    pub(super) boot_id: Arc<str>,
    pub(super) time_ns: u64,
}

impl Moment {
    pub(super) fn read(clock: &dyn Clock, vantage: &HostContext) -> Self {
        Self { at: clock.now(), awake: clock.awake(), boot_id: vantage.boot_id.clone(), time_ns: vantage.time_ns }
    }

    fn same_awake(&self, other: &Self) -> bool {
        self.boot_id == other.boot_id && self.time_ns == other.time_ns
    }

    /// For how long nothing was heard since `heard` that could have been.
    fn silence_since(&self, heard: &Self, could_hear_since: &Self) -> Duration {
        let open = if self.same_awake(could_hear_since) { could_hear_since.awake } else { Duration::ZERO };
        if self.same_awake(heard) {
            silence(self.awake, heard.awake, open)
        } else {
            self.at.since(heard.at.max(could_hear_since.at))
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Body {
    identity: Identity,
    lease: Lease,
    #[serde(default = "WorkerCapacity::unsaid")]
    offer: Arc<WorkerCapacity>,
}

fn moment(row: &Row<'_>, from: usize) -> rusqlite::Result<Moment> {
    Ok(Moment {
        at: Timestamp::from_micros(row.get(from)?),
        awake: Duration::from_nanos(row.get::<_, i64>(from + 1)?.unsigned_abs()),
        boot_id: row.get(from + 2)?,
        time_ns: row.get::<_, i64>(from + 3)?.cast_unsigned(),
    })
}

/// Since when this database could receive heartbeats: since it was made.
pub(super) fn set_reachable_since(connection: &Connection, now: &Moment, entropy: &dyn Entropy) -> Result<(), Error> {
    let values: [(&str, rusqlite::types::Value); 5] = [
        ("generation", i64::from(entropy.draw() as u32 >> 2).into()),
        ("hears_at", now.at.as_micros().into()),
        ("hears_awake", (now.awake.as_nanos() as i64).into()),
        ("hears_boot_id", now.boot_id.to_string().into()),
        ("hears_time_ns", now.time_ns.cast_signed().into()),
    ];
    for (name, value) in values {
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", params![name, value]).map_err(from_sqlite)?;
    }
    Ok(())
}

pub(super) fn reachable_since(connection: &Connection) -> Result<Moment, Error> {
    let sql = "SELECT (SELECT value FROM meta WHERE name = 'hears_at'), (SELECT value FROM meta WHERE name = 'hears_awake'),
                      (SELECT value FROM meta WHERE name = 'hears_boot_id'), (SELECT value FROM meta WHERE name = 'hears_time_ns')";
    cached(connection, sql)?.query_row([], |row| moment(row, 0)).map_err(from_sqlite)
}

/// When the owner of a run was last heard of.
pub(super) fn heard(connection: &Connection, owner: WorkerId, now: &Moment) -> Result<LastHeartbeat, Error> {
    let open = reachable_since(connection)?;
    let sql = "SELECT beat, beat_at, beat_awake, boot_id, time_ns FROM workers WHERE id = ?1";
    let known = cached(connection, sql)?
        .query_row([owner.to_string()], |row| Ok((row.get::<_, i64>(0)?, moment(row, 1)?)))
        .optional()
        .map_err(from_sqlite)?;
    Ok(match known {
        Some((beat, last)) => {
            LastHeartbeat { beat: beat.unsigned_abs(), at: last.at, silent_for: now.silence_since(&last, &open) }
        }
        None => LastHeartbeat { beat: 0, at: open.at, silent_for: now.silence_since(&open, &open) },
    })
}

pub(super) fn all(connection: &Connection, now: &Moment) -> Result<Vec<WorkerRecord>, Error> {
    let open = reachable_since(connection)?;
    let mut statement =
        cached(connection, "SELECT id, beat, beat_at, beat_awake, boot_id, time_ns, body FROM workers ORDER BY id")?;
    let mut rows = statement.query([]).map_err(from_sqlite)?;
    let mut workers = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let worker = || {
            let (id, beat, body): (String, i64, String) = (row.get(0).ok()?, row.get(1).ok()?, row.get(6).ok()?);
            let last = moment(row, 2).ok()?;
            let Body { identity, lease, offer } = serde_json::from_str(&body).ok()?;
            let heard =
                LastHeartbeat { beat: beat.unsigned_abs(), at: last.at, silent_for: now.silence_since(&last, &open) };
            Some(WorkerRecord { id: id.parse().ok()?, identity, lease, heard, offer })
        };
        // One that cannot be understood says nothing of its worker, whose lock and process are asked in any case.
        workers.extend(worker());
    }
    Ok(workers)
}

/// Notes that a worker has become the owner of a run: it was heard of. Answers whether that was for the first time.
pub(super) fn took(connection: &Connection, owner: &Owner, now: &Moment) -> Result<bool, Error> {
    // Most workers own one run, and are not there yet.
    let worker = WorkerRecord::from(owner);
    let added = add(connection, &worker, now)?;
    if !added {
        touch(connection, &worker, now)?;
    }
    Ok(added)
}

/// Notes that the set of a worker's runs, or what is asked of them, has changed.
pub(super) fn alert(connection: &Connection, worker: WorkerId) -> Result<(), Error> {
    let sql = "UPDATE workers SET attention = attention + 1 WHERE id = ?1";
    cached(connection, sql)?.execute([worker.to_string()]).map_err(from_sqlite)?;
    Ok(())
}

/// Counts a beat. Answers with the worker's attention, and whether the worker was known.
fn touch(connection: &Connection, worker: &WorkerRecord, now: &Moment) -> Result<(u64, bool), Error> {
    let (at, awake, time_ns) = (now.at.as_micros(), now.awake.as_nanos() as i64, now.time_ns.cast_signed());
    let sql = "UPDATE workers SET beat = beat + 1, beat_at = ?2, beat_awake = ?3, boot_id = ?4, time_ns = ?5
               WHERE id = ?1 RETURNING attention";
    let known = cached(connection, sql)?
        .query_row(params![worker.id.to_string(), at, awake, now.boot_id, time_ns], |row| row.get::<_, i64>(0))
        .optional()
        .map_err(from_sqlite)?;
    if let Some(attention) = known {
        return Ok((attention.unsigned_abs(), true));
    }
    add(connection, worker, now)?;
    Ok((generation(connection)? << GENERATION_SHIFT, false))
}

/// Puts a worker on record, unless it is.
fn add(connection: &Connection, worker: &WorkerRecord, now: &Moment) -> Result<bool, Error> {
    let (at, awake, time_ns) = (now.at.as_micros(), now.awake.as_nanos() as i64, now.time_ns.cast_signed());
    let sql = "INSERT OR IGNORE INTO workers (id, beat, beat_at, beat_awake, boot_id, time_ns, attention, body) VALUES
               (?1, 1, ?2, ?3, ?4, ?5, ifnull((SELECT value FROM meta WHERE name = 'generation'), 0) << ?6, ?7)";
    let added = cached(connection, sql)?
        .execute(params![worker.id.to_string(), at, awake, now.boot_id, time_ns, GENERATION_SHIFT, body(worker)?])
        .map_err(from_sqlite)?;
    Ok(added > 0)
}

/// What is written down of a worker once.
fn body(worker: &WorkerRecord) -> Result<String, Error> {
    let WorkerRecord { id, identity, lease, offer, .. } = worker;
    serde_json::to_string(&Body { identity: identity.clone(), lease: *lease, offer: offer.clone() })
        .map_err(|error| Error::Unavailable(format!("worker `{id}` cannot be written down: {error}")))
}

/// Writes down what a worker offers, where it became known by a claim before it could say so.
fn tell_offer(connection: &Connection, worker: &WorkerRecord) -> Result<(), Error> {
    cached(connection, "UPDATE workers SET body = ?2 WHERE id = ?1")?
        .execute(params![worker.id.to_string(), body(worker)?])
        .map_err(from_sqlite)?;
    Ok(())
}

/// What tells this database from one that it replaced. Attention counts up from it, so that a worker which remembers
/// the attention of another database is never taken for one that is up to date here.
fn generation(connection: &Connection) -> Result<u64, Error> {
    let sql = "SELECT ifnull((SELECT value FROM meta WHERE name = 'generation'), 0)";
    cached(connection, sql)?.query_row([], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs).map_err(from_sqlite)
}

/// Renews a worker's lease, and compares what it holds with what it owns where either may have changed.
pub(super) fn beat(connection: &Connection, beat: &Beat, now: &Moment) -> Result<BeatReply, Error> {
    if beat.leaving && owned(connection, beat.worker)?.is_empty() {
        forget_idle(connection, beat.worker)?;
        return Ok(BeatReply::default());
    }
    let (attention, known) = touch(connection, &beat.into(), now)?;
    if known && beat.attention.is_none() && beat.offer.slots > 0 {
        tell_offer(connection, &beat.into())?;
    }
    if known && beat.attention == Some(attention) {
        return Ok(BeatReply { attention, ..BeatReply::default() });
    }
    let find = |id| Ok(find(connection, id)?.map(|record| (&record.run).into()));
    let mut reply = BeatReply::compare(beat, attention, owned(connection, beat.worker)?, find)?;
    let generation = generation(connection)?;
    if beat.attention.is_some_and(|last| !known || last >> GENERATION_SHIFT != generation) {
        // This database has replaced the one that the worker beat to before, and may know less than the worker does.
        let lost = &reply.lost;
        reply.unknown = beat.held.iter().map(|(id, _)| *id).filter(|id| !lost.contains(id)).collect();
    }
    Ok(reply)
}

/// The workers that own runs.
pub(super) fn owners(connection: &Connection) -> Result<HashSet<String>, Error> {
    let mut statement = cached(connection, "SELECT DISTINCT owner FROM runs WHERE owner IS NOT NULL")?;
    let rows = statement.query_map([], |row| row.get(0)).map_err(from_sqlite)?;
    rows.collect::<Result<_, _>>().map_err(from_sqlite)
}

/// Forgets workers that have long been silent and own nothing.
pub(super) fn forget_silent(connection: &Connection, now: &Moment, silent_for: Duration) -> Result<(), Error> {
    let silent: Vec<WorkerRecord> =
        all(connection, now)?.into_iter().filter(|worker| worker.heard.silent_for > silent_for).collect();
    for worker in silent {
        forget_idle(connection, worker.id)?;
    }
    Ok(())
}

/// Forgets a worker that owns nothing. Answers whether it was there and does not.
pub(super) fn forget_idle(connection: &Connection, worker: WorkerId) -> Result<bool, Error> {
    Ok(cached(connection, FORGET_IDLE)?.execute([worker.to_string()]).map_err(from_sqlite)? > 0)
}

const FORGET_IDLE: &str = "DELETE FROM workers WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE owner = ?1)";

/// Prepares for a worker to leave.
pub(super) fn foresee_leave(connection: &Connection) {
    drop(cached(connection, FORGET_IDLE));
}

fn owned(connection: &Connection, worker: WorkerId) -> Result<HashMap<RunId, OwnershipView>, Error> {
    let mut statement = cached(connection, "SELECT id, epoch, cancel FROM runs WHERE owner = ?1")?;
    let mut rows = statement.query([worker.to_string()]).map_err(from_sqlite)?;
    let mut owned = HashMap::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let (id, epoch, cancel): (String, i64, bool) =
            (|| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))().map_err(from_sqlite)?;
        let id: RunId = id.parse().map_err(|error| Error::Corrupt(format!("{error}")))?;
        // A row that cannot be understood must not keep its owner from beating.
        let cancel =
            if cancel { find(connection, id).ok().flatten().and_then(|record| record.run.cancel) } else { None };
        owned.insert(
            id,
            OwnershipView { epoch: crate::model::id::Epoch(epoch.unsigned_abs()), owner: Some(worker), cancel },
        );
    }
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at: u64, awake: u64, boot: &str, time_ns: u64) -> Moment {
        Moment {
            at: Timestamp::from_micros((at * 1_000_000).cast_signed()),
            awake: Duration::from_secs(awake),
            boot_id: boot.into(),
            time_ns,
        }
    }

    #[test]
    fn gone_worker_is_forgotten_with_the_last_of_its_runs() {
        use std::sync::Arc;

        use crate::lifecycle::{Action, Fence, Outcome, apply};
        use crate::model::id::SystemEntropy;
        use crate::model::time::SystemClock;
        use crate::store::sqlite::{Sharing, SqliteStore};
        use crate::store::{Expect, Record, Store, Write, WriteOutcome};
        use crate::testing::{pending, person, stamp};

        let dir = tempfile::tempdir().unwrap();
        let (clock, entropy, me) = (Arc::new(SystemClock), Arc::new(SystemEntropy), person("ada"));
        let store = SqliteStore::create(&dir.path().join("r"), Sharing::Private, clock, entropy).unwrap();
        let worker = WorkerId::draw(SystemClock.now(), &SystemEntropy);
        let owner =
            Owner { worker, identity: Identity::own(), lease: Lease::default(), heard: LastHeartbeat::default() };
        let commit = |write: Write| {
            let record = Record { run: write.run.clone(), revision: crate::store::Revision(1), stamp: write.stamp };
            match pollster::block_on(store.commit(vec![write])).unwrap().pop() {
                Some(WriteOutcome::Done(revision)) => Record { revision, ..record },
                other => panic!("{other:?}"),
            }
        };
        let start = || {
            let run = pending(crate::model::run::Spec::new("test", me.clone()), SystemClock.now(), &SystemEntropy);
            let claimed = apply(
                &run,
                &Action::Claim { owner: owner.clone(), early: false, leftovers: Default::default() },
                &me,
                SystemClock.now(),
            )
            .unwrap();
            let (run, events) = (claimed.run, vec![claimed.event]);
            commit(Write { expect: Expect::Absent, run, events, ended: None, stamp: stamp(&SystemEntropy) })
        };
        let end = |record: &Record| {
            let fence = Fence { worker, epoch: record.run.epoch };
            let finish = Action::Finish { fence, outcome: Outcome::SUCCEEDED, exit: None };
            let finished = apply(&record.run, &finish, &me, SystemClock.now()).unwrap();
            commit(Write::change(record, finished, stamp(&SystemEntropy)))
        };
        let known = || pollster::block_on(store.workers()).unwrap().len();
        let runs = [start(), start(), start()];
        end(&runs[0]);
        store.leave_with_its_last_run(Some(worker));
        end(&runs[1]);
        assert_eq!(known(), 1, "it was forgotten while it owned a run");
        end(&runs[2]);
        assert_eq!(known(), 0, "it was not forgotten with its last run");
        let again = start();
        store.leave_with_its_last_run(None);
        end(&again);
        assert_eq!(known(), 1, "one that stays was forgotten");
    }

    #[test]
    fn f_29_a_night_of_sleep_is_not_silence() {
        let (made, heard) = (moment(0, 0, "a", 1), moment(100, 100, "a", 1));
        let woken = moment(100 + 8 * 3_600, 102, "a", 1);
        assert_eq!(woken.silence_since(&heard, &made), Duration::from_secs(2));
    }

    #[test]
    fn f_56_a_clock_set_back_or_ahead_is_not_silence() {
        let (made, heard) = (moment(0, 0, "a", 1), moment(10_000, 100, "a", 1));
        for wall in [10_000 - 7_200, 10_000 + 7_200] {
            assert_eq!(moment(wall, 103, "a", 1).silence_since(&heard, &made), Duration::from_secs(3));
        }
    }

    #[test]
    fn times_of_another_boot_or_time_namespace_use_wall_time() {
        let (made, heard) = (moment(0, 5_000, "a", 1), moment(100, 5_100, "a", 1));
        assert_eq!(moment(130, 7, "b", 1).silence_since(&heard, &made), Duration::from_secs(30));
        assert_eq!(moment(130, 9_999, "a", 2).silence_since(&heard, &made), Duration::from_secs(30));
    }

    #[test]
    fn time_before_the_database_was_made_is_not_silence() {
        let (heard, made) = (moment(100, 100, "a", 1), moment(500, 500, "a", 1));
        assert_eq!(moment(505, 505, "a", 1).silence_since(&heard, &made), Duration::from_secs(5));
    }
}
