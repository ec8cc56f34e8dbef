//! Discovery: which registry is meant where a caller names none, and which run this process belongs to.
//!
//! The command and every program that uses the library find the same registry from the same directory and environment.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::host::home::home;
use crate::host::{EPOCH_VARIABLE, RUN_VARIABLE};
use crate::model::id::{Epoch, RunId};
use crate::model::run::{TRACE_VARIABLE, TraceParent};
use crate::redact::Redactor;

/// The variable that names the registry.
pub const REGISTRY_VARIABLE: &str = "OUTLIVE_REGISTRY";
/// The directory of a repository's registry.
pub const DIRECTORY: &str = ".outlive";

/// Where a registry is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory of this machine.
    Directory(PathBuf),
    /// Anything else that a URL names.
    Url(String),
}

impl Location {
    /// The registry that the caller or the environment names.
    pub fn named(url: Option<&str>) -> Option<Self> {
        let url = url.map(str::to_owned).or_else(|| variable(REGISTRY_VARIABLE))?;
        Some(match url.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Self::Directory(path.into()),
            _ => Self::Url(url),
        })
    }

    /// Where the registry is: as named, or in the environment, or the nearest `.outlive` of this directory or one above
    /// it, or the repository's own, or the user's. A `.outlive` that another user made and does not share is passed over:
    /// in a directory that many write, any user could make one.
    pub fn find(named: Option<&str>) -> Result<Self, Error> {
        if let Some(named) = Self::named(named) {
            return Ok(named);
        }
        let here = std::env::current_dir().ok();
        let above = |name: &str| {
            let dirs = here.iter().flat_map(|here| here.ancestors());
            dirs.map(|dir| dir.join(name)).find(|path| path.exists() && (name != DIRECTORY || is_ours(path)))
        };
        let above = |name: &str| above(name).and_then(|path| path.parent().map(Path::to_owned));
        if let Some(found) = above(DIRECTORY) {
            return Ok(Self::Directory(found.join(DIRECTORY)));
        }
        // A checkout that cannot be written to has no registry of its own.
        if let Some(repository) = above(".git").filter(|repository| is_writable(repository)) {
            return Ok(Self::Directory(repository.join(DIRECTORY)));
        }
        let home = home().ok_or_else(|| Error::Invalid("no registry: neither HOME nor OUTLIVE_HOME is set".into()))?;
        Ok(Self::Directory(home.join("registry")))
    }

    /// The URL of the registry there, which may bear a password.
    pub fn url(&self) -> String {
        match self {
            Self::Directory(path) => format!("sqlite:{}", path.display()),
            Self::Url(url) => url.clone(),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            // It may bear a password.
            Self::Url(url) => f.debug_tuple("Url").field(&Redactor::default().text(url)).finish(),
        }
    }
}

/// Whether there is no registry here yet, or another process is creating it. A registry that may not be read, or that
/// lost its identity, is not missing.
///
/// The order matters: a creator writes the identity before it records a run or makes the database, so what is found
/// after a missing identity proves either that the registry is incomplete, or that it is complete by now.
pub fn is_missing(path: &Path) -> bool {
    is_absent(&path.join("registry.id")) && has_no_runs(&path.join("runs")) && is_absent(&path.join("registry.db"))
}

fn has_no_runs(runs: &Path) -> bool {
    match std::fs::read_dir(runs) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether a directory is a registry.
pub fn is_registry(path: &Path) -> bool {
    !is_absent(&path.join("registry.id"))
}

fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The run that this process belongs to, as its environment says; none outside a run.
pub fn own_run() -> Result<Option<RunId>, Error> {
    let invalid = |error| Error::Invalid(format!("{RUN_VARIABLE}: {error}"));
    variable(RUN_VARIABLE).map(|id| id.parse().map_err(invalid)).transpose()
}

/// The epoch of the attempt that this process belongs to, as its environment says.
pub fn own_epoch() -> Result<Option<Epoch>, Error> {
    let parse = |text: String| {
        let epoch = text.parse().map_err(|_| Error::Invalid(format!("{EPOCH_VARIABLE}: `{text}` is not a number")));
        epoch.map(Epoch)
    };
    variable(EPOCH_VARIABLE).map(parse).transpose()
}

/// The span of a distributed trace that this process belongs to, as its environment says. A value that is malformed is
/// ignored: it was set for other programs.
pub fn own_trace_parent() -> Option<TraceParent> {
    variable(TRACE_VARIABLE)?.parse().ok()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn is_writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Whether this user made a directory, or a group that this user belongs to shares it.
fn is_ours(directory: &Path) -> bool {
    let Ok(found) = std::fs::symlink_metadata(directory) else { return false };
    let is_shared = found.is_dir() && found.mode() & 0o072 == 0o070;
    let is_member = || {
        let groups = rustix::process::getgroups().unwrap_or_default();
        groups.into_iter().chain([rustix::process::getegid()]).any(|group| group.as_raw() == found.gid())
    };
    found.uid() == rustix::process::geteuid().as_raw() || is_shared && is_member()
}
