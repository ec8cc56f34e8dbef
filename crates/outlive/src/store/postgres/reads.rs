//! Reading: how a run is put together from its tables, and how the parts of a filter are said in SQL.
//!
//! The SQL may let too much through and never too little: [`Filter::matches`] has the last word.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::link::Bound;
use super::owners::Owners;
use super::rows;
use crate::filter::Filter;
use crate::id::{Epoch, RunId, Stamp, WorkerId};
use crate::run::{Heard, StateName};
use crate::steps;
use crate::store::{Cursor, Error, Order, Record, Revision};
use crate::time::Timestamp;

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
const COLUMNS: &str = "r.id, r.revision, r.stamp, r.body, s.body, (SELECT @.clock()), (SELECT @.hears_since()), w.beat,
                       w.heard_at, r.priority, r.created_at, s.signature, r.state, r.epoch, r.started_at, r.ended_at,
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
pub(super) fn select(tables: &[Table], filter: &Filter, order: Order, after: Option<Cursor>, limit: usize) -> Query {
    let all: Vec<&str> = tables.iter().map(|table| table.rows()).collect();
    let mut clauses = Clauses::of(filter, order, after);
    let limit = clauses.bind(Value::Long(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!(
        "SELECT {COLUMNS} FROM ({}) r {JOINED} WHERE {} ORDER BY {} LIMIT {limit}",
        all.join(" UNION ALL "),
        clauses.said(),
        sorted(order)
    );
    Query { sql, values: clauses.values }
}

/// The same, of one table, locked, with those left out that others hold.
pub(super) fn lock(
    table: Table,
    filter: &Filter,
    due: bool,
    order: Order,
    after: Option<Cursor>,
    limit: usize,
) -> Query {
    let mut clauses = Clauses::of(filter, order, after);
    if due && table == Table::Waiting {
        clauses.said.push("r.ready".into());
    }
    let limit = clauses.bind(Value::Long(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = format!(
        "SELECT {} FROM @.{} r {} WHERE {} ORDER BY {} LIMIT {limit} FOR UPDATE OF r SKIP LOCKED",
        table.said(COLUMNS),
        table.name(),
        table.said(JOINED),
        table.said(&clauses.said()),
        sorted(order)
    );
    Query { sql, values: clauses.values }
}

fn sorted(order: Order) -> &'static str {
    match order {
        Order::Newest => "r.created_at DESC, r.id DESC",
        Order::Oldest => "r.created_at, r.id",
        Order::Claim => "r.priority, r.created_at, r.id",
    }
}

#[derive(Default)]
struct Clauses {
    said: Vec<String>,
    values: Vec<Value>,
}

impl Clauses {
    fn of(filter: &Filter, order: Order, after: Option<Cursor>) -> Self {
        let mut clauses = Self::default();
        clauses.say_run(filter);
        clauses.say_spec(filter);
        clauses.say_place(order, after);
        clauses
    }

    fn bind(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("${}", self.values.len())
    }

    fn say(&mut self, clause: &str, value: Value) {
        let mark = self.bind(value);
        self.said.push(clause.replace('?', &mark));
    }

    fn said(&self) -> String {
        if self.said.is_empty() { "true".into() } else { self.said.join(" AND ") }
    }

    fn say_run(&mut self, filter: &Filter) {
        if let Some(ids) = &filter.ids {
            self.say("r.id = ANY(?)", Value::Ids(ids.iter().map(RunId::as_uuid).collect()));
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
            self.say(clause, Value::Text(steps::KIND.into()));
        }
        if let Some(of) = filter.step_of {
            self.say("s.step_of = ?", Value::Id(of.as_uuid()));
        }
    }

    fn say_place(&mut self, order: Order, after: Option<Cursor>) {
        let Some(after) = after else { return };
        let at = self.bind(Value::Long(after.created_at.as_micros()));
        let id = self.bind(Value::Id(after.id.as_uuid()));
        let place = match order {
            Order::Newest => format!("(r.created_at, r.id) < ({at}, {id})"),
            Order::Oldest => format!("(r.created_at, r.id) > ({at}, {id})"),
            Order::Claim => {
                let priority = self.bind(Value::Int(after.priority));
                format!("(r.priority, r.created_at, r.id) > ({priority}, {at}, {id})")
            }
        };
        self.said.push(place);
    }
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
    let told = rows::Row {
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
    let mut run = rows::run(id, told)?;
    let now = row.get(5);
    if let Some(owner) = run.owner_mut() {
        owner.heard = heard(now, row.get(6), row.get(7), row.get(8));
    }
    let revision = Revision(row.get::<_, i64>(1).unsigned_abs());
    Ok((Record { run, revision, stamp: Stamp::from_uuid(row.get(2)) }, Timestamp::from_micros(now)))
}

/// What was heard of a worker, by the server's clock.
pub(super) fn heard(now: i64, hears_since: i64, beat: Option<i64>, heard_at: Option<i64>) -> Heard {
    let silent = now.saturating_sub(heard_at.unwrap_or(hears_since).max(hears_since));
    Heard {
        beat: beat.unwrap_or(0).unsigned_abs(),
        at: Timestamp::from_micros(heard_at.unwrap_or(hears_since)),
        silent_for: Duration::from_micros(silent.max(0).unsigned_abs()),
    }
}
