//! Repeating what a step wrote: byte for byte, or not at all.

use std::os::fd::BorrowedFd;

use outlive::logs::{LogReader, Part, Stream};
use outlive::registry::Registry;
use outlive::run::Run;
use outlive::step::{Content, Digesting, StepOutcome};
use rustix::io::Errno;

use super::super::streams::write_all;
use crate::exec::descriptors::STANDARD;
use crate::ui::talk;

/// Whether all that the step wrote is there as it was. A log is capped, masked, not synced, and may be removed.
pub fn is_possible(registry: &Registry, step: &Run) -> bool {
    let Some(StepOutcome::Output { stdout, stderr }) = StepOutcome::of(step) else { return false };
    let is_kept = |stream: Stream, content: &Content| digest(registry, step, stream).as_ref() == Some(content);
    is_kept(Stream::Out, &stdout) && is_kept(Stream::Err, &stderr)
}

fn digest(registry: &Registry, step: &Run, stream: Stream) -> Option<Content> {
    let mut digest = Digesting::default();
    let Some(log) = read(registry, step)? else { return Some(digest.finish()) };
    let mut log = log.only(stream);
    loop {
        match log.next_piece().ok()?.map(|piece| piece.part) {
            Some(Part::Bytes(bytes)) => digest.update(&bytes),
            Some(Part::LeftOut(_)) => return None,
            None => return Some(digest.finish()),
        }
    }
}

/// The log of a step, if there is one; none where that is unknown.
fn read(registry: &Registry, step: &Run) -> Option<Option<LogReader>> {
    let mut log = registry.logs()?.read(step.id, step.attempt).ok()?;
    if let Some(log) = &mut log {
        log.read_unnoted(true);
    }
    Some(log)
}

/// Writes what the step wrote, in the same order and to the same streams. Answers with the exit status.
pub fn write(registry: &Registry, step: &Run) -> u8 {
    let Some(Some(mut log)) = read(registry, step) else { return 0 };
    // A reader that has seen enough is given no more.
    let mut is_wanted = [true; 2];
    loop {
        let (stream, bytes) = match log.next_piece() {
            Ok(Some(piece)) => match piece.part {
                Part::Bytes(bytes) => (piece.stream, bytes),
                Part::LeftOut(_) => return failed(&"it was cut meanwhile"),
            },
            Ok(None) => return 0,
            Err(error) => return failed(&error),
        };
        let (index, to): (usize, BorrowedFd<'_>) = match stream {
            Stream::Out => (0, STANDARD[1]),
            Stream::Err => (1, STANDARD[2]),
        };
        match write_all(to, if is_wanted[index] { &bytes } else { &[] }) {
            Ok(()) => {}
            Err(Errno::PIPE) => is_wanted[index] = false,
            Err(error) => return failed(&error),
        }
    }
}

fn failed(why: &dyn std::fmt::Display) -> u8 {
    talk(&format!("outlive: what the step wrote could not be repeated: {why}\n"));
    1
}
