//! The files of runs: what is true of a run whatever becomes of the database.
//!
//! ```text
//! runs/<id>/spec.json                     when the run is made, and claimed in the same breath or not
//! runs/<id>/attempts/0001.running-1.json  when it is claimed, suspended or put back later: attempt, state, epoch
//! runs/<id>/attempts/0001.wish-4.json     when it is requested that it be cancelled, hidden, shown again, paused or edited: revision
//! runs/<id>/attempts/0001.json            when an attempt has ended; the truth about it
//! runs/<id>/archived                      while the run is archived
//! ```
//!
//! Each is written once, whole, and never again. An attempt's end has its file before the database commits it, so the
//! database may lag behind a file, and a process that finds an end that it has missed takes it over. Only a power cut can take a
//! file that the database knows; then the database, which is synced, has it written again. A file whose checksum does not
//! fit is no evidence of anything.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::directory::{RegistryDirectory, from_io};
use crate::host::attempts::attempts_path;
use crate::model::hex::hex;
use crate::model::id::{RunId, Stamp};
use crate::model::run::{Event, Run, State};
use crate::store::{Error, Expect, Record, Revision, Write};
use crate::util::files::{self, Prepared, Published};

/// The largest file that is read back.
const FILE_LIMIT: u64 = 16 << 20;

/// What a file says of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunFile {
    schema: u32,
    /// The registry it was written in.
    registry: String,
    revision: u64,
    stamp: Stamp,
    pub(super) run: Run,
    /// The run as it went on at once, where the end of the attempt was not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    goes_on: Option<Run>,
    pub(super) events: Vec<Event>,
}

impl RunFile {
    pub(super) fn record(&self) -> Record {
        let run = self.goes_on.as_ref().unwrap_or(&self.run).clone();
        Record { run, revision: Revision(self.revision), stamp: self.stamp }
    }
}

/// Files the end of an attempt. `events` are those before it.
///
/// Nothing is synced: the transaction around it is, and `doctor` writes again what a power cut took. For the same reason a
/// name that is taken may be that of a file whose content was lost, which is put aside: one that could be understood
/// would have been taken over.
pub(super) fn file_end(
    place: &RegistryDirectory,
    ended: &Run,
    write: &Write,
    mut events: Vec<Event>,
) -> Result<(), Error> {
    events.extend(write.events.iter().cloned());
    events.retain(|event| event.attempt == ended.attempt || event.epoch == ended.epoch);
    let failed = |error| from_io("the end of an attempt cannot be filed", &error);
    let dir = attempts_dir(place, ended.id).map_err(failed)?;
    let bytes = encode(place, ended, write, events).map_err(failed)?;
    let name = end_name(ended.attempt);
    let publish = || Prepared::new(&dir, &bytes, place.sharing.file_mode(), false)?.publish(&dir, &name);
    if publish().map_err(failed)? == Published::Exists {
        rustix::fs::renameat(&dir, &name, &dir, damaged_name(ended, write)).map_err(|error| {
            let (attempt, run) = (ended.attempt, ended.id);
            Error::Corrupt(format!("the file of attempt {attempt} of run `{run}` is damaged and in the way: {error}"))
        })?;
        publish().map_err(failed)?;
    }
    Ok(())
}

/// Writes what must be found again if the database is lost while the run is in flight. Not synced: the database is.
/// `noted` gets the paths of the files that are new, for [`take_back`].
pub(super) fn note(
    place: &RegistryDirectory,
    before: Option<&Run>,
    write: &Write,
    noted: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let run = &write.run;
    let prepared = |dir: &OwnedFd| -> io::Result<Prepared> {
        let bytes = encode(place, run, write, write.events.clone())?;
        Prepared::new(dir, &bytes, place.sharing.file_mode(), false)
    };
    let mut publish = |dir: &OwnedFd, path: PathBuf| -> io::Result<()> {
        let name = path.file_name().map(Path::new).unwrap_or(&path);
        if prepared(dir)?.publish(dir, name)? == Published::Done {
            noted.push(path);
        }
        Ok(())
    };
    let mut publish_all = || -> io::Result<()> {
        let moved = before.is_some_and(|before| before.state.name() != run.state.name() || before.epoch != run.epoch);
        if before.is_none() {
            let dir = run_dir(place, run.id)?;
            publish(&dir, run_path(run.id).join("spec.json"))?;
        } else if moved && run.ending().is_none() {
            let dir = attempts_dir(place, run.id)?;
            publish(&dir, attempts_path(run.id).join(stage_name(run)))?;
        }
        let marked = before.is_some_and(|before| before.archived.is_some() != run.archived.is_some());
        let asked = before.is_some_and(|before| before.cancel != run.cancel || is_edited(before, run));
        // The end of its attempt has its file already, which stays as it is.
        let given_up = moved && before.is_some_and(|before| before.ending().is_some()) && run.ending().is_some();
        if marked || given_up || (asked && !moved) {
            let dir = attempts_dir(place, run.id)?;
            publish(&dir, attempts_path(run.id).join(wish_name(run, write)))?;
        }
        if marked {
            mark_archived(place, run)?;
        }
        Ok(())
    };
    let done = publish_all();
    if before.is_none() && done.is_err() {
        remove_empty(place, run.id);
    }
    done.map_err(cannot_file)
}

/// Deletes what [`note`] wrote for changes that were refused: a reader of the files would take them for changes that
/// the database lost.
pub(super) fn take_back(place: &RegistryDirectory, noted: &[PathBuf]) {
    for path in noted {
        let _ = rustix::fs::unlinkat(&place.dir, path, rustix::fs::AtFlags::empty());
        for dir in path.ancestors().skip(1).take_while(|dir| dir.parent().is_some_and(|above| above != Path::new(""))) {
            // One that holds anything else stays.
            let _ = rustix::fs::unlinkat(&place.dir, dir, rustix::fs::AtFlags::REMOVEDIR);
        }
    }
}

fn mark_archived(place: &RegistryDirectory, run: &Run) -> io::Result<()> {
    let (dir, name) = (run_dir(place, run.id)?, Path::new("archived"));
    match &run.archived {
        Some(archived) => {
            let bytes = serde_json::to_vec(archived)?;
            Prepared::new(&dir, &bytes, place.sharing.file_mode(), false)?.publish(&dir, name).map(|_| ())
        }
        None => match rustix::fs::unlinkat(&dir, name, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        },
    }
}

/// The end of the attempt that `run` is at, if it was filed.
pub(super) fn filed_end(place: &RegistryDirectory, run: &Run) -> Option<RunFile> {
    let name = end_path(run);
    if files::exists(&place.dir, &name) { read(&place.dir, &name).ok() } else { None }
}

/// The registry that a run was made in, if its file tells.
pub(super) fn made_in(dir: &OwnedFd, id: RunId) -> Option<String> {
    read(dir, &run_path(id).join("spec.json")).ok().map(|filed| filed.registry)
}

/// Where the end of the attempt is filed that `run` is at.
pub(super) fn end_path(run: &Run) -> PathBuf {
    attempts_path(run.id).join(end_name(run.attempt))
}

/// Writes the end of an attempt again that the database knows and no file does.
pub(super) fn file_again(place: &RegistryDirectory, record: &Record, events: Vec<Event>) -> Result<(), Error> {
    let write = Write {
        expect: crate::store::Expect::Revision(Revision(record.revision.0.saturating_sub(1))),
        run: record.run.clone(),
        events: Vec::new(),
        ended: Some(Box::new(record.run.clone())),
        stamp: record.stamp,
    };
    file_end(place, &record.run, &write, events)?;
    rustix::fs::syncfs(&place.dir).map_err(|error| cannot_file(error.into()))
}

/// What the files say of a run: the last thing that is known of it, and its event log.
#[derive(Debug)]
pub(super) struct FiledRun {
    pub(super) record: Record,
    pub(super) events: Vec<Event>,
    /// The end of its last attempt, where that is filed and cannot be understood: what the others say is over.
    pub(super) damaged_end: Option<PathBuf>,
}

/// Reads back what the files say of all runs, one run at a time.
pub(super) fn visit(
    place: &RegistryDirectory,
    mut each: impl FnMut(RunId, io::Result<FiledRun>) -> Result<(), Error>,
) -> Result<(), Error> {
    let failed = |error| from_io("the files of the runs cannot be read", &error);
    let runs = match files::open_dir(&place.dir, Path::new("runs")) {
        Ok(runs) => runs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in rustix::fs::Dir::new(runs).map_err(|error| failed(error.into()))? {
        let entry = entry.map_err(|error| failed(error.into()))?;
        if let Some(id) = entry.file_name().to_str().ok().and_then(|name| name.parse::<RunId>().ok()) {
            each(id, read_run(place, id))?;
        }
    }
    Ok(())
}

/// Whether nothing was ever filed of a run: its directory was made, and its maker is gone.
pub(super) fn is_empty(place: &RegistryDirectory, id: RunId) -> bool {
    let names = |path: &Path| files::open_dir(&place.dir, path).and_then(|dir| files::names(&dir));
    match names(&run_path(id)) {
        Ok(found) if found.is_empty() => true,
        Ok(found) => found == ["attempts"] && names(&attempts_path(id)).is_ok_and(|found| found.is_empty()),
        Err(_) => false,
    }
}

/// Removes the directory of a run of which nothing was ever filed.
pub(super) fn remove_empty(place: &RegistryDirectory, id: RunId) {
    // One that is not empty any more stays.
    for path in [attempts_path(id), run_path(id)] {
        let _ = rustix::fs::unlinkat(&place.dir, path, rustix::fs::AtFlags::REMOVEDIR);
    }
}

/// The ends that are filed of a run, of this attempt and of earlier ones, each with whether it can be understood.
pub(super) fn ends(place: &RegistryDirectory, id: RunId) -> Vec<(PathBuf, bool)> {
    let Ok(dir) = files::open_dir(&place.dir, &attempts_path(id)) else { return Vec::new() };
    let names = files::names(&dir).unwrap_or_default();
    let is_end = |name: &String| name.strip_suffix(".json").is_some_and(|attempt| attempt.parse::<u32>().is_ok());
    let whole = |name: &str| read(&dir, Path::new(name)).is_ok_and(|filed| filed.run.id == id);
    names.iter().filter(|name| is_end(name)).map(|name| (attempts_path(id).join(name), whole(name))).collect()
}

/// Keeps what a row said that could not be understood, beside the files that it is rebuilt from.
pub(super) fn keep_row(place: &RegistryDirectory, id: RunId, mark: i64, body: &[u8]) -> io::Result<()> {
    let dir = run_dir(place, id)?;
    let name = format!("damaged-row-{mark}.json");
    Prepared::new(&dir, body, place.sharing.file_mode(), true)?.publish(&dir, Path::new(&name))?;
    Ok(rustix::fs::fsync(&dir)?)
}

pub(super) fn read_run(place: &RegistryDirectory, id: RunId) -> io::Result<FiledRun> {
    let run_dir = files::open_dir(&place.dir, &run_path(id))?;
    let mut found: Vec<RunFile> = read(&run_dir, Path::new("spec.json")).into_iter().collect();
    if let Ok(dir) = files::open_dir(&run_dir, Path::new("attempts")) {
        let names = files::names(&dir)?;
        found.extend(
            names.iter().filter(|name| name.ends_with(".json")).filter_map(|name| read(&dir, Path::new(name)).ok()),
        );
    }
    found.retain(|filed| filed.run.id == id);
    found.sort_by_key(|filed| (filed.run.attempt, filed.run.ending().is_some(), filed.run.epoch, filed.revision));
    let Some(last) = found.last() else { return Err(io::Error::other("no file of it can be understood")) };
    let mut record = last.record();
    record.run.copied |= !place.stands_for(&last.registry);
    record.run.archived = files::read(&run_dir, Path::new("archived"), FILE_LIMIT)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mut events: Vec<Event> = Vec::new();
    for event in found.iter().flat_map(|filed| &filed.events) {
        if !events.contains(event) {
            events.push(event.clone());
        }
    }
    events.sort_by_key(|event| (event.at, event.epoch));
    let run = &record.run;
    let is_damaged = run.ending().is_none() && files::exists(&place.dir, &end_path(run));
    let damaged_end = is_damaged.then(|| end_path(run));
    Ok(FiledRun { record, events, damaged_end })
}

/// How often the record was written once `write` is done.
fn revision(write: &Write) -> u64 {
    match write.expect {
        Expect::Absent => 1,
        Expect::Revision(Revision(revision)) => revision + 1,
    }
}

/// Encodes with a checksum: a torn or edited file differs from a whole one.
fn encode(place: &RegistryDirectory, run: &Run, write: &Write, events: Vec<Event>) -> io::Result<Vec<u8>> {
    let revision = revision(write);
    let goes_on = (run.ending().is_some() && write.run.ending().is_none()).then(|| write.run.clone());
    let (registry, stamp, run) = (place.uuid.clone(), write.stamp, run.clone());
    let filed = RunFile { schema: 1, registry, revision, stamp, run, goes_on, events };
    let mut text = serde_json::to_string(&filed)?;
    let sum = checksum(&text);
    // The last field of the object.
    text.truncate(text.len() - 1);
    text.push_str(&format!(",\"sha256\":\"{sum}\"}}\n"));
    Ok(text.into_bytes())
}

fn checksum(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn read(dir: &OwnedFd, name: &Path) -> io::Result<RunFile> {
    let mut value: Value = serde_json::from_slice(&files::read(dir, name, FILE_LIMIT)?)?;
    let sum = value.as_object_mut().and_then(|fields| fields.shift_remove("sha256"));
    if sum.as_ref().and_then(Value::as_str) != Some(checksum(&value.to_string()).as_str()) {
        return Err(io::Error::other("its checksum does not fit"));
    }
    let schema = value.get("schema").and_then(Value::as_u64);
    if schema != Some(1) {
        return Err(io::Error::other(format!("its schema is {schema:?}; this outlive knows 1")));
    }
    Ok(serde_json::from_value(value)?)
}

fn cannot_file(error: io::Error) -> Error {
    from_io("the files of the run cannot be written", &error)
}

fn run_path(id: RunId) -> PathBuf {
    PathBuf::from(format!("runs/{id}"))
}

fn end_name(attempt: u32) -> PathBuf {
    PathBuf::from(format!("{attempt:04}.json"))
}

fn damaged_name(run: &Run, write: &Write) -> PathBuf {
    PathBuf::from(format!("{:04}.json.damaged-{}", run.attempt, revision(write)))
}

fn stage_name(run: &Run) -> PathBuf {
    PathBuf::from(format!("{:04}.{}-{}.json", run.attempt, run.state.name(), run.epoch))
}

/// Whether a person changed the turn of a run that waits: its priority, its time, or that it is held back.
fn is_edited(before: &Run, run: &Run) -> bool {
    let (State::Pending(was), State::Pending(is)) = (&before.state, &run.state) else { return false };
    before.priority != run.priority || was.not_before != is.not_before || was.paused != is.paused
}

/// What a person wished of a run: that it be stopped, hidden or shown again, or claimed earlier or later.
fn wish_name(run: &Run, write: &Write) -> PathBuf {
    PathBuf::from(format!("{:04}.wish-{}.json", run.attempt, revision(write)))
}

fn dir_mode(place: &RegistryDirectory) -> Mode {
    place.sharing.dir_mode()
}

fn run_dir(place: &RegistryDirectory, id: RunId) -> io::Result<OwnedFd> {
    let path = run_path(id);
    match files::make_dir(&place.dir, &path, dir_mode(place)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files::make_dir(&place.dir, Path::new("runs"), dir_mode(place))?;
            files::make_dir(&place.dir, &path, dir_mode(place))
        }
        made => made,
    }
}

/// The directory of a run.
pub(super) fn path(id: RunId) -> PathBuf {
    run_path(id)
}

/// The directory of a run's attempts, made if it is missing.
pub(super) fn attempts_dir(place: &RegistryDirectory, id: RunId) -> io::Result<OwnedFd> {
    let path = attempts_path(id);
    match files::open_dir(&place.dir, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    // From the directory of the run, which is never reached through a link.
    files::make_dir(&run_dir(place, id)?, Path::new("attempts"), dir_mode(place))
}

/// Whether the file that a run was made with can be read.
pub(super) fn has_spec(place: &RegistryDirectory, id: RunId) -> bool {
    read(&place.dir, &run_path(id).join("spec.json")).is_ok_and(|filed| filed.run.id == id)
}

/// Writes the file again that a run was made with, from what the database knows of a run that was not claimed yet. What is
/// there and cannot be read is kept under another name.
pub(super) fn file_spec_again(
    place: &RegistryDirectory,
    record: &Record,
    events: Vec<Event>,
    mark: i64,
) -> Result<(), Error> {
    let write = Write {
        expect: Expect::Revision(Revision(record.revision.0.saturating_sub(1))),
        run: record.run.clone(),
        events: Vec::new(),
        ended: None,
        stamp: record.stamp,
    };
    let filed = || -> io::Result<()> {
        let (dir, name) = (run_dir(place, record.run.id)?, Path::new("spec.json"));
        match rustix::fs::renameat(&dir, name, &dir, format!("spec.json.damaged-{mark}")) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let bytes = encode(place, &record.run, &write, events)?;
        Prepared::new(&dir, &bytes, place.sharing.file_mode(), true)?.publish(&dir, name)?;
        Ok(rustix::fs::fsync(&dir)?)
    };
    filed().map_err(cannot_file)
}
