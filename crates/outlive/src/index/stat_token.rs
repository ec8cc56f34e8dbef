//! What a file looks like from outside, and when that can be relied on.
//!
//! The kernel's clock ticks: what is written twice within a tick may look the same. So a file is only believed to look as
//! it will once its last change lies further back than that.

use std::time::Duration;

use rustix::fs::Stat;

use crate::model::time::{Clock, SystemClock, Timestamp};

/// Two changes further apart than this have different times, on any kernel.
const TICK: Duration = Duration::from_millis(20);

/// What of a file changes with it: device, inode, size and times.
pub(super) fn parts(stat: &Stat) -> [u64; 7] {
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "the types differ between machines")]
    [
        stat.st_dev as u64,
        stat.st_ino as u64,
        stat.st_size as u64,
        stat.st_mtime as u64,
        stat.st_mtime_nsec as u64,
        stat.st_ctime as u64,
        stat.st_ctime_nsec as u64,
    ]
}

/// When it last changed, in content or otherwise.
pub(super) fn changed_at(stat: &Stat) -> Timestamp {
    let [.., seconds, nanos] = parts(stat);
    moment(seconds, nanos)
}

/// When it was last written.
pub(super) fn written_at(stat: &Stat) -> Timestamp {
    let [.., seconds, nanos, _, _] = parts(stat);
    moment(seconds, nanos)
}

fn moment(seconds: u64, nanos: u64) -> Timestamp {
    let micros = seconds.cast_signed().saturating_mul(1_000_000).saturating_add((nanos / 1_000).cast_signed());
    Timestamp::from_micros(micros)
}

/// Whether a change lies far enough back.
pub(super) fn is_past(changed: Timestamp) -> bool {
    was_past(changed, SystemClock.now())
}

/// Whether a change lay far enough back at a moment before it was looked at.
pub(super) fn was_past(changed: Timestamp, moment: Timestamp) -> bool {
    changed.after(TICK) < moment
}

/// How long it takes until a change lies far enough back; nothing where it does, or is ahead of the clock.
pub(super) fn until_past(changed: Timestamp) -> Option<Duration> {
    let wait = changed.after(TICK + Duration::from_millis(1)).since(SystemClock.now());
    (!wait.is_zero() && wait <= TICK * 2).then_some(wait)
}
