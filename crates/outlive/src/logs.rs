//! Logs: what an attempt wrote to its standard output and error, kept beside its other files.
//!
//! ```text
//! runs/<id>/attempts/0001.out   the bytes of its standard output, as they were written
//! runs/<id>/attempts/0001.err   the bytes of its standard error
//! runs/<id>/attempts/0001.log   when how much of each had been written: records of 32 bytes
//! ```
//!
//! The streams are plain files, so that a command can be given them as its own and outlives its watcher. The
//! watcher looks at how they have grown: it notes the time, masks secrets where they stand, and gives the middle of
//! what is too long back to the disk, in place, so that offsets stay what they were. A reader puts both streams
//! together again in the order of the notes. What was never noted, because the watcher was killed or had gone before the
//! last process, is read last, and masked as it is read.
//!
//! A log never hurts its command: what cannot be written ends the log and nothing else. Logs are not synced, and a
//! secret stands in the file of a command that writes there itself until the watcher has seen it.

mod absence;
mod growth;
mod index;
mod kept;
mod policy;
mod reader;
mod writer;

pub use self::absence::NoLog;
pub(crate) use self::absence::{decline, why_none};
pub use self::growth::Growth;
pub use self::policy::{InvalidBytes, LogPolicy, parse_bytes, show_bytes};
pub use self::reader::{LogReader, Part, Piece};
pub use self::writer::{LogWriter, Mask, NOTE_EVERY};

/// One of the two streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::Out, Self::Err];

    /// The word: `out` or `err`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
        }
    }

    /// Its place among both.
    pub fn index(self) -> usize {
        self as usize
    }
}
