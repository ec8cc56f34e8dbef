//! Ranges of the queue that a claim reads from their beginning, each in the order of one index.
//!
//! A claim of a share, a kind or a priority reads a range of one index: it begins with these columns and continues with
//! the order of claims. Written as equalities, the columns would be constants to the planner, and other indexes would have
//! the rest in order as well. Which of them it takes would depend on its statistics of the table, and the plan of a
//! prepared statement is kept: a plan that was made while one share had all runs read past them for each run of another. So
//! the statement compares rows and sorts by all of the columns, which one index alone has in order.

use super::reads::{Clauses, Lead, Query, Table, Value, part_of};
use crate::model::filter::Filter;
use crate::store::{Cursor, Order, Selection};

/// The order of claims.
const ORDER: [&str; 3] = ["r.priority", "r.created_at", "r.id"];

/// The parts of these tables that a selection is looked for in, as conditions. Runs that are due have an index for those of
/// a share and one for the rest.
pub(super) fn locked_parts(tables: &[Table], selection: &Selection) -> Vec<(Table, &'static str)> {
    let (plain, shared) = ("r.ready AND r.share IS NULL", "r.ready AND r.share IS NOT NULL");
    let mut parts = Vec::new();
    for table in tables {
        let of_table: &[&'static str] =
            match (selection.due && *table == Table::Waiting, selection.filter.share.as_deref()) {
                (false, _) => &["true"],
                (true, None) => &[plain, shared],
                (true, Some("")) => &[plain],
                (true, Some(_)) => &[shared],
            };
        parts.extend(of_table.iter().map(|part| (*table, *part)));
    }
    parts
}

/// Runs of one table that may match, locked, without those that other transactions have locked, and without those that want
/// keys of which it is known that they cannot have them.
pub(super) fn lock(
    table: Table,
    selection: &Selection,
    after: Option<Cursor>,
    limit: usize,
    (part, passed_over): (&str, Vec<String>),
) -> Query {
    let (filter, order) = (&selection.filter, selection.order);
    let by = if filter.ids.is_some() || filter.owner.is_some() { Lead::Few } else { Lead::Run };
    let is_range = table == Table::Waiting && selection.due && by == Lead::Run && order == Order::Claim;
    let (mut clauses, sorted) = if is_range {
        let (range, mut clauses) = (ClaimRange::of(filter), Clauses::of(&ClaimRange::rest(filter), by));
        range.say(&mut clauses, after);
        (clauses, range.sorted())
    } else {
        let mut clauses = Clauses::of(filter, by);
        clauses.say_place(by, order, after);
        (clauses, by.sorted(order).to_owned())
    };
    if !passed_over.is_empty() {
        let clause = "(r.keys IS NULL OR NOT string_to_array(r.keys, chr(31)) && ?)";
        clauses.say(clause, Value::Texts(passed_over));
    }
    let limit = clauses.bind(Value::Long(i64::try_from(limit).unwrap_or(i64::MAX)));
    let sql = part_of(table, part, &clauses.said(), &sorted, &limit);
    Query { sql: format!("{sql} FOR UPDATE OF r SKIP LOCKED"), values: clauses.values }
}

/// A range by the columns that it is found by; without any, all runs that are ready.
struct ClaimRange {
    share: Option<String>,
    kind: Option<String>,
    priority: Option<i32>,
}

impl ClaimRange {
    /// The range that a filter selects.
    fn of(filter: &Filter) -> Self {
        let share = filter.share.clone().filter(|tenant| !tenant.is_empty());
        Self { share, kind: filter.kind.clone(), priority: filter.priority }
    }

    /// The conditions of a filter that its range does not imply.
    fn rest(filter: &Filter) -> Filter {
        Filter { share: None, kind: None, priority: None, ..filter.clone() }
    }

    /// Adds the conditions of the range, from right behind `after`.
    fn say(&self, clauses: &mut Clauses, after: Option<Cursor>) {
        let mut columns = self.columns();
        let mut marks: Vec<String> = [&self.share, &self.kind]
            .into_iter()
            .flatten()
            .map(|text| clauses.bind(Value::Text(text.clone())))
            .collect();
        let (leading, fixed) = (columns.clone(), marks.clone());
        if let Some(priority) = self.priority {
            columns.push("r.priority");
            marks.push(clauses.bind(Value::Int(priority)));
        }
        if !columns.is_empty() {
            clauses.push(format!("({}) <= ({})", columns.join(", "), marks.join(", ")));
        }
        match after {
            Some(after) => {
                let place = [
                    Value::Int(after.priority),
                    Value::Long(after.created_at.as_micros()),
                    Value::Id(after.id.as_uuid()),
                ];
                let place = place.map(|value| clauses.bind(value));
                let columns = [leading, ORDER.to_vec()].concat().join(", ");
                clauses.push(format!("({columns}) > ({})", [fixed, place.to_vec()].concat().join(", ")));
            }
            None if !columns.is_empty() => {
                clauses.push(format!("({}) >= ({})", columns.join(", "), marks.join(", ")));
            }
            None => {}
        }
    }

    /// The columns of its index.
    fn sorted(&self) -> String {
        [self.columns(), ORDER.to_vec()].concat().join(", ")
    }

    /// The columns that its index has before the order of claims.
    fn columns(&self) -> Vec<&'static str> {
        let columns = [("r.share", self.share.is_some()), ("r.kind", self.kind.is_some())];
        columns.into_iter().filter(|(_, is_led)| *is_led).map(|(column, _)| column).collect()
    }
}
