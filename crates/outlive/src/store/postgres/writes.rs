//! Writing: conditional changes, many in one statement, each taking effect or not on its own.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::batch::{Batch, Origin, Rows, Way};
use super::copy_in::{self, Copy};
use super::keys::wants_keys;
use super::pool::{Bound, CallError, PooledClient, with_retry};
use super::reads::{Query, Table};
use super::{Feature, PostgresStore};
use crate::model::id::RunId;
use crate::model::run::State;
use crate::model::time::Timestamp;
use crate::store::{Error, Expect, Revision, Write, WriteOutcome};

/// An event log that is longer than this, in bytes, is put aside before it grows.
const LONG_LOG: i32 = 8 << 10;

/// How many runs one statement of an update writes at most.
const STATEMENT: usize = 500;

/// How most runs are made of which many are made at once.
const NEW_WORK: Way = Way { from: Origin::New, to: Table::Waiting };

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

/// The writes by the way that they take their runs, each in the order of the ids, so that two batches lock in the same
/// order. One that may take several is in all of them: it takes effect in one.
fn ways<'a>(writes: &[Numbered<'a>]) -> BTreeMap<Way, Vec<Numbered<'a>>> {
    let mut ways: BTreeMap<Way, Vec<Numbered<'a>>> = BTreeMap::new();
    for (index, write) in writes {
        let to = Table::of(write.run.state.name());
        for from in Origin::all_of(write) {
            ways.entry(Way { from, to }).or_default().push((*index, write));
        }
    }
    ways.values_mut().for_each(|part| part.sort_by_key(|(_, write)| write.run.id));
    ways
}

/// The way that all of the writes take their runs, of which none occurs twice, and the writes in the order of the ids. None
/// where there are several: most batches have one, and are sorted into nothing else.
fn single_way(writes: &[Write]) -> Option<(Way, Vec<Numbered<'_>>)> {
    let way = Way::only(writes.first()?)?;
    if writes.iter().any(|write| Way::only(write) != Some(way)) {
        return None;
    }
    let mut part: Vec<Numbered<'_>> = writes.iter().enumerate().collect();
    part.sort_by_key(|(_, write)| write.run.id);
    let occurs_once = part.windows(2).all(|pair| pair[0].1.run.id != pair[1].1.run.id);
    occurs_once.then_some((way, part))
}

/// What became of the writes of one transaction.
#[derive(Default)]
struct Outcome {
    /// The writes that took effect.
    done: HashSet<usize>,
    busy: BTreeMap<usize, WriteOutcome>,
    /// Whose runs they were, or are.
    owners: BTreeSet<Uuid>,
}

impl Outcome {
    /// Notes which writes took effect. Answers with the runs whose event logs have become long.
    fn note(&mut self, part: &[Numbered<'_>], rows: &[Row]) -> Vec<Uuid> {
        let done: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        self.owners.extend(rows.iter().filter_map(|row| row.get::<_, Option<Uuid>>(1)));
        self.done
            .extend(part.iter().filter(|(_, write)| done.contains(&write.run.id.as_uuid())).map(|(index, _)| *index));
        let is_long = |row: &&Row| row.get::<_, Option<Uuid>>(1).is_some() && row.get::<_, i32>(2) > LONG_LOG;
        rows.iter().filter(is_long).map(|row| row.get(0)).collect()
    }
}

impl PostgresStore {
    pub(super) async fn commit_all(&self, writes: &[Write]) -> Result<Vec<WriteOutcome>, Error> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = with_retry!(self.links(), |link| self.commit_once(&mut link, writes));
        self.note_own();
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
                return WriteOutcome::Done(next(write.expect));
            }
            outcome.busy.remove(&index).unwrap_or_else(|| {
                WriteOutcome::Conflict(found.iter().find(|record| record.run.id == write.run.id).cloned().map(Box::new))
            })
        });
        Ok(written.collect())
    }

    async fn commit_once(&self, link: &mut PooledClient<'_>, writes: &[Write]) -> Result<Outcome, CallError> {
        self.announce(link, writes);
        let outcome = self.write_all(link, writes).await?;
        self.alert(link, &outcome).await;
        Ok(outcome)
    }

    /// Has it said that there is work, if these writes make any.
    fn announce(&self, link: &mut PooledClient<'_>, writes: &[Write]) {
        let is_work = |write: &Write| match &write.run.state {
            State::Pending(pending) => pending.waits_for.is_empty() && pending.not_before.is_none(),
            _ => !write.run.spec.keys.is_empty() && write.run.ending().is_some(),
        };
        link.tell(writes.iter().any(is_work).then(|| self.news_of_work()).flatten());
    }

    /// Tells workers of others whose runs have changed. What is lost of it they learn with their next beat.
    async fn alert(&self, link: &mut PooledClient<'_>, outcome: &Outcome) {
        if !self.has(Feature::Listen) {
            return;
        }
        let own = self.own_ids();
        let others: Vec<Uuid> = outcome.owners.iter().copied().filter(|owner| !own.contains(owner)).collect();
        if !others.is_empty() && link.run(&self.news_for(&others)).await.is_err() {
            link.give_up();
        }
    }

    async fn write_all(&self, link: &mut PooledClient<'_>, writes: &[Write]) -> Result<Outcome, CallError> {
        let mut outcome = Outcome::default();
        let is_plain = writes.iter().all(|write| write.run.spec.keys.is_empty());
        if let (true, Some((way, part))) = (is_plain, single_way(writes)) {
            let (batch, own) = (Batch::of(part.iter().map(|(_, write)| *write))?, self.own_ids());
            let is_many = way == NEW_WORK && part.len() >= copy_in::WORTH_IT && self.has(Feature::Copy);
            if is_many && link.copy(&self.copies(&batch)?).await? {
                outcome.done.extend(0..writes.len());
                return Ok(outcome);
            }
            let (sql, values) = batch.statement(way, &own, Rows::Unlocked);
            let rows = link.write(&self.sql(&sql), &values).await?;
            let long = outcome.note(&part, &rows);
            self.put_aside(link, long).await;
            return Ok(outcome);
        }
        let rows = link.begin_with(None, &self.sql("SELECT @.clock()"), &[]).await?;
        let now = Timestamp::from_micros(rows.first().map_or(i64::MAX, |row| row.get(0)));
        self.lock_keys(link, writes).await?;
        if writes.len() > 1 {
            self.lock_rows(link, writes).await?;
        }
        let dated: Vec<Write> = writes.iter().map(|write| write.ended_by(now)).collect();
        let all: Vec<Numbered<'_>> = dated.iter().enumerate().collect();
        for round in rounds(&all) {
            self.write_round(link, &round, &mut outcome).await?;
        }
        link.commit().await?;
        Ok(outcome)
    }

    fn copies(&self, batch: &Batch) -> Result<Vec<Copy>, Error> {
        Ok(batch.copies()?.into_iter().map(|copy| Copy { sql: self.sql(&copy.sql), ..copy }).collect())
    }

    /// Writes the changes of an update, whose runs and keys are locked, and ends its transaction.
    pub(super) async fn write_granted(
        &self,
        link: &mut PooledClient<'_>,
        writes: &[Write],
    ) -> Result<HashSet<usize>, CallError> {
        self.announce(link, writes);
        let mut outcome = Outcome::default();
        let is_plain = writes.len() <= STATEMENT && writes.iter().all(|write| write.run.spec.keys.is_empty());
        if let (true, Some((way, part))) = (is_plain, single_way(writes)) {
            let (batch, own) = (Batch::of(part.iter().map(|(_, write)| *write))?, self.own_ids());
            let (sql, values) = batch.statement(way, &own, Rows::Locked);
            let rows = link.commit_with(&self.sql(&sql), &values).await?;
            let long = outcome.note(&part, &rows);
            self.alert(link, &outcome).await;
            self.put_aside(link, long).await;
            return Ok(outcome.done);
        }
        let all: Vec<Numbered<'_>> = writes.iter().enumerate().collect();
        let parts: Vec<(Way, Vec<Numbered<'_>>)> = ways(&all)
            .into_iter()
            .flat_map(|(way, part)| part.chunks(STATEMENT).map(|some| (way, some.to_vec())).collect::<Vec<_>>())
            .collect();
        if parts.len() > 1 {
            self.lock_workers(link, writes).await?;
        }
        for (way, part) in parts {
            self.write_part(link, way, &part, &mut outcome).await?;
        }
        link.commit().await?;
        self.alert(link, &outcome).await;
        Ok(outcome.done)
    }

    /// Locks the runs of writes, and then the workers, each in one order: a transaction of several statements would
    /// otherwise lock them in the order of its statements.
    async fn lock_rows(&self, link: &mut PooledClient<'_>, writes: &[Write]) -> Result<(), CallError> {
        for table in Table::ALL {
            let is_from = |write: &&Write| Origin::all_of(write).contains(&Origin::In(table));
            let ids: Vec<Uuid> = writes.iter().filter(is_from).map(|write| write.run.id.as_uuid()).collect();
            if !ids.is_empty() {
                let sql = format!("SELECT id FROM @.{} WHERE id = ANY($1) ORDER BY id FOR UPDATE", table.name());
                link.then(&self.sql(&sql), &[(&ids, Type::UUID_ARRAY)]).await?;
            }
        }
        self.lock_workers(link, writes).await
    }

    async fn lock_workers(&self, link: &mut PooledClient<'_>, writes: &[Write]) -> Result<(), CallError> {
        let new = writes.iter().filter_map(|write| write.run.owner()).map(|owner| owner.worker);
        let old = writes.iter().flat_map(|write| &write.events).filter_map(|event| event.worker);
        let ids: BTreeSet<Uuid> = new.chain(old).map(|worker| worker.as_uuid()).collect();
        if !ids.is_empty() {
            let sql = self.sql("SELECT id FROM @.worker WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE");
            link.then(&sql, &[(&ids.into_iter().collect::<Vec<_>>(), Type::UUID_ARRAY)]).await?;
        }
        Ok(())
    }

    async fn write_round(
        &self,
        link: &mut PooledClient<'_>,
        round: &[Numbered<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), CallError> {
        let (keyed, plain): (Vec<_>, Vec<_>) = round.iter().copied().partition(|(_, write)| wants_keys(write));
        for (way, part) in ways(&plain) {
            self.write_part(link, way, &part, outcome).await?;
        }
        if keyed.is_empty() {
            return Ok(());
        }
        // One after the other: whether there is room depends on what became of the one before.
        let mut known = self.read_wanted(link, keyed.iter().map(|(_, write)| *write)).await?;
        for (index, write) in keyed {
            if let Some(busy) = known.busy(write) {
                outcome.busy.insert(index, busy);
                continue;
            }
            for (way, part) in ways(&[(index, write)]) {
                self.write_part(link, way, &part, outcome).await?;
            }
            if outcome.done.contains(&index) {
                known.take(write);
            }
        }
        Ok(())
    }

    async fn write_part(
        &self,
        link: &mut PooledClient<'_>,
        way: Way,
        part: &[Numbered<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), CallError> {
        let (batch, own) = (Batch::of(part.iter().map(|(_, write)| *write))?, self.own_ids());
        let (sql, values) = batch.statement(way, &own, Rows::Locked);
        let rows = link.then(&self.sql(&sql), &values).await?;
        let long = outcome.note(part, &rows);
        let done = part.iter().filter(|(index, _)| outcome.done.contains(index));
        self.move_keys(link, &done.map(|(_, write)| *write).collect::<Vec<&Write>>()).await?;
        if !long.is_empty() {
            for sql in PUT_ASIDE {
                link.then(&self.sql(sql), &[(&long, Type::UUID_ARRAY)]).await?;
            }
        }
        Ok(())
    }

    /// Puts long event logs aside, after the writes have taken effect: no caller waits for it.
    async fn put_aside(&self, link: &mut PooledClient<'_>, long: Vec<Uuid>) {
        if long.is_empty() {
            return;
        }
        let bound: [Bound<'_>; 1] = [(&long, Type::UUID_ARRAY)];
        let begun = link.begin_with(None, &self.sql(PUT_ASIDE[0]), &bound).await.is_ok();
        if !begun || link.commit_with(&self.sql(PUT_ASIDE[1]), &bound).await.is_err() {
            // What cannot be put aside now stays where it is. The transaction ends with the connection.
            link.give_up();
        }
    }

    #[track_caller]
    pub(super) fn query(&self, query: Query) -> Query {
        Query { sql: self.sql(&query.sql), values: query.values }
    }

    fn own_ids(&self) -> Vec<Uuid> {
        self.own().keys().map(crate::model::id::WorkerId::as_uuid).collect()
    }

    /// Counts changes of workers that beat through this store: their rows are not touched for it.
    pub(super) fn note_own(&self) {
        // Whose run it was is not known here, so that all of ours look.
        self.own().values_mut().for_each(|changes| *changes += 1);
    }
}

const PUT_ASIDE: [&str; 2] = [
    "INSERT INTO @.event_log SELECT id, revision, events FROM @.live WHERE id = ANY($1) ORDER BY id FOR UPDATE",
    "UPDATE @.live SET events = '' WHERE id = ANY($1)",
];

/// The version that a write makes.
pub(super) fn next(expect: Expect) -> Revision {
    match expect {
        Expect::Absent => Revision(1),
        Expect::Revision(revision) => Revision(revision.0 + 1),
    }
}
