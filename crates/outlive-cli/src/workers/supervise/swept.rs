//! When a registry was last swept, kept in the home: the schedule of sweeps holds for every supervisor that comes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use outlive::error::Error;
use outlive::registry::Registry;
use outlive::time::Timestamp;
use sha2::{Digest, Sha256};

/// The file that says so; none where there is no home. Its name does not tell the URL, which may bear a password.
fn file(registry: &Registry) -> Option<PathBuf> {
    let digest = Sha256::digest(registry.url().as_bytes());
    let name: String = digest[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(outlive::host::home::home()?.join("swept").join(name))
}

/// How long ago it was swept; none where that is unknown. What lies ahead of the clock is not known.
pub(super) fn since(registry: &Registry, now: Timestamp) -> Option<Duration> {
    let text = std::fs::read_to_string(file(registry)?).ok()?;
    let at: Timestamp = text.trim().parse().ok()?;
    (at <= now).then(|| now.since(at))
}

/// Notes that it was swept at a moment: a reader finds it whole, or what was there before.
pub(super) fn note(registry: &Registry, at: Timestamp) -> Result<(), Error> {
    let Some(path) = file(registry) else { return Ok(()) };
    let write = || -> io::Result<()> {
        let dir = path.parent().unwrap_or(&path);
        outlive::registry::make_home(dir).map_err(std::io::Error::other)?;
        let next = path.with_extension(std::process::id().to_string());
        std::fs::write(&next, format!("{at}\n"))?;
        std::fs::rename(&next, &path)
    };
    write().map_err(|error| Error::Invalid(format!("`{}` cannot be written: {error}", path.display())))
}
