//! Discovery: which registry is meant where a caller names none.
//!
//! The command and every program that uses the library find the same registry from the same directory and environment.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::host::home::home;
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
        let variable = || std::env::var(REGISTRY_VARIABLE).ok().filter(|url| !url.is_empty());
        let url = url.map(str::to_owned).or_else(variable)?;
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
