//! Where the logs of a run's attempts are: in the directory of a local registry, else in the home of the user who executes
//! them.
//!
//! A database and a bucket keep no output. What an attempt writes stays on the host that executes it, below the name of the
//! registry, and is read there.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{CWD, Mode};

use crate::host::home::home;
use crate::logs::{LogPolicy, LogReader, LogWriter, NoLog, decline, why_none};
use crate::model::id::{RunId, Stamp};
use crate::model::run::Run;
use crate::model::time::Clock;
use crate::redact::Redactor;
use crate::store::Error;
use crate::util::files;

/// The logs of one registry, as far as this host has them.
#[derive(Clone)]
pub struct LogDirectory {
    root: Root,
    clock: Arc<dyn Clock>,
    redactor: Arc<Redactor>,
}

#[derive(Clone)]
enum Root {
    #[cfg(feature = "sqlite")]
    Registry(Arc<crate::store::sqlite::SqliteStore>),
    Home(PathBuf),
}

impl LogDirectory {
    /// In the directory of a registry.
    #[cfg(feature = "sqlite")]
    pub(crate) fn of_registry(
        store: Arc<crate::store::sqlite::SqliteStore>,
        clock: Arc<dyn Clock>,
        redactor: Arc<Redactor>,
    ) -> Self {
        Self { root: Root::Registry(store), clock, redactor }
    }

    /// In the home, in the directory for its registry.
    pub(crate) fn of_home(root: PathBuf, clock: Arc<dyn Clock>, redactor: Arc<Redactor>) -> Self {
        Self { root: Root::Home(root), clock, redactor }
    }

    /// Whether other hosts have their own.
    pub fn is_of_host(&self) -> bool {
        matches!(self.root, Root::Home(_))
    }

    /// The directory with the logs of a run.
    pub fn path(&self, run: RunId) -> PathBuf {
        let root = match &self.root {
            #[cfg(feature = "sqlite")]
            Root::Registry(store) => store.path(),
            Root::Home(root) => root.as_path(),
        };
        root.join(format!("runs/{run}/attempts"))
    }

    /// Keeps what the attempt writes that `run` is at, with its secrets masked. No file is made before there is something
    /// to keep.
    pub fn write(&self, run: &Run, policy: &LogPolicy) -> Result<LogWriter, Error> {
        let writer = match &self.root {
            #[cfg(feature = "sqlite")]
            Root::Registry(store) => store.write_logs(run, policy)?,
            Root::Home(_) => {
                let dir = self.make(run.id).map_err(failed("the log of the attempt cannot be made"))?;
                LogWriter::new(dir, run.attempt, Mode::from_raw_mode(0o600), *policy, self.clock.clone())
            }
        };
        Ok(writer.masking(Box::new(self.redactor.clone())))
    }

    /// Notes that nothing of what an attempt writes is to be kept.
    pub fn decline(&self, run: &Run) -> Result<(), Error> {
        match &self.root {
            #[cfg(feature = "sqlite")]
            Root::Registry(store) => store.decline_logs(run),
            Root::Home(_) => {
                let noted = self.make(run.id).and_then(|dir| decline(&dir, run.attempt, Mode::from_raw_mode(0o600)));
                noted.map_err(failed("it cannot be noted that there is no log of the attempt"))
            }
        }
    }

    /// Why there is nothing of an attempt to read.
    pub fn why_none(&self, run: RunId, attempt: u32) -> Result<NoLog, Error> {
        match &self.root {
            #[cfg(feature = "sqlite")]
            Root::Registry(store) => store.why_no_logs(run, attempt),
            Root::Home(_) => match files::open_dir(CWD, &self.path(run)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NoLog::Removed),
                opened => opened
                    .and_then(|dir| why_none(&dir, attempt))
                    .map_err(failed("the log of the attempt cannot be read")),
            },
        }
    }

    /// What an attempt has written so far, with its secrets masked; none where nothing of it was kept here.
    pub fn read(&self, run: RunId, attempt: u32) -> Result<Option<LogReader>, Error> {
        let reader = match &self.root {
            #[cfg(feature = "sqlite")]
            Root::Registry(store) => store.read_logs(run, attempt)?,
            Root::Home(_) => match files::open_dir(CWD, &self.path(run)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                opened => opened
                    .and_then(|dir| LogReader::open(dir, attempt))
                    .map_err(failed("the log of the attempt cannot be read"))?,
            },
        };
        Ok(reader.map(|reader| reader.masking(Box::new(self.redactor.clone()))))
    }

    fn make(&self, run: RunId) -> io::Result<std::os::fd::OwnedFd> {
        let path = self.path(run);
        files::make_private_dirs(&path)?;
        files::open_dir(CWD, &path)
    }
}

/// The directory of the home for what a host keeps of the runs of the registry of this name.
pub(crate) fn home_directory(name: Option<&str>) -> Option<PathBuf> {
    let (home, name) = (home()?, name?);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    // A bucket is named by its address.
    let name = if name.bytes().all(is_plain) { name.to_owned() } else { Stamp::of(name.as_bytes()).to_string() };
    Some(home.join("logs").join(name))
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::NOSPC.raw_os_error() => Error::Full(format!("{what}: {error}")),
        _ if error.kind() == io::ErrorKind::PermissionDenied => Error::Denied(format!("{what}: {error}")),
        _ => Error::Unavailable(format!("{what}: {error}")),
    }
}
