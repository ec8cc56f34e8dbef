//! Keys: who holds what must not be held by too many, and what rates count.

use std::collections::BTreeSet;

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::link::{Fault, Link, on_link};
use super::reads::{self, Table};
use crate::filter::Filter;
use crate::id::RunId;
use crate::run::{Key, Run};
use crate::store::{Error, Order, Record, Write, Written};
use crate::time::Timestamp;
use crate::transition::{Start, has_room, starts_at};

/// Whether a write wants something that others may have.
pub(super) fn wants_keys(write: &Write) -> bool {
    !write.moved_keys().0.is_empty() || !write.counted().is_empty()
}

/// Keys that were found busy: of many that want the same, one asks.
#[derive(Default)]
pub(super) struct BusyKeys(Vec<Written>);

impl BusyKeys {
    /// Why a write cannot have one of its keys, where that is known.
    pub(super) fn found(&self, write: &Write) -> Option<Written> {
        let counted = write.counted();
        let mut wanted = write.moved_keys().0.into_iter().chain(counted.into_iter().map(|(key, _)| key));
        wanted.find_map(|wanted| {
            let is_same = |busy: &&Written| matches!(busy, Written::KeyBusy { key, .. } if key == wanted);
            self.0.iter().find(is_same).cloned()
        })
    }

    pub(super) fn note(&mut self, busy: &Written) {
        if !self.0.contains(busy) {
            self.0.push(busy.clone());
        }
    }
}

impl PostgresStore {
    /// Takes turns for keys, in one order for all. Those of another registry of the database are others.
    pub(super) async fn lock_keys(&self, link: &mut Link<'_>, writes: &[&Write]) -> Result<(), Fault> {
        let mut slots: BTreeSet<String> = BTreeSet::new();
        for write in writes {
            slots.extend(write.moved_keys().0.iter().map(|key| key.slot()));
            slots.extend(write.counted().iter().map(|(key, _)| key.slot()));
        }
        let names: Vec<String> = slots.iter().map(|slot| format!("outlive key {} {slot}", self.id())).collect();
        let sql = "SELECT pg_advisory_xact_lock(key) FROM (
                       SELECT DISTINCT hashtextextended(name, 1) AS key FROM unnest($1) AS name ORDER BY 1
                   ) AS keys";
        link.then(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
        Ok(())
    }

    /// Why a write cannot have one of its keys, if so. They are locked.
    pub(super) async fn busy_key(&self, link: &mut Link<'_>, write: &Write) -> Result<Option<Written>, Fault> {
        let (wanted, _) = write.moved_keys();
        let busy = if wanted.is_empty() { None } else { self.held_by_others(link, &write.run, &wanted).await? };
        if busy.is_some() { Ok(busy) } else { self.used_up(link, write).await }
    }

    async fn held_by_others(&self, link: &mut Link<'_>, run: &Run, wanted: &[&Key]) -> Result<Option<Written>, Fault> {
        let slots: Vec<String> = wanted.iter().map(|key| key.slot()).collect();
        let sql = self.sql("SELECT name, run FROM @.held_key WHERE name = ANY($1)");
        let rows = link.then(&sql, &[(&slots, Type::TEXT_ARRAY)]).await?;
        let held: Vec<(String, RunId)> = rows.iter().map(|row| (row.get(0), RunId::from_uuid(row.get(1)))).collect();
        let ids: Vec<RunId> = held.iter().map(|(_, holder)| *holder).filter(|holder| *holder != run.id).collect();
        let mut holders: Vec<Record> = Vec::new();
        if !ids.is_empty() {
            let tables = [Table::Waiting, Table::Live];
            let query = self.query(reads::select(&tables, &Filter::of(ids.clone()), Order::Oldest, None, ids.len()));
            for row in self.rows(link, &query).await? {
                holders.push(self.record(&row)?.0);
            }
        }
        Ok(wanted.iter().find_map(|key| {
            let slot = key.slot();
            let holds = |id: RunId| held.iter().any(|(name, holder)| *name == slot && *holder == id);
            if holds(run.id) {
                return None;
            }
            let theirs: Vec<&Run> =
                holders.iter().map(|record| &record.run).filter(|holder| holds(holder.id)).collect();
            let busy = || Written::held(key, theirs.iter().map(|holder| holder.id).collect());
            (!has_room(key, &theirs)).then(busy)
        }))
    }

    /// Which rate lets nothing start now. One that has counted this very start did so when its answer was lost.
    async fn used_up(&self, link: &mut Link<'_>, write: &Write) -> Result<Option<Written>, Fault> {
        for (key, _) in write.counted() {
            let sql = self.sql(
                "SELECT at, until, @.clock(), run = $2 AND epoch = $3 FROM @.start WHERE name = $1 AND until > @.clock()",
            );
            let (run, epoch) = (write.run.id.as_uuid(), write.run.epoch.0.cast_signed());
            let bound: [super::link::Bound<'_>; 3] =
                [(&key.slot(), Type::TEXT), (&run, Type::UUID), (&epoch, Type::INT8)];
            let rows = link.then(&sql, &bound).await?;
            let Some(now) = rows.first().map(|row| Timestamp::from_micros(row.get(2))) else { continue };
            if rows.iter().any(|row| row.get(3)) {
                continue;
            }
            let starts: Vec<Start> = rows.iter().map(start).collect();
            if let Some(free_at) = starts_at(key, &starts, now) {
                return Ok(Some(Written::not_before(key, free_at)));
            }
        }
        Ok(None)
    }

    /// Notes which keys are held and which are not any more, and which rates count, by writes that took effect.
    pub(super) async fn move_keys(&self, link: &mut Link<'_>, written: &[&Write]) -> Result<(), Fault> {
        let (mut taken, mut freed) = (Pairs::default(), Pairs::default());
        for write in written {
            let (newly, no_more) = write.moved_keys();
            newly.iter().for_each(|key| taken.push(key, &write.run));
            no_more.iter().for_each(|key| freed.push(key, &write.run));
        }
        let tell = |sql: &str| format!("{} (SELECT * FROM unnest($1, $2))", self.sql(sql));
        if !freed.runs.is_empty() {
            link.then(&tell("DELETE FROM @.held_key WHERE (name, run) IN"), &freed.bound()).await?;
        }
        if !taken.runs.is_empty() {
            let sql = tell("INSERT INTO @.held_key") + " ON CONFLICT DO NOTHING";
            link.then(&sql, &taken.bound()).await?;
        }
        for write in written {
            for (key, per) in write.counted() {
                self.note_start(link, key, per, &write.run).await?;
            }
        }
        Ok(())
    }

    /// Notes a start, and forgets those of its rate that count no more.
    async fn note_start(
        &self,
        link: &mut Link<'_>,
        key: &Key,
        per: std::time::Duration,
        run: &Run,
    ) -> Result<(), Fault> {
        let slot = key.slot();
        let forget = self.sql("DELETE FROM @.start WHERE name = $1 AND until <= @.clock()");
        link.then(&forget, &[(&slot, Type::TEXT)]).await?;
        let sql = self
            .sql("INSERT INTO @.start SELECT $1, $2, $3, now, now + $4 FROM @.clock() AS now ON CONFLICT DO NOTHING");
        let (id, epoch) = (run.id.as_uuid(), run.epoch.0.cast_signed());
        let per = i64::try_from(per.as_micros()).unwrap_or(i64::MAX / 2);
        let bound: [super::link::Bound<'_>; 4] =
            [(&slot, Type::TEXT), (&id, Type::UUID), (&epoch, Type::INT8), (&per, Type::INT8)];
        link.then(&sql, &bound).await?;
        Ok(())
    }

    /// The starts that count for each of these rates.
    pub(super) async fn all_starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        let slots: Vec<String> = rates.iter().map(Key::slot).collect();
        let sql = self.sql("SELECT at, until, name FROM @.start WHERE name = ANY($1) AND until > @.clock()");
        let rows = on_link!(self.links(), |link| link.read(&sql, &[(&slots, Type::TEXT_ARRAY)]))?;
        let of = |slot: &String| rows.iter().filter(|row| row.get::<_, &str>(2) == slot).map(start).collect();
        Ok(slots.iter().map(of).collect())
    }
}

fn start(row: &tokio_postgres::Row) -> Start {
    Start { at: Timestamp::from_micros(row.get(0)), until: Timestamp::from_micros(row.get(1)) }
}

/// Keys with the runs that hold them.
#[derive(Default)]
struct Pairs {
    slots: Vec<String>,
    runs: Vec<Uuid>,
}

impl Pairs {
    fn push(&mut self, key: &Key, run: &Run) {
        self.slots.push(key.slot());
        self.runs.push(run.id.as_uuid());
    }

    fn bound(&self) -> [super::link::Bound<'_>; 2] {
        [(&self.slots, Type::TEXT_ARRAY), (&self.runs, Type::UUID_ARRAY)]
    }
}
