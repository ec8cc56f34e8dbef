//! Queries: how a filter and an order are said in SQL.
//!
//! The SQL may let too much through and never too little: [`Filter::matches`] has the last word.
//!
//! The runs of a state are indexed in the order in which they are claimed, and those of one priority among them so by time.
//! A list of several states is merged from these, and nothing of them is read or sorted that the caller does not want.

use std::collections::BTreeSet;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, params};

use super::rows::cached;
use super::schema::from_sqlite;
use super::{claims, search};
use crate::model::filter::Filter;
use crate::model::run::StateName;
use crate::model::step;
use crate::store::{Cursor, Error, Order};

/// The most that are merged. Where there are more, all runs of the states are sorted.
const MERGED: usize = 12;
/// The most busy keysets that a statement names. Rows of others are read and skipped by the caller.
const SKIPPED: usize = 500;

/// What is asked of the database.
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) values: Vec<Sql>,
}

impl Query {
    /// The query for `columns` of runs that may match, in order, right behind `after`; none where there are none.
    pub(super) fn of(
        connection: &Connection,
        columns: &str,
        filter: &Filter,
        order: Order,
        after: Option<Cursor>,
    ) -> Result<Option<Self>, Error> {
        let (sorted, direction) = match order {
            Order::Newest => ("created_at, id", "DESC"),
            Order::Oldest => ("created_at, id", "ASC"),
            Order::Claim => ("priority, created_at, id", "ASC"),
        };
        let is_search = search::is_asked(filter);
        let mut rest = Clauses::of(filter, is_search);
        let waits = filter.waits == Some(true) && claims::has_columns(connection)?;
        if waits {
            rest.say("ready = 0 AND due_at IS NULL", Vec::new());
        }
        if let Some(after) = after {
            let mut place = vec![Sql::Integer(after.created_at.as_micros()), Sql::Text(after.id.to_string())];
            if order == Order::Claim {
                place.insert(0, Sql::Integer(after.priority.into()));
            }
            let behind = if direction == "DESC" { "<" } else { ">" };
            rest.say(&format!("({sorted}) {behind} ({})", marks(place.len())), place);
        }
        let by_time = is_search && !waits && order != Order::Claim && !is_narrow(filter);
        let by_time = by_time && !search::are_few(connection, filter)?;
        let parts = match &filter.states {
            // Only pending runs wait, and they have an index of their own.
            _ if waits => vec![rest],
            Some(states) if by_time => vec![rest.and(&Clauses::of_states(states))],
            Some(states) => match sorted_parts(connection, filter, order)? {
                Some(parts) => parts.iter().map(|part| rest.and(part)).collect(),
                None => vec![rest.and(&Clauses::of_states(states))],
            },
            None => vec![rest],
        };
        if parts.is_empty() {
            return Ok(None);
        }
        // However many of them stand so, none is read whose words in that index do not match.
        let indexed = if by_time { "INDEXED BY runs_by_time " } else { "" };
        let select = |part: &Clauses| format!("SELECT {columns}, {sorted} FROM runs {indexed}WHERE {}", part.text());
        let merged = parts.iter().map(select).collect::<Vec<_>>().join(" UNION ALL ");
        let sorted = sorted.split(", ").map(|column| format!("{column} {direction}")).collect::<Vec<_>>().join(", ");
        let values = parts.into_iter().flat_map(|part| part.values).collect();
        Ok(Some(Self { sql: format!("{merged} ORDER BY {sorted}"), values }))
    }
}

impl Query {
    /// The query for `columns` of the ready runs that may match, in claim order, right behind `after`, but those whose
    /// keyset is `busy`; none where no kind is wanted.
    pub(super) fn ready(
        columns: &str,
        filter: &Filter,
        after: Option<Cursor>,
        busy: &BTreeSet<String>,
    ) -> Option<Self> {
        let mut rest = Clauses::of(&Filter { kinds: None, ..filter.clone() }, false);
        rest.say("ready = 1", Vec::new());
        if !busy.is_empty() {
            let busy: Vec<Sql> = busy.iter().take(SKIPPED).map(|keyset| Sql::Text(keyset.clone())).collect();
            rest.say(&format!("keyset NOT IN ({})", marks(busy.len())), busy);
        }
        if let Some(Cursor { priority, created_at, id }) = after {
            let place =
                [Sql::Integer(priority.into()), Sql::Integer(created_at.as_micros()), Sql::Text(id.to_string())];
            rest.say("(priority, created_at, id) > (?, ?, ?)", place.into());
        }
        let rests: Vec<Clauses> = shares(filter.share.as_deref()).iter().map(|share| rest.and(share)).collect();
        let of_kind = |rest: &Clauses, kind: &String| {
            let mut part = Clauses { clauses: Vec::new(), values: Vec::new() };
            part.say("kind = ?", vec![Sql::Text(kind.clone())]);
            rest.and(&part)
        };
        let parts: Vec<Clauses> = match &filter.kinds {
            // Each kind is in order by itself, and they are merged.
            Some(kinds) if kinds.len() <= MERGED => {
                rests.iter().flat_map(|rest| kinds.iter().map(|kind| of_kind(rest, kind))).collect()
            }
            Some(kinds) => {
                let mut of_kinds = Clauses { clauses: Vec::new(), values: Vec::new() };
                of_kinds.say_kinds(kinds);
                rests.iter().map(|rest| rest.and(&of_kinds)).collect()
            }
            None => rests,
        };
        let select =
            |part: &Clauses| format!("SELECT {columns}, priority, created_at, id FROM runs WHERE {}", part.text());
        let merged = parts.iter().map(select).collect::<Vec<_>>().join(" UNION ALL ");
        let values = parts.iter().flat_map(|part| part.values.clone()).collect();
        (!parts.is_empty()).then(|| Self { sql: format!("{merged} ORDER BY priority, created_at, id"), values })
    }
}

/// The parts of the ready runs that a share is looked for in: those without a share have indexes of their own.
fn shares(wanted: Option<&str>) -> Vec<Clauses> {
    let part = |clause: &str, values| Clauses { clauses: vec![clause.to_owned()], values };
    match wanted {
        None => vec![part("share = ''", Vec::new()), part("share <> ''", Vec::new())],
        Some("") => vec![part("share = ''", Vec::new())],
        // Said twice: the index of shares is of those alone.
        Some(tenant) => vec![part("share <> '' AND share = ?", vec![Sql::Text(tenant.into())])],
    }
}

/// Whether a filter means few runs, which an index finds whatever their states are.
fn is_narrow(filter: &Filter) -> bool {
    filter.ids.is_some() || filter.name.is_some() || filter.owner.is_some()
}

/// The parts of the runs in the states of a filter that are in order as they are indexed, where they are few.
fn sorted_parts(connection: &Connection, filter: &Filter, order: Order) -> Result<Option<Vec<Clauses>>, Error> {
    let states = filter.states.iter().flatten();
    match order {
        _ if is_narrow(filter) => return Ok(None),
        Order::Claim => return Ok(Some(states.map(|state| Clauses::of_states([state])).collect())),
        Order::Newest | Order::Oldest => {}
    }
    let sql = "SELECT priority FROM runs WHERE state = ?1 AND priority > ?2 ORDER BY priority LIMIT 1";
    let mut next = cached(connection, sql)?;
    let mut parts = Vec::new();
    for state in states {
        let mut last = i64::MIN;
        while let Some(priority) =
            next.query_row(params![state.as_str(), last], |row| row.get(0)).optional().map_err(from_sqlite)?
        {
            if parts.len() == MERGED {
                return Ok(None);
            }
            let mut part = Clauses::of_states([state]);
            part.say("priority = ?", vec![Sql::Integer(priority)]);
            parts.push(part);
            last = priority;
        }
    }
    Ok(Some(parts))
}

/// What is said of a run, and with which values.
struct Clauses {
    clauses: Vec<String>,
    values: Vec<Sql>,
}

impl Clauses {
    /// All that a filter says but the states. Where the rows have no columns to search by, the record has the last word.
    fn of(filter: &Filter, is_search: bool) -> Self {
        let mut all = Self { clauses: Vec::new(), values: Vec::new() };
        if let Some(ids) = &filter.ids {
            let values = ids.iter().map(|id| Sql::Text(id.to_string())).collect();
            all.say(&format!("id IN ({})", marks(ids.len())), values);
        }
        if let Some(prefix) = &filter.id_prefix {
            let length = Sql::Integer(prefix.chars().count() as i64);
            all.say("substr(id, 1, ?) = ?", vec![length, Sql::Text(prefix.clone())]);
        }
        if let Some(name) = &filter.name {
            all.say("name = ?", vec![Sql::Text(name.clone())]);
        }
        if let Some(kind) = &filter.kind {
            all.say("kind = ?", vec![Sql::Text(kind.clone())]);
        }
        if let Some(kinds) = &filter.kinds {
            all.say_kinds(kinds);
        }
        if let Some(worker) = filter.owner {
            all.say("owner = ?", vec![Sql::Text(worker.to_string())]);
        }
        if let Some(since) = filter.since {
            all.say("created_at >= ?", vec![Sql::Integer(since.as_micros())]);
        }
        if let Some(until) = filter.until {
            all.say("created_at < ?", vec![Sql::Integer(until.as_micros())]);
        }
        if is_search {
            all.say_search(filter);
        }
        if let Some(archived) = filter.archived {
            all.say("archived = ?", vec![Sql::Integer(archived.into())]);
        }
        if let Some(priority) = filter.priority {
            all.say("priority = ?", vec![Sql::Integer(priority.into())]);
        }
        if let Some(is_step) = filter.is_step {
            all.say(if is_step { "kind = ?" } else { "kind <> ?" }, vec![Sql::Text(step::KIND.into())]);
        }
        all
    }

    /// What a filter says that the columns for searches repeat.
    fn say_search(&mut self, filter: &Filter) {
        for (column, word) in [("user = ?", &filter.user), ("host = ?", &filter.host)] {
            if let Some(word) = word {
                self.say(column, vec![Sql::Text(word.clone())]);
            }
        }
        let labels = filter.labels.iter().map(|(label, value)| search::line_of_label(label, value));
        for words in labels.chain(filter.text.iter().map(|text| text.to_lowercase())) {
            self.say("(words IS NULL OR instr(words, ?) > 0)", vec![Sql::Text(words)]);
        }
    }

    fn say(&mut self, clause: &str, values: Vec<Sql>) {
        self.clauses.push(clause.into());
        self.values.extend(values);
    }

    fn say_kinds(&mut self, kinds: &BTreeSet<String>) {
        let values = kinds.iter().map(|kind| Sql::Text(kind.clone())).collect();
        self.say(&format!("kind IN ({})", marks(kinds.len())), values);
    }

    /// That it is in one of these states.
    fn of_states<'a>(states: impl IntoIterator<Item = &'a StateName>) -> Self {
        let names: Vec<Sql> = states.into_iter().map(|state| Sql::Text(state.as_str().into())).collect();
        Self { clauses: vec![format!("state IN ({})", marks(names.len()))], values: names }
    }

    fn and(&self, other: &Self) -> Self {
        let clauses = self.clauses.iter().chain(&other.clauses).cloned().collect();
        Self { clauses, values: self.values.iter().chain(&other.values).cloned().collect() }
    }

    fn text(&self) -> String {
        if self.clauses.is_empty() { "1".into() } else { self.clauses.join(" AND ") }
    }
}

fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::lifecycle::{Action, Fence, apply};
    use crate::model::id::{SystemEntropy, WorkerId};
    use crate::model::policy::Lease;
    use crate::model::time::{Clock, SystemClock};
    use crate::store::sqlite::{Sharing, SqliteStore};
    use crate::store::{Expect, Page, Record, Revision, Store, Write, WriteOutcome};
    use crate::testing::{owner, pending, person, spec, stamp};

    fn store(dir: &std::path::Path) -> SqliteStore {
        SqliteStore::create(&dir.join("r"), Sharing::Private, Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap()
    }

    fn commit(store: &SqliteStore, write: Write) -> Record {
        let (run, stamp) = (write.run.clone(), write.stamp);
        match pollster::block_on(store.commit(vec![write])).unwrap().pop() {
            Some(WriteOutcome::Done(revision)) => Record { run, revision, stamp },
            other => panic!("{other:?}"),
        }
    }

    fn add(store: &SqliteStore, priority: i32) -> Record {
        let run = pending(crate::model::run::Spec { priority, ..spec("job") }, SystemClock.now(), &SystemEntropy);
        let stamp = stamp(&SystemEntropy);
        let added = commit(store, Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp });
        assert_eq!(added.revision, Revision(1));
        added
    }

    /// How the database would go about it.
    fn plan(store: &SqliteStore, states: &[StateName], order: Order) -> String {
        let inner = store.lock().unwrap();
        let filter = Filter::in_states(states.iter().copied());
        let query = Query::of(inner.connection(), "id", &filter, order, None).unwrap().unwrap();
        let mut statement = inner.connection().prepare(&format!("EXPLAIN QUERY PLAN {}", query.sql)).unwrap();
        let steps = statement.query_map(rusqlite::params_from_iter(query.values), |row| row.get::<_, String>(3));
        steps.unwrap().map(Result::unwrap).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_is_in_order_already_is_not_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let states = [StateName::Pending, StateName::Running, StateName::Dead];
        let is_sorted = |order| plan(&store, &states, order).contains("TEMP B-TREE");
        for priority in 0..12 {
            add(&store, priority);
            for order in [Order::Newest, Order::Oldest, Order::Claim] {
                assert!(!is_sorted(order), "{}", plan(&store, &states, order));
            }
        }
        add(&store, 12);
        assert!(!is_sorted(Order::Claim), "{}", plan(&store, &states, Order::Claim));
        assert!(is_sorted(Order::Newest), "{}", plan(&store, &states, Order::Newest));
    }

    #[test]
    fn a_run_whose_state_changes_while_it_is_listed_is_on_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let (writer, reader, me) = (store(dir.path()), store(dir.path()), person("ada"));
        let worker = WorkerId::draw(SystemClock.now(), &SystemEntropy);
        let owner = owner(worker, Lease::default());
        let claim = Action::Claim { owner: owner.clone(), early: false, leftovers: Default::default() };
        let change = |record: &Record, action: &Action| {
            let transition = apply(&record.run, action, &me, SystemClock.now()).unwrap();
            commit(&writer, Write::change(record, transition, stamp(&SystemEntropy)))
        };
        let mut record = change(&add(&writer, 0), &claim);
        let is_over = AtomicBool::new(false);
        let filter = Filter::in_states([StateName::Running, StateName::Suspended]);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let list = || pollster::block_on(reader.list(&filter, &Page::default())).unwrap().records.len();
                let lists = std::iter::repeat_with(list).take_while(|_| !is_over.load(Ordering::SeqCst));
                lists.fold((0, 0), |(all, missed), listed| (all + 1, missed + usize::from(listed != 1)))
            });
            for _ in 0..400 {
                let fence = Fence { worker, epoch: record.run.epoch };
                record = change(&record, &Action::Suspend { fence, reason: "waits".into() });
                record = change(&record, &Action::Wake { owner: Some(owner.clone()) });
            }
            is_over.store(true, Ordering::SeqCst);
            let (all, missed) = reading.join().unwrap();
            println!("{all} lists beside 800 changes");
            assert_eq!(missed, 0, "lists without it, of {all}");
        });
    }
}
