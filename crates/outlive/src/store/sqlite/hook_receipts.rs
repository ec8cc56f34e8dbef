//! Which hooks were delivered for an attempt, guarded by a file lock.
//!
//! A process that delivers holds the lock of the file, and writes each delivery into it: so no hook runs twice, and what
//! was not delivered because its process died is delivered by the next.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::directory::from_io;
use super::{SqliteStore, run_files};
use crate::model::id::RunId;
use crate::store::Error;

/// The right to tell of an attempt, as long as this is held.
pub struct HookReceipts(File);

impl SqliteStore {
    /// Takes the right to deliver hooks of an attempt; none while another process has it.
    pub fn telling(&self, run: RunId, attempt: u32) -> Result<Option<HookReceipts>, Error> {
        let inner = self.lock()?;
        let failed = |error| from_io("it cannot be noted which hooks were delivered", &error);
        let dir = run_files::attempts_dir(&inner.place, run).map_err(failed)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&dir, format!("{attempt:04}.told"), flags, inner.place.sharing.file_mode());
        let file = opened.map_err(|error| failed(error.into()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(HookReceipts(file.into()))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }
}

impl HookReceipts {
    /// Whether this was delivered.
    pub fn has(&mut self, what: &str) -> std::io::Result<bool> {
        let mut receipts = String::new();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.read_to_string(&mut receipts)?;
        Ok(receipts.lines().any(|line| line == what))
    }

    /// Notes that this was delivered. On the disk when it returns.
    pub fn note(&mut self, what: &str) -> std::io::Result<()> {
        self.0.write_all(format!("{what}\n").as_bytes())?;
        self.0.sync_data()
    }
}
