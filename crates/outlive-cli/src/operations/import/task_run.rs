//! What a row of a `task_run` table becomes.
//!
//! A row that is RUNNING is decided on its owner, by the rule of the system that it comes from: the owner is a replica
//! that writes a heartbeat every ten seconds, and counts as gone after a minute of silence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outlive::lifecycle::Outcome;
use outlive::registry::{ForeignOutcome, ForeignRun, Registry};
use outlive::run::{Actor, Spec, StateName};
use outlive::time::{Clock, SystemClock, Timestamp};
use serde_json::Value;

/// How long a replica may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// What is recorded of a running row that names no owner.
const NO_OWNER: &str = "Marked as failed during heartbeat migration";
/// What is recorded of a running row whose owner is gone.
const OWNER_GONE: &str = "Task run abandoned: owning replica stopped responding";
/// The type of the failures of imported runs.
const ERROR_TYPE: &str = "task_run";

/// What a row becomes.
pub enum Mapped {
    /// A run.
    Run {
        run: Box<ForeignRun>,
        /// The state that it is in.
        state: &'static str,
        /// It was running, and its owner is unknown or gone.
        abandoned: bool,
    },
    /// Nothing is written: the row is left out for this reason.
    Left { row: String, reason: String },
}

/// How rows of one table become runs.
pub struct Mapping<'a> {
    table: &'a str,
    kind: &'a str,
    registry: Option<&'a Registry>,
    now: Timestamp,
    /// For how long each owner has been silent; none where that cannot be known.
    pub replicas: Option<BTreeMap<String, Duration>>,
}

/// Who owns a running row.
enum Owner {
    Unknown,
    Gone,
    Alive(String),
    /// It is named, and nothing is known of its heartbeats.
    Unheard(String),
}

impl<'a> Mapping<'a> {
    /// Rows of `table` become runs of `kind`, with the policy that `registry` has for it.
    pub fn new(table: &'a str, kind: &'a str, registry: Option<&'a Registry>) -> Self {
        let now = registry.map_or_else(|| SystemClock.now(), |registry| registry.clock().now());
        Self { table, kind, registry, now, replicas: None }
    }

    /// What a row becomes. `number` names one that has no id.
    pub fn map(&self, text: &str, number: u64) -> Mapped {
        let left = |row: String, reason: String| Mapped::Left { row, reason };
        let row: Value = match serde_json::from_str(text) {
            Ok(row @ Value::Object(_)) => row,
            Ok(_) => return left(format!("number {number}"), "it is not a JSON object".into()),
            Err(error) => return left(format!("number {number}"), format!("it is not JSON: {error}")),
        };
        let Some(id) = word(&row, &["id", "uid"]) else {
            return left(format!("number {number}"), "it has no `id`".into());
        };
        let spec = self.spec(&row, &id);
        if let Err(error) = spec.check() {
            return left(id, format!("it would have {error}"));
        }
        let (outcome, abandoned) = match self.outcome(&row) {
            Ok(outcome) => outcome,
            Err(reason) => return left(id, reason),
        };
        let made_at = self.moment(&row, &["created_at", "created_ts"]);
        let started_at = self.moment(&row, &["started_at", "started_ts"]).or(made_at).unwrap_or(self.now);
        let started_at = made_at.map_or(started_at, |made_at| made_at.max(started_at));
        let ended_at = self.moment(&row, &["updated_at", "updated_ts"]).unwrap_or(started_at).max(started_at);
        // One that was abandoned fails now.
        let ended_at = if abandoned { self.now.max(started_at) } else { ended_at };
        let state = match &outcome {
            None => StateName::Pending,
            Some(Outcome::Succeeded { .. }) => StateName::Succeeded,
            Some(Outcome::Failed { .. }) => StateName::Failed,
            Some(Outcome::Cancelled) => StateName::Cancelled,
        };
        let outcome = outcome.map(|outcome| ForeignOutcome { started_at, ended_at, outcome });
        let key = format!("{}\n{}\n{id}", self.table, self.kind);
        let run = Box::new(ForeignRun { key, spec, made_at, outcome });
        Mapped::Run { run, state: state.as_str(), abandoned }
    }

    fn spec(&self, row: &Value, id: &str) -> Spec {
        let unknown = || Actor { user: "".into(), host: "".into(), pid: 0 };
        let mut spec = self.registry.map_or_else(|| Spec::new(self.kind, unknown()), |found| found.spec(self.kind));
        spec.labels.insert("row".into(), id.into());
        for (label, columns) in [("task", &["task_id"][..]), ("attempt", &["attempt"]), ("replica", &["replica_id"])] {
            spec.labels.extend(word(row, columns).map(|value| (label.to_owned(), value)));
        }
        spec.input = Some(row.clone());
        spec
    }

    /// How the work of a row came out, and whether it was abandoned; none where it waits. Or why it cannot be imported.
    fn outcome(&self, row: &Value) -> Result<(Option<Outcome>, bool), String> {
        let failed = |detail: &str| Outcome::failed(ERROR_TYPE, detail);
        let result = result(row);
        let status = word(row, &["status"]).ok_or("it has no `status`")?;
        match status.as_str() {
            "NOT_STARTED" | "PENDING" | "AVAILABLE" => Ok((None, false)),
            "DONE" => Ok((Some(Outcome::Succeeded { result: result.map(Arc::new) }), false)),
            "FAILED" => {
                let detail = result.as_ref().and_then(|result| word(result, &["detail"]));
                Ok((Some(failed(detail.as_deref().unwrap_or("the row has no detail"))), false))
            }
            "CANCELED" | "CANCELLED" => Ok((Some(Outcome::Cancelled), false)),
            "RUNNING" => match self.owner(row) {
                Owner::Unknown => Ok((Some(failed(NO_OWNER)), true)),
                Owner::Gone => Ok((Some(failed(OWNER_GONE)), true)),
                Owner::Alive(replica) => Err(format!("it is running, and its replica `{replica}` is alive")),
                Owner::Unheard(replica) => {
                    Err(format!("it is running, and only the database knows whether its replica `{replica}` is alive"))
                }
            },
            _ => Err(format!("its status `{status}` is unknown")),
        }
    }

    fn owner(&self, row: &Value) -> Owner {
        let Some(replica) = word(row, &["replica_id"]) else { return Owner::Unknown };
        match self.replicas.as_ref().map(|replicas| replicas.get(&replica)) {
            None => Owner::Unheard(replica),
            Some(Some(silence)) if *silence <= SILENCE => Owner::Alive(replica),
            Some(_) => Owner::Gone,
        }
    }

    /// A moment of the past in one of these columns: text of a timestamp, in UTC where it says no zone, or seconds.
    fn moment(&self, row: &Value, columns: &[&str]) -> Option<Timestamp> {
        let read = |value: &Value| match value {
            Value::String(text) => text.parse().or_else(|_| format!("{text}Z").parse()).ok(),
            Value::Number(seconds) => Some(Timestamp::from_micros(seconds.as_i64()?.checked_mul(1_000_000)?)),
            _ => None,
        };
        let found = columns.iter().find_map(|column| read(row.get(*column)?))?;
        Some(found.min(self.now))
    }
}

/// What a task returned: JSON, or text that is JSON.
fn result(row: &Value) -> Option<Value> {
    let found = row.get("result").filter(|result| !result.is_null())?;
    match found {
        Value::String(text) => Some(serde_json::from_str(text).unwrap_or_else(|_| found.clone())),
        _ => Some(found.clone()),
    }
}

/// The text or number in the first of these columns that has one, as a label takes it.
fn word(row: &Value, columns: &[&str]) -> Option<String> {
    let read = |column: &&str| match row.get(*column)? {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    columns.iter().find_map(read)
}
