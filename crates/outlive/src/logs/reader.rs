//! A log as it is read: both streams put together again, while it is written or long after.
//!
//! Never more than a piece of it is in memory. What is read is looked up again afterwards: had it been left out
//! meanwhile, it would be nothing but zeros.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};

use super::index::{Hole, IndexReader};
use super::kept::stars;
use super::writer::name;
use super::{Mask, Stream};
use crate::model::time::Timestamp;

/// The most bytes that a piece has.
const STEP: u64 = 64 << 10;

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// When it was written: to some milliseconds, less exactly where it is long ago and there was much.
    pub at: Timestamp,
    /// The stream it was written to.
    pub stream: Stream,
    /// Its bytes, or what is missing there.
    pub part: Part,
}

/// What a piece of a log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes as they were written.
    Bytes(Vec<u8>),
    /// So many bytes are not there any more: there was too much, or the command cut its own output.
    LeftOut(u64),
}

/// The log of one attempt, being read.
pub struct LogReader {
    dir: OwnedFd,
    sources: [LogFile; 2],
    index: IndexReader,
    /// The first note that is not read through, in this edition of the index.
    cursor: (u64, usize),
    /// What was never noted is wanted as well.
    unnoted: bool,
    mask: Option<Box<dyn Mask>>,
    watch: Option<OwnedFd>,
}

struct LogFile {
    name: String,
    file: Option<File>,
    wanted: bool,
    /// Up to where it is read.
    read: u64,
    /// Up to where it is wanted.
    until: u64,
    /// The cut that was taken into account.
    cut: u16,
    /// The cut that was reported last.
    reported: u16,
    /// It was found cut, and begun anew, before that was noted.
    begun_anew: bool,
}

/// What is read next.
struct Next {
    at: Timestamp,
    stream: Stream,
    to: u64,
    is_noted: bool,
}

impl LogReader {
    /// The log of an attempt in this directory; none where there is none.
    pub(crate) fn open(dir: OwnedFd, attempt: u32) -> io::Result<Option<Self>> {
        let source = |stream: Stream| LogFile {
            name: name(attempt, stream.as_str()),
            file: None,
            wanted: true,
            read: 0,
            until: u64::MAX,
            cut: 0,
            reported: 0,
            begun_anew: false,
        };
        let index = IndexReader::new(dir.try_clone()?, name(attempt, "log"));
        let sources = Stream::BOTH.map(source);
        let mut reader = Self { dir, sources, index, cursor: (0, 0), unnoted: false, mask: None, watch: None };
        reader.refresh()?;
        Ok(reader.sources.iter().any(|source| source.file.is_some()).then_some(reader))
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> io::Result<bool> {
        let sizes = self.sources.iter().map(LogFile::size).collect::<io::Result<Vec<u64>>>()?;
        Ok(sizes.iter().all(|size| *size == 0))
    }

    /// Masks secrets in what was never noted: in all else they are masked already.
    #[must_use]
    pub fn masking(mut self, mask: Box<dyn Mask>) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Only this stream.
    #[must_use]
    pub fn only(mut self, stream: Stream) -> Self {
        self.sources[1 - stream.index()].wanted = false;
        self
    }

    /// Up to where each stream is read: a place to go on from.
    pub fn place(&self) -> [u64; 2] {
        self.sources.each_ref().map(|source| source.read)
    }

    /// Goes on from such a place.
    pub fn go_to(&mut self, place: [u64; 2]) {
        for (source, read) in self.sources.iter_mut().zip(place) {
            source.read = read;
        }
        self.cursor.1 = 0;
    }

    /// Ends with what is there now, however fast it grows.
    pub fn stop_at_present(&mut self) -> io::Result<()> {
        for source in &mut self.sources {
            source.until = source.size()?;
        }
        Ok(())
    }

    /// Whether to read what was never noted, after everything that was: because the attempt has ended, or because
    /// no watcher seems to be left. What is not noted yet may hold a secret that is about to be masked.
    pub fn read_unnoted(&mut self, wanted: bool) {
        self.unnoted = wanted;
    }

    /// Whether there is output that was never noted.
    pub fn has_unnoted(&self) -> io::Result<bool> {
        Ok(self.rest()?.next().is_some())
    }

    /// Skips what was written before.
    pub fn skip_before(&mut self, since: Timestamp) -> io::Result<()> {
        self.refresh()?;
        let stretches = &self.index.meaning.stretches;
        for stretch in stretches.iter().take_while(|stretch| stretch.at < since) {
            self.sources[stretch.stream.index()].read = stretch.end;
        }
        if stretches.last().is_none_or(|stretch| stretch.at < since) {
            for source in &mut self.sources {
                if source.changed()? < since {
                    source.read = source.size()?;
                }
            }
        }
        Ok(())
    }

    /// Skips all but the last `lines` lines, of both streams together.
    pub fn skip_to_last(&mut self, lines: u64) -> io::Result<()> {
        self.refresh()?;
        let mut begins = self.sources.each_ref().map(|source| source.read);
        let mut stretches = Vec::new();
        let noted = self.index.meaning.stretches.iter().map(|stretch| (stretch.stream, stretch.end));
        // What was never noted counts, whether it is read now or later.
        for (stream, end) in noted.chain(self.rest()?.map(|(_, stream, size)| (stream, size))) {
            let of = stream.index();
            let end = end.min(self.sources[of].end()?);
            if self.sources[of].wanted && end > begins[of] {
                stretches.push((stream, std::mem::replace(&mut begins[of], end)..end));
            }
        }
        // From here on backwards: what lies behind `begins` is wanted.
        let (mut found, mut last) = (0, true);
        'found: for (stream, stretch) in stretches.iter().rev().take_while(|_| lines > 0) {
            let of = stream.index();
            let mut end = stretch.end;
            while end > stretch.start {
                let (from, to) = self.backwards(*stream, stretch.start, end);
                let bytes = self.sources[of].bytes(from, to)?;
                for (index, _) in bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                    let ends_all = last && index + 1 == bytes.len();
                    last = false;
                    found += u64::from(!ends_all);
                    if found == lines {
                        begins[of] = from + index as u64 + 1;
                        break 'found;
                    }
                }
                last &= bytes.is_empty();
                end = from;
            }
            begins[of] = stretch.start;
        }
        for (source, begin) in self.sources.iter_mut().zip(begins) {
            source.read = begin;
        }
        Ok(())
    }

    /// The last part of a stretch up to `end` that is there; an empty one where it is left out.
    fn backwards(&self, stream: Stream, start: u64, end: u64) -> (u64, u64) {
        let from = start.max(end.saturating_sub(STEP));
        match self.index.meaning.holes[stream.index()] {
            Some(hole) if hole.from < end && end <= hole.end => (start.max(hole.from), start.max(hole.from)),
            Some(hole) if hole.end < end => (from.max(hole.end), end),
            _ => (from, end),
        }
    }

    /// The next piece; none where everything is read that is there.
    pub fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        loop {
            self.refresh()?;
            if let Some(cut) = self.untold_cut() {
                return Ok(Some(cut));
            }
            let Some(Next { at, stream, to, is_noted }) = self.choose()? else { return Ok(None) };
            let of = stream.index();
            let from = self.sources[of].read;
            let hole = self.index.meaning.holes[of];
            if let Some(hole) = hole.filter(|hole| hole.from <= from && from < hole.end) {
                self.sources[of].read = hole.end;
                return Ok(Some(Piece { at, stream, part: Part::LeftOut(hole.end - from) }));
            }
            let mut to = to.min(from + STEP);
            for border in [hole.map(|hole| hole.from), self.index.meaning.cuts[of].map(|cut| cut.end)] {
                to = border.filter(|border| *border > from).map_or(to, |border| to.min(border));
            }
            let bytes = match self.mask.as_deref().filter(|_| !is_noted) {
                Some(mask) => self.sources[of].masked(from, to, mask)?,
                None => self.sources[of].bytes(from, to)?,
            };
            let edition = self.index.edition;
            self.refresh_index()?;
            let grown = self.index.meaning.holes[of];
            let left_out = |hole: Hole| hole.from < to && from < hole.end;
            if self.index.edition != edition || grown.is_some_and(left_out) {
                continue;
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            self.sources[of].read += bytes.len() as u64;
            return Ok(Some(Piece { at, stream, part: Part::Bytes(bytes) }));
        }
    }

    /// When the log could not be written any more, if that was before its attempt ended.
    pub fn stopped(&self) -> Option<Timestamp> {
        self.index.meaning.stopped
    }

    /// Waits until something may have been written, for at most `timeout`. The first call does not wait: whatever
    /// happens after it is noticed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let Some(watch) = &self.watch else {
            let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            let written = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
            inotify::add_watch(&events, format!("/proc/self/fd/{}", self.dir.as_raw_fd()), written)?;
            self.watch = Some(events);
            return Ok(());
        };
        let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&limit));
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut buffer);
        while events.next().is_ok() {}
        Ok(())
    }

    fn refresh_index(&mut self) -> io::Result<()> {
        self.index.refresh()?;
        let same = self.cursor.0 == self.index.edition;
        self.cursor = (self.index.edition, if same { self.cursor.1.min(self.index.fresh) } else { 0 });
        Ok(())
    }

    fn refresh(&mut self) -> io::Result<()> {
        self.refresh_index()?;
        for (source, cut) in self.sources.iter_mut().zip(self.index.meaning.cuts) {
            source.open(&self.dir)?;
            if let Some(cut) = cut.filter(|cut| cut.times != source.cut) {
                source.cut = cut.times;
                if std::mem::take(&mut source.begun_anew) {
                    source.reported = cut.times;
                } else {
                    source.read = source.read.min(cut.end);
                }
            }
            if source.size()? < source.read {
                (source.read, source.begun_anew) = (0, true);
            }
        }
        Ok(())
    }

    fn untold_cut(&mut self) -> Option<Piece> {
        for stream in Stream::BOTH {
            let source = &mut self.sources[stream.index()];
            let cut = self.index.meaning.cuts[stream.index()];
            if let Some(cut) = cut.filter(|cut| source.wanted && cut.times != source.reported && cut.end == source.read)
            {
                source.reported = cut.times;
                return Some(Piece { at: cut.at, stream, part: Part::LeftOut(cut.lost) });
            }
        }
        None
    }

    /// Where to go on: in the order of the notes, then with what was never noted.
    fn choose(&mut self) -> io::Result<Option<Next>> {
        let sizes = [self.sources[0].end()?, self.sources[1].end()?];
        while let Some(stretch) = self.index.meaning.stretches.get(self.cursor.1) {
            let source = &self.sources[stretch.stream.index()];
            let to = stretch.end.min(sizes[stretch.stream.index()]);
            if source.wanted && to > source.read {
                return Ok(Some(Next { at: stretch.at, stream: stretch.stream, to, is_noted: true }));
            }
            self.cursor.1 += 1;
        }
        let rest = self.rest()?.map(|(at, stream, to)| Next { at, stream, to, is_noted: false }).next();
        Ok(rest.filter(|_| self.unnoted))
    }

    /// What is written and not noted, the stream first that was written first.
    fn rest(&self) -> io::Result<impl Iterator<Item = (Timestamp, Stream, u64)> + use<>> {
        let mut rest = Vec::new();
        for stream in Stream::BOTH {
            let source = &self.sources[stream.index()];
            let end = source.end()?;
            if source.wanted && end > source.read {
                rest.push((source.changed()?, stream, end));
            }
        }
        rest.sort_by_key(|(at, _, _)| *at);
        Ok(rest.into_iter())
    }
}

impl LogFile {
    fn open(&mut self, dir: &OwnedFd) -> io::Result<()> {
        if self.file.is_some() || !self.wanted {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(dir, &self.name, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                if !file.metadata()?.is_file() {
                    return Err(io::Error::other(format!("`{}` is not a file", self.name)));
                }
                self.file = Some(file);
                Ok(())
            }
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn size(&self) -> io::Result<u64> {
        self.file.as_ref().map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    /// How much of it is there and wanted.
    fn end(&self) -> io::Result<u64> {
        Ok(self.size()?.min(self.until))
    }

    /// When it was last written.
    fn changed(&self) -> io::Result<Timestamp> {
        let Some(file) = &self.file else { return Ok(Timestamp::default()) };
        let found = file.metadata()?;
        Ok(Timestamp::from_micros(found.mtime().saturating_mul(1_000_000).saturating_add(found.mtime_nsec() / 1_000)))
    }

    fn bytes(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        let mut got = 0;
        while got < bytes.len() {
            match file.read_at(&mut bytes[got..], from + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Reads bytes with their secrets masked, wherever they begin and end.
    fn masked(&self, from: u64, to: u64, mask: &dyn Mask) -> io::Result<Vec<u8>> {
        let reach = mask.longest() as u64;
        let begin = from.saturating_sub(reach);
        let mut bytes = self.bytes(begin, to.saturating_add(reach))?;
        for secret in mask.spans(&bytes) {
            let starred = stars(&bytes[secret.clone()]);
            bytes[secret].copy_from_slice(&starred);
        }
        let at = |offset: u64| usize::try_from(offset - begin).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[at(from)..at(to)].to_vec())
    }
}
