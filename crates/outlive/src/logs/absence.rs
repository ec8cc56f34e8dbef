//! Why there is nothing of an attempt to read.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::kept;
use super::writer::name;

/// Why an attempt has no log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLog {
    /// Nothing was written to it.
    Unwritten,
    /// Nothing was to be kept.
    Declined,
    /// There was one, and it was removed.
    Removed,
}

/// Notes that nothing is to be kept: an index with nothing in it, which no writer leaves behind.
pub(crate) fn decline(dir: &OwnedFd, attempt: u32, mode: Mode) -> io::Result<()> {
    kept::open(dir, &name(attempt, "log"), mode).map(drop)
}

/// Why there are no streams of this attempt in its directory.
pub(crate) fn why_none(dir: &OwnedFd, attempt: u32) -> io::Result<NoLog> {
    match rustix::fs::statat(dir, name(attempt, "log"), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(index) if index.st_size == 0 => Ok(NoLog::Declined),
        Ok(_) => Ok(NoLog::Removed),
        Err(Errno::NOENT) => Ok(NoLog::Unwritten),
        Err(error) => Err(error.into()),
    }
}
