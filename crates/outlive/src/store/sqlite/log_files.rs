//! Where the logs of a run's attempts are.

use std::path::PathBuf;

use super::directory::from_io;
use super::{SqliteStore, run_files};
use crate::logs::{self, LogPolicy, LogReader, LogWriter, NoLog};
use crate::model::id::RunId;
use crate::model::run::Run;
use crate::store::Error;
use crate::util::files;

impl SqliteStore {
    /// Keeps what the attempt writes that `run` is at. No file is made before there is something to keep.
    pub fn write_logs(&self, run: &Run, policy: &LogPolicy) -> Result<LogWriter, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the log of the attempt cannot be made", &error);
        let dir = run_files::attempts_dir(&inner.place, run.id).map_err(failed)?;
        Ok(LogWriter::new(dir, run.attempt, inner.place.sharing.file_mode(), *policy, self.clock.clone()))
    }

    /// Notes that nothing of what an attempt writes is to be kept: an index with nothing in it.
    pub fn decline_logs(&self, run: &Run) -> Result<(), Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("it cannot be noted that there is no log of the attempt", &error);
        let dir = run_files::attempts_dir(&inner.place, run.id).map_err(failed)?;
        logs::decline(&dir, run.attempt, inner.place.sharing.file_mode()).map_err(failed)
    }

    /// Why there is nothing of an attempt to read.
    pub fn why_no_logs(&self, run: RunId, attempt: u32) -> Result<NoLog, Error> {
        let inner = self.lock()?;
        match files::open_dir(&inner.place.dir, &PathBuf::from(format!("runs/{run}/attempts"))) {
            Ok(dir) => logs::why_none(&dir, attempt),
            Err(error) => Err(error),
        }
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(NoLog::Removed),
            _ => Err(from_io("the log of the attempt cannot be read", &error)),
        })
    }

    /// What an attempt has written so far; none where nothing of it was kept.
    pub fn read_logs(&self, run: RunId, attempt: u32) -> Result<Option<LogReader>, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("the log of the attempt cannot be read", &error);
        let path = PathBuf::from(format!("runs/{run}/attempts"));
        match files::open_dir(&inner.place.dir, &path) {
            Ok(dir) => LogReader::open(dir, attempt).map_err(failed),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}
