//! Where a log is shown: a terminal, files, or a program that reads JSON.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outlive::error::Error;
use outlive::logs::{Part, Piece, Stream, show_bytes};
use outlive::time::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::Trouble;
use super::tame::Tame;

/// Where the pieces of a log go.
pub struct Screen {
    sides: [Side; 2],
    json: bool,
    timestamps: bool,
}

/// Where one stream goes.
struct Side {
    target: File,
    /// Makes harmless what a terminal would act on.
    tame: Option<Tame>,
    /// The next byte begins a line.
    begins_line: bool,
    /// The beginning of a character whose end is in the next piece.
    held: Vec<u8>,
    /// Of the last piece.
    at: Timestamp,
}

impl Screen {
    /// Both streams go to their likes, or the only one that is wanted to standard output.
    pub fn new(only: Option<Stream>, timestamps: bool, raw: bool, json: bool) -> Result<Self, Error> {
        let side = |fd: BorrowedFd<'_>| -> io::Result<Side> {
            let target = File::from(fd.try_clone_to_owned()?);
            let tame = (target.is_terminal() && !raw).then(Tame::default);
            Ok(Side { target, tame, begins_line: true, held: Vec::new(), at: Timestamp::default() })
        };
        let (out, err) = (io::stdout(), io::stderr());
        let errors_to = if only == Some(Stream::Err) || json { out.as_fd() } else { err.as_fd() };
        let sides = side(out.as_fd()).and_then(|first| Ok([first, side(errors_to)?]));
        let sides = sides.map_err(|error| Error::Invalid(format!("there is nowhere to write to: {error}")))?;
        Ok(Self { sides, json, timestamps })
    }

    fn side(&mut self, stream: Stream) -> &mut Side {
        &mut self.sides[usize::from(stream == Stream::Err)]
    }

    /// Shows a piece.
    pub fn show(&mut self, piece: &Piece) -> Result<(), Trouble> {
        let (json, timestamps) = (self.json, self.timestamps);
        match &piece.part {
            Part::Bytes(bytes) if json => {
                let side = self.side(piece.stream);
                side.at = piece.at;
                side.show_json(piece.stream, bytes, false)
            }
            Part::Bytes(bytes) => self.side(piece.stream).show(piece.at, bytes, timestamps),
            Part::LeftOut(count) if json => self.side(piece.stream).line(&json!({
                "at": piece.at, "stream": piece.stream.as_str(), "left_out": count
            })),
            Part::LeftOut(count) => self.say(&format!("{} left out here", show_bytes(*count))),
        }
    }

    /// Says something about the log, beside it.
    pub fn say(&mut self, what: &str) -> Result<(), Trouble> {
        if self.json {
            return Ok(());
        }
        let mut stderr = io::stderr();
        let line_is_open = stderr.is_terminal() && self.sides.iter().any(|side| !side.begins_line);
        let text = format!("{}[outlive: {what}]\n", if line_is_open { "\n" } else { "" });
        // A failure to report a failure is ignored.
        let _ = stderr.write_all(text.as_bytes());
        Ok(())
    }

    /// The log of an attempt is shown. It may have been cut short.
    pub fn end(&mut self, stopped: bool) -> Result<(), Trouble> {
        for stream in Stream::BOTH {
            let json = self.json;
            let side = self.side(stream);
            if json {
                side.show_json(stream, &[], true)?;
            } else if let Some(tame) = &mut side.tame {
                let rest = tame.end();
                side.write(rest.as_bytes())?;
            }
        }
        if stopped { self.say("the log ends here: it could not be written any more") } else { Ok(()) }
    }

    /// Whether the reader of standard output has gone.
    pub fn is_unread(&self) -> bool {
        let mut fds = [PollFd::new(&self.sides[0].target, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }
}

impl Side {
    fn show(&mut self, at: Timestamp, bytes: &[u8], timestamps: bool) -> Result<(), Trouble> {
        let tamed;
        let bytes = match &mut self.tame {
            Some(tame) => {
                tamed = tame.next(bytes);
                tamed.as_bytes()
            }
            None => bytes,
        };
        if !timestamps {
            self.begins_line = bytes.last().map_or(self.begins_line, |byte| *byte == b'\n');
            return self.write(bytes);
        }
        let mut stamped = Vec::with_capacity(bytes.len() + 32);
        // A line that is drawn again begins with its time again.
        for line in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            if self.begins_line {
                stamped.extend_from_slice(format!("{at} ").as_bytes());
            }
            stamped.extend_from_slice(line);
            self.begins_line = line.ends_with(b"\n") || line.ends_with(b"\r") && self.tame.is_some();
        }
        self.write(&stamped)
    }

    /// Text as text, and what is no text in base 64. A character in two pieces is put together first.
    fn show_json(&mut self, stream: Stream, bytes: &[u8], last: bool) -> Result<(), Trouble> {
        let mut bytes = [std::mem::take(&mut self.held).as_slice(), bytes].concat();
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
            && !last
        {
            self.held = bytes.split_off(error.valid_up_to());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.at;
        self.line(&match String::from_utf8(bytes) {
            Ok(text) => json!({ "at": at, "stream": stream.as_str(), "text": text }),
            Err(error) => json!({ "at": at, "stream": stream.as_str(), "data": STANDARD.encode(error.as_bytes()) }),
        })
    }

    fn line(&mut self, value: &Value) -> Result<(), Trouble> {
        self.write(format!("{value}\n").as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        match self.target.write_all(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Trouble::Unread),
            Err(error) => Err(Trouble::Failed(Error::Invalid(format!("the log cannot be shown: {error}")))),
        }
    }
}
