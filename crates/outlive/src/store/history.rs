//! Exported history: runs that have ended, as rows of Parquet files.
//!
//! A row has what people ask for in columns of their own, and the whole record and its events as JSON, from which outlive reads
//! the very run again. Where files are is said by the user, in [`HistoryPlace`]; which files there are, by the registry that exported
//! them. Nothing here knows a database.

mod parquet;
mod place;
mod thrift;

use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use self::parquet::{Cell, ColumnKind, Footer, ParquetColumn, ParquetWriter, TAIL, footer_length};
pub(crate) use self::place::HistoryPlace;
use crate::model::hex::hex;
use crate::model::id::{RunId, Stamp};
use crate::model::run::{End, Event, State};
use crate::store::{Error, Record, Revision};

/// The most runs of a row group, and the most bytes of their cells: what one lookup reads.
const GROUP_RUNS: usize = 4_000;
const GROUP_BYTES: usize = 8 << 20;
/// The most row groups of a file: it is written and read back as a whole.
const GROUPS: usize = 8;
/// The note of a file that has the digest of its rows.
const DIGEST: &str = "outlive.digest";

const fn column(name: &'static str, kind: ColumnKind, optional: bool) -> ParquetColumn {
    ParquetColumn { name, kind, optional }
}

/// The columns of a file. Ids are text: Spark reads no column of UUIDs.
const COLUMNS: &[ParquetColumn] = &[
    column("id", ColumnKind::Text, false),
    column("name", ColumnKind::Text, true),
    column("kind", ColumnKind::Text, false),
    column("state", ColumnKind::Text, false),
    column("priority", ColumnKind::Int, false),
    column("created_at", ColumnKind::Time, false),
    column("started_at", ColumnKind::Time, true),
    column("ended_at", ColumnKind::Time, true),
    column("archived_at", ColumnKind::Time, true),
    column("owner", ColumnKind::Text, true),
    column("host", ColumnKind::Text, true),
    column("attempts", ColumnKind::Int, false),
    column("error_type", ColumnKind::Text, true),
    column("error_message", ColumnKind::Text, true),
    column("labels", ColumnKind::Json, false),
    column("step_of", ColumnKind::Text, true),
    column("revision", ColumnKind::Int, false),
    column("stamp", ColumnKind::Text, false),
    column("run", ColumnKind::Json, false),
    column("events", ColumnKind::Json, false),
];
// Where among them is what a record is read from.
const ID: usize = 0;
const STEP_OF: usize = 15;
const REVISION: usize = 16;
const STAMP: usize = 17;
const RUN: usize = 18;
const EVENTS: usize = 19;

/// A run that was exported, or is to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exported {
    pub(crate) record: Record,
    pub(crate) events: Vec<Event>,
}

impl Exported {
    fn row(&self) -> Result<Vec<Cell>, Error> {
        let Record { run, revision, stamp } = &self.record;
        let odd = |error| Error::Corrupt(format!("run `{}` cannot be written down: {error}", run.id));
        let json = |text: Result<String, serde_json::Error>| text.map(Cell::Text).map_err(odd);
        let text = |text: Option<String>| text.map_or(Cell::Nothing, Cell::Text);
        let time = |at: Option<crate::model::time::Timestamp>| at.map_or(Cell::Nothing, |at| Cell::Int(at.as_micros()));
        let ending = if let State::Ended(ending) = &run.state { Some(ending) } else { None };
        let owner = ending.and_then(|ending| ending.owner.as_ref());
        let failure =
            ending.and_then(|ending| if let End::Failed(failure) = &ending.how { Some(failure) } else { None });
        let row = vec![
            Cell::Text(run.id.to_string()),
            text(run.spec.name.clone()),
            Cell::Text(run.spec.kind.clone()),
            Cell::Text(run.state.name().to_string()),
            Cell::Int(run.spec.priority.into()),
            time(Some(run.created_at)),
            time(ending.and_then(|ending| ending.started_at)),
            time(ending.map(|ending| ending.at)),
            time(run.archived.as_ref().map(|archived| archived.at)),
            text(owner.map(|owner| owner.worker.to_string())),
            text(run.last_host().map(Into::into)),
            Cell::Int(run.attempt.into()),
            text(failure.map(|failure| failure.error_type.clone())),
            text(failure.map(|failure| failure.error_message.clone())),
            json(serde_json::to_string(&run.spec.labels))?,
            text(run.spec.step.as_ref().map(|step| step.of.to_string())),
            Cell::Int(revision.0.cast_signed()),
            Cell::Text(stamp.to_string()),
            json(serde_json::to_string(run))?,
            json(serde_json::to_string(&self.events))?,
        ];
        match exported(&row[REVISION..]) {
            Ok(read) if read == *self => Ok(row),
            _ => Err(Error::Corrupt(format!("run `{}` would not be read as it is", run.id))),
        }
    }
}

/// A number that tells one version of a run from any other. The database computes the same, and adds them up.
pub(crate) fn version(record: &Record) -> u64 {
    let digest = Sha256::digest(format!("{}:{}:{}", record.run.id, record.revision.0, record.stamp));
    digest[..7].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A file that is complete.
pub(crate) struct WrittenFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: String,
    pub(crate) bounds: (RunId, RunId),
    pub(crate) rows: Rows,
    /// The sum of the versions of its runs.
    pub(crate) versions: u128,
}

/// How many rows a file has, and a digest of every one. It is also in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) count: u64,
    pub(crate) digest: String,
}

/// What a registry keeps on record of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportedFile {
    pub(crate) name: String,
    pub(crate) bounds: (RunId, RunId),
    pub(crate) runs: u64,
    /// Where the footer is in the file, up to its last eight bytes.
    pub(crate) footer: Range<u64>,
    /// The digest of the footer.
    pub(crate) digest: String,
}

impl WrittenFile {
    /// What is to be on record of the file, by the bytes that were read back; none where their rows are others.
    pub(crate) fn verify(&self, read: &[u8]) -> Option<ExportedFile> {
        let (rows, footer) = verified(read)?;
        let digest = hex(&Sha256::digest(&read[footer.clone()]));
        let footer = footer.start as u64..footer.end as u64;
        let entry = ExportedFile { name: self.name.clone(), bounds: self.bounds, runs: rows.count, footer, digest };
        (rows == self.rows).then_some(entry)
    }
}

/// Files that are written, a run after the other in the order of their ids.
#[derive(Default)]
pub(crate) struct Builder {
    group: Vec<Vec<Cell>>,
    group_bytes: usize,
    file: Option<Open>,
}

/// A file that is not complete.
struct Open {
    writer: ParquetWriter,
    rows: Sha256,
    versions: u128,
    bounds: (RunId, RunId),
    runs: u64,
}

impl Builder {
    /// Adds a run. Answers with a file where that has completed one.
    pub(crate) fn push(
        &mut self,
        exported: &Exported,
        name: impl FnOnce() -> String,
    ) -> Result<Option<WrittenFile>, Error> {
        let (row, id) = (exported.row()?, exported.record.run.id);
        let open = self.file.get_or_insert_with(|| Open {
            writer: ParquetWriter::new(COLUMNS),
            rows: Sha256::new(),
            versions: 0,
            bounds: (id, id),
            runs: 0,
        });
        add(&mut open.rows, &row);
        open.versions += u128::from(version(&exported.record));
        open.bounds.1 = id;
        open.runs += 1;
        self.group_bytes +=
            row.iter().map(|cell| if let Cell::Text(text) = cell { text.len() } else { 8 }).sum::<usize>();
        self.group.push(row);
        if self.group.len() < GROUP_RUNS && self.group_bytes < GROUP_BYTES {
            return Ok(None);
        }
        self.end_group()?;
        let is_full = self.file.as_ref().is_some_and(|open| open.writer.groups() >= GROUPS);
        if is_full { self.finish(name) } else { Ok(None) }
    }

    fn end_group(&mut self) -> Result<(), Error> {
        self.group_bytes = 0;
        let (group, Some(open)) = (std::mem::take(&mut self.group), &mut self.file) else { return Ok(()) };
        if group.is_empty() {
            return Ok(());
        }
        open.writer.group(&group).map_err(|error| Error::Corrupt(format!("runs cannot be compressed: {error}")))
    }

    /// The last file, if any run is left for it.
    pub(crate) fn finish(&mut self, name: impl FnOnce() -> String) -> Result<Option<WrittenFile>, Error> {
        self.end_group()?;
        let Some(Open { writer, rows, versions, bounds, runs }) = self.file.take() else { return Ok(None) };
        let rows = Rows { count: runs, digest: hex(&rows.finalize()) };
        let (bytes, _) = writer.finish([(DIGEST, &rows.digest)]);
        Ok(Some(WrittenFile { bytes, name: name(), bounds, rows, versions }))
    }
}

/// Adds a row to a digest.
fn add(digest: &mut Sha256, row: &[Cell]) {
    for cell in row {
        match cell {
            Cell::Nothing => digest.update([0]),
            Cell::Int(value) => digest.update([&[1][..], &value.to_le_bytes()].concat()),
            Cell::Text(text) => {
                digest.update([&[2][..], &(text.len() as u64).to_le_bytes()].concat());
                digest.update(text);
            }
        }
    }
}

/// The rows of a file and where its footer is, by its bytes alone; none where they cannot be read.
fn verified(bytes: &[u8]) -> Option<(Rows, Range<usize>)> {
    let tail = bytes.len().checked_sub(TAIL)?;
    let place = tail.checked_sub(footer_length(&bytes[tail..])?)?..tail;
    let footer = Footer::parse(&bytes[place.clone()], COLUMNS)?;
    let (mut digest, mut count) = (Sha256::new(), 0);
    for group in &footer.groups {
        let cells = group.chunks.iter().zip(COLUMNS).map(|(chunk, column)| {
            let [start, end] = [chunk.start, chunk.end].map(usize::try_from);
            column.cells(bytes.get(start.ok()?..end.ok()?)?, group.rows)
        });
        let mut columns = cells.map(|cells| Some(cells?.into_iter())).collect::<Option<Vec<_>>>()?;
        for _ in 0..group.rows {
            let row: Option<Vec<Cell>> = columns.iter_mut().map(Iterator::next).collect();
            add(&mut digest, &row?);
            count += 1;
        }
    }
    let rows = Rows { count, digest: hex(&digest.finalize()) };
    (footer.notes.get(DIGEST) == Some(&rows.digest)).then_some((rows, place))
}

/// A file that is read a row group at a time.
pub(crate) struct Opened {
    place: Arc<HistoryPlace>,
    name: String,
    footer: Footer,
}

impl Opened {
    /// Opens a file on record at the first of these places that has it; none where none has.
    pub(crate) async fn find(places: &[Arc<HistoryPlace>], entry: &ExportedFile) -> Result<Option<Self>, Error> {
        for place in places {
            let Some(bytes) = place.read(&entry.name, Some(entry.footer.clone())).await? else { continue };
            let is_it = hex(&Sha256::digest(&bytes)) == entry.digest;
            let Some(footer) = Footer::parse(&bytes, COLUMNS).filter(|_| is_it) else {
                return Err(odd(place, &entry.name, "its footer is not what the registry has on record"));
            };
            return Ok(Some(Self { place: place.clone(), name: entry.name.clone(), footer }));
        }
        Ok(None)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The row groups that may have ids from `first` to `last`.
    pub(crate) fn groups(&self, first: &str, last: &str) -> Vec<usize> {
        let is_meant = |(least, most): &(String, String)| most.as_str() >= first && least.as_str() <= last;
        (0..self.footer.groups.len()).filter(|group| is_meant(&self.footer.groups[*group].bounds)).collect()
    }

    async fn column(&self, group: usize, column: usize) -> Result<Vec<Cell>, Error> {
        let (place, name, of) = (&self.place, &self.name, &self.footer.groups[group]);
        let missing = || Error::Unavailable(format!("`{}/{name}`, a file of exported history, is gone", place.shown));
        let bytes = place.read(name, Some(of.chunks[column].clone())).await?.ok_or_else(missing)?;
        let damaged = || odd(place, name, &format!("`{}` of row group {group} cannot be read", COLUMNS[column].name));
        COLUMNS[column].cells(&bytes, of.rows).ok_or_else(damaged)
    }

    /// Of each run of a row group, the run that it is a step of.
    pub(crate) async fn steps(&self, group: usize) -> Result<Vec<Option<String>>, Error> {
        let steps = self.column(group, STEP_OF).await?;
        Ok(steps.into_iter().map(|cell| if let Cell::Text(of) = cell { Some(of) } else { None }).collect())
    }

    /// The ids and revisions of all runs that are no steps.
    pub(crate) async fn revisions(&self) -> Result<Vec<(RunId, Revision)>, Error> {
        let mut found = Vec::new();
        for group in 0..self.footer.groups.len() {
            let (ids, revisions) = (self.column(group, ID).await?, self.column(group, REVISION).await?);
            let steps = self.steps(group).await?;
            for ((id, revision), step) in ids.iter().zip(revisions).zip(steps) {
                let (Cell::Text(id), Cell::Int(revision), None) = (id, revision, step) else { continue };
                let id = id.parse().map_err(|_| odd(&self.place, &self.name, "an id is none"))?;
                found.push((id, Revision(revision.cast_unsigned())));
            }
        }
        Ok(found)
    }

    /// The runs of a row group.
    pub(crate) async fn runs(&self, group: usize) -> Result<Vec<Exported>, Error> {
        let mut columns = Vec::new();
        for column in [REVISION, STAMP, RUN, EVENTS] {
            columns.push(self.column(group, column).await?.into_iter());
        }
        let mut runs = Vec::with_capacity(self.footer.groups[group].rows);
        while let Some(cells) = columns.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
            let read = exported(&cells);
            runs.push(
                read.map_err(|error| odd(&self.place, &self.name, &format!("a run cannot be understood: {error}")))?,
            );
        }
        Ok(runs)
    }
}

fn exported(cells: &[Cell]) -> Result<Exported, String> {
    let [Cell::Int(revision), Cell::Text(stamp), Cell::Text(run), Cell::Text(events)] = cells else {
        return Err("it is incomplete".into());
    };
    let said = |error: serde_json::Error| error.to_string();
    let stamp: Stamp = serde_json::from_value(stamp.as_str().into()).map_err(said)?;
    let run = serde_json::from_str(run).map_err(said)?;
    let events = serde_json::from_str(events).map_err(said)?;
    Ok(Exported { record: Record { run, revision: Revision(revision.cast_unsigned()), stamp }, events })
}

fn odd(place: &HistoryPlace, name: &str, why: &str) -> Error {
    Error::Corrupt(format!("`{}/{name}`, a file of exported history: {why}", place.shown))
}
