//! Writing: conditional changes, many in one statement, each taking effect or not on its own.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::link::{Bound, Fault, Link, on_link};
use super::reads::{self, Query, Table, Value, standing};
use crate::filter::Filter;
use crate::id::RunId;
use crate::run::{Run, State, StateName};
use crate::store::{Error, Expect, Order, Record, Revision, Worker, Write, Written};
use crate::transition::has_room;

/// A story that is longer than this, in bytes, is put aside before it grows.
const LONG_STORY: i32 = 8 << 10;

/// The columns of a batch, a list each.
#[derive(Default)]
struct Batch {
    ids: Vec<Uuid>,
    expected: Vec<i64>,
    stamps: Vec<Uuid>,
    tables: Vec<&'static str>,
    states: Vec<&'static str>,
    epochs: Vec<i64>,
    owners: Vec<Option<Uuid>>,
    owner_bodies: Vec<Option<String>>,
    cancels: Vec<bool>,
    archived: Vec<bool>,
    priorities: Vec<i32>,
    created: Vec<i64>,
    kinds: Vec<String>,
    ready: Vec<bool>,
    due: Vec<Option<i64>>,
    bodies: Vec<String>,
    stories: Vec<String>,
    /// Whom the writers take for the owner of what runs.
    believed: Vec<Option<Uuid>>,
    names: Vec<Option<String>>,
    steps_of: Vec<Option<Uuid>>,
    specs: Vec<String>,
}

impl Batch {
    fn of(writes: &[&Write]) -> Result<Self, Error> {
        let mut batch = Self::default();
        for write in writes {
            batch.add(write)?;
        }
        Ok(batch)
    }

    fn add(&mut self, write: &Write) -> Result<(), Error> {
        let run = &write.run;
        let unwritable = |error| Error::Corrupt(format!("run `{}` cannot be written down: {error}", run.id));
        let mut story = String::new();
        for event in &write.events {
            story.push_str(&serde_json::to_string(event).map_err(unwritable)?);
            story.push('\n');
        }
        let owner = run.owner().map(Worker::from);
        let (ready, due) = match &run.state {
            State::Pending(pending) if pending.waits_for.is_empty() => {
                (pending.not_before.is_none(), pending.not_before.map(|at| at.as_micros()))
            }
            _ => (false, None),
        };
        self.ids.push(run.id.as_uuid());
        self.stamps.push(write.stamp.as_uuid());
        self.tables.push(Table::of(run.state.name()).name());
        self.states.push(run.state.name().as_str());
        self.epochs.push(run.epoch.0.cast_signed());
        self.owners.push(owner.as_ref().map(|owner| owner.id.as_uuid()));
        self.owner_bodies.push(owner.map(|owner| super::beats::body(&owner)).transpose()?);
        self.cancels.push(run.cancel.is_some());
        self.archived.push(run.archived.is_some());
        self.priorities.push(run.spec.priority);
        self.created.push(run.created_at.as_micros());
        self.kinds.push(run.spec.kind.clone());
        self.ready.push(ready);
        self.due.push(due);
        self.bodies.push(standing(run)?);
        self.stories.push(story);
        let from_running = write.events.first().filter(|event| event.from == Some(StateName::Running));
        self.believed.push(from_running.and_then(|event| event.worker).map(|worker| worker.as_uuid()));
        match write.expect {
            Expect::Revision(revision) => self.expected.push(revision.0.cast_signed()),
            Expect::Absent => {
                self.expected.push(0);
                self.names.push(run.spec.name.clone());
                self.steps_of.push(run.spec.step.as_ref().map(|step| step.of.as_uuid()));
                self.specs.push(serde_json::to_string(&run.spec).map_err(unwritable)?);
            }
        }
        Ok(())
    }

    fn standing(&self) -> Vec<Bound<'_>> {
        vec![
            (&self.ids, Type::UUID_ARRAY),
            (&self.expected, Type::INT8_ARRAY),
            (&self.stamps, Type::UUID_ARRAY),
            (&self.tables, Type::TEXT_ARRAY),
            (&self.states, Type::TEXT_ARRAY),
            (&self.epochs, Type::INT8_ARRAY),
            (&self.owners, Type::UUID_ARRAY),
            (&self.owner_bodies, Type::TEXT_ARRAY),
            (&self.cancels, Type::BOOL_ARRAY),
            (&self.archived, Type::BOOL_ARRAY),
            (&self.priorities, Type::INT4_ARRAY),
            (&self.created, Type::INT8_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.ready, Type::BOOL_ARRAY),
            (&self.due, Type::INT8_ARRAY),
            (&self.bodies, Type::TEXT_ARRAY),
            (&self.stories, Type::TEXT_ARRAY),
            (&self.believed, Type::UUID_ARRAY),
        ]
    }

    fn specs(&self) -> Vec<Bound<'_>> {
        vec![(&self.names, Type::TEXT_ARRAY), (&self.steps_of, Type::UUID_ARRAY), (&self.specs, Type::TEXT_ARRAY)]
    }
}

/// The lists of a batch as rows. In the order of the ids, so that two batches lock in the same order. It waits for nobody
/// longer than a beat may be late.
const INPUT: &str = "settings AS MATERIALIZED (SELECT set_config('lock_timeout', '2000', true)),
    input AS MATERIALIZED (
    SELECT i.* FROM settings,
        unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
        AS i (id, expected, stamp, place, state, epoch, owner, owner_body, cancel, archived, priority, created_at, kind,
              ready, due_at, body, story, believed)
    ORDER BY i.id)";

/// A run that is new, or comes from another table: `from` has its id, the owner it had, and its story so far.
const PLACED: &str = "
    put_waiting AS (INSERT INTO @.waiting
        SELECT i.id, i.expected + 1, i.stamp, i.state, i.epoch, i.priority, i.created_at, i.kind, i.ready, i.due_at,
               i.body, f.story || i.story
        FROM input i JOIN moved f ON f.id = i.id WHERE i.place = 'waiting'),
    put_live AS (INSERT INTO @.live
        SELECT i.id, i.expected + 1, i.stamp, i.epoch, i.owner, i.cancel, i.priority, i.created_at, i.body,
               f.story || i.story
        FROM input i JOIN moved f ON f.id = i.id WHERE i.place = 'live'),
    put_ended AS (INSERT INTO @.ended
        SELECT i.id, i.expected + 1, i.stamp, i.state, i.epoch, i.archived, i.priority, i.created_at, i.body,
               f.story || i.story
        FROM input i JOIN moved f ON f.id = i.id WHERE i.place = 'ended'),";

/// Whoever has become an owner was heard of; whoever owned, or owns, what has changed is to look, unless it was told by
/// this process ($19).
const TOLD: &str = "
    took AS (INSERT INTO @.worker
        SELECT DISTINCT ON (i.owner) i.owner, 1, @.clock(), 1, i.owner_body
        FROM done d JOIN input i ON i.id = d.id WHERE i.owner IS NOT NULL AND i.owner IS DISTINCT FROM d.owner
        ORDER BY i.owner
        ON CONFLICT (id) DO UPDATE SET beat = worker.beat + 1, heard_at = @.clock(), attention = worker.attention + 1
        RETURNING id),
    alerted AS (UPDATE @.worker SET attention = attention + 1
        WHERE id IN (SELECT d.owner FROM done d UNION SELECT i.owner FROM done d JOIN input i ON i.id = d.id)
          AND id <> ALL ($19) AND id NOT IN (SELECT id FROM took))";

/// An older state of a database may come back, from a backup or with a replica that took over. What is written from then on
/// counts on from there: a revision and an epoch may come twice, but not in the hands of one worker. So whoever changes a
/// running run goes by its owner too, unless it becomes the owner itself.
const BELIEVED: &str = "(i.believed IS NULL OR r.owner = i.believed OR i.epoch > r.epoch AND i.owner = i.believed)";

fn create() -> String {
    format!(
        "WITH {INPUT},
         made AS (INSERT INTO @.spec (id, created_at, priority, name, kind, step_of, body)
             SELECT i.id, i.created_at, i.priority, s.name, i.kind, s.step_of, s.body
             FROM input i JOIN unnest($1, $20, $21, $22) AS s (id, name, step_of, body) ON s.id = i.id
             ON CONFLICT (id) DO NOTHING RETURNING id),
         moved AS (SELECT id, NULL::uuid AS owner, '' AS story FROM made),
         {PLACED}
         done AS (SELECT id, owner FROM moved),
         {TOLD}
         SELECT id, owner, 0 FROM done"
    )
}

fn change() -> String {
    format!(
        "WITH {INPUT},
         from_waiting AS (DELETE FROM @.waiting r USING input i
             WHERE r.id = i.id AND r.revision = i.expected AND i.place <> 'waiting'
             RETURNING r.id, NULL::uuid AS owner, r.story),
         from_live AS (DELETE FROM @.live r USING input i
             WHERE r.id = i.id AND r.revision = i.expected AND {BELIEVED} AND i.place <> 'live'
             RETURNING r.id, r.owner, r.story),
         from_ended AS (DELETE FROM @.ended r USING input i
             WHERE r.id = i.id AND r.revision = i.expected AND i.place <> 'ended'
             RETURNING r.id, NULL::uuid AS owner, r.story),
         moved AS (SELECT * FROM from_waiting UNION ALL SELECT * FROM from_live UNION ALL SELECT * FROM from_ended),
         {PLACED}
         stay_waiting AS (UPDATE @.waiting r SET revision = r.revision + 1, stamp = i.stamp, state = i.state,
                 epoch = i.epoch, ready = i.ready, due_at = i.due_at, body = i.body, story = r.story || i.story
             FROM input i WHERE r.id = i.id AND r.revision = i.expected AND i.place = 'waiting'
             RETURNING r.id, NULL::uuid AS owner, octet_length(r.story) AS long),
         owned AS MATERIALIZED (SELECT r.id, r.owner FROM @.live r JOIN input i ON i.id = r.id WHERE i.place = 'live'),
         stay_live AS (UPDATE @.live r SET revision = r.revision + 1, stamp = i.stamp, epoch = i.epoch,
                 owner = i.owner, cancel = i.cancel, body = i.body, story = r.story || i.story
             FROM input i JOIN owned o ON o.id = i.id
             WHERE r.id = i.id AND r.revision = i.expected AND {BELIEVED} AND i.place = 'live'
             RETURNING r.id, o.owner, octet_length(r.story) AS long),
         stay_ended AS (UPDATE @.ended r SET revision = r.revision + 1, stamp = i.stamp, state = i.state,
                 epoch = i.epoch, archived = i.archived, body = i.body, story = r.story || i.story
             FROM input i WHERE r.id = i.id AND r.revision = i.expected AND i.place = 'ended'
             RETURNING r.id, NULL::uuid AS owner, octet_length(r.story) AS long),
         done AS (SELECT id, owner, 0 AS long FROM moved UNION ALL SELECT * FROM stay_waiting
                  UNION ALL SELECT * FROM stay_live UNION ALL SELECT * FROM stay_ended),
         {TOLD}
         SELECT id, owner, long FROM done"
    )
}

/// A write, and which of its batch it is.
type Numbered<'a> = (usize, &'a Write);

/// The writes in parts in which no run occurs twice.
fn rounds<'a>(writes: &[Numbered<'a>]) -> Vec<Vec<Numbered<'a>>> {
    let mut rounds: Vec<(HashSet<RunId>, Vec<Numbered<'a>>)> = Vec::new();
    for (index, write) in writes {
        // In the last round, or after it if it has the run: the order of its writes is kept.
        if let Some((runs, round)) = rounds.last_mut()
            && runs.insert(write.run.id)
        {
            round.push((*index, write));
        } else {
            rounds.push((HashSet::from([write.run.id]), vec![(*index, write)]));
        }
    }
    rounds.into_iter().map(|(_, round)| round).collect()
}

/// What became of the writes of one transaction.
struct Outcome {
    /// The writes that took effect.
    done: HashSet<usize>,
    busy: BTreeMap<usize, Written>,
}

impl PostgresStore {
    pub(super) async fn commit_all(&self, writes: &[Write]) -> Result<Vec<Written>, Error> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = on_link!(self.links(), |link| self.commit_once(&mut link, writes));
        self.note_own(writes.iter().map(|write| &write.run));
        let mut outcome = outcome?;
        let lost: BTreeSet<RunId> = writes
            .iter()
            .enumerate()
            .filter(|(index, _)| !outcome.done.contains(index) && !outcome.busy.contains_key(index))
            .map(|(_, write)| write.run.id)
            .collect();
        let lost: Vec<RunId> = lost.into_iter().collect();
        let found = if lost.is_empty() { Ok(Vec::new()) } else { self.find(&lost).await };
        let found = found.map_err(|error| match error {
            // The others of the batch have taken effect: no error may say that nothing was written.
            Error::Unavailable(text) if !outcome.done.is_empty() => Error::Unknown(text),
            error => error,
        })?;
        let written = writes.iter().enumerate().map(|(index, write)| {
            if outcome.done.contains(&index) {
                return Written::Done(next(write.expect));
            }
            outcome.busy.remove(&index).unwrap_or_else(|| {
                Written::Conflict(found.iter().find(|record| record.run.id == write.run.id).cloned().map(Box::new))
            })
        });
        Ok(written.collect())
    }

    async fn commit_once(&self, link: &mut Link<'_>, writes: &[Write]) -> Result<Outcome, Fault> {
        let mut outcome = Outcome { done: HashSet::new(), busy: BTreeMap::new() };
        let all: Vec<Numbered<'_>> = writes.iter().enumerate().collect();
        let is_plain = writes.iter().all(|write| write.run.spec.keys.is_empty());
        let same = writes.iter().all(|write| (write.expect == Expect::Absent) == (writes[0].expect == Expect::Absent));
        let rounds = rounds(&all);
        if is_plain && same && rounds.len() == 1 {
            let plain: Vec<&Write> = writes.iter().collect();
            let (sql, batch) = (self.statement(plain[0].expect), Batch::of(&plain)?);
            let own = self.own_ids();
            let rows = link.write(&sql, &values(&batch, &own, plain[0].expect)).await?;
            let long = note(&mut outcome, &all, &rows);
            self.put_aside(link, long).await;
            return Ok(outcome);
        }
        link.begin_with("SELECT 1", &[]).await?;
        for round in rounds {
            self.write_round(link, &round, &mut outcome).await?;
        }
        link.commit().await?;
        Ok(outcome)
    }

    /// Writes that belong to a transaction of the caller's. Those whose keys are busy are left out.
    pub(super) async fn write_within(&self, link: &mut Link<'_>, writes: &[Write]) -> Result<HashSet<usize>, Fault> {
        let mut outcome = Outcome { done: HashSet::new(), busy: BTreeMap::new() };
        let all: Vec<Numbered<'_>> = writes.iter().enumerate().collect();
        self.write_round(link, &all, &mut outcome).await?;
        Ok(outcome.done)
    }

    /// The last writes of a transaction of the caller's, and its end, in one round trip. None of the runs has keys.
    pub(super) async fn write_last(&self, link: &mut Link<'_>, writes: &[Write]) -> Result<HashSet<usize>, Fault> {
        let mut outcome = Outcome { done: HashSet::new(), busy: BTreeMap::new() };
        let all: Vec<Numbered<'_>> = writes.iter().enumerate().collect();
        let batch = Batch::of(&writes.iter().collect::<Vec<_>>())?;
        let (own, expect) = (self.own_ids(), writes[0].expect);
        let rows = link.commit_with(&self.statement(expect), &values(&batch, &own, expect)).await?;
        let long = note(&mut outcome, &all, &rows);
        self.put_aside(link, long).await;
        Ok(outcome.done)
    }

    async fn write_round(
        &self,
        link: &mut Link<'_>,
        round: &[Numbered<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), Fault> {
        let wants_keys = |write: &Write| !write.run.held_keys().is_empty();
        let (keyed, plain): (Vec<_>, Vec<_>) = round.iter().copied().partition(|(_, write)| wants_keys(write));
        for absent in [true, false] {
            let part: Vec<Numbered<'_>> =
                plain.iter().copied().filter(|(_, write)| (write.expect == Expect::Absent) == absent).collect();
            self.write_part(link, &part, outcome).await?;
        }
        if keyed.is_empty() {
            return Ok(());
        }
        lock_keys(link, keyed.iter().map(|(_, write)| &write.run)).await?;
        // One after the other: whether there is room depends on what became of the one before.
        for (index, write) in keyed {
            match self.busy_key(link, &write.run).await? {
                Some(busy) => drop(outcome.busy.insert(index, busy)),
                None => self.write_part(link, &[(index, write)], outcome).await?,
            }
        }
        Ok(())
    }

    async fn write_part(&self, link: &mut Link<'_>, part: &[Numbered<'_>], outcome: &mut Outcome) -> Result<(), Fault> {
        let Some((_, first)) = part.first() else { return Ok(()) };
        let batch = Batch::of(&part.iter().map(|(_, write)| *write).collect::<Vec<_>>())?;
        let own = self.own_ids();
        let rows = link.then(&self.statement(first.expect), &values(&batch, &own, first.expect)).await?;
        let long = note(outcome, part, &rows);
        let done = |wants: bool| {
            let took_effect = part.iter().filter(|(index, _)| outcome.done.contains(index));
            took_effect.filter(move |(_, write)| write.run.held_keys().is_empty() != wants).map(|(_, write)| &write.run)
        };
        let freed: Vec<Uuid> =
            done(false).filter(|run| !run.spec.keys.is_empty()).map(|run| run.id.as_uuid()).collect();
        if !freed.is_empty() {
            let sql = self.sql("DELETE FROM @.held_key WHERE run = ANY($1)");
            link.then(&sql, &[(&freed, Type::UUID_ARRAY)]).await?;
        }
        let (mut names, mut runs) = (Vec::new(), Vec::new());
        for run in done(true) {
            for key in run.held_keys() {
                names.push(key.name.as_str());
                runs.push(run.id.as_uuid());
            }
        }
        if !names.is_empty() {
            let sql = self.sql("INSERT INTO @.held_key SELECT * FROM unnest($1, $2) ON CONFLICT DO NOTHING");
            link.then(&sql, &[(&names, Type::TEXT_ARRAY), (&runs, Type::UUID_ARRAY)]).await?;
        }
        if !long.is_empty() {
            for sql in PUT_ASIDE {
                link.then(&self.sql(sql), &[(&long, Type::UUID_ARRAY)]).await?;
            }
        }
        Ok(())
    }

    fn statement(&self, expect: Expect) -> String {
        self.sql(&if expect == Expect::Absent { create() } else { change() })
    }

    /// Why a run cannot have one of its keys, if so. Its keys are locked.
    async fn busy_key(&self, link: &mut Link<'_>, run: &Run) -> Result<Option<Written>, Fault> {
        let names: Vec<&str> = run.held_keys().iter().map(|key| key.name.as_str()).collect();
        let sql = self.sql("SELECT name, run FROM @.held_key WHERE name = ANY($1)");
        let rows = link.then(&sql, &[(&names, Type::TEXT_ARRAY)]).await?;
        let held: Vec<(String, RunId)> = rows.iter().map(|row| (row.get(0), RunId::from_uuid(row.get(1)))).collect();
        let ids: Vec<RunId> = held.iter().map(|(_, holder)| *holder).filter(|holder| *holder != run.id).collect();
        let mut holders: Vec<Record> = Vec::new();
        if !ids.is_empty() {
            let query =
                self.query(reads::select(&[Table::Live], &Filter::of(ids.clone()), Order::Oldest, None, ids.len()));
            for row in link.then(&query.sql, &query.bound()).await? {
                holders.push(reads::record(&row)?.0);
            }
        }
        Ok(run.held_keys().iter().find_map(|key| {
            let holds = |id: RunId| held.iter().any(|(name, holder)| *name == key.name && *holder == id);
            if holds(run.id) {
                return None;
            }
            let theirs: Vec<&Run> =
                holders.iter().map(|record| &record.run).filter(|holder| holds(holder.id)).collect();
            let busy =
                || Written::KeyBusy { key: key.name.clone(), holders: theirs.iter().map(|holder| holder.id).collect() };
            (!has_room(key, &theirs)).then(busy)
        }))
    }

    /// Puts stories aside that have become long, after what was told has taken effect: it waits for nobody.
    async fn put_aside(&self, link: &mut Link<'_>, long: Vec<Uuid>) {
        if long.is_empty() {
            return;
        }
        let bound: [Bound<'_>; 1] = [(&long, Type::UUID_ARRAY)];
        let begun = link.begin_with(&self.sql(PUT_ASIDE[0]), &bound).await.is_ok();
        if !begun || link.commit_with(&self.sql(PUT_ASIDE[1]), &bound).await.is_err() {
            // What cannot be put aside now stays where it is. The transaction ends with the connection.
            link.give_up();
        }
    }

    pub(super) fn query(&self, query: Query) -> Query {
        Query { sql: self.sql(&query.sql), values: query.values }
    }

    fn own_ids(&self) -> Value {
        Value::Ids(self.own().keys().map(crate::id::WorkerId::as_uuid).collect())
    }

    /// Counts changes of workers that beat through this store: their rows are not touched for it.
    pub(super) fn note_own<'a>(&self, _runs: impl Iterator<Item = &'a Run>) {
        // Whose run it was is not known here, so that all of ours look.
        self.own().values_mut().for_each(|changes| *changes += 1);
    }
}

const PUT_ASIDE: [&str; 2] = [
    "INSERT INTO @.story SELECT id, revision, story FROM @.live WHERE id = ANY($1) FOR UPDATE",
    "UPDATE @.live SET story = '' WHERE id = ANY($1)",
];

fn values<'a>(batch: &'a Batch, own: &'a Value, expect: Expect) -> Vec<Bound<'a>> {
    let mut values = batch.standing();
    values.push(own.bound());
    if expect == Expect::Absent {
        values.extend(batch.specs());
    }
    values
}

/// Notes which writes took effect. Answers with the runs whose stories have become long.
fn note(outcome: &mut Outcome, part: &[Numbered<'_>], rows: &[Row]) -> Vec<Uuid> {
    let done: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    outcome
        .done
        .extend(part.iter().filter(|(_, write)| done.contains(&write.run.id.as_uuid())).map(|(index, _)| *index));
    let is_long = |row: &&Row| row.get::<_, Option<Uuid>>(1).is_some() && row.get::<_, i32>(2) > LONG_STORY;
    rows.iter().filter(is_long).map(|row| row.get(0)).collect()
}

/// Takes turns for keys, in one order for all.
async fn lock_keys(link: &mut Link<'_>, runs: impl Iterator<Item = &Run>) -> Result<(), Fault> {
    let names: BTreeSet<&str> = runs.flat_map(|run| run.held_keys()).map(|key| key.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let sql = "SELECT pg_advisory_xact_lock(key) FROM (
                   SELECT DISTINCT hashtextextended('outlive key ' || name, 1) AS key FROM unnest($1) AS name ORDER BY 1
               ) AS keys";
    link.then(sql, &[(&names, Type::TEXT_ARRAY)]).await?;
    Ok(())
}

fn next(expect: Expect) -> Revision {
    match expect {
        Expect::Absent => Revision(1),
        Expect::Revision(revision) => Revision(revision.0 + 1),
    }
}
