//! Places: where files of exported history are, a directory or a prefix of a bucket that the user has named.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

#[cfg(feature = "object")]
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode};

use crate::secrets::trust::{ArtifactLocation, NamedLocation};
use crate::store::Error;
#[cfg(feature = "object")]
use crate::store::object::{Bucket, BucketAddress, Landed, spawn, system_time};
use crate::util::files::{self, Prepared, Published};

/// A location that is open.
pub(crate) struct HistoryPlace {
    /// Where it is, without how it is reached.
    pub(crate) shown: String,
    reach: Reach,
}

enum Reach {
    Directory(OwnedFd),
    #[cfg(feature = "object")]
    Bucket(Bucket, String),
}

impl HistoryPlace {
    /// Opens a location. A directory must be there.
    pub(crate) fn open(named: &NamedLocation) -> Result<Self, Error> {
        let shown = named.location.to_string();
        let reach = match &named.location {
            ArtifactLocation::Directory(path) => {
                let open = files::open_dir(rustix::fs::CWD, path);
                Reach::Directory(open.map_err(|error| failure(&shown, &error))?)
            }
            #[cfg(feature = "object")]
            ArtifactLocation::Bucket { .. } => {
                let unusable = |error: &dyn std::fmt::Display| Error::Unsupported(format!("`{shown}`: {error}"));
                let address: BucketAddress = named.url.parse().map_err(|error| unusable(&error))?;
                let bucket = Bucket::new(&address, system_time()).map_err(|error| unusable(&error))?;
                Reach::Bucket(bucket, address.prefix)
            }
            #[cfg(not(feature = "object"))]
            ArtifactLocation::Bucket { .. } => {
                let why = "a bucket needs the cargo feature `object`, which this build lacks";
                return Err(Error::Unsupported(format!("`{shown}`: {why}")));
            }
        };
        Ok(Self { shown, reach })
    }

    /// Writes a file that is durable when this returns. False where something has its name, which is left as it is; `mark` is in
    /// the bytes of this file alone.
    #[cfg_attr(not(feature = "object"), expect(unused_variables, reason = "a directory recognises no file"))]
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>, mark: &str) -> Result<bool, Error> {
        match &self.reach {
            Reach::Directory(dir) => {
                put_file(dir, name, &bytes).map_err(|error| failure(&format!("{}/{name}", self.shown), &error))
            }
            #[cfg(feature = "object")]
            Reach::Bucket(bucket, prefix) => {
                let (bucket, key, mark) = (bucket.clone(), below(prefix, name), mark.to_owned());
                let put = move || async move { bucket.put(&key, Bytes::from(bytes), &mark, None).await };
                Ok(matches!(spawn(put).await?, Landed::Done(_)))
            }
        }
    }

    /// These bytes of a file, or all of them; none where there is no such file.
    pub(crate) async fn read(&self, name: &str, range: Option<Range<u64>>) -> Result<Option<Vec<u8>>, Error> {
        match &self.reach {
            Reach::Directory(dir) => match read_file(dir, name, range) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                read => read.map(Some).map_err(|error| failure(&format!("{}/{name}", self.shown), &error)),
            },
            #[cfg(feature = "object")]
            Reach::Bucket(bucket, prefix) => {
                let (bucket, key) = (bucket.clone(), below(prefix, name));
                let read = move || async move { bucket.get_range(&key, range).await };
                Ok(spawn(read).await?.map(|bytes| bytes.to_vec()))
            }
        }
    }

    /// Removes a file.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), Error> {
        match &self.reach {
            Reach::Directory(dir) => match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
                Err(error) => Err(failure(&format!("{}/{name}", self.shown), &error.into())),
            },
            #[cfg(feature = "object")]
            Reach::Bucket(bucket, prefix) => {
                let (bucket, key) = (bucket.clone(), below(prefix, name));
                let left = spawn(move || async move { bucket.delete(&[key]).await }).await?;
                left.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
            }
        }
    }
}

#[cfg(feature = "object")]
fn below(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
}

fn failure(path: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::Denied(format!("`{path}`: {error}")),
        _ => Error::Unavailable(format!("`{path}`: {error}")),
    }
}

/// The directory of a file below `dir`, and its name there.
fn split(dir: &OwnedFd, name: &str, make: bool) -> io::Result<(OwnedFd, String)> {
    let Some((parent, name)) = name.split_once('/') else { return Ok((dir.try_clone()?, name.to_owned())) };
    let parent = match make {
        true => files::make_dir(dir, Path::new(parent), Mode::from_raw_mode(0o755))?,
        false => files::open_dir(dir, Path::new(parent))?,
    };
    Ok((parent, name.to_owned()))
}

fn put_file(dir: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<bool> {
    let (parent, name) = split(dir, name, true)?;
    let prepared = Prepared::new(&parent, bytes, Mode::from_raw_mode(0o644), true)?;
    let published = prepared.publish(&parent, Path::new(&name))?;
    // The names are there after a power cut.
    rustix::fs::fsync(&parent)?;
    rustix::fs::fsync(dir)?;
    Ok(published == Published::Done)
}

fn read_file(dir: &OwnedFd, name: &str, range: Option<Range<u64>>) -> io::Result<Vec<u8>> {
    let (parent, name) = split(dir, name, false)?;
    let mut file = files::open_file(&parent, Path::new(&name))?;
    let mut bytes = Vec::new();
    match range {
        None => file.read_to_end(&mut bytes)?,
        Some(range) => {
            file.seek(SeekFrom::Start(range.start))?;
            file.take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?
        }
    };
    Ok(bytes)
}
