//! A log as it is written: by the one process that watches over an attempt.

use std::cell::LazyCell;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};

use super::growth::{Growth, Watched};
use super::index::{Entry, IndexWriter};
use super::kept::{Keep, KeptStream};
use super::{LogPolicy, Stream};
use crate::model::time::Clock;
use crate::redact::Redactor;

/// What is written within this time is noted as one, and a watcher of files need not look more often.
pub const NOTE_EVERY: Duration = Duration::from_millis(10);

/// Finds what must be masked.
pub trait Mask: Send {
    /// Where secrets stand in these bytes, in order.
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>>;

    /// How long a secret can be: what is found must not depend on bytes farther away than this.
    fn longest(&self) -> usize;
}

impl Mask for Arc<Redactor> {
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        Redactor::spans(self, bytes)
    }

    fn longest(&self) -> usize {
        Redactor::longest(self)
    }
}

/// The log of one attempt, being written.
///
/// The first error is reported once, by the call that meets it, and ends the log: every later call does nothing and
/// succeeds. Dropped without [`LogWriter::finish`] it is as if the process had been killed: what is written stays.
pub struct LogWriter {
    dir: OwnedFd,
    attempt: u32,
    mode: Mode,
    policy: LogPolicy,
    keep: Keep,
    clock: Arc<dyn Clock>,
    mask: Option<Box<dyn Mask>>,
    kept: [Option<KeptStream>; 2],
    index: Option<IndexWriter>,
    /// Whether the file system can give the middle of a file back, once it was asked.
    holes: Option<bool>,
    watched: Option<Watched>,
    trouble: Option<String>,
}

impl LogWriter {
    pub(crate) fn new(dir: OwnedFd, attempt: u32, mode: Mode, policy: LogPolicy, clock: Arc<dyn Clock>) -> Self {
        let keep = Keep::of(policy.cap);
        let (mask, kept, index, holes, watched, trouble) = (None, [None, None], None, None, None, None);
        Self { dir, attempt, mode, policy, keep, clock, mask, kept, index, holes, watched, trouble }
    }

    /// Has secrets masked in what is written from now on.
    #[must_use]
    pub fn masking(mut self, mask: Box<dyn Mask>) -> Self {
        self.mask = Some(mask);
        self
    }

    /// A file that a command can be given as its stdout or stderr: it appends, and stays what it is when this process
    /// dies. Where nothing is kept, or the log has ended, it is `/dev/null`.
    pub fn file(&mut self, stream: Stream) -> io::Result<OwnedFd> {
        if self.is_over() {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            return Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?);
        }
        let shared = self.kept(stream).and_then(|kept| kept.share());
        self.checked(shared)
    }

    /// Keeps bytes that the command wrote to a pipe or terminal of the caller.
    pub fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.is_over() || bytes.is_empty() {
            return Ok(());
        }
        let done = self.try_write(stream, bytes);
        self.checked(done)
    }

    /// Notes what the command has written to its files since. To be called when what [`LogWriter::watch`] was given becomes
    /// readable, not more often than every [`NOTE_EVERY`], and once in a while at least.
    pub fn note(&mut self) -> io::Result<()> {
        if let Some(watched) = &self.watched {
            watched.forget();
        }
        if self.is_over() {
            return Ok(());
        }
        let done = self.try_note();
        self.checked(done)
    }

    /// Notes what is left. Files that nothing was written to are removed.
    pub fn finish(self) -> io::Result<()> {
        self.finish_unless(|| false)
    }

    /// Ends the log, but leaves empty files where a process may still write to them.
    pub fn finish_unless(mut self, is_open: impl FnOnce() -> bool) -> io::Result<()> {
        self.note()?;
        let is_open = LazyCell::new(is_open);
        for stream in Stream::BOTH {
            if let Some(kept) = &self.kept[stream.index()]
                && kept.seen == 0
                && kept.size()? == 0
                && !*is_open
            {
                let _ = rustix::fs::unlinkat(&self.dir, self.name(stream.as_str()), AtFlags::empty());
            }
        }
        Ok(())
    }

    /// Has `growth` become readable when the files grow that were handed out; [`LogWriter::note`] makes it wait anew.
    pub fn watch(&mut self, growth: &Growth) -> io::Result<()> {
        let mut watched = Watched::by(growth);
        self.kept.iter().flatten().try_for_each(|kept| watched.add(kept.path()))?;
        self.watched = Some(watched);
        Ok(())
    }

    /// Why the log has ended before its attempt, if it has.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn is_over(&self) -> bool {
        self.policy.keeps_nothing() || self.trouble.is_some()
    }

    fn name(&self, kind: &str) -> String {
        name(self.attempt, kind)
    }

    fn kept(&mut self, stream: Stream) -> io::Result<&mut KeptStream> {
        let kept = match self.kept[stream.index()].take() {
            Some(kept) => kept,
            None => {
                let (file, index) = (self.name(stream.as_str()), self.name("log"));
                let kept = KeptStream::open(&self.dir, stream, &file, &index, self.mode)?;
                if let Some(watched) = &mut self.watched {
                    watched.add(kept.path())?;
                }
                kept
            }
        };
        Ok(self.kept[stream.index()].insert(kept))
    }

    fn index(&mut self) -> io::Result<&mut IndexWriter> {
        let index = match self.index.take() {
            Some(index) => index,
            None => IndexWriter::new(self.dir.try_clone()?, self.name("log"), self.mode),
        };
        Ok(self.index.insert(index))
    }

    fn try_write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let at = self.clock.now();
        let mask = self.mask.take();
        let kept = self.kept(stream);
        let written = kept.and_then(|kept| kept.write(bytes, mask.as_deref()).map(|()| kept.seen));
        self.mask = mask;
        let end = written?;
        self.index()?.bytes(at, stream, end, NOTE_EVERY)?;
        self.enforce(stream)
    }

    fn try_note(&mut self) -> io::Result<()> {
        for stream in Stream::BOTH {
            let Some(kept) = &mut self.kept[stream.index()] else { continue };
            let size = kept.size()?;
            if size == kept.seen {
                continue;
            }
            let at = self.clock.now();
            let cut = kept.look(size, self.keep, self.mask.as_deref())?;
            if let Some(cut) = cut {
                self.index()?.note(at, cut)?;
            }
            self.index()?.bytes(at, stream, size, NOTE_EVERY)?;
            self.enforce(stream)?;
        }
        Ok(())
    }

    /// Gives back to the disk what is too much.
    fn enforce(&mut self, stream: Stream) -> io::Result<()> {
        let Some(kept) = &mut self.kept[stream.index()] else { return Ok(()) };
        let Some(hole) = kept.too_much(self.keep) else { return Ok(()) };
        let at = self.clock.now();
        if !*self.holes.get_or_insert_with(|| kept.can_leave_out()) {
            let Some(cut) = kept.cut_to_head(self.keep, self.policy.cap) else { return Ok(()) };
            self.index()?.note(at, cut)?;
            return self.kept[stream.index()].as_ref().map_or(Ok(()), KeptStream::truncate);
        }
        // Noted first: a reader that finds nothing where something was can tell why.
        self.index()?.note(at, Entry::Hole { stream, from: hole.from, end: hole.end })?;
        match &mut self.kept[stream.index()] {
            Some(kept) => kept.leave_out(hole),
            None => Ok(()),
        }
    }

    /// Remembers the first error, which ends the log.
    fn checked<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        let Err(error) = done else { return done };
        let text = format!("the log of the attempt cannot be written any more: {error}");
        let at = self.clock.now();
        if let Ok(index) = self.index() {
            // It says so if there is room for that much.
            let _ = index.note(at, Entry::Stopped);
        }
        self.trouble = Some(text.clone());
        Err(io::Error::new(error.kind(), text))
    }
}

/// What a file of an attempt's log is called.
pub(super) fn name(attempt: u32, kind: &str) -> String {
    format!("{attempt:04}.{kind}")
}
