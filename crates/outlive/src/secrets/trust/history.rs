//! Locations of exported history: where this user has said that a registry's history is, by registry.
//!
//! Each is a file of its own in the home that has the URL with whatever it takes to reach it. A writer of a registry can
//! record a location there, which is shown to people and never opened.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use sha2::{Digest, Sha256};

use super::NamedLocation;
use crate::model::hex::hex;
use crate::util::files::{self, Prepared};

const DIRECTORY: &str = "history";
/// The longest URL.
const LIMIT: u64 = 8 << 10;

/// The locations of one registry's exported history that a home names.
pub(crate) struct HistoryLocations {
    directory: PathBuf,
    /// What the files of the registry begin with: it may call itself anything.
    registry: String,
}

impl HistoryLocations {
    /// Those of the registry that calls itself `registry`.
    pub(crate) fn of(home: &Path, registry: &str) -> Self {
        Self { directory: home.join(DIRECTORY), registry: format!("{}-", hex(&Sha256::digest(registry)[..16])) }
    }

    /// All of them, in the order of their files' names.
    pub(crate) fn read(&self) -> io::Result<Vec<NamedLocation>> {
        let dir = match files::open_dir(rustix::fs::CWD, &self.directory) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = files::names(&dir)?;
        names.retain(|name| name.starts_with(&self.registry));
        names.sort_unstable();
        let read = |name: &String| {
            let odd = |why: &dyn std::fmt::Display| {
                let path = self.directory.join(name);
                io::Error::new(io::ErrorKind::InvalidData, format!("`{}`: {why}", path.display()))
            };
            let text = String::from_utf8(files::read(&dir, Path::new(name), LIMIT)?).map_err(|error| odd(&error))?;
            NamedLocation::parse(text.trim_end()).map_err(|error| odd(&error))
        };
        names.iter().map(read).collect()
    }

    /// Remembers a location.
    pub(crate) fn add(&self, location: &NamedLocation) -> io::Result<()> {
        files::make_private_dirs(&self.directory)?;
        let dir = files::open_dir(rustix::fs::CWD, &self.directory)?;
        let name = format!("{}{}", self.registry, hex(&Sha256::digest(&location.url)[..8]));
        let prepared = Prepared::new(&dir, format!("{}\n", location.url).as_bytes(), Mode::from_raw_mode(0o600), true)?;
        prepared.publish(&dir, Path::new(&name))?;
        Ok(rustix::fs::fsync(&dir)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_of_one_registry_and_keep_how_they_are_reached() {
        let home = tempfile::tempdir().unwrap();
        let of = |registry: &str| HistoryLocations::of(home.path(), registry);
        assert_eq!(of("one").read().unwrap(), []);
        let bucket = NamedLocation::parse("s3://AK:SK@data/p?endpoint=http://127.0.0.1:9").unwrap();
        let directory = NamedLocation::parse("/srv/history").unwrap();
        for location in [&bucket, &directory, &bucket] {
            of("one").add(location).unwrap();
        }
        let mut read = of("one").read().unwrap();
        read.sort_by_key(|location| location.url.clone());
        assert_eq!(read, [directory, bucket]);
        assert_eq!(of("../one").read().unwrap(), []);
        let file = std::fs::read_dir(home.path().join(DIRECTORY)).unwrap().next().unwrap().unwrap().path();
        std::fs::write(&file, "http://evil/x").unwrap();
        assert!(of("one").read().unwrap_err().to_string().contains(file.to_str().unwrap()));
    }
}
