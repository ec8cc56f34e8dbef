//! Batches: writes that take their runs the same way, as one statement.
//!
//! A run that stays in its table is updated there. One that goes to another is deleted here and inserted there, by the
//! same statement, so that it is never in two or in none. The ids that come back tell which writes took effect.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::copy_in::{Columns, Copy};
use super::owner_cache::InternedOwner;
use super::pool::Bound;
use super::reads::Table;
use super::{beats, event_log, keys, rows};
use crate::model::run::{Owner, Run, State, StateName};
use crate::store::{Error, Expect, WorkerRecord, Write, counts};

/// Where the run of a write is before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// It is new.
    New,
    In(Table),
}

impl Origin {
    /// Where the run of a write may be.
    pub(super) fn all_of(write: &Write) -> Vec<Self> {
        Self::only(write).map_or_else(|| Table::ALL.map(Self::In).into(), |origin| vec![origin])
    }

    /// Where it is, if the write says so.
    fn only(write: &Write) -> Option<Self> {
        match write.expect {
            Expect::Absent => Some(Self::New),
            Expect::Revision(_) => write.events.first()?.from.map(Table::of).map(Self::In),
        }
    }
}

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) from: Origin,
    pub(super) to: Table,
}

impl Way {
    /// The way of a write that says where its run is.
    pub(super) fn only(write: &Write) -> Option<Self> {
        Some(Self { from: Origin::only(write)?, to: Table::of(write.run.state.name()) })
    }

    /// Whether the runs wait before and after, so that only an edit can have changed their priority.
    fn stays_waiting(self) -> bool {
        self.from == Origin::In(Table::Waiting) && self.to == Table::Waiting
    }
}

/// Whether the transaction has locked the rows that a statement changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    Locked,
    Unlocked,
}

/// The columns of a batch, a list each.
#[derive(Default)]
pub(super) struct Batch {
    ids: Vec<Uuid>,
    expected: Vec<i64>,
    stamps: Vec<Uuid>,
    epochs: Vec<i64>,
    created: Vec<i64>,
    priorities: Vec<i32>,
    bodies: Vec<Option<String>>,
    event_logs: Vec<String>,
    states: Vec<&'static str>,
    kinds: Vec<String>,
    shares: Vec<Option<String>>,
    ready: Vec<bool>,
    due: Vec<Option<i64>>,
    cancels: Vec<bool>,
    archived: Vec<bool>,
    workers: Vec<Option<Uuid>>,
    owned_by: Vec<Option<Uuid>>,
    started: Vec<Option<i64>>,
    ended: Vec<Option<i64>>,
    /// What a claim asks for, separated.
    keys: Vec<Option<String>>,
    claims: Vec<i32>,
    evidence: Vec<Option<String>>,
    labels: Labels,
    /// Whom the writers take for the owner of what runs.
    believed: Vec<Option<Uuid>>,
    names: Vec<Option<String>>,
    steps_of: Vec<Option<Uuid>>,
    signatures: Vec<Option<String>>,
    specs: Vec<String>,
    owners: Owners,
}

/// The labels of a batch's new runs, a row each.
#[derive(Default)]
struct Labels {
    runs: Vec<Uuid>,
    names: Vec<String>,
    values: Vec<String>,
    created: Vec<i64>,
}

impl Labels {
    fn add(&mut self, run: &Run) {
        for (name, value) in &run.spec.labels {
            self.runs.push(run.id.as_uuid());
            self.names.push(name.clone());
            self.values.push(value.clone());
            self.created.push(run.created_at.as_micros());
        }
    }
}

/// The owners of a batch's runs, each once.
#[derive(Default)]
struct Owners {
    named: Vec<InternedOwner>,
    ids: Vec<Uuid>,
    workers: Vec<Uuid>,
    bodies: Vec<String>,
    /// The bodies of the workers' rows.
    worker_bodies: Vec<String>,
}

impl Owners {
    fn name(&mut self, owner: &Owner) -> Result<&InternedOwner, Error> {
        let place = match self.named.iter().position(|named| named.is(owner)) {
            Some(place) => place,
            None => {
                let named = InternedOwner::of(owner)?;
                self.ids.push(named.id);
                self.workers.push(owner.worker.as_uuid());
                self.bodies.push(named.body.clone());
                self.worker_bodies.push(beats::body(&WorkerRecord::from(owner))?);
                self.named.push(named);
                self.named.len() - 1
            }
        };
        Ok(&self.named[place])
    }
}

impl Batch {
    pub(super) fn of<'a>(writes: impl Iterator<Item = &'a Write>) -> Result<Self, Error> {
        let mut batch = Self::default();
        for write in writes {
            batch.add(write)?;
        }
        Ok(batch)
    }

    fn add(&mut self, write: &Write) -> Result<(), Error> {
        let run = &write.run;
        let named = rows::owner(run).map(|owner| self.owners.name(owner)).transpose()?;
        let mut events = String::new();
        for event in &write.events {
            event_log::tell(&mut events, event, named)?;
        }
        self.owned_by.push(named.map(|named| named.id));
        let (ready, due) = match &run.state {
            State::Pending(pending) if pending.waits_for.is_empty() => {
                (pending.not_before.is_none(), pending.not_before.map(|at| at.as_micros()))
            }
            _ => (false, None),
        };
        self.ids.push(run.id.as_uuid());
        self.stamps.push(write.stamp.as_uuid());
        self.epochs.push(run.epoch.0.cast_signed());
        self.created.push(run.created_at.as_micros());
        self.priorities.push(run.priority());
        self.bodies.push(rows::body(run)?);
        self.event_logs.push(events);
        self.states.push(run.state.name().as_str());
        self.kinds.push(run.spec.kind.clone());
        self.shares.push(run.spec.share.as_ref().map(|share| share.tenant.clone()));
        self.ready.push(ready);
        self.due.push(due);
        self.cancels.push(run.cancel.is_some());
        self.archived.push(run.archived.is_some());
        self.workers.push(run.owner().map(|owner| owner.worker.as_uuid()));
        self.started.push(rows::started_at(run).map(|at| at.as_micros()));
        self.ended.push(run.ending().map(|ending| ending.at.as_micros()));
        self.keys.push(keys::asked(run));
        self.claims.push(i32::try_from(counts::claims(run)).unwrap_or(i32::MAX));
        self.evidence.push(counts::evidence(run));
        let from_running = write.events.first().filter(|event| event.from == Some(StateName::Running));
        self.believed.push(from_running.and_then(|event| event.worker).map(|worker| worker.as_uuid()));
        match write.expect {
            Expect::Revision(revision) => self.expected.push(revision.0.cast_signed()),
            Expect::Absent => {
                let unwritable = |error| rows::corrupt(&run.id, &error);
                self.expected.push(0);
                self.names.push(run.spec.name.clone());
                self.steps_of.push(run.spec.step.as_ref().map(|step| step.of.as_uuid()));
                self.signatures.push(run.signature.clone());
                self.labels.add(run);
                self.specs.push(serde_json::to_string(&run.spec).map_err(unwritable)?);
            }
        }
        Ok(())
    }

    /// The runs of this batch, all of them new and waiting, as rows for `COPY`.
    pub(super) fn copies(&self) -> Result<Vec<Copy>, Error> {
        let made = Columns {
            sql: "COPY @.spec (id, created_at, priority, name, kind, step_of, signature, body) FROM STDIN (FORMAT binary)",
            types: [Type::UUID, Type::INT8, Type::INT4, Type::TEXT, Type::TEXT, Type::UUID, Type::TEXT, Type::TEXT],
        };
        let waiting = Columns {
            sql: "COPY @.waiting (id, revision, stamp, epoch, created_at, priority, body, events, ready, due_at, state, kind,
                                   keys, claims, share)
                  FROM STDIN (FORMAT binary)",
            types: [
                Type::UUID,
                Type::INT8,
                Type::UUID,
                Type::INT8,
                Type::INT8,
                Type::INT4,
                Type::TEXT,
                Type::TEXT,
                Type::BOOL,
                Type::INT8,
                Type::TEXT,
                Type::TEXT,
                Type::TEXT,
                Type::INT4,
                Type::TEXT,
            ],
        };
        let labels = Columns {
            sql: "COPY @.label (run, name, value, created_at) FROM STDIN (FORMAT binary)",
            types: [Type::UUID, Type::TEXT, Type::TEXT, Type::INT8],
        };
        let mut copies = vec![
            made.copy((0..self.ids.len()).map(|at| -> [&(dyn ToSql + Sync); 8] {
                [
                    &self.ids[at],
                    &self.created[at],
                    &self.priorities[at],
                    &self.names[at],
                    &self.kinds[at],
                    &self.steps_of[at],
                    &self.signatures[at],
                    &self.specs[at],
                ]
            }))?,
            waiting.copy((0..self.ids.len()).map(|at| -> [&(dyn ToSql + Sync); 15] {
                [
                    &self.ids[at],
                    &1_i64,
                    &self.stamps[at],
                    &self.epochs[at],
                    &self.created[at],
                    &self.priorities[at],
                    &self.bodies[at],
                    &self.event_logs[at],
                    &self.ready[at],
                    &self.due[at],
                    &self.states[at],
                    &self.kinds[at],
                    &self.keys[at],
                    &self.claims[at],
                    &self.shares[at],
                ]
            }))?,
        ];
        let Labels { runs, names, values, created } = &self.labels;
        if !runs.is_empty() {
            copies.push(
                labels
                    .copy((0..runs.len()).map(|at| -> [&(dyn ToSql + Sync); 4] {
                        [&runs[at], &names[at], &values[at], &created[at]]
                    }))?,
            );
        }
        Ok(copies)
    }

    /// The columns that a way needs, by name.
    fn columns(&self, way: Way) -> Vec<(&'static str, Bound<'_>)> {
        let mut columns: Vec<(&'static str, Bound<'_>)> = vec![
            ("id", (&self.ids, Type::UUID_ARRAY)),
            ("stamp", (&self.stamps, Type::UUID_ARRAY)),
            ("epoch", (&self.epochs, Type::INT8_ARRAY)),
            ("body", (&self.bodies, Type::TEXT_ARRAY)),
            ("events", (&self.event_logs, Type::TEXT_ARRAY)),
        ];
        if way.from == Origin::New || way.to != Table::Live {
            columns.push(("kind", (&self.kinds, Type::TEXT_ARRAY)));
        }
        match way.to {
            Table::Waiting => columns.extend::<[(&'static str, Bound<'_>); 6]>([
                ("share", (&self.shares, Type::TEXT_ARRAY)),
                ("keys", (&self.keys, Type::TEXT_ARRAY)),
                ("claims", (&self.claims, Type::INT4_ARRAY)),
                ("ready", (&self.ready, Type::BOOL_ARRAY)),
                ("due_at", (&self.due, Type::INT8_ARRAY)),
                ("state", (&self.states, Type::TEXT_ARRAY)),
            ]),
            Table::Live => columns.extend::<[(&'static str, Bound<'_>); 4]>([
                ("cancel", (&self.cancels, Type::BOOL_ARRAY)),
                ("owner", (&self.workers, Type::UUID_ARRAY)),
                ("owned_by", (&self.owned_by, Type::UUID_ARRAY)),
                ("since", (&self.started, Type::INT8_ARRAY)),
            ]),
            Table::Ended => columns.extend::<[(&'static str, Bound<'_>); 7]>([
                ("claims", (&self.claims, Type::INT4_ARRAY)),
                ("evidence", (&self.evidence, Type::TEXT_ARRAY)),
                ("archived", (&self.archived, Type::BOOL_ARRAY)),
                ("started_at", (&self.started, Type::INT8_ARRAY)),
                ("ended_at", (&self.ended, Type::INT8_ARRAY)),
                ("owned_by", (&self.owned_by, Type::UUID_ARRAY)),
                ("state", (&self.states, Type::TEXT_ARRAY)),
            ]),
        }
        match way.from {
            Origin::New => columns.extend::<[(&'static str, Bound<'_>); 6]>([
                ("created_at", (&self.created, Type::INT8_ARRAY)),
                ("priority", (&self.priorities, Type::INT4_ARRAY)),
                ("name", (&self.names, Type::TEXT_ARRAY)),
                ("step_of", (&self.steps_of, Type::UUID_ARRAY)),
                ("signature", (&self.signatures, Type::TEXT_ARRAY)),
                ("spec", (&self.specs, Type::TEXT_ARRAY)),
            ]),
            Origin::In(from) => {
                columns.push(("expected", (&self.expected, Type::INT8_ARRAY)));
                if way.stays_waiting() {
                    columns.push(("priority", (&self.priorities, Type::INT4_ARRAY)));
                }
                if from == Table::Live {
                    columns.push(("believed", (&self.believed, Type::UUID_ARRAY)));
                }
            }
        }
        columns
    }

    /// The statement that takes the runs that way, and its values. `own` are the workers that beat through this store:
    /// they need not report what they have done.
    ///
    /// Several rows that are not locked yet are locked first, in the order of their ids, so that two batches never wait for
    /// each other. Workers are locked after them, in order as well.
    pub(super) fn statement<'a>(&'a self, way: Way, own: &'a Vec<Uuid>, rows: Rows) -> (String, Vec<Bound<'a>>) {
        let (names, mut values): (Vec<&str>, Vec<Bound<'a>>) = self.columns(way).into_iter().unzip();
        // Side by side in the list of what is selected they are read as they come; as a table each is written down first.
        let lists = names.iter().enumerate().map(|(place, name)| format!("unnest(${}) AS {name}", place + 1));
        let input = lists.collect::<Vec<_>>().join(", ");
        let mut bind = |bound: Bound<'a>| {
            values.push(bound);
            format!("${}", values.len())
        };
        let mut parts = vec![format!("input AS MATERIALIZED (SELECT {input})")];
        let locks = rows == Rows::Unlocked && self.ids.len() > 1;
        if let (true, Origin::In(table)) = (locks, way.from) {
            let table = table.name();
            parts[0] = format!(
                "turn AS MATERIALIZED (SELECT id FROM @.{table} WHERE id = ANY($1) ORDER BY id FOR UPDATE),
                 input AS MATERIALIZED (SELECT {input} FROM (SELECT count(*) FROM turn) AS locked)"
            );
        }
        parts.extend(moved(way));
        if way.from == Origin::New && !self.labels.runs.is_empty() {
            let Labels { runs, names, values, created } = &self.labels;
            let (runs, names) = (bind((runs, Type::UUID_ARRAY)), bind((names, Type::TEXT_ARRAY)));
            let (values, created) = (bind((values, Type::TEXT_ARRAY)), bind((created, Type::INT8_ARRAY)));
            parts.push(format!(
                "labelled AS (INSERT INTO @.label (run, name, value, created_at)
                     SELECT l.* FROM unnest({runs}, {names}, {values}, {created}) AS l (run, name, value, created_at)
                     WHERE l.run IN (SELECT id FROM new))"
            ));
        }
        if !self.owners.ids.is_empty() {
            let ids = bind((&self.owners.ids, Type::UUID_ARRAY));
            let workers = bind((&self.owners.workers, Type::UUID_ARRAY));
            let bodies = bind((&self.owners.bodies, Type::TEXT_ARRAY));
            parts.push(format!(
                "named AS (INSERT INTO @.owner SELECT o.id, o.worker, @.clock(), o.body
                     FROM unnest({ids}, {workers}, {bodies}) AS o (id, worker, body)
                     WHERE NOT EXISTS (SELECT 1 FROM @.owner WHERE owner.id = o.id
                                       AND owner.noted_at >= (SELECT @.clock()) - 86400000000)
                     ORDER BY o.id ON CONFLICT (id) DO UPDATE SET noted_at = excluded.noted_at)"
            ));
            if way.to == Table::Live {
                let worker_bodies = bind((&self.owners.worker_bodies, Type::TEXT_ARRAY));
                let own = bind((own, Type::UUID_ARRAY));
                parts.push(took(&workers, &worker_bodies, &own));
            }
        }
        let knows = |worker: &Option<Uuid>| worker.is_some_and(|worker| own.contains(&worker));
        if way.from == Origin::In(Table::Live) && !self.believed.iter().all(knows) {
            let own = bind((own, Type::UUID_ARRAY));
            let but = if way.to == Table::Live { "AND id NOT IN (SELECT id FROM took)" } else { "" };
            parts.push(format!(
                "alerted AS (UPDATE @.worker SET attention = attention + 1 WHERE id IN (
                     SELECT id FROM @.worker WHERE id IN (SELECT was FROM done UNION SELECT owner FROM done)
                         AND id <> ALL ({own}) {but} ORDER BY id FOR NO KEY UPDATE))"
            ));
        }
        (format!("WITH {} SELECT id, was, long FROM done", parts.join(",\n")), values)
    }
}

/// A claim counts as a heartbeat of the new owner. Two claims of one worker at once would wait for each other's row until it
/// is on the disk: so the row of a worker in `own` that has beaten within a second is left as it is. Its lease is counted from
/// that beat, by the worker as well.
fn took(workers: &str, worker_bodies: &str, own: &str) -> String {
    format!(
        "took AS (INSERT INTO @.worker
             SELECT DISTINCT ON (w.id) w.id, 1, @.clock(), 1, @.room(NULL) FROM unnest({workers}) AS w (id)
             WHERE w.id IN (SELECT d.owner FROM done d WHERE d.owner IS DISTINCT FROM d.was)
                 AND NOT (w.id = ANY ({own}) AND EXISTS (SELECT 1 FROM @.worker k WHERE k.id = w.id AND k.beat > 0
                                                         AND k.beat_at > (SELECT @.clock()) - 1000000))
             ORDER BY w.id
             ON CONFLICT (id) DO UPDATE SET beat = worker.beat + 1, beat_at = @.clock(),
                                            attention = worker.attention + 1, room = @.room(worker.ctid)
             RETURNING id),
         said AS (INSERT INTO @.process
             SELECT DISTINCT ON (w.id) w.id, w.body FROM unnest({workers}, {worker_bodies}) AS w (id, body)
             WHERE w.id IN (SELECT id FROM took) ORDER BY w.id ON CONFLICT (id) DO NOTHING)"
    )
}

/// What a table has besides what all of them have.
fn columns(table: Table) -> &'static str {
    match table {
        Table::Waiting => "ready, due_at, state, kind, keys, claims, share",
        Table::Live => "cancel, owner, owned_by, since",
        Table::Ended => "archived, started_at, ended_at, owned_by, state, kind, claims, evidence",
    }
}

/// An older state of a database may come back, from a backup or with a replica that took over. What is written from then on
/// counts on from there: a revision and an epoch may come twice, but not in the hands of one worker. So a statement that changes a
/// running run goes by its owner too, unless it becomes the owner itself.
fn believed(way: Way) -> &'static str {
    match (way.from, way.to) {
        (Origin::In(Table::Live), Table::Live) => {
            "AND (i.believed IS NULL OR r.owner = i.believed OR i.epoch > r.epoch AND i.owner = i.believed)"
        }
        (Origin::In(Table::Live), _) => "AND (i.believed IS NULL OR r.owner = i.believed)",
        _ => "",
    }
}

/// The parts of a statement that move runs. The last is `done`: which runs, whose they were, and whose they are.
fn moved(way: Way) -> Vec<String> {
    let (to, columns) = (way.to.name(), columns(way.to));
    let owner = if way.to == Table::Live { "owner" } else { "NULL::uuid" };
    let put = |revision: &str, events: &str, from: &str| {
        format!(
            "put AS (INSERT INTO @.{to} (id, revision, stamp, epoch, created_at, priority, body, events, {columns})
                 SELECT id, {revision}, stamp, epoch, created_at, priority, body, {events}, {columns} FROM {from})"
        )
    };
    match way.from {
        Origin::New => vec![
            "made AS (INSERT INTO @.spec (id, created_at, priority, name, kind, step_of, signature, body)
                 SELECT id, created_at, priority, name, kind, step_of, signature, spec FROM input
                 ON CONFLICT (id) DO NOTHING RETURNING id)"
                .into(),
            "new AS MATERIALIZED (SELECT input.* FROM input JOIN made USING (id))".into(),
            put("1", "events", "new"),
            format!("done AS (SELECT id, NULL::uuid AS was, {owner} AS owner, 0 AS long FROM new)"),
        ],
        Origin::In(from) if from == way.to => {
            let edited = way.stays_waiting().then_some("priority");
            let assigned: Vec<String> =
                columns.split(", ").chain(edited).map(|column| format!("{column} = i.{column}")).collect();
            let was = if from == Table::Live { "o.owner" } else { "NULL::uuid" };
            let known = if from == Table::Live { "JOIN owned o ON o.id = i.id" } else { "" };
            let owner = if from == Table::Live { "i.owner" } else { "NULL::uuid" };
            let mut parts = Vec::new();
            if from == Table::Live {
                parts.push(
                    "owned AS MATERIALIZED (SELECT r.id, r.owner FROM @.live r JOIN input i ON i.id = r.id)".into(),
                );
            }
            parts.push(format!(
                "done AS (UPDATE @.{to} r SET revision = r.revision + 1, stamp = i.stamp, epoch = i.epoch, body = i.body,
                         events = r.events || i.events, {}
                     FROM input i {known} WHERE r.id = i.id AND r.revision = i.expected {}
                     RETURNING r.id, {was} AS was, {owner} AS owner, octet_length(r.events) AS long)",
                assigned.join(", "),
                believed(way)
            ));
            parts
        }
        Origin::In(from) => {
            let was = if from == Table::Live { "r.owner" } else { "NULL::uuid" };
            vec![
                format!(
                    "moved AS (DELETE FROM @.{} r USING input i
                         WHERE r.id = ANY($1) AND r.id = i.id AND r.revision = i.expected {}
                         RETURNING i.*, r.created_at, r.priority, r.events AS before, {was} AS was)",
                    from.name(),
                    believed(way)
                ),
                put("expected + 1", "before || events", "moved"),
                format!("done AS (SELECT id, was, {owner} AS owner, 0 AS long FROM moved)"),
            ]
        }
    }
}
