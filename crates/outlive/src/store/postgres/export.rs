//! Exporting history: the tables of a time that is over become files, and are dropped once those were read back.
//!
//! Killed at any point an export loses nothing: files are written once under names that follow from what is in them, and the one
//! transaction that drops the tables looks first whether any run in them has changed. An export that repeats another finds its
//! files as it would write them. Of two at once the later one has it: only the last to begin may drop or remove anything.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::exported::is_file;
use super::maintenance::GIVE_WAY;
use super::pool::{self, Bound, CallError, PooledClient, with_retry};
use super::reads::{self, Table};
use super::{Feature, PostgresStore, event_log};
use crate::model::id::{RunId, Stamp, SystemEntropy};
use crate::model::time::Timestamp;
use crate::secrets::trust::NamedLocation;
use crate::store::history::{Builder, Exported, ExportedFile, HistoryPlace, WrittenFile};
use crate::store::{Error, Record};

/// How many runs are read at a time.
const AT_ONCE: usize = 2_000;
/// How often the tables of a part are tried to be dropped while others use them, and how long the pauses are.
const DROP_TRIES: u32 = 100;
const DROP_REST: Duration = Duration::from_millis(200);
/// The tables that have a part of history each.
const ROOTS: [&str; 4] = ["spec", "ended", "event_log", "label"];

/// The runs that were made in a time whose tables are kept, or dropped, as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryPart {
    #[serde(skip)]
    name: String,
    /// When the time begins.
    pub since: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// How many runs have ended that were made in it.
    pub runs: u64,
    /// Why it cannot be exported; null where it can.
    pub left: Option<String>,
    /// How many files its runs were written to.
    pub files: u64,
    /// How long these are together.
    pub bytes: u64,
}

/// What an export needs to know besides the part.
pub struct Export<'a> {
    /// Where the files go.
    pub location: &'a NamedLocation,
    /// A run that ended at this time or later keeps its part.
    pub before: Timestamp,
    /// Replace files of the same names that have other rows.
    pub replace: bool,
}

/// A file that was read back.
struct Written {
    entry: ExportedFile,
    versions: u128,
    bytes: u64,
    /// This export has made it.
    is_new: bool,
}

/// What became of an attempt to drop the tables of a part.
enum Dropped {
    Done,
    /// Others use the tables.
    Busy,
    Left(String),
}

/// Why a part is left as it is.
enum Kept {
    Left(String),
    Failed(Error),
}

impl From<Error> for Kept {
    fn from(error: Error) -> Self {
        match error {
            Error::Corrupt(why) => Self::Left(why),
            error => Self::Failed(error),
        }
    }
}

impl PostgresStore {
    /// The parts of history that have begun before a time, oldest first, with why any of them cannot be exported.
    #[doc(hidden)]
    pub async fn history_parts(&self, before: Timestamp) -> Result<Vec<HistoryPart>, Error> {
        if !self.has(Feature::Partitions) {
            let why =
                "this registry was made without partitions: its history is deleted row by row, and cannot be exported";
            return Err(Error::Unsupported(why.into()));
        }
        let sql = self.sql("SELECT name, since, until FROM @.part WHERE since < least($1, @.clock()) ORDER BY since");
        let at = before.as_micros();
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&at, Type::INT8)]))?;
        let mut parts: Vec<HistoryPart> = rows.iter().map(part).collect();
        for part in &mut parts {
            let (runs, left) = with_retry!(self.links(), |link| self.standing(&mut link, part, before))?;
            (part.runs, part.left) = (runs, left);
        }
        Ok(parts)
    }

    /// Exports a part: writes its files, reads them back, and drops its tables. `pass` is told how many of its runs are read, and
    /// may end it. The part says what became of it.
    #[doc(hidden)]
    pub async fn export_part(
        &self,
        mut part: HistoryPart,
        export: &Export<'_>,
        mut pass: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<HistoryPart, Error> {
        if !is_file(self.id(), &format!("{}/0.parquet", self.id())) {
            return Err(Error::Unsupported(format!(
                "the registry calls itself `{}`, which names no directory",
                self.id()
            )));
        }
        let place = HistoryPlace::open(export.location)?;
        // Before anything is dropped: what was exported from here is found from here.
        self.remember_history(export.location)?;
        let token = Stamp::draw(&SystemEntropy).as_uuid();
        let sql = self.sql("UPDATE @.part SET exporter = $2 WHERE name = $1 RETURNING name");
        let bound: [Bound<'_>; 2] = [(&part.name, Type::TEXT), (&token, Type::UUID)];
        if with_retry!(self.links(), |link| link.write(&sql, &bound))?.is_empty() {
            part.left = Some("it is gone: it was exported or dropped meanwhile".into());
            return Ok(part);
        }
        let mut files = Vec::new();
        let mut kept = self.write_files(&part, token, (&place, export.replace), &mut files, &mut pass).await;
        (part.files, part.bytes) = (files.len() as u64, files.iter().map(|file| file.bytes).sum());
        if kept.is_ok() {
            kept = self.drop_when_free(&part, token, &files, export, &place).await;
        }
        let new = files.iter().filter(|file| file.is_new).map(|file| &*file.entry.name);
        match kept {
            Ok(()) => Ok(part),
            // What became of the drop is not known, and the files may be all there is.
            Err(Kept::Failed(error)) => Err(error),
            Err(Kept::Left(why)) => {
                self.remove(&part, token, &place, new).await?;
                Ok(HistoryPart { left: Some(why), files: 0, bytes: 0, ..part })
            }
        }
    }

    /// Drops the tables of a part as soon as no other session keeps it from that.
    async fn drop_when_free(
        &self,
        part: &HistoryPart,
        token: Uuid,
        files: &[Written],
        export: &Export<'_>,
        place: &HistoryPlace,
    ) -> Result<(), Kept> {
        for _ in 0..DROP_TRIES {
            let dropped =
                with_retry!(self.links(), |link| self.drop_part(&mut link, part, token, files, export, place));
            match dropped.map_err(Kept::Failed)? {
                Dropped::Done => return Ok(()),
                Dropped::Busy => pool::rest(DROP_REST).await?,
                Dropped::Left(why) => return Err(Kept::Left(why)),
            }
        }
        Err(Kept::Left("other sessions use its tables".into()))
    }

    async fn write_files(
        &self,
        part: &HistoryPart,
        token: Uuid,
        (place, replace): (&HistoryPlace, bool),
        files: &mut Vec<Written>,
        pass: &mut impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<(), Kept> {
        let (mut builder, mut after, mut runs) = (Builder::default(), None, 0);
        let name = |number: usize| format!("{}/{}-{number:04}.parquet", self.id(), &part.since.to_string()[..10]);
        loop {
            let page = self.page(part, after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.record.run.id);
            for exported in &page {
                if let Some(file) = builder.push(exported, || name(files.len()))? {
                    files.push(self.write_file(part, token, (place, replace), &file).await?);
                }
            }
            runs += page.len() as u64;
            pass(runs)?;
        }
        if let Some(file) = builder.finish(|| name(files.len()))? {
            files.push(self.write_file(part, token, (place, replace), &file).await?);
        }
        Ok(())
    }

    /// Writes a file where there is none of its name, and reads back what is there.
    async fn write_file(
        &self,
        part: &HistoryPart,
        token: Uuid,
        (place, replace): (&HistoryPlace, bool),
        file: &WrittenFile,
    ) -> Result<Written, Kept> {
        let mut is_new = place.put(&file.name, file.bytes.clone(), &file.rows.digest).await?;
        for is_last in [!replace || is_new, true] {
            let read = place.read(&file.name, None).await?.unwrap_or_default();
            if let Some(entry) = file.verify(&read) {
                return Ok(Written { entry, versions: file.versions, bytes: read.len() as u64, is_new });
            }
            if is_last {
                break;
            }
            self.remove(part, token, place, [&*file.name].into_iter()).await?;
            is_new = place.put(&file.name, file.bytes.clone(), &file.rows.digest).await?;
        }
        let shown = format!("`{}/{}`", place.shown, file.name);
        Err(Kept::Left(match is_new {
            true => format!("{shown} was read back otherwise than it was written"),
            false => format!("{shown} is there with other rows, of an export that did not end: --replace replaces it"),
        }))
    }

    /// The next runs of a part, in the order of their ids.
    async fn page(&self, part: &HistoryPart, after: Option<RunId>) -> Result<Vec<Exported>, Error> {
        let range = "r.id >= @.first_id($1) AND r.id < @.first_id($2) AND r.id > $3";
        let sql = self.sql(&reads::part_of(Table::Ended, range, "true", "r.id", &AT_ONCE.to_string()));
        let (since, until) = (part.since.as_micros(), part.until.as_micros());
        let after = after.map_or(Uuid::nil(), |id| id.as_uuid());
        let bound: [Bound<'_>; 3] = [(&since, Type::INT8), (&until, Type::INT8), (&after, Type::UUID)];
        let rows = with_retry!(self.links(), |link| self.met(&mut link, &sql, &bound))?;
        let records = rows.iter().map(|row| Ok(self.record(row)?.0)).collect::<Result<Vec<Record>, Error>>()?;
        let ids: Vec<Uuid> = records.iter().map(|record| record.run.id.as_uuid()).collect();
        let sql = self.sql(
            "SELECT run, part, body FROM @.event_log WHERE run = ANY($1)
             UNION ALL SELECT id, 9223372036854775807, events FROM @.ended WHERE id = ANY($1) ORDER BY 1, 2",
        );
        let logs = with_retry!(self.links(), |link| self.logs(&mut link, &sql, &ids))?;
        let mut logs = logs.into_iter().peekable();
        let mut page = Vec::with_capacity(records.len());
        for record in records {
            let mut events = Vec::new();
            while let Some((_, log)) = logs.next_if(|(run, _)| *run == record.run.id.as_uuid()) {
                for line in log.lines() {
                    let event = event_log::event(line, self.owners());
                    let odd = || Error::Corrupt(format!("an event of run `{}` cannot be understood", record.run.id));
                    events.push(event.ok_or_else(odd)?);
                }
            }
            page.push(Exported { record, events });
        }
        Ok(page)
    }

    /// Rows of runs, with their owners met.
    async fn met(&self, link: &mut PooledClient<'_>, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>, CallError> {
        let rows = link.read(sql, bound).await?;
        self.meet(link, rows.iter().filter_map(reads::owned_by)).await?;
        Ok(rows)
    }

    /// Event logs by run, with their owners met.
    async fn logs(
        &self,
        link: &mut PooledClient<'_>,
        sql: &str,
        ids: &Vec<Uuid>,
    ) -> Result<Vec<(Uuid, String)>, CallError> {
        let rows = link.read(sql, &[(ids, Type::UUID_ARRAY)]).await?;
        let logs: Vec<(Uuid, String)> = rows.iter().map(|row| (row.get(0), row.get(2))).collect();
        self.meet(link, logs.iter().flat_map(|(_, log)| event_log::owners(log))).await?;
        Ok(logs)
    }

    /// How many runs of a part have ended, and why it cannot be exported, if it cannot.
    async fn standing(
        &self,
        link: &mut PooledClient<'_>,
        part: &HistoryPart,
        before: Timestamp,
    ) -> Result<(u64, Option<String>), CallError> {
        let sql = self.sql(
            "WITH range AS (SELECT @.first_id($1) AS lo, @.first_id($2) AS hi)
             SELECT (SELECT count(*) FROM @.ended WHERE id >= lo AND id < hi),
                    (SELECT count(*) FROM @.spec WHERE id >= lo AND id < hi),
                    (SELECT count(*) FROM @.waiting WHERE id >= lo AND id < hi)
                        + (SELECT count(*) FROM @.live WHERE id >= lo AND id < hi),
                    EXISTS (SELECT 1 FROM @.ended WHERE id >= lo AND id < hi AND ended_at >= $3),
                    EXISTS (SELECT 1 FROM @.waiting w, jsonb_array_elements_text(w.body::jsonb #> '{pending,waits_for}') need
                            WHERE w.state = 'pending' AND NOT w.ready AND w.due_at IS NULL
                              AND need::uuid >= lo AND need::uuid < hi),
                    EXISTS (SELECT 1 FROM @.spec s WHERE s.step_of IS NOT NULL AND s.id >= lo AND s.id < hi
                              AND (EXISTS (SELECT 1 FROM @.live l WHERE l.id = s.step_of)
                                   OR EXISTS (SELECT 1 FROM @.waiting w WHERE w.id = s.step_of))),
                    $2 > least($3, @.clock())
             FROM range",
        );
        let (since, until, at) = (part.since.as_micros(), part.until.as_micros(), before.as_micros());
        let rows = link.read(&sql, &[(&since, Type::INT8), (&until, Type::INT8), (&at, Type::INT8)]).await?;
        let [row] = rows.as_slice() else { return Ok((0, Some("the database says nothing of it".into()))) };
        let [ended, made, unended]: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
        let [ended_late, is_needed, has_steps, is_open]: [bool; 4] = [row.get(3), row.get(4), row.get(5), row.get(6)];
        let left = match () {
            () if is_open => Some("its time is not over".into()),
            () if unended > 0 => Some(format!("{unended} of its runs wait or run")),
            () if made != ended => Some(format!("{} of its runs are on record in part alone", made.abs_diff(ended))),
            () if ended_late => Some(format!("a run of it ended at {before} or later")),
            () if is_needed => Some("a run that waits needs one of it".into()),
            () if has_steps => Some("a step of it is of a run that has not ended".into()),
            () => None,
        };
        Ok((ended.unsigned_abs(), left))
    }

    /// Begins a transaction in which a part is held for the export with that token. Why it is not, where it is not.
    async fn hold(
        &self,
        link: &mut PooledClient<'_>,
        part: &HistoryPart,
        token: Uuid,
    ) -> Result<Option<String>, CallError> {
        let sql = self.sql("SELECT exporter = $2 FROM @.part WHERE name = $1 FOR UPDATE");
        let rows = link.begin_with(None, &sql, &[(&part.name, Type::TEXT), (&token, Type::UUID)]).await?;
        if rows.first().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true)) {
            return Ok(None);
        }
        link.roll_back().await?;
        Ok(Some("another export has taken it over".into()))
    }

    /// Removes files of a part, unless another export has taken it over, which may rely on them.
    async fn remove<'a>(
        &self,
        part: &HistoryPart,
        token: Uuid,
        place: &HistoryPlace,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), Error> {
        with_retry!(self.links(), |link| async {
            if self.hold(&mut link, part, token).await?.is_none() {
                for name in names.clone() {
                    place.remove(name).await?;
                }
                link.commit().await?;
            }
            Ok::<_, CallError>(())
        })
    }

    /// Drops the tables of a part whose runs are those of these files, in one transaction. Why it did not, where it did not.
    async fn drop_part(
        &self,
        link: &mut PooledClient<'_>,
        part: &HistoryPart,
        token: Uuid,
        files: &[Written],
        export: &Export<'_>,
        place: &HistoryPlace,
    ) -> Result<Dropped, CallError> {
        if let Some(taken) = self.hold(link, part, token).await? {
            return Ok(Dropped::Left(taken));
        }
        let tables = ROOTS.map(|root| self.sql(&format!("@.{root}_{}", part.name))).join(", ");
        // No run of the part changes from here on.
        if is_busy(link.run(&format!("{GIVE_WAY}; LOCK TABLE {tables} IN SHARE MODE")).await)? {
            link.roll_back().await?;
            return Ok(Dropped::Busy);
        }
        let (runs, mut left) = self.standing(link, part, export.before).await?;
        if runs != files.iter().map(|file| file.entry.runs).sum::<u64>() {
            left = left.or_else(|| Some("runs of it came or went meanwhile".into()));
        }
        for file in files {
            if left.is_none() {
                left = self.record_file(link, file, place).await?;
            }
        }
        if let Some(why) = left {
            link.roll_back().await?;
            return Ok(Dropped::Left(why));
        }
        if is_busy(link.run(&format!("DROP TABLE {tables}")).await)? {
            link.roll_back().await?;
            return Ok(Dropped::Busy);
        }
        link.commit_with(&self.sql("DELETE FROM @.part WHERE name = $1"), &[(&part.name, Type::TEXT)]).await?;
        Ok(Dropped::Done)
    }

    /// Takes down a file whose runs are as they were when they were read, and counts them no more. Why not, where they are not.
    async fn record_file(
        &self,
        link: &mut PooledClient<'_>,
        file: &Written,
        place: &HistoryPlace,
    ) -> Result<Option<String>, CallError> {
        let ExportedFile { name, bounds, runs, footer, digest } = &file.entry;
        let (first, last) = (bounds.0.as_uuid(), bounds.1.as_uuid());
        let range: [Bound<'_>; 2] = [(&first, Type::UUID), (&last, Type::UUID)];
        let versions = self.sql(
            "SELECT count(*), coalesce(sum(('x' || substr(encode(sha256(convert_to(
                 id::text || ':' || revision || ':' || stamp::text, 'UTF8')), 'hex'), 1, 14))::bit(56)::int8), 0)::text
             FROM @.ended WHERE id >= $1 AND id <= $2",
        );
        let rows = link.then(&versions, &range).await?;
        let is_same =
            |row: &Row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1)) == (*runs, file.versions.to_string());
        if !rows.first().is_some_and(is_same) {
            return Ok(Some("a run of it changed meanwhile".into()));
        }
        let counts = self.sql(
            "INSERT INTO @.tally SELECT state, kind, evidence, -count(*), -sum(claims) FROM @.ended
             WHERE id >= $1 AND id <= $2 GROUP BY 1, 2, 3",
        );
        link.then(&counts, &range).await?;
        let [runs, begin, end] = [*runs, footer.start, footer.end].map(u64::cast_signed);
        let sql = self.sql("INSERT INTO @.exported VALUES ($1, $2, $3, $4, $5, $6, $7, $8, @.clock())");
        let entry: [Bound<'_>; 8] = [
            (name, Type::TEXT),
            (&first, Type::UUID),
            (&last, Type::UUID),
            (&runs, Type::INT8),
            (&begin, Type::INT8),
            (&end, Type::INT8),
            (digest, Type::TEXT),
            (&place.shown, Type::TEXT),
        ];
        link.then(&sql, &entry).await?;
        Ok(None)
    }
}

/// Whether a lock was not had because other sessions have it.
fn is_busy(locked: Result<(), CallError>) -> Result<bool, CallError> {
    match locked {
        Ok(()) => Ok(false),
        Err(CallError::Error(Error::Unavailable(_)) | CallError::Retryable(_)) => Ok(true),
        Err(fault) => Err(fault),
    }
}

fn part(row: &Row) -> HistoryPart {
    let [since, until] = [row.get(1), row.get(2)].map(Timestamp::from_micros);
    // It is a part of the names of tables.
    let name: String = row.get::<_, &str>(0).chars().filter(char::is_ascii_digit).collect();
    HistoryPart { name, since, until, runs: 0, left: None, files: 0, bytes: 0 }
}
