//! One stream of a log as it is written: its file, what of it has been seen, and the masking of secrets in it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, Mode, OFlags};

use super::index::{Entry, Hole, IndexReader};
use super::{Mask, Stream};

/// How much of a file is looked through at a time.
const STEP: usize = 256 << 10;
/// Far beyond the end of any log, where a hole changes nothing.
const BEYOND: u64 = 1 << 42;
/// What holes are rounded to: the blocks of the file systems that can have any.
const BLOCK: u64 = 4 << 10;

/// Opens a file of a log for reading and writing, made if it is missing, never through a link.
pub(super) fn open(dir: &OwnedFd, name: &str, mode: Mode) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(dir, name, flags, mode)?);
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(io::Error::other(format!("`{name}` is not a file of its own")));
    }
    // The umask has no say in who may read a run.
    if found.len() == 0 && Mode::from_raw_mode(found.mode()) != mode {
        rustix::fs::fchmod(&file, mode)?;
    }
    Ok(file)
}

/// What of a stream is kept when there is too much: the beginning up to `head`, and the last `tail` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    head: u64,
    tail: u64,
    /// How much more there may be before something is given back to the disk.
    slack: u64,
}

impl Keep {
    pub(super) fn of(cap: u64) -> Self {
        let head = cap / 4 / BLOCK * BLOCK;
        Self { head, tail: cap.saturating_sub(head), slack: (cap / 16).max(64 << 10) }
    }

    /// Up to where the middle of a file of this size is to be left out, given up to where it is.
    fn hole_end(self, size: u64, hole: Option<Hole>) -> Option<u64> {
        let from = hole.map_or(self.head, |hole| hole.end);
        let end = size.saturating_sub(self.tail) / BLOCK * BLOCK;
        (end >= from.saturating_add(self.slack)).then_some(end)
    }
}

/// A stream of a log.
pub(super) struct KeptStream {
    pub(super) stream: Stream,
    /// Its end is where it is written; this descriptor is shared with the command.
    append: File,
    file: File,
    /// How much of it is noted, and has been looked through.
    pub(super) seen: u64,
    hole: Option<Hole>,
    cuts: u16,
    /// The last bytes as they were before anything was masked: a secret may go on behind them.
    before: Vec<u8>,
    /// Up to where secrets are masked.
    masked: u64,
}

impl KeptStream {
    pub(super) fn open(dir: &OwnedFd, stream: Stream, name: &str, index: &str, mode: Mode) -> io::Result<Self> {
        let file = open(dir, name, mode)?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let append = rustix::fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())?;
        let (mut seen, mut hole, mut cuts) = (0, None, 0);
        if file.metadata()?.len() > 0 {
            // A suspended attempt goes on: what is noted is noted.
            let mut noted = IndexReader::new(dir.try_clone()?, index.to_owned());
            noted.refresh()?;
            let of = stream.index();
            (hole, cuts) = (noted.meaning.holes[of], noted.meaning.cuts[of].map_or(0, |cut| cut.times));
            let mut ends = noted.meaning.stretches.iter().filter(|stretch| stretch.stream == stream);
            seen = ends.next_back().map_or(0, |stretch| stretch.end);
        }
        Ok(Self { stream, append: append.into(), file, seen, hole, cuts, before: Vec::new(), masked: 0 })
    }

    /// A descriptor that a command can be given as its own.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.append.try_clone()?.into())
    }

    /// A path that leads to the file as long as it is open, whatever becomes of its name.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    pub(super) fn size(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_size.cast_unsigned())
    }

    /// Appends bytes, with their secrets masked.
    pub(super) fn write(&mut self, bytes: &[u8], mask: Option<&dyn Mask>) -> io::Result<()> {
        let done = match mask {
            None => self.append(bytes),
            Some(mask) => {
                let mut bytes = bytes.to_vec();
                self.mask(self.seen, &mut bytes, mask)?;
                self.append(&bytes)
            }
        };
        if done.is_ok() && self.size()? != self.seen {
            // Another process writes here as well; what was said of where things are is void.
            self.before.clear();
        }
        done
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.append.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.seen += written as u64;
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Masks the secrets in `bytes`, which stand or will stand at `offset` of the file, and what of them stands before.
    fn mask(&mut self, offset: u64, bytes: &mut [u8], mask: &dyn Mask) -> io::Result<()> {
        let known = self.before.len();
        let mut joined = std::mem::take(&mut self.before);
        joined.extend_from_slice(bytes);
        let begins = offset - known as u64;
        for span in mask.spans(&joined) {
            let end = begins + span.end as u64;
            if end <= self.masked {
                continue;
            }
            self.masked = end;
            if span.start < known {
                let part = &joined[span.start..span.end.min(known)];
                self.file.write_all_at(&stars(part), begins + span.start as u64)?;
            }
            if span.end > known {
                let from = span.start.max(known) - known;
                let part = &mut bytes[from..span.end - known];
                let starred = stars(part);
                part.copy_from_slice(&starred);
            }
        }
        let keep = mask.longest().saturating_sub(1).min(joined.len());
        joined.drain(..joined.len() - keep);
        self.before = joined;
        Ok(())
    }

    /// Masks the secrets in a part of the file that the command has written.
    fn mask_written(&mut self, from: u64, to: u64, mask: &dyn Mask) -> io::Result<()> {
        let mut buffer = vec![0; STEP.min(usize::try_from(to.saturating_sub(from)).unwrap_or(STEP))];
        let mut at = from;
        while at < to {
            let step = usize::try_from(to - at).unwrap_or(STEP).min(STEP);
            let got = self.file.read_at(&mut buffer[..step], at)?;
            if got == 0 {
                break;
            }
            let mut bytes = buffer[..got].to_vec();
            self.mask(at, &mut bytes, mask)?;
            // Only what is masked is written: the rest may be cut off by the command at any time.
            if bytes != buffer[..got] {
                let masked = |index: &usize| bytes[*index] != buffer[*index];
                let first = (0..got).find(masked).unwrap_or(0);
                let last = (first..got).rfind(masked).unwrap_or(first);
                self.file.write_all_at(&bytes[first..=last], at + first as u64)?;
            }
            at += got as u64;
        }
        Ok(())
    }

    /// Looks at what the command has written since. Answers with what is to be noted if it cut its own output.
    pub(super) fn look(&mut self, size: u64, keep: Keep, mask: Option<&dyn Mask>) -> io::Result<Option<Entry>> {
        let cut = (size < self.seen).then(|| self.begin_anew(self.seen, 0));
        let new = self.seen..size;
        self.seen = size;
        let Some(mask) = mask else { return Ok(cut) };
        // What is left out anyway is not looked through, but for what a secret at its borders may reach into.
        match keep.hole_end(size, self.hole) {
            None => self.mask_written(new.start, new.end, mask)?,
            Some(hole_end) => {
                let reach = mask.longest() as u64;
                let head = keep.head.saturating_add(reach).min(size);
                let reaches_head = self.hole.is_none() && new.start < head;
                if reaches_head {
                    self.mask_written(new.start, head, mask)?;
                }
                let tail = new.start.max(hole_end.saturating_sub(reach));
                if reaches_head || tail != new.start {
                    self.before.clear();
                }
                self.mask_written(tail, new.end, mask)?;
            }
        }
        Ok(cut)
    }

    fn begin_anew(&mut self, lost: u64, end: u64) -> Entry {
        self.cuts = self.cuts.wrapping_add(1);
        (self.seen, self.hole, self.masked) = (end, None, end);
        self.before.clear();
        Entry::Cut { stream: self.stream, times: self.cuts, lost, end }
    }

    /// What is to be left out, if there is too much. It is noted before it is done.
    pub(super) fn too_much(&self, keep: Keep) -> Option<Hole> {
        let end = keep.hole_end(self.seen, self.hole)?;
        Some(Hole { from: keep.head, end })
    }

    /// Gives the middle back to the disk.
    pub(super) fn leave_out(&mut self, hole: Hole) -> io::Result<()> {
        let from = self.hole.map_or(hole.from, |before| before.end);
        self.hole = Some(hole);
        Ok(rustix::fs::fallocate(&self.file, PUNCH, from, hole.end - from)?)
    }

    /// Whether the file system can give the middle of a file back.
    pub(super) fn can_leave_out(&self) -> bool {
        rustix::fs::fallocate(&self.file, PUNCH, BEYOND, BLOCK).is_ok()
    }

    /// Where the middle cannot be given back: what is to be cut off once the file is far too long, all but its head.
    pub(super) fn cut_to_head(&mut self, keep: Keep, cap: u64) -> Option<Entry> {
        let too_long = self.seen > cap.saturating_mul(4);
        too_long.then(|| self.begin_anew(self.seen - keep.head, keep.head))
    }

    /// Cuts off what has been noted as cut off.
    pub(super) fn truncate(&self) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.file, self.seen)?)
    }
}

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// As many stars; lines stay lines.
pub(super) fn stars(secret: &[u8]) -> Vec<u8> {
    secret.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b'*' }).collect()
}
