//! Keys: who holds them, and which starts rates count.
//!
//! A transaction that gives a run a key holds the advisory lock of that key until it ends, or a row in its place where the
//! engine has no such locks. Locks are taken in one order, so that no two transactions wait for each other: keys, then runs,
//! then workers, each sorted. A commit waits for its keys, before it has locked anything else. An update has locked runs by
//! then, and waits for no key: what another transaction has locked counts as busy.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::dialect::Dialect;
use super::pool::{CallError, PooledClient, with_retry};
use super::reads::{self, Table};
use super::{Feature, PostgresStore};
use crate::lifecycle::{Start, has_room, starts_at};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Key, Run};
use crate::model::time::Timestamp;
use crate::store::{Error, Order, Write, WriteOutcome};

/// Whether a write takes keys or counts as a start.
pub(super) fn wants_keys(write: &Write) -> bool {
    wanted(write).next().is_some()
}

/// The keys that a write takes, and the rates that count it.
fn wanted(write: &Write) -> impl Iterator<Item = &Key> {
    write.moved_keys().0.into_iter().chain(write.counted().into_iter().map(|(key, _)| key))
}

/// What separates keys in the column that has them.
const SEPARATOR: char = '\u{1f}';

/// A key as a run asks for it: another limit asks for something else.
fn asked_for(key: &Key) -> String {
    let per = key.per().map(|per| per.as_millis()).unwrap_or_default();
    format!("{}\t{}\t{per}", key.slot(), key.limit)
}

/// The keys that a claim of a run asks for, as they are written down; none, if it asks for none.
pub(super) fn asked(run: &Run) -> Option<String> {
    let asked: Vec<String> = run.spec.keys.iter().filter(|key| !key.is_unique()).map(asked_for).collect();
    (!asked.is_empty()).then(|| asked.join(&SEPARATOR.to_string()))
}

fn slots(write: &Write) -> impl Iterator<Item = String> {
    wanted(write).map(Key::slot)
}

/// The holders and starts of keys, as one statement read them.
#[derive(Default)]
pub(super) struct KnownKeys {
    slots: HashMap<String, Slot>,
    /// The store's time when they were read.
    now: Timestamp,
}

/// What is known of one key.
#[derive(Default)]
struct Slot {
    /// The runs that are on record as its holders.
    named: Vec<RunId>,
    /// Those of them that are on record themselves.
    holders: Vec<Run>,
    /// The starts that count, each with its run and epoch.
    starts: Vec<(Start, RunId, u64)>,
}

impl KnownKeys {
    /// Which key of a write has no room for it, if any has none. A key that is not known has.
    pub(super) fn busy(&self, write: &Write) -> Option<WriteOutcome> {
        let run = &write.run;
        let is_held = |key: &Key| {
            let slot = self.slots.get(&key.slot()).filter(|slot| !slot.named.contains(&run.id))?;
            let holders: Vec<&Run> = slot.holders.iter().collect();
            let busy = || WriteOutcome::held(key, holders.iter().map(|holder| holder.id).collect());
            (!has_room(key, &holders)).then(busy)
        };
        let is_used_up = |key: &Key| {
            let slot = self.slots.get(&key.slot())?;
            // A rate that has counted this very start did so when its answer was lost.
            let is_own = |(_, id, epoch): &(Start, RunId, u64)| (*id, *epoch) == (run.id, run.epoch.0);
            if slot.starts.iter().any(is_own) {
                return None;
            }
            let starts: Vec<Start> = slot.starts.iter().map(|(start, ..)| *start).collect();
            Some(WriteOutcome::not_before(key, starts_at(key, &starts, self.now)?))
        };
        let held = write.moved_keys().0.into_iter().find_map(is_held);
        held.or_else(|| write.counted().into_iter().find_map(|(key, _)| is_used_up(key)))
    }

    /// Notes that a write takes effect.
    pub(super) fn take(&mut self, write: &Write) {
        let run = &write.run;
        for key in write.moved_keys().0 {
            let slot = self.slots.entry(key.slot()).or_default();
            slot.named.push(run.id);
            slot.holders.push(run.clone());
        }
        for (key, per) in write.counted() {
            let start = Start { at: self.now, until: self.now.after(per) };
            self.slots.entry(key.slot()).or_default().starts.push((start, run.id, run.epoch.0));
        }
    }

    fn knows_all(&self, write: &Write) -> bool {
        slots(write).all(|slot| self.slots.contains_key(&slot))
    }
}

/// The keys that one update has asked for.
#[derive(Default)]
pub(super) struct Grants {
    /// Those that it has locked.
    known: KnownKeys,
    /// Those that another transaction had locked.
    contended: BTreeSet<String>,
    /// Those that had no room.
    busy: Vec<Key>,
}

impl Grants {
    /// Whether a write need not be tried, since one of its keys was found busy.
    pub(super) fn is_hopeless(&self, write: &Write) -> bool {
        wanted(write).any(|key| self.busy.contains(key) || self.contended.contains(&key.slot()))
    }

    /// The keys that runs need not be locked for, since they cannot have them.
    pub(super) fn passed_over(&self) -> Vec<String> {
        self.busy.iter().map(asked_for).collect()
    }

    /// The store's time, read when all keys were locked.
    pub(super) fn now(&self) -> Timestamp {
        self.known.now
    }

    fn note_busy(&mut self, busy: WriteOutcome) {
        if let WriteOutcome::KeyBusy { key, .. } = busy
            && !self.busy.contains(&key)
        {
            self.busy.push(key);
        }
    }

    /// Whether a write gets its keys. They are its own from then on.
    fn grant(&mut self, write: &Write) -> bool {
        match self.known.busy(write) {
            Some(busy) => self.note_busy(busy),
            None if self.known.knows_all(write) => {
                self.known.take(write);
                return true;
            }
            None => {}
        }
        false
    }
}

impl PostgresStore {
    /// How many keys this process has passed over because another claim had them locked at that moment.
    pub fn contended_keys(&self) -> u64 {
        self.inner.contended.load(Ordering::Relaxed)
    }

    /// What an advisory lock of a key is called. Those of another registry of the database are others.
    fn lock_names<'a>(&self, slots: impl Iterator<Item = &'a String>) -> Vec<String> {
        slots.map(|slot| format!("outlive key {} {slot}", self.id())).collect()
    }

    /// Locks all keys that these writes want, waiting for each. The transaction has locked nothing yet.
    pub(super) async fn lock_keys(&self, link: &mut PooledClient<'_>, writes: &[Write]) -> Result<(), CallError> {
        let slots: BTreeSet<String> = writes.iter().flat_map(slots).collect();
        if slots.is_empty() {
            return Ok(());
        }
        if !self.has(Feature::AdvisoryLocks) {
            let places: BTreeSet<i32> = slots.iter().map(|slot| Dialect::key_place(slot)).collect();
            let sql = "SELECT place FROM @.key_lock WHERE place = ANY($1) ORDER BY place FOR UPDATE";
            self.lock_places(link, sql, places).await?;
            return Ok(());
        }
        let sql = "SELECT pg_advisory_xact_lock(key) FROM (
                       SELECT DISTINCT hashtextextended(name, 1) AS key FROM unnest($1) AS name ORDER BY 1
                   ) AS keys";
        link.then(sql, &[(&self.lock_names(slots.iter()), Type::TEXT_ARRAY)]).await?;
        Ok(())
    }

    /// Locks those of the keys that no other transaction has locked. Answers with them.
    async fn try_lock_keys(
        &self,
        link: &mut PooledClient<'_>,
        slots: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, CallError> {
        if !self.has(Feature::AdvisoryLocks) {
            let places: BTreeSet<i32> = slots.iter().map(|slot| Dialect::key_place(slot)).collect();
            let sql = "SELECT place FROM @.key_lock WHERE place = ANY($1) ORDER BY place FOR UPDATE SKIP LOCKED";
            let locked = self.lock_places(link, sql, places).await?;
            return Ok(slots.iter().filter(|slot| locked.contains(&Dialect::key_place(slot))).cloned().collect());
        }
        let sql = "SELECT place, pg_try_advisory_xact_lock(hashtextextended(name, 1))
                   FROM unnest($1) WITH ORDINALITY AS names (name, place)";
        let rows = link.then(sql, &[(&self.lock_names(slots.iter()), Type::TEXT_ARRAY)]).await?;
        let places: BTreeSet<i64> = rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect();
        let is_locked = |(place, _): &(i64, &String)| places.contains(place);
        Ok((1..).zip(slots).filter(is_locked).map(|(_, slot)| slot.clone()).collect())
    }

    /// Locks the rows that stand for keys, and answers with those that were locked.
    async fn lock_places(
        &self,
        link: &mut PooledClient<'_>,
        sql: &str,
        places: BTreeSet<i32>,
    ) -> Result<BTreeSet<i32>, CallError> {
        let places: Vec<i32> = places.into_iter().collect();
        let rows = link.then(&self.sql(sql), &[(&places, Type::INT4_ARRAY)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Grants writes of an update their keys, in order, as far as there is room. Answers which of them got theirs.
    ///
    /// No key is waited for, and none stays locked that is not given away: the next claim is to find it free.
    pub(super) async fn grant(
        &self,
        link: &mut PooledClient<'_>,
        grants: &mut Grants,
        writes: &[&Write],
    ) -> Result<Vec<bool>, CallError> {
        let hopeful: Vec<&Write> = writes.iter().copied().filter(|write| !grants.is_hopeless(write)).collect();
        let is_new = |slot: &String| !grants.known.slots.contains_key(slot);
        let new: BTreeSet<String> = hopeful.iter().flat_map(|write| slots(write)).filter(is_new).collect();
        if !new.is_empty() {
            let mut seen = self.read_keys(link, &new).await?;
            hopeful.iter().filter_map(|write| seen.busy(write)).for_each(|busy| grants.note_busy(busy));
            let mut wanted = BTreeSet::new();
            for write in hopeful {
                // Of several that want the same, one asks.
                if seen.busy(write).is_none() && grants.known.busy(write).is_none() {
                    seen.take(write);
                    wanted.extend(slots(write).filter(|slot| new.contains(slot)));
                }
            }
            self.lock_granted(link, grants, wanted, writes).await?;
        }
        Ok(writes.iter().map(|write| grants.grant(write)).collect())
    }

    /// Locks keys that had room a moment ago. What has none once it is locked is unlocked again.
    async fn lock_granted(
        &self,
        link: &mut PooledClient<'_>,
        grants: &mut Grants,
        mut wanted: BTreeSet<String>,
        writes: &[&Write],
    ) -> Result<(), CallError> {
        while !wanted.is_empty() {
            link.run("SAVEPOINT keys").await?;
            let locked = self.try_lock_keys(link, &wanted).await?;
            let contended: Vec<String> = wanted.difference(&locked).cloned().collect();
            self.inner.contended.fetch_add(contended.len() as u64, Ordering::Relaxed);
            grants.contended.extend(contended);
            let known = self.read_keys(link, &locked).await?;
            let has_all = |write: &&&Write| !grants.is_hopeless(write) && known.busy(write).is_none();
            let of_use: BTreeSet<String> = writes.iter().filter(has_all).flat_map(|write| slots(write)).collect();
            let useful: BTreeSet<String> = locked.intersection(&of_use).cloned().collect();
            if useful == locked {
                link.run("RELEASE SAVEPOINT keys").await?;
                grants.known.slots.extend(known.slots);
                grants.known.now = grants.known.now.max(known.now);
                return Ok(());
            }
            writes.iter().filter_map(|write| known.busy(write)).for_each(|busy| grants.note_busy(busy));
            link.run("ROLLBACK TO SAVEPOINT keys; RELEASE SAVEPOINT keys").await?;
            wanted = useful;
        }
        Ok(())
    }

    /// Who holds these keys, and which starts count for them.
    pub(super) async fn read_keys(
        &self,
        link: &mut PooledClient<'_>,
        slots: &BTreeSet<String>,
    ) -> Result<KnownKeys, CallError> {
        let slots: Vec<String> = slots.iter().cloned().collect();
        let bound: [super::pool::Bound<'_>; 1] = [(&slots, Type::TEXT_ARRAY)];
        let sql = self.sql(
            "SELECT h.name, h.run, c.now FROM (SELECT @.clock() AS now) c LEFT JOIN @.held_key h ON h.name = ANY($1)",
        );
        let rows = link.then(&sql, &bound).await?;
        let now = rows.first().map_or(0, |row| row.get(2));
        let mut known = KnownKeys { slots: HashMap::new(), now: Timestamp::from_micros(now) };
        known.slots.extend(slots.iter().map(|slot| (slot.clone(), Slot::default())));
        for row in &rows {
            let named: (Option<String>, Option<Uuid>) = (row.get(0), row.get(1));
            if let (Some(name), Some(run)) = named {
                known.slots.entry(name).or_default().named.push(RunId::from_uuid(run));
            }
        }
        let ids: BTreeSet<RunId> = known.slots.values().flat_map(|slot| &slot.named).copied().collect();
        if !ids.is_empty() {
            let (count, filter) = (ids.len(), Filter::of(ids));
            let tables = [Table::Waiting, Table::Live];
            let query = self.query(reads::select(&tables, &filter, Order::Oldest, None, count));
            for row in self.rows(link, &query).await? {
                let run = self.record(&row)?.0.run;
                let of = known.slots.values_mut().filter(|slot| slot.named.contains(&run.id));
                of.for_each(|slot| slot.holders.push(run.clone()));
            }
            // A holder may have ended since the first statement: the next start is dated after that end.
            let rows = link.then(&self.sql("SELECT @.clock()"), &[]).await?;
            known.now = rows.first().map_or(known.now, |row| Timestamp::from_micros(row.get(0)));
        }
        if slots.iter().any(|slot| slot.ends_with("\trate")) {
            let sql = self.sql(
                "SELECT name, at, until, run, epoch FROM @.start WHERE name = ANY($1) AND until > (SELECT @.clock())",
            );
            for row in link.then(&sql, &bound).await? {
                let start = Start { at: Timestamp::from_micros(row.get(1)), until: Timestamp::from_micros(row.get(2)) };
                let counted = (start, RunId::from_uuid(row.get(3)), row.get::<_, i64>(4).unsigned_abs());
                known.slots.entry(row.get(0)).or_default().starts.push(counted);
            }
        }
        Ok(known)
    }

    /// The keys of writes that a commit has locked.
    pub(super) async fn read_wanted<'a>(
        &self,
        link: &mut PooledClient<'_>,
        writes: impl Iterator<Item = &'a Write>,
    ) -> Result<KnownKeys, CallError> {
        self.read_keys(link, &writes.flat_map(slots).collect()).await
    }

    /// Notes which keys are held and which are not any more, and which rates count, by writes that took effect.
    pub(super) async fn move_keys(&self, link: &mut PooledClient<'_>, written: &[&Write]) -> Result<(), CallError> {
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
        link: &mut PooledClient<'_>,
        key: &Key,
        per: std::time::Duration,
        run: &Run,
    ) -> Result<(), CallError> {
        let slot = key.slot();
        let forget = self.sql("DELETE FROM @.start WHERE name = $1 AND until <= (SELECT @.clock())");
        link.then(&forget, &[(&slot, Type::TEXT)]).await?;
        let sql = self
            .sql("INSERT INTO @.start SELECT $1, $2, $3, now, now + $4 FROM @.clock() AS now ON CONFLICT DO NOTHING");
        let (id, epoch) = (run.id.as_uuid(), run.epoch.0.cast_signed());
        let per = i64::try_from(per.as_micros()).unwrap_or(i64::MAX / 2);
        let bound: [super::pool::Bound<'_>; 4] =
            [(&slot, Type::TEXT), (&id, Type::UUID), (&epoch, Type::INT8), (&per, Type::INT8)];
        link.then(&sql, &bound).await?;
        Ok(())
    }

    /// The starts that count for each of these rates.
    pub(super) async fn all_starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        let slots: Vec<String> = rates.iter().map(Key::slot).collect();
        let sql = self.sql("SELECT at, until, name FROM @.start WHERE name = ANY($1) AND until > (SELECT @.clock())");
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&slots, Type::TEXT_ARRAY)]))?;
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

    fn bound(&self) -> [super::pool::Bound<'_>; 2] {
        [(&self.slots, Type::TEXT_ARRAY), (&self.runs, Type::UUID_ARRAY)]
    }
}
