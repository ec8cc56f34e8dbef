//! Reading: how a run is put together from its tables, and how the parts of a filter are said in SQL.
//!
//! The SQL may let too much through and never too little: [`Filter::matches`] has the last word.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::owner_cache::Owners;
use super::pool::Bound;
use super::rows;
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::run::{LastHeartbeat, StateName};
use crate::model::step;
use crate::model::time::Timestamp;
use crate::store::{Cursor, Error, Order, Record, Revision};

/// The tables that a run moves between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    Waiting,
    Live,
    Ended,
}

impl Table {
    pub(super) const ALL: [Self; 3] = [Self::Waiting, Self::Live, Self::Ended];

    /// Where a run that stands so is.
    pub(super) fn of(state: StateName) -> Self {
        match state {
            StateName::Pending | StateName::Suspended => Self::Waiting,
            StateName::Running => Self::Live,
            StateName::Succeeded
            | StateName::Failed
            | StateName::Cancelled
            | StateName::Interrupted
            | StateName::Dead => Self::Ended,
        }
    }

    /// The tables that a filter may find something in.
    pub(super) fn searched(filter: &Filter) -> Vec<Self> {
        let states = filter.states.as_ref();
        let is_meant = |table: &Self| states.is_none_or(|states| states.iter().any(|state| Self::of(*state) == *table));
        Self::ALL.into_iter().filter(is_meant).collect()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Live => "live",
            Self::Ended => "ended",
        }
    }

    /// Its rows, all with the same columns.
    fn rows(self) -> &'static str {
        match self {
            Self::Waiting => {
                "SELECT id, revision, stamp, epoch, created_at, priority, state, NULL::uuid AS owner, false AS archived,
                        NULL::int8 AS started_at, NULL::int8 AS ended_at, NULL::uuid AS owned_by, body,
                        state = 'pending' AND NOT ready AND due_at IS NULL AS waits
                 FROM @.waiting"
            }
            Self::Live => {
                "SELECT id, revision, stamp, epoch, created_at, priority, 'running' AS state, owner, false AS archived,
                        since AS started_at, NULL::int8 AS ended_at, owned_by, body, false AS waits
                 FROM @.live"
            }
            Self::Ended => {
                "SELECT id, revision, stamp, epoch, created_at, priority, state, NULL::uuid AS owner, archived,
                        started_at, ended_at, owned_by, body, false AS waits
                 FROM @.ended"
            }
        }
    }

    /// Its parts that an index has in order, as conditions.
    fn parts(self, filter: &Filter, by: Lead, order: Order) -> Vec<String> {
        let is_meant = |state: &StateName| filter.states.as_ref().is_none_or(|states| states.contains(state));
        match (self, by, order) {
            (Self::Ended, Lead::Run, Order::Newest | Order::Oldest) => {
                let states = StateName::ALL.into_iter().filter(|state| Self::of(*state) == self).filter(is_meant);
                states.map(|state| format!("r.state = '{state}'")).collect()
            }
            // The others are left out by name, so that the planner knows the index that has none of them.
            (Self::Waiting, Lead::Run, Order::Claim) if filter.waits == Some(true) => {
                vec!["r.state = 'pending' AND NOT r.ready AND r.due_at IS NULL".into()]
            }
            (Self::Waiting, Lead::Run, Order::Claim) => {
                let parts = ["r.ready AND r.share IS NULL", "r.ready AND r.share IS NOT NULL", "NOT r.ready"];
                parts.map(Into::into).into()
            }
            _ => vec!["true".into()],
        }
    }

    /// What a column of the rows above is in the table itself.
    fn said(self, clause: &str) -> String {
        let columns: [(&str, &str); 7] = match self {
            Self::Waiting => [
                ("r.state", "r.state"),
                ("r.owner", "NULL::uuid"),
                ("r.archived", "false"),
                ("r.started_at", "NULL::int8"),
                ("r.ended_at", "NULL::int8"),
                ("r.owned_by", "NULL::uuid"),
                // Those that wait have indexes by kind, in the order in which they are claimed.
                ("s.kind", "r.kind"),
            ],
            Self::Live => [
                ("r.state", "'running'"),
                ("r.owner", "r.owner"),
                ("r.archived", "false"),
                ("r.started_at", "r.since"),
                ("r.ended_at", "NULL::int8"),
                ("r.owned_by", "r.owned_by"),
                ("s.kind", "s.kind"),
            ],
            Self::Ended => [
                ("r.state", "r.state"),
                ("r.owner", "NULL::uuid"),
                ("r.archived", "r.archived"),
                ("r.started_at", "r.started_at"),
                ("r.ended_at", "r.ended_at"),
                ("r.owned_by", "r.owned_by"),
                ("s.kind", "s.kind"),
            ],
        };
        let waits = match self {
            Self::Waiting => "(r.state = 'pending' AND NOT r.ready AND r.due_at IS NULL)",
            Self::Live | Self::Ended => "false",
        };
        let clause = clause.replace("r.waits", waits);
        columns.iter().fold(clause, |clause, (column, said)| clause.replace(column, said))
    }
}

/// What a row is read by: `r` is how the run stands, `s` what it was made with, `w` its owner's last beat.
const COLUMNS: &str =
    "r.id, r.revision, r.stamp, r.body, s.body, (SELECT @.clock()), (SELECT @.reachable_since()), w.beat,
                       w.beat_at, r.priority, r.created_at, s.signature, r.state, r.epoch, r.started_at, r.ended_at,
                       r.owned_by, r.owner";
const JOINED: &str = "JOIN @.spec s ON s.id = r.id LEFT JOIN @.worker w ON w.id = r.owner";

/// A value of a statement.
pub(super) enum Value {
    Id(Uuid),
    Ids(Vec<Uuid>),
    Text(String),
    Texts(Vec<String>),
    Long(i64),
    Int(i32),
    Bool(bool),
}

impl Value {
    pub(super) fn bound(&self) -> Bound<'_> {
        match self {
            Self::Id(value) => (value, Type::UUID),
            Self::Ids(value) => (value, Type::UUID_ARRAY),
            Self::Text(value) => (value, Type::TEXT),
            Self::Texts(value) => (value, Type::TEXT_ARRAY),
            Self::Long(value) => (value, Type::INT8),
            Self::Int(value) => (value, Type::INT4),
            Self::Bool(value) => (value, Type::BOOL),
        }
    }
}

/// A statement and its values.
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Query {
    pub(super) fn bound(&self) -> Vec<Bound<'_>> {
        self.values.iter().map(Value::bound).collect()
    }
}

/// The runs that may match, in order, right behind `after`, of these tables.
///
/// Each part is read from an index in that order, and no further than the page is long: however many runs there are, as many
/// are read of each part as are wanted.
pub(super) fn select(tables: &[Table], filter: &Filter, order: Order, after: Option<Cursor>, limit: usize) -> Query {
    let by = Lead::of(tables, filter, order);
    let mut clauses = Clauses::of(filter, by);
    clauses.say_place(by, order, after);
    let limit = clauses.bind(Value::Long(i64::try_from(limit).unwrap_or(i64::MAX)));
    let said = clauses.said();
    let parts: Vec<String> = match by {
        Lead::Label | Lead::Spec => vec![led(tables, by, &said, order, &limit)],
        Lead::Run | Lead::Few => {
            let of = |table: Table| table.parts(filter, by, order).into_iter().map(move |part| (table, part));
            let parts = tables.iter().copied().flat_map(of);
            parts.map(|(table, part)| part_of(table, &part, &said, by.sorted(order), &limit)).collect()
        }
    };
    let sql = match parts.as_slice() {
        [one] => one.clone(),
        parts => format!("({}) ORDER BY {} LIMIT {limit}", parts.join(") UNION ALL ("), merged(order)),
    };
    Query { sql, values: clauses.values }
}

/// A part of a table, in order.
pub(super) fn part_of(table: Table, part: &str, said: &str, sorted: &str, limit: &str) -> String {
    let (columns, joined, name) = (table.said(COLUMNS), table.said(JOINED), table.name());
    let said = table.said(said);
    format!("SELECT {columns} FROM @.{name} r {joined} WHERE {part} AND {said} ORDER BY {sorted} LIMIT {limit}")
}

/// Runs found by what they were made with.
fn led(tables: &[Table], by: Lead, said: &str, order: Order, limit: &str) -> String {
    let (from, id) = match by {
        Lead::Label => ("@.label l JOIN @.spec s ON s.id = l.run", "l.run"),
        _ => ("@.spec s", "s.id"),
    };
    let all: Vec<String> = tables.iter().map(|table| format!("{} WHERE id = {id}", table.rows())).collect();
    format!(
        "SELECT {COLUMNS} FROM {from} JOIN LATERAL ({}) r ON true LEFT JOIN @.worker w ON w.id = r.owner
         WHERE {said} ORDER BY {} LIMIT {limit}",
        all.join(" UNION ALL "),
        by.sorted(order)
    )
}

/// What leads to the runs of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    /// The runs themselves, in the order of an index.
    Run,
    /// The runs themselves, of which few are meant: they are found first, and sorted then.
    Few,
    /// Their names, or the run whose steps they are.
    Spec,
    /// One of their labels.
    Label,
}

impl Lead {
    fn of(tables: &[Table], filter: &Filter, order: Order) -> Self {
        let is_few = filter.ids.is_some() || filter.id_prefix.is_some() || filter.owner.is_some();
        // What runs is little beside what bears a name, and no order of claims is kept of that.
        let by_itself = tables == [Table::Live] || order == Order::Claim;
        if is_few {
            Self::Few
        } else if by_itself {
            Self::Run
        } else if filter.step_of.is_some() || filter.name.is_some() {
            Self::Spec
        } else if !filter.labels.is_empty() {
            Self::Label
        } else {
            Self::Run
        }
    }

    /// The columns that lists are in the order of, as SQL sorts by them.
    pub(super) fn sorted(self, order: Order) -> &'static str {
        match (self, order) {
            (Self::Label, Order::Newest) => "l.created_at DESC, l.run DESC",
            (Self::Label, _) => "l.created_at, l.run",
            (Self::Spec, Order::Newest) => "s.created_at DESC, s.id DESC",
            (Self::Spec, _) => "s.created_at, s.id",
            (Self::Run, Order::Newest) => "r.created_at DESC, r.id DESC",
            (Self::Run, Order::Oldest) => "r.created_at, r.id",
            (Self::Run, Order::Claim) => "r.priority, r.created_at, r.id",
            // No index is in the order of a sum: none is gone through for few runs.
            (Self::Few, Order::Newest) => "r.created_at + 0 DESC, r.id DESC",
            (Self::Few, Order::Oldest) => "r.created_at + 0, r.id",
            (Self::Few, Order::Claim) => "r.priority + 0, r.created_at, r.id",
        }
    }

    /// The place of a run in the order of time, as SQL compares it.
    fn place(self) -> &'static str {
        match self {
            Self::Label => "(l.created_at, l.run)",
            Self::Spec => "(s.created_at, s.id)",
            Self::Run | Self::Few => "(r.created_at, r.id)",
        }
    }
}

/// How parts are merged, by the places of what they are sorted by among [`COLUMNS`].
fn merged(order: Order) -> &'static str {
    match order {
        Order::Newest => "11 DESC, 1 DESC",
        Order::Oldest => "11, 1",
        Order::Claim => "10, 11, 1",
    }
}

/// What is said of a run, and the values that it is said with.
#[derive(Default)]
pub(super) struct Clauses {
    said: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl Clauses {
    pub(super) fn of(filter: &Filter, by: Lead) -> Self {
        let mut clauses = Self::default();
        clauses.say_run(filter);
        clauses.say_spec(filter);
        // The others are left to [`Filter::matches`].
        if let Some((name, value)) = filter.labels.first_key_value() {
            let (name, value) = (clauses.bind(Value::Text(name.clone())), clauses.bind(Value::Text(value.clone())));
            let bears = format!("l.name = {name} AND l.value = {value}");
            // The offset has the label looked up for each run: joined, all runs that bear it would be read.
            clauses.said.push(match by {
                Lead::Label => bears,
                _ => format!(
                    "EXISTS (SELECT 1 FROM @.label l WHERE {bears} AND l.created_at = r.created_at AND l.run = r.id
                             OFFSET 0)"
                ),
            });
        }
        clauses
    }

    pub(super) fn bind(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }

    pub(super) fn push(&mut self, clause: String) {
        self.said.push(clause);
    }

    pub(super) fn say(&mut self, clause: &str, value: Value) {
        let mark = self.bind(value);
        self.said.push(clause.replace('?', &mark));
    }

    pub(super) fn said(&self) -> String {
        if self.said.is_empty() { "true".into() } else { self.said.join(" AND ") }
    }

    fn say_run(&mut self, filter: &Filter) {
        if let Some(ids) = &filter.ids {
            self.say("r.id = ANY(?)", Value::Ids(ids.iter().map(RunId::as_uuid).collect()));
        }
        if let Some((first, last)) = filter.id_prefix.as_deref().and_then(range) {
            self.say("r.id >= ?", Value::Id(first));
            self.say("r.id <= ?", Value::Id(last));
        }
        if let Some(prefix) = &filter.id_prefix {
            self.say("starts_with(r.id::text, ?)", Value::Text(prefix.clone()));
        }
        if let Some(states) = &filter.states {
            let names = states.iter().map(|state| state.as_str().to_owned()).collect();
            self.say("r.state = ANY(?)", Value::Texts(names));
        }
        if let Some(worker) = filter.owner {
            self.say("r.owner = ?", Value::Id(worker.as_uuid()));
        }
        if let Some(since) = filter.since {
            self.say("r.created_at >= ?", Value::Long(since.as_micros()));
        }
        if let Some(until) = filter.until {
            self.say("r.created_at < ?", Value::Long(until.as_micros()));
        }
        if let Some(archived) = filter.archived {
            self.say("r.archived = ?", Value::Bool(archived));
        }
        if let Some(priority) = filter.priority {
            self.say("r.priority = ?", Value::Int(priority));
        }
        if let Some(waits) = filter.waits {
            self.say("r.waits = ?", Value::Bool(waits));
        }
    }

    fn say_spec(&mut self, filter: &Filter) {
        if let Some(name) = &filter.name {
            self.say("s.name = ?", Value::Text(name.clone()));
        }
        if let Some(kind) = &filter.kind {
            self.say("s.kind = ?", Value::Text(kind.clone()));
        }
        if let Some(kinds) = &filter.kinds {
            self.say("s.kind = ANY(?)", Value::Texts(kinds.iter().cloned().collect()));
        }
        if let Some(is_step) = filter.is_step {
            let clause = if is_step { "s.kind = ?" } else { "s.kind <> ?" };
            self.say(clause, Value::Text(step::KIND.into()));
        }
        if let Some(of) = filter.step_of {
            self.say("s.step_of = ?", Value::Id(of.as_uuid()));
        }
    }

    pub(super) fn say_place(&mut self, by: Lead, order: Order, after: Option<Cursor>) {
        let Some(after) = after else { return };
        let at = self.bind(Value::Long(after.created_at.as_micros()));
        let id = self.bind(Value::Id(after.id.as_uuid()));
        let place = match order {
            Order::Newest => format!("{} < ({at}, {id})", by.place()),
            Order::Oldest => format!("{} > ({at}, {id})", by.place()),
            Order::Claim => {
                let priority = self.bind(Value::Int(after.priority));
                format!("(r.priority, r.created_at, r.id) > ({priority}, {at}, {id})")
            }
        };
        self.said.push(place);
    }
}

/// The first and the last id that begin so.
pub(super) fn range(prefix: &str) -> Option<(Uuid, Uuid)> {
    let digits = prefix.replace('-', "");
    let id = |fill: &str| Uuid::parse_str(&format!("{digits}{}", fill.repeat(32 - digits.len()))).ok();
    (digits.len() <= 32).then(|| Some((id("0")?, id("f")?))).flatten()
}

/// The place of a record, though it cannot be understood.
pub(super) fn place(row: &Row) -> Cursor {
    Cursor { priority: row.get(9), created_at: Timestamp::from_micros(row.get(10)), id: RunId::from_uuid(row.get(0)) }
}

/// Who owns the run of a row, or did.
pub(super) fn owned_by(row: &Row) -> Option<Uuid> {
    row.get(16)
}

/// A record, and the store's time when it was read. Its owner is met.
pub(super) fn record(row: &Row, owners: &Owners) -> Result<(Record, Timestamp), Error> {
    let id = RunId::from_uuid(row.get(0));
    let columns = rows::Row {
        body: row.get(3),
        spec: row.get(4),
        created_at: Timestamp::from_micros(row.get(10)),
        signature: row.get(11),
        state: row.get(12),
        epoch: Epoch(row.get::<_, i64>(13).unsigned_abs()),
        started_at: row.get::<_, Option<i64>>(14).map(Timestamp::from_micros),
        ended_at: row.get::<_, Option<i64>>(15).map(Timestamp::from_micros),
        owner: owned_by(row).and_then(|id| owners.get(id)),
        worker: row.get::<_, Option<Uuid>>(17).map(WorkerId::from_uuid),
    };
    let mut run = rows::run(id, columns)?;
    let now = row.get(5);
    if let Some(owner) = run.owner_mut() {
        owner.heard = heard(now, row.get(6), row.get(7), row.get(8));
    }
    let revision = Revision(row.get::<_, i64>(1).unsigned_abs());
    Ok((Record { run, revision, stamp: Stamp::from_uuid(row.get(2)) }, Timestamp::from_micros(now)))
}

/// The owner of a run of which no beat is on record: the table was emptied, or a backup was put back in part.
pub(super) fn missing_worker(row: &Row) -> Option<Uuid> {
    let worker: Option<Uuid> = row.get(17);
    worker.filter(|_| row.get::<_, Option<i64>>(8).is_none())
}

/// When a worker last beat, by the server's clock. A worker that is missing has not been silent for any time that this
/// store could tell: its lease begins when a reaper notes that it is missing.
pub(super) fn heard(now: i64, reachable_since: i64, beat: Option<i64>, beat_at: Option<i64>) -> LastHeartbeat {
    let beat_at = beat_at.unwrap_or(now);
    let silent = now.saturating_sub(beat_at.max(reachable_since));
    LastHeartbeat {
        beat: beat.unwrap_or(0).unsigned_abs(),
        at: Timestamp::from_micros(beat_at),
        silent_for: Duration::from_micros(silent.max(0).unsigned_abs()),
    }
}
