//! What the attempt that we own uses: sampled while we wait for its command.
//!
//! A sample adds up what its living processes have used and what those had that we have collected. It may cost a
//! thousandth of the time between two samples: where there are many processes to look at, it is taken less often.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use outlive::host::UsageReading;
use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use outlive::run::{State, Usage, UsagePoint};
use outlive::time::Timestamp;

/// When the first sample is taken; the second after as long again, and so on. A command that ends sooner is known by what
/// the kernel tells its parent.
const FIRST: Duration = Duration::from_millis(20);
/// How often a sample is taken of what has run for longer, unless it costs too much.
const EVERY: Duration = Duration::from_secs(2);
/// A sample is taken no more often than after so many times what the last one took.
const SHARE: u32 = 1_000;
/// What the kernel counts blocks in.
const BLOCK: u64 = 512;

/// Samples one attempt.
pub struct Meter {
    usage: Usage,
    began: Timestamp,
    /// What our children had used that we collected before this attempt.
    before: Collected,
    /// Since when it samples, in time awake.
    since: Duration,
    /// When the next sample is due, in time awake.
    next: Duration,
}

/// What the children have used that this process has collected.
#[derive(Debug, Clone, Copy)]
struct Collected {
    cpu: Duration,
    read: u64,
    written: u64,
    /// The most memory of one of them, in bytes.
    peak: u64,
}

impl Collected {
    fn now() -> Self {
        let seconds = |time: TimeVal| {
            Duration::new(
                time.tv_sec().unsigned_abs(),
                u32::try_from(time.tv_usec()).unwrap_or(0).saturating_mul(1_000),
            )
        };
        match getrusage(UsageWho::RUSAGE_CHILDREN) {
            Ok(usage) => Self {
                cpu: seconds(usage.user_time()) + seconds(usage.system_time()),
                read: usage.block_reads().unsigned_abs().saturating_mul(BLOCK),
                written: usage.block_writes().unsigned_abs().saturating_mul(BLOCK),
                peak: kilobytes(usage.max_rss()),
            },
            Err(_) => Self { cpu: Duration::ZERO, read: 0, written: 0, peak: 0 },
        }
    }
}

fn kilobytes(count: std::ffi::c_long) -> u64 {
    count.unsigned_abs().saturating_mul(1_024)
}

impl Meter {
    /// Begins with an attempt, or continues where an earlier owner of it has left off.
    pub fn begin(registry: &Registry, handle: &RunHandle) -> Self {
        let run = handle.run();
        let began = match &run.state {
            State::Running(running) => running.started_at,
            _ => registry.clock().now(),
        };
        let usage = run.usage.as_deref().cloned().unwrap_or_default();
        let since = registry.clock().awake();
        Self { usage, began, before: Collected::now(), since, next: since + FIRST }
    }

    /// When the next sample is due, in time awake.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Takes a sample where one is due: `read` looks at the living.
    pub fn look(&mut self, registry: &Registry, handle: &RunHandle, read: impl FnOnce() -> UsageReading) {
        let now = registry.clock().awake();
        if now < self.next {
            return;
        }
        let living = read();
        let dead = self.collected();
        self.usage.sample(UsagePoint {
            at_ms: millis(registry.clock().now().since(self.began)),
            cpu_ms: millis((living.cpu + dead.cpu).max(living.cpu_of_group)),
            memory_bytes: living.memory,
            read_bytes: living.read + dead.read,
            written_bytes: living.written + dead.written,
            processes: living.processes,
        });
        handle.note_usage(self.usage.clone());
        let after = registry.clock().awake();
        let usual = now.saturating_sub(self.since).clamp(FIRST, EVERY);
        self.next = after + usual.max(after.saturating_sub(now) * SHARE);
    }

    /// The command has ended and was collected. `left` is what those have used that it left behind.
    pub fn end(mut self, handle: &RunHandle, left: UsageReading) {
        let dead = self.collected();
        // A process begins with the memory of its parent: no more than ours may be ours.
        let own = getrusage(UsageWho::RUSAGE_SELF).map_or(u64::MAX, |usage| kilobytes(usage.max_rss()));
        let peak = Some(dead.peak).filter(|peak| *peak > own.max(self.before.peak));
        let cpu = (left.cpu + dead.cpu).max(left.cpu_of_group);
        self.usage.end(millis(cpu), left.read + dead.read, left.written + dead.written, peak);
        handle.note_usage(self.usage);
    }

    /// What those have used that were collected since the attempt began.
    fn collected(&self) -> Collected {
        let (now, before) = (Collected::now(), &self.before);
        Collected {
            cpu: now.cpu.saturating_sub(before.cpu),
            read: now.read.saturating_sub(before.read),
            written: now.written.saturating_sub(before.written),
            ..now
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
