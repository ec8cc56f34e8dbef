//! The index of a log: when how much of each stream had been written, what was left out, and where a stream began anew.
//!
//! A record has 32 bytes and is written whole. The last one is written again while a burst goes on, so that it is one.
//! A record that does not fit its own check is as if it were not there: the file may have been cut by a crash, or be
//! read while it is written. There are never many: when they are too many the oldest are merged, and the index is
//! replaced by a shorter one of the same meaning.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};

use super::Stream;
use crate::model::time::Timestamp;
use crate::util::files::TEMPORARY;

/// The version of the format, in its first record.
const VERSION: u64 = 1;
pub(super) const RECORD: usize = 32;
/// How many records there may be before the oldest are merged.
pub(super) const MOST: usize = 1 << 16;

const BEGUN: u8 = 0;
const BYTES: u8 = 1;
const HOLE: u8 = 2;
const CUT: u8 = 3;
const STOPPED: u8 = 4;

/// Something that happened to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The first record.
    Begun { version: u64 },
    /// The stream had been written up to here.
    Bytes { stream: Stream, end: u64 },
    /// This part of the stream is left out, and perhaps more parts were before.
    Hole { stream: Stream, from: u64, end: u64 },
    /// The stream was cut to `end`, for the `times`th time, and goes on from there; `lost` bytes are gone.
    Cut { stream: Stream, times: u16, lost: u64, end: u64 },
    /// The log could not be written any more.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) at: Timestamp,
    pub(super) entry: Entry,
}

impl Record {
    fn encode(self) -> [u8; RECORD] {
        let (kind, stream, times, from, end) = match self.entry {
            Entry::Begun { version } => (BEGUN, 0, 0, version, 0),
            Entry::Bytes { stream, end } => (BYTES, stream as u8, 0, 0, end),
            Entry::Hole { stream, from, end } => (HOLE, stream as u8, 0, from, end),
            Entry::Cut { stream, times, lost, end } => (CUT, stream as u8, times, lost, end),
            Entry::Stopped => (STOPPED, 0, 0, 0, 0),
        };
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.at.as_micros().to_le_bytes());
        bytes[8..16].copy_from_slice(&from.to_le_bytes());
        bytes[16..24].copy_from_slice(&end.to_le_bytes());
        bytes[24] = kind;
        bytes[25] = stream;
        bytes[26..28].copy_from_slice(&times.to_le_bytes());
        let check = check(&bytes[..28]);
        bytes[28..].copy_from_slice(&check);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |from: usize| Some(u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        if bytes.get(28..RECORD)? != check(&bytes[..28]) {
            return None;
        }
        let at = Timestamp::from_micros(word(0)?.cast_signed());
        let (from, end) = (word(8)?, word(16)?);
        let stream = if bytes[25] == 0 { Stream::Out } else { Stream::Err };
        let times = u16::from_le_bytes([bytes[26], bytes[27]]);
        let entry = match bytes[24] {
            BEGUN => Entry::Begun { version: from },
            BYTES => Entry::Bytes { stream, end },
            HOLE => Entry::Hole { stream, from, end },
            CUT => Entry::Cut { stream, times, lost: from, end },
            STOPPED => Entry::Stopped,
            _ => return None,
        };
        Some(Self { at, entry })
    }
}

/// Tells a record from what a crash leaves. It does not protect against forged records; only the watcher may write here.
fn check(bytes: &[u8]) -> [u8; 4] {
    let fold = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, fold).to_le_bytes()
}

/// What was left out of a stream, from `from` to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) from: u64,
    pub(super) end: u64,
}

/// That a stream was cut, how often, and what is gone since it was last cut to the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) at: Timestamp,
    pub(super) times: u16,
    pub(super) lost: u64,
    pub(super) end: u64,
}

/// Bytes of a stream up to `end`, written at `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) at: Timestamp,
    pub(super) stream: Stream,
    pub(super) end: u64,
}

/// What the records of an index mean together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meaning {
    /// In the order in which they were written. In each stream the ends rise.
    pub(super) stretches: Vec<Stretch>,
    pub(super) holes: [Option<Hole>; 2],
    pub(super) cuts: [Option<Cut>; 2],
    /// When the log could not be written any more.
    pub(super) stopped: Option<Timestamp>,
}

impl Meaning {
    pub(super) fn take(&mut self, record: Record) {
        match record.entry {
            Entry::Begun { .. } => {}
            Entry::Bytes { stream, end } => self.stretches.push(Stretch { at: record.at, stream, end }),
            Entry::Hole { stream, from, end } => self.holes[stream.index()] = Some(Hole { from, end }),
            Entry::Cut { stream, times, lost, end } => {
                let before = self.cuts[stream.index()].filter(|before| before.end == end && end > 0);
                let lost = lost.saturating_add(before.map_or(0, |before| before.lost));
                self.cuts[stream.index()] = Some(Cut { at: record.at, times, lost, end });
                self.holes[stream.index()] = None;
                self.void(stream, end);
            }
            Entry::Stopped => self.stopped = Some(record.at),
        }
    }

    /// Forgets what is said of a stream beyond `end`.
    fn void(&mut self, stream: Stream, end: u64) {
        let mut reached = 0;
        self.stretches.retain_mut(|stretch| {
            if stretch.stream != stream {
                return true;
            }
            let begins = std::mem::replace(&mut reached, stretch.end);
            stretch.end = stretch.end.min(end);
            begins < end
        });
    }

    /// Rewrites the index in fewer records: what is left out needs no times, and of the older half every second will do.
    pub(super) fn shorten(&mut self) {
        let mut begins = [0; 2];
        let holes = self.holes;
        let mut inside: [Option<usize>; 2] = [None; 2];
        let mut shorter: Vec<Stretch> = Vec::with_capacity(self.stretches.len());
        for stretch in &self.stretches {
            let of = stretch.stream.index();
            let begin = std::mem::replace(&mut begins[of], stretch.end);
            let left_out = holes[of].is_some_and(|hole| hole.from <= begin && stretch.end <= hole.end);
            match inside[of].filter(|_| left_out) {
                Some(index) => shorter[index].end = stretch.end,
                None => {
                    inside[of] = left_out.then_some(shorter.len());
                    shorter.push(*stretch);
                }
            }
        }
        let recent = shorter.split_off(shorter.len() / 2);
        self.stretches.clear();
        let mut open: [Option<usize>; 2] = [None; 2];
        for stretch in shorter {
            let of = stretch.stream.index();
            match open[of].take() {
                Some(index) => self.stretches[index].end = stretch.end,
                None => {
                    open[of] = Some(self.stretches.len());
                    self.stretches.push(stretch);
                }
            }
        }
        self.stretches.extend(recent);
    }

    /// The records that mean the same.
    fn records(&self, now: Timestamp) -> Vec<Record> {
        let mut records = vec![Record { at: now, entry: Entry::Begun { version: VERSION } }];
        for stream in Stream::BOTH {
            if let Some(Cut { at, times, lost, end }) = self.cuts[stream.index()] {
                records.push(Record { at, entry: Entry::Cut { stream, times, lost, end } });
            }
        }
        let bytes = |stretch: &Stretch| Entry::Bytes { stream: stretch.stream, end: stretch.end };
        records.extend(self.stretches.iter().map(|stretch| Record { at: stretch.at, entry: bytes(stretch) }));
        for stream in Stream::BOTH {
            if let Some(Hole { from, end }) = self.holes[stream.index()] {
                records.push(Record { at: now, entry: Entry::Hole { stream, from, end } });
            }
        }
        records.extend(self.stopped.map(|at| Record { at, entry: Entry::Stopped }));
        records
    }
}

/// An index being read, from its beginning on and then what is appended.
pub(super) struct IndexReader {
    dir: OwnedFd,
    name: String,
    file: Option<File>,
    inode: u64,
    read: u64,
    pub(super) meaning: Meaning,
    /// How often what was read before has changed its meaning: the index was replaced, or a stream was cut.
    pub(super) edition: u64,
    /// The last record speaks of the last stretch, and may be written again.
    open: bool,
    /// The first stretch that was read by the last refresh.
    pub(super) fresh: usize,
}

impl IndexReader {
    pub(super) fn new(dir: OwnedFd, name: String) -> Self {
        let meaning = Meaning::default();
        Self { dir, name, file: None, inode: 0, read: 0, meaning, edition: 0, open: false, fresh: 0 }
    }

    /// Reads what has been written since.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        self.fresh = self.meaning.stretches.len();
        let Ok(found) = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        if self.file.is_none() || found.st_ino != self.inode {
            self.open_file()?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        if std::mem::take(&mut self.open) {
            self.read -= RECORD as u64;
            self.meaning.stretches.pop();
            self.fresh -= 1;
        }
        let mut buffer = [0; 64 * RECORD];
        loop {
            let got = file.read_at(&mut buffer, self.read)?;
            for (bytes, last) in buffer[..got].chunks_exact(RECORD).zip((0..got / RECORD).rev().map(|left| left == 0)) {
                let record = Record::decode(bytes);
                if let Some(Record { entry: Entry::Begun { version }, .. }) = record
                    && version > VERSION
                {
                    return Err(io::Error::other(format!("`{}` was made by a later outlive", self.name)));
                }
                if record.is_none() && last {
                    // It may be about to be written.
                    break;
                }
                self.read += RECORD as u64;
                if let Some(record) = record {
                    self.edition += u64::from(matches!(record.entry, Entry::Cut { .. }));
                    self.meaning.take(record);
                }
                self.open = record.is_some_and(|record| matches!(record.entry, Entry::Bytes { .. }));
            }
            if got < buffer.len() {
                return Ok(());
            }
        }
    }

    fn open_file(&mut self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let opened = file.metadata()?;
        if !opened.is_file() {
            return Err(io::Error::other(format!("`{}` is not a file", self.name)));
        }
        (self.file, self.inode, self.read, self.meaning) = (Some(file), opened.ino(), 0, Meaning::default());
        (self.open, self.fresh) = (false, 0);
        self.edition += 1;
        Ok(())
    }
}

/// An index being written, by one writer.
pub(super) struct IndexWriter {
    dir: OwnedFd,
    name: String,
    mode: Mode,
    file: Option<File>,
    records: u64,
    /// What the last record says, if it may be written again.
    last: Option<Stretch>,
}

impl IndexWriter {
    pub(super) fn new(dir: OwnedFd, name: String, mode: Mode) -> Self {
        Self { dir, name, mode, file: None, records: 0, last: None }
    }

    /// Notes that a stream had been written up to `end`. What follows within `together` is the same record.
    pub(super) fn bytes(&mut self, at: Timestamp, stream: Stream, end: u64, together: Duration) -> io::Result<()> {
        let goes_on =
            |last: &Stretch| last.stream == stream && last.end < end && at >= last.at && at.since(last.at) < together;
        if let (Some(last), Some(file)) = (self.last.filter(goes_on), &self.file) {
            let record = Record { at: last.at, entry: Entry::Bytes { stream, end } };
            file.write_all_at(&record.encode(), (self.records - 1) * RECORD as u64)?;
            self.last = Some(Stretch { end, ..last });
            return Ok(());
        }
        self.append(Record { at, entry: Entry::Bytes { stream, end } })?;
        self.last = Some(Stretch { at, stream, end });
        Ok(())
    }

    /// Notes something else.
    pub(super) fn note(&mut self, at: Timestamp, entry: Entry) -> io::Result<()> {
        self.append(Record { at, entry })?;
        self.last = None;
        Ok(())
    }

    fn append(&mut self, record: Record) -> io::Result<()> {
        if self.file.is_none() {
            self.open(record.at)?;
        }
        if self.records >= MOST as u64 {
            self.shorten(record.at)?;
        }
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&record.encode(), self.records * RECORD as u64)?;
        self.records += 1;
        Ok(())
    }

    fn open(&mut self, now: Timestamp) -> io::Result<()> {
        let file = super::kept::open(&self.dir, &self.name, self.mode)?;
        self.records = file.metadata()?.len() / RECORD as u64;
        if self.records == 0 {
            let begun = Record { at: now, entry: Entry::Begun { version: VERSION } };
            file.write_all_at(&begun.encode(), 0)?;
            self.records = 1;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Replaces the index by a shorter one. Readers that have the longer one open see that it has been replaced.
    fn shorten(&mut self, now: Timestamp) -> io::Result<()> {
        let mut reader = IndexReader::new(self.dir.try_clone()?, self.name.clone());
        reader.refresh()?;
        while reader.meaning.stretches.len() > MOST / 4 * 3 {
            reader.meaning.shorten();
        }
        let records = reader.meaning.records(now);
        let temporary = format!("{TEMPORARY}{}", self.name);
        let _ = rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty());
        let file = super::kept::open(&self.dir, &temporary, self.mode)?;
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.encode()).collect();
        file.write_all_at(&bytes, 0)?;
        rustix::fs::renameat(&self.dir, &temporary, &self.dir, &self.name)?;
        self.records = records.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}
